"""Weights of edges in every method: learned from, kept, saved and continued."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from ipal.backend.checks import MisfitError
from ipal.backend.runtime import Runtime
from ipal.config import EncoderConfig, ProtocolConfig, Sampling
from ipal.data.csr import Neighbours
from ipal.data.datasets import Dataset
from ipal.data.graph import Graph
from ipal.data.streams import TaskStream, default_split
from ipal.data.task import Task
from ipal.estimator import files
from ipal.estimator.convert.pyg import task_of
from ipal.estimator.model import Model
from ipal.estimator.registry import METHODS
from ipal.estimator.settings import LearnerConfig
from ipal.methods.base import Method, Trained
from ipal.methods.ewc import EWC
from ipal.methods.shared.exemplars import disjoint_union, excerpt
from ipal.nn.encoders import ENCODERS
from ipal.state.snapshot import Snapshot
from ipal.state.stored_tasks import task_of_tensors, task_tensors
from ipal.system.memory_budget import Budget
from tests.data.test_edge_weights import weighed_graph
from tests.engine.test_minibatches import CHOOSING
from tests.estimator.test_estimator import data_of
from tests.learning import CPU, config, learn

EVERY_METHOD = pytest.mark.parametrize("method", list(METHODS.values()), ids=list(METHODS))
TRAINED = [method for method in METHODS.values() if issubclass(method, Trained)]
FEW: dict[str, dict[str, Any]] = {"analytic": {"width": 16, "steps": 1}}


@pytest.fixture(scope="module")
def weighted(tiny: Dataset) -> TaskStream:
    """The tasks of a small graph, with a weight for every edge, the same both ways."""
    graph = tiny.graph
    weights = np.random.default_rng(0).uniform(0.05, 4, (graph.num_nodes, graph.num_nodes)).astype(np.float32)
    rows = graph.neighbours.targets(0, graph.num_nodes)
    chosen = np.maximum(weights, weights.T)[rows, graph.neighbours.indices]
    heavy = Graph(graph.x, replace(graph.neighbours, weights=chosen), symmetric=True)
    return TaskStream(heavy, tiny.y, default_split(tiny.num_classes), ProtocolConfig(), seed=0)


def small(method: type[Method], **options: Any) -> LearnerConfig:
    return config(method, epochs=2, **FEW.get(method.name, {}), **options)


def with_weights(data: Data, weights: Any) -> Data:
    return Data(**{**data.to_dict(), "edge_weight": weights})


def heavier(data: Data) -> Data:
    return with_weights(data, torch.linspace(0.2, 3, data.edge_index.shape[1]))


def assert_same_tensors(a: Model, b: Model) -> None:
    left, right = files.checkpoint(a).tensors, files.checkpoint(b).tensors
    assert left.keys() == right.keys()
    assert all(torch.equal(tensor, right[name]) for name, tensor in left.items())


@EVERY_METHOD
def test_weights_of_one_give_the_bits_of_no_weights_and_others_do_not(
    method: type[Method], tiny_stream: TaskStream
) -> None:
    given = [data_of(tiny_stream, index) for index in range(2)]
    weighing = (lambda data: data, lambda data: with_weights(data, torch.ones(data.edge_index.shape[1])), heavier)
    none, ones, heavy = (learn(small(method), *(task_of(weigh(data)) for data in given)) for weigh in weighing)
    assert_same_tensors(none, ones)
    graph, weighed = task_of(given[0]).graph, task_of(heavier(given[0])).graph
    expected = none.forward(graph).scores
    assert torch.equal(ones.forward(graph).scores, expected)
    for other in (heavy.forward(graph).scores, none.forward(weighed).scores):
        assert (other - expected).abs().max() > 1e-4 * expected.abs().max()


@pytest.mark.parametrize(
    ("method", "kind"), [*((method, "gcn") for method in TRAINED), *((EWC, kind) for kind in ENCODERS if kind != "gcn")]
)
def test_batches_of_everything_learn_what_whole_tasks_learn(
    method: type[Method], kind: str, weighted: TaskStream
) -> None:
    encoder = EncoderConfig(kind=kind, hidden=16, width=8, heads=2)
    everything = Sampling(nodes=10_000, fanouts=("all", "all"))
    tasks = [weighted.task(index) for index in range(1 if method.name in CHOOSING else 2)]
    assert all(task.graph.neighbours.weights is not None for task in tasks)
    whole = learn(small(method, encoder=encoder), *tasks)
    sampled = learn(small(method, encoder=encoder, batch=everything), *tasks)
    limited = learn(small(method, encoder=encoder), *tasks, runtime=Runtime.of(budget=Budget(0)))
    graph = tasks[0].graph
    expected = whole.forward(graph).scores.detach()
    for other in (sampled, limited):
        torch.testing.assert_close(other.forward(graph).scores.detach(), expected, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("kind", ["gcn", "appnp", "sage", "gat", "skip"])
def test_every_encoder_counts_the_weights_at_once_and_in_pieces(kind: str, tiny_stream: TaskStream) -> None:
    plain = tiny_stream.task(0)
    graph, _ = weighed_graph()
    x = np.random.default_rng(3).standard_normal((40, plain.graph.num_features)).astype(np.float32)
    faint = np.full(graph.num_edges, 1e-9, dtype=np.float32)
    heavy, unweighted, barely = (
        Graph(x, replace(graph.neighbours, weights=weights)) for weights in (graph.neighbours.weights, None, faint)
    )
    encoder = EncoderConfig(kind=kind, hidden=8, width=8)
    model = learn(config(METHODS["bare"], epochs=1, encoder=encoder), plain)
    whole = model.embed(heavy)
    assert not torch.allclose(whole, model.embed(unweighted), atol=1e-3)
    limited = replace(model, runtime=Runtime.of(budget=Budget(1)))
    torch.testing.assert_close(limited.embed(heavy), whole, atol=1e-5, rtol=1e-4)
    # A mean does not depend on the scale of weights; other sums over neighbours fade with them.
    alone = Graph(x, np.zeros((2, 0), dtype=np.int64))
    faded = model.embed(unweighted if kind == "sage" else alone)
    torch.testing.assert_close(model.embed(barely), faded, atol=1e-4, rtol=1e-3)


# ---------------------------------------------------------------------- kept nodes


def test_kept_tasks_keep_the_weights(weighted: TaskStream, tiny_stream: TaskStream) -> None:
    one, plain = weighted.task(0), tiny_stream.task(1)
    both = disjoint_union(one, plain)
    n = one.graph.num_nodes
    a = both.graph.aggregation("sum").toarray()
    assert np.array_equal(a[:n, :n], one.graph.aggregation("sum").toarray())
    assert np.array_equal(a[n:, n:], plain.graph.aggregation("sum").toarray())
    near = excerpt(one, np.arange(3), hops=1)
    assert near.graph.neighbours.weights is not None
    for task in (both, near):
        back = task_of_tensors(task_tensors(task, "kept"), "kept", 6, task.graph.num_features)
        assert np.array_equal(back.graph.neighbours.indices, task.graph.neighbours.indices)
        assert np.array_equal(back.graph.neighbours.weights, task.graph.neighbours.weights)  # type: ignore[arg-type]
    assert "kept.edge_weight" not in task_tensors(plain, "kept")


@pytest.mark.parametrize(
    "wrong",
    [np.ones(2, np.float32), np.full(1, -1, np.float32), np.full(1, np.nan, np.float32)],
    ids=["too many", "negative", "NaN"],
)
def test_kept_weights_that_are_none_are_refused(wrong: np.ndarray) -> None:
    heavy = Neighbours.of_edges(np.array([[0], [1]]), 2, weights=np.full(1, 2, np.float32))
    graph = Graph(np.ones((2, 1), np.float32), heavy)
    tensors = task_tensors(Task(graph, np.array([0]), np.array([0])), "kept")
    assert task_of_tensors(tensors, "kept", 1, 1).graph.neighbours.weights is not None
    with pytest.raises(MisfitError, match="no part of a graph"):
        task_of_tensors(tensors | {"kept.edge_weight": torch.from_numpy(wrong)}, "kept", 1, 1)


@pytest.mark.parametrize("method", ["gem", "joint", "er-gnn", "analytic", "ipal"])
def test_saved_and_loaded_a_learner_goes_on_to_the_same_bits(method: str, weighted: TaskStream, tmp_path: Any) -> None:
    first = learn(small(METHODS[method]), weighted.task(0), weighted.task(1))
    straight, graph = learn(first, weighted.task(2)), weighted.task(0).graph
    files.save(first, tmp_path / "model.safetensors")
    assert torch.equal(files.load(tmp_path / "model.safetensors").forward(graph).scores, first.forward(graph).scores)
    files.checkpoint(first).save(tmp_path / "checkpoint.safetensors")
    read = Snapshot.load(tmp_path / "checkpoint.safetensors")
    again = files.restored(first.config, read, CPU, whole=True, source="The checkpoint")
    assert_same_tensors(learn(again, weighted.task(2)), straight)
    kept = [name for name in files.checkpoint(straight).tensors if name.endswith("edge_weight")]
    assert bool(kept) == (method in ("gem", "joint"))
