"""NCM and SLDA: the order of tasks does not matter, and neither does cutting them."""

from functools import partial

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from ipal.backend.propagated import BLOCK
from ipal.backend.runtime import Runtime
from ipal.data.csr import Neighbours
from ipal.data.graph import Graph
from ipal.data.streams import TaskStream
from ipal.data.task import Task
from ipal.errors import CapacityError
from ipal.estimator.model import Model, empty_model
from ipal.estimator.open_world.calibration import usual_by_means
from ipal.methods.ncm import NCM
from ipal.methods.shared import scatter
from ipal.methods.shared.exemplars import disjoint_union
from ipal.methods.shared.propagated_features import FeatureSums
from ipal.methods.shared.scatter import ScatterMemory
from ipal.methods.slda import SLDA
from ipal.nn import compute
from ipal.nn.compute import GraphCompute
from ipal.state.value import flatten
from ipal.system import free_memory
from ipal.system.memory_budget import Budget
from tests.learning import CPU, config, learn, learned

COMPUTE = GraphCompute(CPU)
USUAL = (10, 0.15)
"""Steps and restart, where nothing is set."""

BOTH = pytest.mark.parametrize("method", [NCM, SLDA], ids=lambda m: m.name)


def by_label(model: Model, graph: Graph) -> np.ndarray:
    """Scores with the classes in the order of their labels."""
    return model.forward(graph).scores.numpy()[:, np.argsort(model.labels)]


@BOTH
def test_the_order_of_tasks_does_not_matter_and_all_at_once_gives_the_same(method, tiny_stream: TaskStream):
    tasks = [tiny_stream.task(index) for index in range(3)]
    forth, back = learn(config(method), *tasks), learn(config(method), *reversed(tasks))
    together = learn(config(method), disjoint_union(disjoint_union(*tasks[:2]), tasks[2]))
    for task in tasks:
        expected = by_label(forth, task.graph)
        for other in (back, together):
            np.testing.assert_allclose(by_label(other, task.graph), expected, rtol=1e-3, atol=1e-3)
            assert np.array_equal(other.predict_graph(task.graph).labels, forth.predict_graph(task.graph).labels)


@BOTH
def test_a_class_that_comes_in_parts_is_the_class_that_comes_whole(method, tiny_stream: TaskStream):
    task = tiny_stream.task(0)
    order = np.argsort(COMPUTE.propagated(task.graph, *USUAL)[task.nodes, 0], kind="stable")  # parts that differ
    first, second = (Task(task.graph, task.nodes[half], task.labels[half]) for half in np.array_split(order, 2))
    parts, whole = learn(config(method), first, second), learn(config(method), task)
    np.testing.assert_allclose(by_label(parts, task.graph), by_label(whole, task.graph), rtol=1e-3, atol=1e-3)
    assert parts.nodes_behind_class() == whole.nodes_behind_class()


@BOTH
@pytest.mark.parametrize("steps", [0, 3])
def test_sparse_features_are_learned_as_dense_ones_are(method, steps, tiny_stream: TaskStream):
    task = tiny_stream.task(0)
    thin = Task(Graph(sp.csr_array(task.graph.x), task.graph.edges), task.nodes, task.labels)
    dense, sparse = (learn(config(method, steps=steps), one) for one in (task, thin))
    np.testing.assert_allclose(
        sparse.forward(thin.graph).scores.numpy(), dense.forward(task.graph).scores.numpy(), rtol=1e-3, atol=1e-3
    )


