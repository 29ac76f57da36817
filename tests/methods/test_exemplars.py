"""GEM, ER-GNN and Joint: which raw nodes are kept, and how they act. And the values they are kept as."""

import math

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from ipal.backend.checks import MisfitError
from ipal.backend.operators import operators
from ipal.data.graph import Graph, checked_graph
from ipal.data.streams import TaskStream
from ipal.data.task import Task
from ipal.engine.trainer import numbered
from ipal.errors import StoreError
from ipal.estimator import files
from ipal.methods.classifier import node_cross_entropy
from ipal.methods.ergnn import ERGNN, strangers_nearby
from ipal.methods.gem import GEM
from ipal.methods.joint import Joint, uniform_cross_entropy
from ipal.methods.shared.exemplars import disjoint_union, excerpt, grown, without_edges
from ipal.state.snapshot import Snapshot
from ipal.state.stored_tasks import task_of_tensors, task_tensors
from tests.learning import CPU, begun, config, first_step, gradients, learn, learned


def flat(parts: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([part.reshape(-1) for part in parts.values()])


# ------------------------------------------------------------------ GEM


@pytest.mark.parametrize(("competing", "margin"), [("seen", 0.0), ("current", 0.5)])
def test_gem_turns_a_step_so_that_no_memorys_loss_rises(competing, margin, tiny_stream: TaskStream):
    model = learned(GEM, tiny_stream, 2, epochs=10, memory=20, margin=margin, competing=competing)
    terms, training = first_step(model, tiny_stream.task(2))
    gem, network, kept, context = training.method, training.network, training.state.memory, training.context

    def kept_losses() -> list[torch.Tensor]:
        return [gem._loss_on(task, network, context) for task in kept.tasks]

    memories = [flat(gradients(training, loss)) for loss in kept_losses()]
    assert len(memories) == 2
    terms["cross_entropy"].backward()
    plain = flat({name: p.grad for name, p in network.named_parameters()})
    gem.adjust_gradients(network, kept, context)
    turned = flat({name: p.grad for name, p in network.named_parameters()})
    agreement = [torch.cosine_similarity(memory, turned, dim=0).item() for memory in memories]
    assert min(agreement) > -1e-4
    if competing == "seen":  # otherwise nothing may object
        assert min(torch.cosine_similarity(memory, plain, dim=0).item() for memory in memories) < -0.01
    # And so it is: a small step down the turned gradient raises no memory's loss.
    before = kept_losses()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.sub_(1e-4 * parameter.grad)
    assert all(late <= early + 1e-5 for early, late in zip(before, kept_losses(), strict=True))


@pytest.mark.parametrize(("competing", "outputs"), [("seen", [0, 1, 2, 3, 4, 5]), ("current", [0, 1])])
def test_gem_sets_against_each_other_in_a_memory_what_competed_when_it_was_learned(
    competing, outputs, tiny_stream: TaskStream
):
    training = begun(learned(GEM, tiny_stream, 2, memory=20, competing=competing), tiny_stream.task(2))
    first = training.state.memory.tasks[0]
    logits = training.network(operators(first, CPU))[:, outputs]
    labels = torch.from_numpy(first.labels)  # classes 0 and 1, in this order
    each = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    expected = (each[labels == 0].mean() + each[labels == 1].mean()) / 2
    torch.testing.assert_close(training.method._loss_on(first, training.network, training.context), expected)


def test_gem_keeps_so_many_nodes_of_every_task_with_their_labels_and_surroundings(tiny_stream: TaskStream):
    model = learned(GEM, tiny_stream, 2, memory=7, hops=1)
    for memory, index in zip(model.state.memory.tasks, range(2), strict=True):
        task = tiny_stream.task(index)
        assert len(memory.nodes) == 7
        rows = {row.tobytes(): label for row, label in zip(task.graph.x[task.nodes], task.labels, strict=True)}
        # They are different training nodes, each with its own label.
        kept = [memory.graph.x[node].tobytes() for node in memory.nodes]
        assert len(set(kept)) == 7
        assert [rows[row] for row in kept] == model.classes_[memory.labels].tolist()
        # Every neighbour is there.
        place = {row.tobytes(): node for node, row in enumerate(task.graph.x)}
        degree = np.asarray(task.graph.aggregation("sum").sum(axis=1))
        inside = np.asarray(memory.graph.aggregation("sum").sum(axis=1))
        assert [inside[node] for node in memory.nodes] == [degree[place[row]] for row in kept]


# ------------------------------------------------------------------ ER-GNN


@pytest.mark.parametrize("choice", ["coverage", "mean"])
def test_er_gnn_keeps_the_best_nodes_of_every_class_without_edges(choice, tiny_stream: TaskStream):
    model = config(ERGNN, budget=5, choice=choice, distance=1.0)
    for index in range(3):
        task = tiny_stream.task(index)
        model = learn(model, task)
        f = model.compute.embeddings(model.network, task)
        rows, buffer = torch.from_numpy(numbered(task, model.labels).labels), model.state.memory.buffer
        crowd = strangers_nearby(f, rows, 1.0)
        inside = {row.tobytes() for row in buffer.graph.x}
        for label in rows.unique():
            own = torch.nonzero(rows == label)[:, 0]
            kept = torch.tensor([task.graph.x[task.nodes[i]].tobytes() in inside for i in own.tolist()])
            assert kept.sum() == 5
            far = (f[own] - f[own].mean(dim=0)).norm(dim=1)
            worth = far if choice == "mean" else crowd[own].float()
            assert worth[kept].max() <= worth[~kept].min()
    assert np.unique(buffer.labels, return_counts=True)[1].tolist() == [5] * 6
    assert buffer.graph.edges.shape == (2, 0)
    assert buffer.graph.num_nodes == len(buffer.nodes) == 30


def test_er_gnn_keeps_no_more_of_a_class_that_comes_again(tiny_stream: TaskStream):
    model = learn(config(ERGNN, budget=5), *(tiny_stream.task(index) for index in (0, 1, 0)))
    assert np.unique(model.state.memory.buffer.labels, return_counts=True)[1].tolist() == [5] * 4


def test_er_gnn_weighs_replay_by_the_numbers_of_nodes(tiny_stream: TaskStream):
    terms, training = first_step(learned(ERGNN, tiny_stream, 1, budget=5), tiny_stream.task(1))
    context, network, buffer = training.context, training.network, training.state.memory.buffer
    n, kept = len(context.labels), 10
    now = node_cross_entropy(context.compute.outputs(network, context.task), slice(None), context)
    again = context.compute.outputs(network, buffer)
    likelihood = again.log_softmax(dim=1)[torch.arange(10), torch.from_numpy(buffer.labels)]
    assert terms["cross_entropy"].item() == pytest.approx(kept / (n + kept) * now.item(), rel=1e-5)
    assert terms["replay"].item() == pytest.approx(-n / (n + kept) * likelihood.mean().item(), rel=1e-5)


# ------------------------------------------------------------------ what is kept, as values


def path_task(form: str = "dense") -> Task:
    """Nodes 0 to 9 in a line; three of them to learn from."""
    x = np.arange(1.0, 21.0, dtype=np.float32).reshape(10, 2) % 7
    ends = np.stack([np.arange(9), np.arange(1, 10)])
    graph = checked_graph(x if form == "dense" else sp.csr_array(x), ends, undirected=True)
    return Task(graph, np.array([7, 2, 5]), np.array([2, 0, 1]))


def test_an_excerpt_holds_the_chosen_nodes_and_those_around_them() -> None:
    some = excerpt(path_task(), np.array([1, 0]), hops=1)
    # Nodes 2 and 7, and their neighbours: 1, 2, 3, 6, 7, 8, numbered anew.
    np.testing.assert_array_equal(some.graph.x, path_task().graph.x[[1, 2, 3, 6, 7, 8]])
    assert some.nodes.tolist() == [1, 4]
    assert some.labels.tolist() == [0, 2]
    assert some.graph.edges.tolist() == [[0, 1, 1, 2, 3, 4, 4, 5], [1, 0, 2, 1, 4, 3, 5, 4]]
    assert excerpt(path_task(), np.array([1, 0]), hops=0).graph.num_nodes == 2


def test_an_excerpt_of_a_directed_graph_holds_what_flows_in() -> None:
    # 0 -> 1 -> 2: the embedding of 1 is made from 0, not from 2.
    graph = Graph(np.eye(3, dtype=np.float32), np.array([[0, 1], [1, 2]]))
    some = excerpt(Task(graph, np.array([1]), np.array([0])), np.array([0]), hops=1)
    np.testing.assert_array_equal(some.graph.x, np.eye(3)[:2])


def test_an_excerpt_one_step_wider_than_the_network_is_deep_gives_the_same_embeddings(tiny_stream: TaskStream):
    # One step more than messages travel: the outermost nodes that send one are scaled by their own degrees.
    model, task = learned(GEM, tiny_stream, 1), tiny_stream.task(0)
    chosen, network = np.arange(0, len(task.nodes), 9), model.network
    layers = len(network.encoder.weights)
    exact = model.compute.embeddings(network, task)[torch.from_numpy(chosen)]
    some = [model.compute.embeddings(network, excerpt(task, chosen, hops)) for hops in (layers, layers + 1)]
    off = [(f - exact).abs().max().item() for f in some]
    assert off[1] < 1e-5 < off[0]


@pytest.mark.parametrize("forms", [("dense", "dense"), ("sparse", "dense")])
def test_a_disjoint_union_computes_what_its_parts_compute(forms: tuple[str, str]) -> None:
    parts = [path_task(form) for form in forms]
    both = disjoint_union(*parts)
    assert both.labels.tolist() == [2, 0, 1] * 2
    assert both.nodes.tolist() == [7, 2, 5, 17, 12, 15]
    weight = torch.tensor([[1.0, -1.0], [0.5, 2.0]])
    hidden = operators(both.graph, CPU).first.aggregated(weight)
    apart = torch.cat([operators(part.graph, CPU).first.aggregated(weight) for part in parts])
    torch.testing.assert_close(hidden, apart)


@pytest.mark.parametrize("form", ["dense", "sparse"])
def test_a_kept_task_comes_back_from_its_tensors(form: str) -> None:
    task = path_task(form)
    tensors = task_tensors(task, "kept.3")
    assert all(name.startswith("kept.3.") for name in tensors)
    others = task_tensors(without_edges(task), "kept.4")
    back = task_of_tensors(tensors | others, "kept.3", 3, task.graph.num_features)
    assert back.labels.tolist() == [2, 0, 1]
    assert np.array_equal(back.nodes, task.nodes)
    assert np.array_equal(back.graph.edges, task.graph.edges)
    assert isinstance(back.graph.x, sp.csr_array) == (form == "sparse")
    assert abs(back.graph.x - task.graph.x).max() == 0


OF_A_GRAPH = {
    "x_shape": np.array([3, 2]),
    "x_values": np.array([1.0, 2.0], dtype=np.float32),
    "x_indices": np.array([0, 1]),
    "x_indptr": np.array([0, 1, 1, 2]),
    "edges": np.array([[0, 2], [2, 0]]),
    "nodes": np.array([2, 0]),
    "labels": np.array([1, 0]),
    "origin": np.array([4, 5, 6]),
}


def of_parts(**changed: np.ndarray) -> Task:
    parts = {f"kept.{name}": torch.from_numpy(np.array(part)) for name, part in (OF_A_GRAPH | changed).items()}
    return task_of_tensors(parts, "kept", 2, 2)


@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_parts_at_their_bounds_are_a_graph(kind: type) -> None:
    task = of_parts(x_indices=np.array([0, 1], dtype=kind), x_indptr=np.array([0, 1, 1, 2], dtype=kind))
    assert task.graph.x.toarray().tolist() == [[1.0, 0.0], [0.0, 0.0], [0.0, 2.0]]
    assert (task.nodes.tolist(), task.labels.tolist()) == ([2, 0], [1, 0])
    empty = of_parts(x_values=np.zeros(0, np.float32), x_indices=np.zeros(0, np.int64), x_indptr=np.zeros(4, np.int64))
    assert empty.graph.x.nnz == 0
    assert of_parts(edges=np.zeros((2, 0), np.int64)).graph.num_edges == 0
    assert of_parts().origin.tolist() == [4, 5, 6]  # type: ignore[union-attr]
    assert of_parts(origin=np.zeros(0, np.int64)).origin is None


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("x_shape", np.array([3, 3])),
        ("x_shape", np.array([4, 2])),
        ("x_values", np.ones((2, 1), dtype=np.float32)),
        ("x_values", np.ones(3, dtype=np.float32)),
        ("x_indices", np.array([0.0, 1.0])),
        ("x_indices", np.array([0, 2])),
        ("x_indices", np.array([-1, 1])),
        ("x_indptr", np.array([0, 1, 2])),
        ("x_indptr", np.array([0, 1, 1, 3])),
        ("x_indptr", np.array([1, 1, 1, 2])),
        ("x_indptr", np.array([0, 2, 1, 2])),
        ("edges", np.array([[0, 3], [2, 0]])),
        ("edges", np.array([[0, -1], [2, 0]])),
        ("edges", np.array([[0, 2]])),
        ("nodes", np.array([3, 0])),
        ("nodes", np.array([-1, 0])),
        ("nodes", np.array([0])),
        ("labels", np.array([2, 0])),
        ("labels", np.array([-1, 0])),
        ("origin", np.array([4, 5])),
    ],
    ids=str,
)
def test_parts_that_are_no_graph_are_refused(part: str, value: np.ndarray) -> None:
    with pytest.raises(MisfitError, match="the nodes kept in 'kept' are no part of a graph"):
        of_parts(**{part: value})


