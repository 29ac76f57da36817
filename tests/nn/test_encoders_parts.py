"""Every encoder on samples, rows and pieces of a graph: the embeddings, gradients and importances of the whole."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor

from ipal.backend import attention
from ipal.backend.batches import Sampler, around, sampled
from ipal.backend.runtime import Runtime
from ipal.config import Sampling
from ipal.data.csr import Norm
from ipal.data.graph import Graph
from ipal.data.task import Task
from ipal.nn import embed
from ipal.nn.head import Head
from ipal.nn.network import Network
from ipal.nn.per_node_gradients import network_importance
from ipal.system.memory_budget import Budget
from tests.nn.encoders_support import GRAPHS, KINDS, READING_NEIGHBOURS, WEIGHTED, embedded, encoder
from tests.nn.support import CPU, HERE

ALL = GRAPHS | WEIGHTED
EVERY_GRAPH = pytest.mark.parametrize("some", ALL.values(), ids=ALL.keys())


def some_task(some: Graph) -> Task:
    nodes = np.array([3, 0, 4]) if some.num_nodes < 20 else np.array([17, 3, 29, 8, 0])
    return Task(some, nodes, np.arange(len(nodes)) % 2)


# ------------------------------------------------------------------ samples


def test_weights_count_in_samples_of_every_norm_and_a_sum_is_right_in_the_mean() -> None:
    some, draws = WEIGHTED["weighted"], 600
    sampler, nodes, generator = Sampler.of(some, CPU), torch.arange(30), torch.Generator().manual_seed(0)

    def dense(fanout: Any, norm: Norm) -> np.ndarray:
        rows = sampler.with_norm(sampler.rows(nodes, fanout, generator), nodes, norm)
        parts = (rows.values.numpy(), rows.indices.numpy(), rows.indptr.numpy())
        return sp.csr_array(parts, shape=rows.shape).toarray()

    norms: tuple[Norm, ...] = ("symmetric", "mean", "sum")
    for norm in norms:
        np.testing.assert_allclose(dense("all", norm), some.aggregation(norm).toarray(), rtol=1e-5)
    whole = some.aggregation("sum").toarray()
    mean = sum(dense(2, "sum").astype(np.float64) for _ in range(draws)) / draws
    error = whole * np.sqrt(np.diff(some.neighbours.indptr).clip(2)[:, None] / 2 / draws)
    assert (np.abs(mean - whole) <= 5 * error + 1e-6).all()
    assert np.abs(mean - whole).max() > 0  # they are samples
    has_neighbours = np.diff(some.neighbours.indptr) > 0
    np.testing.assert_allclose(dense(1, "mean").sum(axis=1), has_neighbours, rtol=1e-6)


@EVERY_GRAPH
@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_of_all_neighbours_gives_the_embeddings_and_gradients_of_the_whole_graph(
    kind: str, some: Graph
) -> None:
    task, network = some_task(some), encoder(kind, some.num_features, layers=3)
    (batch,) = sampled(task, Sampling(nodes=1000, fanouts=("all",) * 3), 0, HERE, network.needs)
    whole, sample = embedded(network, task), network(batch.graph)
    torch.testing.assert_close(sample, whole, rtol=1e-4, atol=1e-5)
    direction = torch.randn(whole.shape, generator=torch.Generator().manual_seed(3))
    found, expected = (
        torch.autograd.grad((f * direction).sum(), [*network.parameters()], allow_unused=True, materialize_grads=True)
        for f in (sample, whole)
    )
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5 * (1 + float(b.abs().max())))


@pytest.mark.parametrize("kind", READING_NEIGHBOURS)
def test_small_samples_change_embeddings(kind: str) -> None:
    some, network = GRAPHS["undirected"], encoder(kind, 7)
    nodes, generator = torch.arange(30), torch.Generator().manual_seed(0)
    found = network(around(some, nodes, (1, 1), network.needs, generator))
    assert found.shape == (30, 4)
    assert found.isfinite().all()
    assert not torch.allclose(found, embedded(network, some), atol=1e-3)


# ------------------------------------------------------------------ rows, pieces


@EVERY_GRAPH
@pytest.mark.parametrize("kind", KINDS)
def test_a_task_gets_the_rows_of_its_training_nodes(kind: str, some: Graph) -> None:
    task, network = some_task(some), encoder(kind, some.num_features)
    expected = embedded(network, some)[torch.from_numpy(task.nodes)]
    torch.testing.assert_close(embedded(network, task), expected, rtol=1e-5, atol=1e-5)


@EVERY_GRAPH
@pytest.mark.parametrize("kind", KINDS)
def test_embeddings_in_pieces_are_those_of_the_whole(kind: str, some: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embed, "VALUES_AT_ONCE", 100)
    monkeypatch.setattr(embed, "EDGES_AT_ONCE", 20)
    monkeypatch.setattr(attention, "VALUES_AT_ONCE", 50)
    network = encoder(kind, some.num_features, layers=3, last_activation="relu")
    whole = embedded(network, some).detach()
    short = Runtime.of(budget=Budget(0))
    assert not embed.fits(some, short.budget)
    pieces = embed.embeddings(network, some, short)
    torch.testing.assert_close(pieces, whole, rtol=1e-4, atol=1e-5)
    rows = embed.embeddings(network, some_task(some), short)
    torch.testing.assert_close(rows, whole[some_task(some).nodes], rtol=1e-4, atol=1e-5)


# ------------------------------------------------------------------ importances


@pytest.mark.parametrize("size", [torch.square, torch.abs])
@pytest.mark.parametrize("form", ["undirected", "sparse features", "weighted", "weighted, sparse features"])
@pytest.mark.parametrize("kind", KINDS)
def test_importances_are_those_of_one_backward_pass_a_node(
    kind: str, form: str, size: Callable[[Tensor], Tensor]
) -> None:
    task = some_task(ALL[form])
    head = Head(4)
    network = Network(encoder(kind, task.graph.num_features, layers=3, last_activation="relu"), head)
    head.grow(3, torch.Generator().manual_seed(0))
    g = torch.randn(len(task.nodes), 3, generator=torch.Generator().manual_seed(3))
    parameters = dict(network.named_parameters())
    outputs = head(embedded(network.encoder, task))
    expected = {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
    for row, gradient in zip(outputs, g, strict=True):
        parts = torch.autograd.grad(row @ gradient, [*parameters.values()], retain_graph=True)
        for name, part in zip(parameters, parts, strict=True):
            expected[name] += size(part) / len(g)
    found = network_importance(network, task, g, size, HERE)
    assert list(found) == list(parameters)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-6 * (1 + float(value.max())))