def test_ncm_by_cosine_does_not_ask_for_the_length_of_features(tiny_stream: TaskStream):
    task = tiny_stream.task(0)
    model = learned(NCM, tiny_stream, 1)
    longer = Graph(7 * task.graph.x, task.graph.edges)
    first, second = (model.probabilities(model.forward(graph).scores, graph).numpy() for graph in (task.graph, longer))
    np.testing.assert_allclose(second, first, rtol=1e-4, atol=1e-6)
    # A probability ratio is the exponential of a difference of cosines, divided by tau.
    assert np.abs(np.log(first[:, 0] / first[:, 1])).max() <= 2 / model.method.tau + 1e-4
    nothing = Graph(np.zeros((1, 16), dtype=np.float32), np.zeros((2, 0), dtype=np.int64))
    assert model.forward(nothing).scores.tolist() == [[0.0, 0.0]]
    assert model.probabilities(model.forward(nothing).scores, nothing).tolist() == [[0.5, 0.5]]


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_sums_and_products_are_those_of_propagated_features(steps, tiny_stream: TaskStream):
    task = tiny_stream.task(0)
    model = learned(NCM, tiny_stream, 1, steps=steps)
    x, sums = COMPUTE.propagated(task.graph, steps, model.config.method.restart), model.state.memory
    for row, label in enumerate(model.labels):
        own = x[task.nodes[task.labels == label]]
        np.testing.assert_allclose(sums.sum[row].numpy(), own.sum(axis=0), rtol=1e-4, atol=1e-5)
    products = COMPUTE.products(task.graph, sums.mean, steps, model.config.method.restart)
    np.testing.assert_allclose(products, x @ sums.mean.numpy().T, rtol=1e-4, atol=1e-5)


def test_slda_takes_in_a_class_in_pieces_as_at_once(tiny_stream: TaskStream, monkeypatch):
    tasks = tiny_stream.task(0), tiny_stream.task(1), tiny_stream.task(0)  # whose classes come again
    whole = learn(config(SLDA), *tasks).state.memory.scatter
    monkeypatch.setattr(scatter, "ROWS_AT_ONCE", 7)
    torch.testing.assert_close(learn(config(SLDA), *tasks).state.memory.scatter, whole, rtol=1e-4, atol=1e-4)


def test_slda_predicts_as_scikit_learns_discriminant_analysis(tiny_stream: TaskStream):
    model = learned(SLDA, tiny_stream, 3, shrinkage=1e-5)
    x, y = training_rows(tiny_stream)
    counts = np.bincount(y)
    # There a class's share in the covariance is its prior; afterwards all are equally likely, as here.
    reference = LinearDiscriminantAnalysis(solver="lsqr", priors=counts / counts.sum()).fit(x, y)
    reference.intercept_ -= np.log(reference.priors_)
    agree = []
    for index in range(3):
        graph = tiny_stream.task(index).graph
        agree.append(model.predict_graph(graph).labels == reference.predict(COMPUTE.propagated(graph, *USUAL)))
    assert np.mean(np.concatenate(agree)) > 0.99


def test_scores_of_class_means_by_hand():
    # Means at 0, 1 and 3 on a line, and a variance of 1/4: weights of 4 times these, offsets of -2 times their squares.
    means = torch.tensor([[0.0], [1.0], [3.0]])
    sums = FeatureSums(2 * means, torch.full((3,), 2))
    memory = ScatterMemory(sums, torch.tensor([[3 / 4]]))  # of six nodes in three classes
    logs = SLDA().mean_logs(memory)
    assert logs.tolist() == [[0, -2, -18], [0, 2, -6], [0, 10, 18]]
    # Ahead of the nearest other by 2 (0 over 1), 2 (1 over 0), 8 (3 over 1): margins of nodes grow with these.
    usual = usual_by_means(logs)
    assert (usual.margin.tolist(), usual.spread.tolist()) == ([0, 0, 0], [2, 2, 8])
    # In a plane, of directions at right angles and halfway between, by a temperature of 1/2.
    sums = FeatureSums(torch.tensor([[2.0, 0], [0, 3], [1, 1]]), torch.tensor([2, 1, 1]))
    half = 2 * 0.5**0.5
    torch.testing.assert_close(
        NCM(tau=0.5).mean_logs(sums), torch.tensor([[2, 0, half], [0, 2, half], [half, half, 2]])
    )