# ---------------------------------------------------------------------- all tasks so far


def ring_tasks(*, seen: bool) -> tuple[Task, Task]:
    """Two tasks on a ring of eight nodes, four nodes and two classes each; the second on all nodes, or on its own."""
    edges = np.array([range(8), [*range(1, 8), 0]])
    ring = checked_graph(np.arange(16, dtype=np.float32).reshape(8, 2), edges, undirected=True)
    own, origin = np.arange(4), np.array([6, 1, 4, 3, 0, 5, 2, 7]) if seen else np.arange(4, 8)
    nodes = np.flatnonzero(origin >= 4)
    first = Task(ring.induced(own), own, own // 2, own)
    return first, Task(ring.induced(origin), nodes, origin[nodes] // 2, origin)


def test_a_seen_graph_takes_the_place_of_earlier_ones() -> None:
    first, second = ring_tasks(seen=True)
    both = grown(first, second)
    assert both is not None
    assert both.graph is second.graph
    assert both.graph.num_edges == 16  # those between the tasks among them
    assert sorted(both.nodes.tolist()) == list(range(8))
    assert both.labels.tolist() == (second.origin[both.nodes] // 2).tolist()  # type: ignore[index]
    again = grown(both, second)
    assert again is not None
    assert sorted(again.nodes.tolist()) == list(range(8))  # nobody counts twice


def test_isolated_graphs_stay_side_by_side() -> None:
    first, second = ring_tasks(seen=False)
    assert grown(first, second) is None
    both = disjoint_union(first, second)
    assert both.graph.num_edges == 12
    assert both.origin is not None
    assert both.origin.tolist() == list(range(8))


def test_a_model_without_the_numbers_of_its_nodes_is_refused(tmp_path) -> None:
    state = files.snapshot(learn(config(Joint, epochs=1), ring_tasks(seen=True)[0]))
    without = {name: tensor for name, tensor in state.tensors.items() if name != "memory.data.origin"}
    Snapshot(without, state.facts).save(tmp_path / "model.safetensors")
    with pytest.raises(StoreError, match=r"data\.origin' is missing"):
        files.load(tmp_path / "model.safetensors")


def test_nodes_without_any_feature_or_number_are_saved(tmp_path) -> None:
    graph = Graph(sp.csr_array((4, 2), dtype=np.float32), np.zeros((2, 0), np.int64))
    model = learn(config(Joint, epochs=1), Task(graph, np.arange(4), np.array([0, 0, 1, 1])))
    files.save(model, tmp_path / "model.safetensors")
    assert files.load(tmp_path / "model.safetensors").state.memory.data.origin is None


def test_joint_learns_from_the_edges_between_tasks_also_when_it_is_resumed() -> None:
    first, second = ring_tasks(seen=True)
    model = learn(config(Joint, epochs=2), first)
    resumed = files.restored(model.config, files.checkpoint(model), CPU, whole=False, source="it")
    one, other = (learn(model, second) for model in (model, resumed))
    for data in (one.state.memory.data, other.state.memory.data):
        assert data.graph.num_edges == 16
        assert len(data.nodes) == 8
    assert all(torch.equal(value, other.network.tensors()[name]) for name, value in one.network.tensors().items())


def test_uniform_cross_entropy_by_hand() -> None:
    """Two nodes of class 0, one of class 1; K = 2. Log-probabilities: (-log 2, -log 2) and (log 0.8, log 0.2)."""
    logits = torch.log(torch.tensor([[0.5, 0.5], [0.5, 0.5], [0.8, 0.2]]))
    labels = torch.tensor([0, 0, 1])
    by_hand = (math.log(2) + -(math.log(0.8) + math.log(0.2)) / 2) / 2  # each class counts once
    assert uniform_cross_entropy(logits, labels).item() == pytest.approx(by_hand)
