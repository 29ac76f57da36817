"""Weights of edges in every method: learned from, kept, saved and continued."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import ipal
from ipal.backend.runtime import Runtime
from ipal.config import EncoderConfig, ProtocolConfig, Sampling
from ipal.data.datasets import Dataset
from ipal.data.graph import Graph
from ipal.data.streams import Task, TaskStream, default_split
from ipal.learners import EWC, METHODS, Learner
from ipal.learners.checks import MisfitError
from ipal.learners.exemplars import disjoint_union, excerpt, task_of_tensors, task_tensors
from ipal.learners.from_pyg import graph_of
from ipal.learners.state import State
from ipal.learners.trained import TrainedLearner
from ipal.nn.encoders import ENCODERS
from ipal.system.memory_budget import Budget
from tests.data.test_edge_weights import weighed_graph
from tests.learning import learn, make
from tests.engine.test_bits import assert_same_bits
from tests.estimator.test_estimator import EVERY_METHOD, data_of
from tests.engine.test_minibatches import CHOOSING

TRAINED = [method for method in METHODS.values() if issubclass(method, TrainedLearner)]
FEW: dict[str, dict[str, Any]] = {"analytic": {"width": 16, "steps": 1}}


@pytest.fixture(scope="module")
def weighted(tiny: Dataset) -> TaskStream:
    """The tasks of a small graph, with a weight for every edge, the same both ways."""
    graph = tiny.graph
    weights = np.random.default_rng(0).uniform(0.05, 4, (graph.num_nodes, graph.num_nodes)).astype(np.float32)
    rows = graph.neighbours.targets(0, graph.num_nodes)
    chosen = np.maximum(weights, weights.T)[rows, graph.indices]
    heavy = Graph.of(graph.x, replace(graph.neighbours, weights=chosen), symmetric=True)
    return TaskStream(heavy, tiny.y, default_split(tiny.num_classes), ProtocolConfig(), seed=0)


def small(method: type[Learner], **options: Any) -> Any:
    return make(method, epochs=2, **FEW.get(method.name, {}), **options)


def with_weights(data: Data, weights: Any) -> Data:
    return Data(**{**data.to_dict(), "edge_weight": weights})


def heavier(data: Data) -> Data:
    return with_weights(data, torch.linspace(0.2, 3, data.edge_index.shape[1]))


@EVERY_METHOD
def test_weights_of_one_give_the_bits_of_no_weights_and_others_do_not(
    method: type[Learner], tiny_stream: TaskStream
) -> None:
    tasks = [data_of(tiny_stream, index) for index in range(2)]
    none, ones, heavy = small(method), small(method), small(method)
    for data in tasks:
        none.partial_fit(data)
        ones.partial_fit(with_weights(data, torch.ones(data.edge_index.shape[1])))
        heavy.partial_fit(heavier(data))
    assert_same_bits(none, ones)
    graph, weighed = graph_of(tasks[0]), graph_of(heavier(tasks[0]))
    expected = none.scores(graph)
    assert torch.equal(ones.scores(graph), expected)
    for other in (heavy.scores(graph), none.scores(weighed)):
        assert (other - expected).abs().max() > 1e-4 * expected.abs().max()


@pytest.mark.parametrize(
    ("method", "kind"), [*((method, "gcn") for method in TRAINED), *((EWC, kind) for kind in ENCODERS if kind != "gcn")]
)
def test_batches_of_everything_learn_what_whole_tasks_learn(
    method: type[Learner], kind: str, weighted: TaskStream
) -> None:
    encoder = EncoderConfig(kind=kind, hidden=16, width=8, heads=2)
    everything = Sampling(nodes=10_000, fanouts=("all", "all"))
    tasks = [weighted.task(index) for index in range(1 if method.name in CHOOSING else 2)]
    assert all(task.graph.is_weighted for task in tasks)
    whole = learn(small(method, encoder=encoder), *tasks)
    sampled = learn(small(method, encoder=encoder, batch=everything), *tasks)
    limited = small(method, encoder=encoder)
    limited.runtime_ = Runtime.of(budget=Budget(0))
    learn(limited, *tasks)
    graph = tasks[0].graph
    expected = whole.scores(graph).detach()
    for other in (sampled, limited):
        torch.testing.assert_close(other.scores(graph).detach(), expected, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("method", ["ncm", "slda", "analytic"])
def test_without_training_rows_in_pieces_are_those_at_once(method: str, weighted: TaskStream) -> None:
    tasks = [weighted.task(index) for index in range(2)]
    whole, limited = small(METHODS[method]), small(METHODS[method])
    limited.runtime_ = Runtime.of(budget=Budget(0))
    a, b = (learn(learner, *tasks).scores(tasks[0].graph) for learner in (whole, limited))
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["gcn", "linear", "appnp", "sage", "gat", "gin", "skip"])
def test_every_encoder_counts_the_weights_at_once_and_in_pieces(kind: str, tiny_stream: TaskStream) -> None:
    plain = tiny_stream.task(0)
    graph, _ = weighed_graph()
    x = np.random.default_rng(3).standard_normal((40, plain.graph.num_features)).astype(np.float32)
    faint = np.full(graph.num_edges, 1e-9, dtype=np.float32)
    heavy, unweighted, barely = (
        Graph.of(x, replace(graph.neighbours, weights=weights)) for weights in (graph.neighbours.weights, None, faint)
    )
    learner = learn(make(METHODS["bare"], epochs=1, encoder=EncoderConfig(kind=kind, hidden=8, width=8)), plain)
    whole = learner.represent(heavy)
    assert not torch.allclose(whole, learner.represent(unweighted), atol=1e-3)
    limited = make(METHODS["bare"], epochs=1, encoder=EncoderConfig(kind=kind, hidden=8, width=8))
    limited.runtime_ = replace(limited.runtime_, budget=Budget(1))
    limited.restore(learner.state())
    torch.testing.assert_close(limited.represent(heavy), whole, atol=1e-5, rtol=1e-4)
    # A mean does not depend on the scale of weights; other sums over neighbours fade with them.
    alone = Graph.of(x, type(graph.neighbours).none(40))
    faded = learner.represent(unweighted if kind == "sage" else alone)
    torch.testing.assert_close(learner.represent(barely), faded, atol=1e-4, rtol=1e-3)


# ---------------------------------------------------------------------- kept nodes


def test_kept_tasks_keep_the_weights(weighted: TaskStream, tiny_stream: TaskStream) -> None:
    one, plain = weighted.task(0), tiny_stream.task(1)
    both = disjoint_union(one, plain)
    n = one.graph.num_nodes
    a = both.graph.aggregation("sum").toarray()
    assert np.array_equal(a[:n, :n], one.graph.aggregation("sum").toarray())
    assert np.array_equal(a[n:, n:], plain.graph.adjacency.toarray())
    near = excerpt(one, np.arange(3), hops=1)
    assert near.graph.is_weighted
    for task in (both, near):
        rows = torch.from_numpy(np.searchsorted(np.unique(task.labels), task.labels))
        tensors = task_tensors(task, rows, "kept")
        back = task_of_tensors(tensors, "kept", np.unique(task.labels), task.graph.num_features)
        assert np.array_equal(back.graph.indices, task.graph.indices)
        assert np.array_equal(back.graph.neighbours.weights, task.graph.neighbours.weights)  # type: ignore[arg-type]
    assert "kept.edge_weight" not in task_tensors(plain, torch.from_numpy(plain.labels), "kept")


@pytest.mark.parametrize(
    "wrong",
    [np.ones(2, np.float32), np.full(1, -1, np.float32), np.full(1, np.nan, np.float32), np.ones(1)],
    ids=["too many", "negative", "NaN", "float64"],
)
def test_kept_weights_that_are_none_are_refused(wrong: np.ndarray) -> None:
    graph = Graph(np.ones((2, 1), np.float32), np.array([[0], [1]]), np.full(1, 2, np.float32))
    tensors = task_tensors(Task(graph, np.array([0]), np.array([5])), torch.tensor([0]), "kept")
    assert task_of_tensors(tensors, "kept", np.array([5]), 1).graph.is_weighted
    with pytest.raises(MisfitError, match="no part of a graph"):
        task_of_tensors(tensors | {"kept.edge_weight": torch.from_numpy(wrong)}, "kept", np.array([5]), 1)


@pytest.mark.parametrize("method", ["gem", "joint", "er-gnn", "analytic", "ipal"])
def test_saved_and_loaded_a_learner_goes_on_to_the_same_bits(method: str, weighted: TaskStream, tmp_path: Any) -> None:
    kind = METHODS[method]
    straight = learn(small(kind), *(weighted.task(index) for index in range(3)))
    first = learn(small(kind), *(weighted.task(index) for index in range(2)))
    graph = weighted.task(0).graph
    first.save(tmp_path / "model.safetensors")
    assert torch.equal(ipal.load(tmp_path / "model.safetensors").scores(graph), first.scores(graph))
    first.state().save(tmp_path / "checkpoint.safetensors")
    again = small(kind)
    again.restore(State.load(tmp_path / "checkpoint.safetensors"))
    assert_same_bits(learn(again, weighted.task(2)), straight)
    kept = [name for name in straight.state().tensors if name.endswith("edge_weight")]
    assert bool(kept) == (method in ("gem", "joint"))
