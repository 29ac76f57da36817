"""Relations between results that must hold on any graph: the same graph by another route, in another order, under other
names, saved and loaded, merged and split. A relation holds, or is refused with a sentence.

Each case draws a small graph, a method and a relation. Where a result rests on sums in another order, it may differ by
rounding; everything else is equal bit for bit.
"""

import pickle
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from faults.core import Case, Failed, Part

CLOSED = ("analytic", "ncm", "slda")
"""What they keep is a sum over nodes."""
STEADY = ("bare", "ewc", "mas", "lwf", "joint")
"""Trained, without a draw over nodes."""
RIDGE = 0.1
ROUNDING = 2e-3
"""Of the largest score."""
WORDS = np.array(["ant", "bee", "cat", "dog", "elk", "fox"])

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class World:
    """A small graph of two tasks, and what else a case draws."""

    random: np.random.Generator
    folder: Path
    x: Array
    edges: Array
    """Pairs, each once, no loops."""
    weights: Array | None
    y: Array
    directed: bool
    ridge: float | None = None
    """Of the closed form; None: it chooses, and the choice depends on the order of what is learned."""

    def changed(self, **parts: Any) -> "World":
        return replace(self, **parts)

    @property
    def arrays(self) -> dict[str, Any]:
        weights = {} if self.weights is None else {"edge_weight": self.weights}
        return {"x": self.x, "edge_index": self.edges, "y": self.y} | weights

    def data(self, mask: Array | None = None) -> Any:
        """With the labels of some nodes to learn; all of them, where none are named."""
        import ipal

        made = ipal.graph_from(self.arrays, directed=self.directed)
        return made if mask is None else replace(made, train_mask=mask)

    @property
    def classes(self) -> Array:
        return np.unique(self.y)

    def tasks(self) -> list[Any]:
        """The first classes, then the others: four of five nodes have a label to learn."""
        first, taught = self.classes[: (len(self.classes) + 1) // 2], np.arange(len(self.y)) % 5 > 0
        return [self.data(np.isin(self.y, first) & taught), self.data(~np.isin(self.y, first) & taught)]

    def learner(self, method: str, **settings: Any) -> Any:
        """One that trains for a moment."""
        from ipal.estimator.learners import learner_class
        from ipal.estimator.registry import METHODS
        from ipal.methods.base import Trained

        kind = METHODS[method]
        small: dict[str, Any] = {"calibration": 0, "seed": 3}
        if issubclass(kind, Trained):
            small["encoder"] = {"kind": "gcn", "layers": 2, "hidden": 8, "width": 8}
            small["train"] = {"epochs": 2, "lr_base": 0.05, "lr_next": 0.05}
        if method == "analytic":
            small |= {"width": 24, "ridge": self.ridge}
        return learner_class(kind)(**small | settings)

    def learned(self, method: str, **settings: Any) -> Any:
        """After both tasks."""
        learner = self.learner(method, **settings)
        for task in self.tasks():
            learner.partial_fit(task)
        return learner

    def any_method(self, *but: str) -> str:
        from ipal.estimator.registry import METHODS

        return str(self.random.choice(sorted(METHODS.keys() - set(but))))

    def one_of(self, *methods: str) -> str:
        return str(self.random.choice(methods))


def drawn(case: Case) -> World:
    """The graph of a case."""
    random = np.random.default_rng(case.random.getrandbits(64))
    classes = int(random.integers(3, 6))
    n = int(random.integers(5 * classes, 61))
    y = np.concatenate([np.arange(classes).repeat(5), random.integers(0, classes, n - 5 * classes)])
    random.shuffle(y)
    x = (random.normal(size=(n, int(random.integers(3, 9)))) + y[:, None]).astype(np.float32)
    pairs = np.unique(random.integers(0, n, (3 * n, 2)), axis=0)
    edges = random.permutation(pairs[pairs[:, 0] != pairs[:, 1]]).T.copy()
    weights = random.integers(1, 9, edges.shape[1]).astype(np.float32) / 4 if random.random() < 0.5 else None
    named = WORDS[y] if random.random() < 0.5 else y
    return World(random, case.folder, x, edges, weights, named, bool(random.random() < 0.3))


# ---------------------------------------------------------------------- what must hold


def must_equal(one: Array, other: Array, what: str) -> None:
    if one.dtype.kind != other.dtype.kind or not np.array_equal(one, other):
        raise Failed(f"{what} differ{_by(one, other)}")


def must_be_near(one: Array, other: Array, what: str) -> None:
    scale = max(1e-6, float(np.abs(one).max()))
    if one.shape != other.shape or not np.abs(one - other).max() <= ROUNDING * scale:
        raise Failed(f"{what} differ{_by(one, other)}")


def _by(one: Array, other: Array) -> str:
    if one.shape != other.shape:
        return f": shapes {one.shape} and {other.shape}"
    if one.dtype.kind not in "fiu":
        return f" in {int((one != other).sum())} of {one.size}"
    return f" by {np.abs(one - other).max():.3g}, where the largest is {np.abs(one).max():.3g}"


def must_agree(one: Any, other: Any, graph: Any, elsewhere: Any = None, *, exact: bool, nodes: Any = None) -> None:
    """Two learners score a graph alike, class by class; `nodes` of the second one's graph are those of the first's."""
    elsewhere = graph if elsewhere is None else elsewhere
    names, theirs = one.classes_.tolist(), other.classes_.tolist()
    if sorted(names) != sorted(theirs):
        raise Failed(f"classes {names} and {theirs}")
    place = [theirs.index(name) for name in names]
    at = slice(None) if nodes is None else nodes
    left, right = one.decision_function(graph), other.decision_function(elsewhere)[at][:, place]
    (must_equal if exact else must_be_near)(left, right, "scores")
    first, second = one.predict(graph), other.predict(elsewhere)[at]
    if left.shape[1] > 1:
        ordered = np.sort(left, axis=1)
        clear = ordered[:, -1] - ordered[:, -2] > 2 * ROUNDING * np.abs(left).max()
        must_equal(first[clear], second[clear], "predictions")


# ---------------------------------------------------------------------- routes


def routes(world: World) -> dict[str, Any]:
    """The same arrays in everything that holds them, as `graph_from` takes it."""
    np.savez(world.folder / "graph.npz", **world.arrays)
    nodes = {"id": np.arange(len(world.y)), "label": world.y}
    nodes |= {f"f{place}": world.x[:, place] for place in range(world.x.shape[1])}
    edges = {"source": world.edges[0], "target": world.edges[1]}
    edges |= {} if world.weights is None else {"weight": world.weights}
    for name, table in (("nodes", nodes), ("edges", edges)):
        rows = [",".join(map(str, row)) for row in zip(*(values.tolist() for values in table.values()), strict=True)]
        (world.folder / f"{name}.csv").write_text("\n".join([",".join(table), *rows]))
    found: dict[str, Any] = {
        "npz": (world.folder / "graph.npz",),
        "tables": (world.folder / "nodes.csv", world.folder / "edges.csv"),
        "columns": (nodes, edges),
    }
    return found | _of_packages(world, nodes, edges)


def _of_packages(world: World, nodes: dict[str, Array], edges: dict[str, Array]) -> dict[str, Any]:
    """Those whose packages are here."""
    found: dict[str, Any] = {}
    try:
        import pandas

        found["pandas"] = (pandas.DataFrame(nodes), pandas.DataFrame(edges))
    except ImportError:
        pass
    try:
        import networkx

        graph = networkx.DiGraph()
        names = [name for name in nodes if name != "id"]
        for number, row in enumerate(zip(*(nodes[name].tolist() for name in names), strict=True)):
            graph.add_node(number, **dict(zip(names, row, strict=True)))
        weights = np.ones(world.edges.shape[1]) if world.weights is None else world.weights
        graph.add_weighted_edges_from(zip(*world.edges.tolist(), weights.tolist(), strict=True))
        found["networkx"] = (graph,)
    except ImportError:
        pass
    try:
        import torch
        from torch_geometric.data import Data

        tensors = {name: value if value.dtype.kind == "U" else torch.from_numpy(value)
                   for name, value in world.arrays.items()}  # fmt: skip
        found["Data"] = (Data(**tensors),)
    except ImportError:
        pass
    return found


def by_any_route(world: World) -> None:
    import ipal
    from ipal.estimator.convert.pyg import task_of

    own, method = world.data(), world.any_method()
    expected, known = task_of(own), world.learner(method).partial_fit(own)
    every = routes(world)
    chosen = world.one_of(*every)
    for route, given in every.items():
        read = ipal.graph_from(*given, directed=world.directed)
        task = task_of(read)
        for name, one, other in (
            ("features", expected.graph.x, task.graph.x),
            ("edges", expected.graph.edges, task.graph.edges),
            ("nodes", expected.nodes, task.nodes),
            ("labels", expected.labels, task.labels),
        ):
            must_equal(np.asarray(one), np.asarray(other), f"{route}: {name}")
        if (expected.graph.edge_weight is None) != (task.graph.edge_weight is None):
            raise Failed(f"{route}: weights are lost")
        if expected.graph.edge_weight is not None:
            must_equal(expected.graph.edge_weight, task.graph.edge_weight, f"{route}: weights")
        if route == chosen:
            must_agree(known, world.learner(method).partial_fit(read), own, read, exact=True)


# ---------------------------------------------------------------------- orders and names


def edges_in_another_order(world: World) -> None:
    order, method = world.random.permutation(world.edges.shape[1]), world.any_method()
    weights = None if world.weights is None else world.weights[order]
    other = world.changed(edges=world.edges[:, order], weights=weights)
    must_agree(world.learned(method), other.learned(method), world.data(), exact=True)


def _renumbered(world: World) -> tuple[World, Array]:
    """The same graph with nodes in another order, and where each of them is."""
    order = world.random.permutation(len(world.y))
    place = np.argsort(order)
    return world.changed(x=world.x[order], y=world.y[order], edges=place[world.edges]), place


def nodes_in_another_order(world: World) -> None:
    other, place = _renumbered(world)
    learner = world.learned(world.any_method())
    must_agree(learner, learner, world.data(), other.data(), exact=False, nodes=place)


def learned_in_another_order_of_nodes(world: World) -> None:
    world = world.changed(ridge=RIDGE)
    method, (other, place) = world.one_of(*CLOSED, *STEADY), _renumbered(world)
    there, again = world.learner(method), other.learner(method)
    for task in world.tasks():
        there.partial_fit(task)
        again.partial_fit(other.data(np.asarray(task.train_mask)[np.argsort(place)]))
    must_agree(there, again, world.data(), other.data(), exact=False, nodes=place)


def tasks_in_another_order(world: World) -> None:
    world = world.changed(ridge=RIDGE)
    method = world.one_of(*CLOSED)
    other = world.learner(method)
    for task in reversed(world.tasks()):
        other.partial_fit(task)
    must_agree(world.learned(method), other, world.data(), exact=False)


def a_task_in_parts(world: World) -> None:
    world = world.changed(ridge=RIDGE)
    method = world.one_of(*CLOSED)
    other, half = world.learner(method), world.random.random(len(world.y)) < 0.5
    for task in world.tasks():
        for part in (half, ~half):
            if (task.train_mask & part).any():
                other.partial_fit(replace(task, train_mask=task.train_mask & part))
    must_agree(world.learned(method), other, world.data(), exact=False)


def _called(world: World, names: Array) -> World:
    return world.changed(y=names[np.searchsorted(world.classes, world.y)])


def other_names(world: World) -> None:
    """In the same order: not even the numbers of classes change."""
    method = world.any_method()
    names = np.array([f"class {place}" for place in range(len(world.classes))])
    one, other = world.learned(method), _called(world, names).learned(method)
    must_equal(one.decision_function(world.data()), other.decision_function(world.data()), "scores")
    must_equal(names[np.searchsorted(world.classes, one.predict(world.data()))], other.predict(world.data()), "names")


def shuffled_names(world: World) -> None:
    world = world.changed(ridge=RIDGE)
    method, order = world.one_of(*CLOSED), world.random.permutation(len(world.classes))
    one, other = world.learner(method), world.learner(method)
    one.partial_fit(world.data())
    other.partial_fit(_called(world, world.classes[order]).data())
    back = [int(np.flatnonzero(other.classes_ == world.classes[order][place])[0]) for place in range(len(order))]
    graph = world.data()
    must_be_near(one.decision_function(graph), other.decision_function(graph)[:, back], "scores")


# ---------------------------------------------------------------------- threads, files, processes


def predicted_while_learning(world: World) -> None:
    learner, (first, second) = world.learner(world.any_method()), world.tasks()
    graph = world.data()
    learner.partial_fit(first)
    before, expected = learner.model_, learner.decision_function(graph)
    problems: list[Exception] = []

    def learn() -> None:
        try:
            learner.partial_fit(second)
        except Exception as error:
            problems.append(error)

    thread = threading.Thread(target=learn)
    thread.start()
    while thread.is_alive():
        scores = learner.decision_function(graph)
        if learner.model_ is before:  # so it was when it was asked
            must_equal(expected, scores, "scores while another thread learns")
    thread.join()
    if problems:
        raise problems[0]


def _goes_on_as(world: World, learner: Any, again: Any, later: Any) -> None:
    graph = world.data()
    must_equal(learner.predict_proba(graph), again.predict_proba(graph), "probabilities")
    must_equal(
        learner.partial_fit(later).predict_proba(graph),
        again.partial_fit(later).predict_proba(graph),
        "probabilities after another task",
    )


def saved_and_loaded(world: World) -> None:
    import ipal

    learner, (first, second) = world.learner(world.any_method(), calibration=0.2), world.tasks()
    learner.partial_fit(first).save(world.folder / "model.safetensors", moments=True)
    _goes_on_as(world, learner, ipal.load(world.folder / "model.safetensors"), second)


def pickled(world: World) -> None:
    learner, (first, second) = world.learner(world.any_method(), calibration=0.2), world.tasks()
    learner.partial_fit(first)
    _goes_on_as(world, learner, pickle.loads(pickle.dumps(learner)), second)


def side_by_side(world: World) -> None:
    """Two learners in turns are what each is alone: nothing is shared."""
    methods = [world.any_method(), world.any_method()]
    turns = [world.learner(method) for method in methods]
    for task in world.tasks():
        for learner in turns:
            learner.partial_fit(task)
    for method, learner in zip(methods, turns, strict=True):
        must_agree(world.learned(method), learner, world.data(), exact=True)


# ---------------------------------------------------------------------- merged, split, forgotten


def merged_models(world: World) -> None:
    import ipal

    world = world.changed(ridge=RIDGE)
    method = world.one_of(*CLOSED)
    one, other = (world.learner(method).partial_fit(task) for task in world.tasks())
    must_agree(world.learned(method), ipal.merge_models(one, other), world.data(), exact=False)


def merged_classes(world: World) -> None:
    import ipal

    world = world.changed(ridge=RIDGE)
    method, (first, second) = world.one_of(*CLOSED), world.classes[:2]
    learner = ipal.merge_classes(world.learned(method), [first, second], first)
    expected = world.learner(method)
    for task in world.tasks():
        expected.partial_fit(replace(task, y=np.where(task.y == second, first, task.y)))
    must_agree(expected, learner, world.data(), exact=False)


def split_and_merged(world: World) -> None:
    import ipal

    world = world.changed(ridge=RIDGE)
    method, tasks = world.one_of(*CLOSED), world.tasks()
    learner, label = world.learned(method), world.classes[0]
    new = np.array("zebra") if world.y.dtype.kind == "U" else np.array(99)
    moves = tasks[0].train_mask & (world.y == label) & (world.random.random(len(world.y)) < 0.5)
    if not moves.any():
        return
    ipal.relabel(learner, [replace(task, new_y=np.where(moves, new, task.y)) for task in tasks])
    ipal.merge_classes(learner, [label, new[()]], label)
    must_agree(world.learned(method), learner, world.data(), exact=False)


def _leaving(world: World, task: Any) -> Array:
    """Some of those that teach, not all of a class."""
    chosen = task.train_mask & (world.random.random(len(world.y)) < 0.4)
    for label in world.classes:
        chosen[np.flatnonzero(task.train_mask & (world.y == label))[:1]] = False
    return np.asarray(chosen)


def _nobody(task: Any) -> Any:
    """A graph of which nobody is forgotten."""
    return replace(task, forget_mask=np.zeros(task.num_nodes, dtype=bool))


def forgotten(world: World) -> None:
    import ipal

    world = world.changed(ridge=RIDGE)
    method, (first, second) = world.one_of(*CLOSED), world.tasks()
    leaving = _leaving(world, first)
    if not leaving.any():
        return
    learner = ipal.forget_rows(world.learned(method), [replace(first, forget_mask=leaving), _nobody(second)])
    never = world.learner(method).partial_fit(replace(first, train_mask=first.train_mask & ~leaving))
    must_agree(never.partial_fit(second), learner, world.data(), exact=False)


def forgotten_and_learned_again(world: World) -> None:
    import ipal

    world = world.changed(ridge=RIDGE)
    method, (first, second) = world.one_of(*CLOSED), world.tasks()
    leaving = _leaving(world, first)
    if not leaving.any():
        return
    learner = ipal.forget_rows(world.learned(method), [replace(first, forget_mask=leaving), _nobody(second)])
    learner.partial_fit(replace(first, train_mask=leaving))
    must_agree(world.learned(method), learner, world.data(), exact=False)


# ---------------------------------------------------------------------- what does not matter


def nodes_without_edges_or_labels(world: World) -> None:
    """But for TWP, whose topology term is a mean over all nodes."""
    method, n, more = world.any_method("twp"), len(world.y), int(world.random.integers(1, 9))
    nothing = np.full(more, "" if world.y.dtype.kind == "U" else -1)
    strangers = world.random.normal(size=(more, world.x.shape[1])).astype(np.float32)
    other = world.changed(x=np.vstack([world.x, strangers]), y=np.concatenate([world.y, nothing]))
    learner = other.learner(method)
    for task in world.tasks():
        learner.partial_fit(other.data(np.concatenate([task.train_mask, np.zeros(more, dtype=bool)])))
    must_agree(world.learned(method), learner, world.data(), other.data(), exact=False, nodes=np.arange(n))


def labels_outside_the_mask(world: World) -> None:
    method, learner = world.any_method(), None
    for task in world.tasks():
        drawn = world.random.permutation(world.y)
        learner = learner or world.learner(method)
        learner.partial_fit(replace(task, y=np.where(task.train_mask, task.y, drawn)))
    must_agree(world.learned(method), learner, world.data(), exact=True)


def loops_repeats_and_weights_of_zero(world: World) -> None:
    method, n = world.any_method(), len(world.y)
    loops = np.tile(world.random.integers(0, n, 5), (2, 1))
    edges, weights = np.hstack([world.edges, loops]), world.weights
    if weights is None:
        edges = np.hstack([edges, edges[:, world.random.integers(0, edges.shape[1], 9)]])
    else:
        weights = np.concatenate([weights, np.full(5, 3, dtype=np.float32)])
        known = {*map(tuple, world.edges.T.tolist()), *map(tuple, world.edges[::-1].T.tolist())}
        free = [pair for pair in world.random.integers(0, n, (20, 2)).tolist() if tuple(pair) not in known]
        edges = np.hstack([edges, np.array(free, dtype=np.int64).reshape(-1, 2).T])
        weights = np.concatenate([weights, np.zeros(len(free), dtype=np.float32)])
    must_agree(
        world.learned(method), world.changed(edges=edges, weights=weights).learned(method), world.data(), exact=True
    )


def weights_in_another_unit(world: World) -> None:
    """Where neighbours are averaged, only ratios of weights count."""
    method = world.one_of("bare", "ewc", "lwf", "ipal")
    weights = np.ones(world.edges.shape[1], dtype=np.float32) if world.weights is None else world.weights
    sage = {"encoder": {"kind": "sage", "layers": 2, "hidden": 8, "width": 8}}
    one, other = (world.changed(weights=weights * np.float32(unit)) for unit in (1, 8))
    must_agree(one.learned(method, **sage), other.learned(method, **sage), one.data(), other.data(), exact=False)


def numbers_of_another_kind(world: World) -> None:
    method = world.any_method()
    wide = world.changed(x=world.x.astype(np.float64), edges=world.edges.astype(np.int32))
    must_agree(world.learned(method), wide.learned(method), world.data(), wide.data(), exact=True)


def sparse_features(world: World) -> None:
    method = world.one_of(*CLOSED, *STEADY)
    some = world.changed(x=np.where(world.x > 1, world.x, 0).astype(np.float32))
    sparse = some.changed(x=sp.csr_array(some.x))
    must_agree(some.learned(method), sparse.learned(method), some.data(), sparse.data(), exact=False)


RELATIONS: tuple[Callable[[World], None], ...] = (
    by_any_route,
    edges_in_another_order,
    nodes_in_another_order,
    learned_in_another_order_of_nodes,
    tasks_in_another_order,
    a_task_in_parts,
    other_names,
    shuffled_names,
    predicted_while_learning,
    saved_and_loaded,
    pickled,
    side_by_side,
    merged_models,
    merged_classes,
    split_and_merged,
    forgotten,
    forgotten_and_learned_again,
    nodes_without_edges_or_labels,
    labels_outside_the_mask,
    loops_repeats_and_weights_of_zero,
    weights_in_another_unit,
    numbers_of_another_kind,
    sparse_features,
)


def refusal(case: Case) -> str | None:
    """Why the relation of a case was refused; None where it holds."""
    import torch

    from ipal.errors import IpalError

    torch.set_num_threads(1)
    relation = RELATIONS[case.number % len(RELATIONS)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's, about sparse tensors
        try:
            relation(drawn(case))
        except Failed as failure:
            raise Failed(f"{relation.__name__}: {failure}") from failure
        except IpalError as error:
            return f"{relation.__name__}: {error}"
    return None


PART = Part("metamorphic", count=2500, slice=23, seconds=60, attempt=lambda prepared, case: refusal(case))