def test_slda_covariance_is_the_one_within_classes(tiny_stream: TaskStream):
    memory = learned(SLDA, tiny_stream, 3).state.memory
    x, y = training_rows(tiny_stream)
    means = np.stack([x[y == label].mean(axis=0) for label in range(6)])
    centred = x.astype(np.float64) - means[y]
    np.testing.assert_allclose(memory.scatter.numpy(), centred.T @ centred, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(memory.sums.mean, torch.from_numpy(means), rtol=1e-4, atol=1e-5)


def training_rows(stream: TaskStream) -> tuple[np.ndarray, np.ndarray]:
    """Propagated features and labels of all training nodes."""
    tasks = [stream.task(index) for index in range(len(stream))]
    return (
        np.concatenate([COMPUTE.propagated(task.graph, *USUAL)[task.nodes] for task in tasks]),
        np.concatenate([task.labels for task in tasks]),
    )


@BOTH
@pytest.mark.parametrize(("directed", "sparse"), [(False, False), (True, True)])
def test_where_memory_is_short_the_propagation_is_never_there_as_a_whole(
    method, directed: bool, sparse: bool, tiny_stream: TaskStream, monkeypatch: pytest.MonkeyPatch
):
    def copied(task: Task) -> Task:
        x = np.maximum(task.graph.x, 0)
        edges = task.graph.edges[:, :-40] if directed else task.graph.edges
        return Task(Graph(sp.csr_array(x) if sparse else x, edges), task.nodes, task.labels)

    tasks = [copied(tiny_stream.task(index)) for index in range(3)]
    expected = learn(config(method), *tasks)
    again = [copied(tiny_stream.task(index)) for index in range(3)]
    chunks = Neighbours.chunks
    monkeypatch.setattr(Neighbours, "chunks", lambda self, most=50: chunks(self, min(most, 50)))
    found = learn(config(method), *again, runtime=Runtime.of(budget=Budget(0)))
    scores = [found.forward(task.graph).scores for task in again]
    rows = found.compute.propagated(again[0].graph, found.method.steps, found.method.restart)
    assert all("normalised" not in vars(task.graph) for task in again)
    assert isinstance(rows, np.memmap)
    exact = not directed and not sparse
    for name in ("sum", "count") if exact else ():
        assert torch.equal(*(getattr(model.method.statistics(model.state.memory), name) for model in (found, expected)))
    for task, score in zip(tasks, scores, strict=True):
        torch.testing.assert_close(score, expected.forward(task.graph).scores, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("directed", [False, True])
def test_rows_lengths_products_and_sums_are_those_of_dense_matrices(
    sparse: bool, directed: bool, monkeypatch: pytest.MonkeyPatch
):
    random = np.random.default_rng(1001)
    x, edges = random.standard_normal((9, 2 * BLOCK + 1), dtype=np.float32), np.array([[0, 1, 2, 5], [3, 4, 5, 6]])
    edges = edges if directed else np.concatenate([edges, edges[::-1]], axis=1)
    graph = Graph(sp.csr_array(x) if sparse else x, edges)
    monkeypatch.setattr(compute, "ROWS_AT_ONCE", 4)
    here = GraphCompute(Runtime.of(budget=Budget(0)))
    found = here.propagated(graph, 2, 0.25)
    assert (type(found), found.dtype) == (np.memmap, np.float32)
    a, unit = graph.normalised, x / np.linalg.norm(x, axis=1, keepdims=True)
    expected = 0.75 * (a @ (0.75 * (a @ unit) + 0.25 * unit)) + 0.25 * unit
    close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    close(found, expected)
    close(here.lengths(graph, 2, 0.25), np.linalg.norm(expected, axis=1))
    weights = random.standard_normal((3, x.shape[1]), dtype=np.float32)
    close(here.products(graph, torch.from_numpy(weights), 2, 0.25), expected @ weights.T, atol=1e-5)
    sums = here.class_sums(Task(graph, np.array([8, 3, 5]), np.array([1, 0, 1])), 3, 2, 0.25)
    close(sums, [expected[3], expected[8] + expected[5], 0 * expected[0]])


def test_slda_asks_for_room_for_its_covariance_first(monkeypatch):
    graph = Graph(np.zeros((1, 5), dtype=np.float32), np.zeros((2, 0), dtype=np.int64))
    start = partial(empty_model, config(SLDA), graph, CPU)
    monkeypatch.setattr(free_memory, "available", lambda: 8 * 5 * 5)
    shapes = {name: tuple(tensor.shape) for name, tensor in flatten(start().state.memory, "memory").items()}
    assert shapes == {"memory.sums.sum": (0, 5), "memory.sums.count": (0,), "memory.scatter": (5, 5)}
    monkeypatch.setattr(free_memory, "available", lambda: 8 * 5 * 5 - 1)
    with pytest.raises(CapacityError, match="The covariance of 5 features"):
        start()
