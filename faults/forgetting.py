"""A model that forgot is the model that never learned: graphs of several months, random ones, in which nodes, their
labels or whole classes are forgotten, labels corrected or classes split.

The other model learns the same months without what was forgotten. The closed form is compared bit for bit, methods
whose sums are in single precision to rounding; and what the files say in words.
"""

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from faults.core import Case, Failed, Part

METHODS = ("analytic", "analytic", "analytic", "ncm", "slda")
NAMES = np.array(["anchovy", "bittern", "cormorant", "dotterel", "egret", "fulmar"])
NEW = ("gannet", "hoopoe")
ROUNDING = 2e-3
"""Of the largest value, and of shares of nodes."""

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Months:
    """A graph that grows: every month brings the whole graph so far, and labels of the nodes that are new."""

    x: Array
    edges: Array
    weights: Array | None
    y: Array
    month: Array
    teaches: Array
    directed: bool

    def graphs(self) -> list[Any]:
        """One a month."""
        return [self.until(now) for now in range(int(self.month.max()) + 1)]

    def until(self, now: int) -> Any:
        """The graph of a month. Nodes are known by their ids."""
        import ipal

        here = np.flatnonzero(self.month <= now)
        place = np.full(len(self.y), -1)
        place[here] = np.arange(len(here))
        inside = (place[self.edges] >= 0).all(axis=0)
        weights = {} if self.weights is None else {"edge_weight": self.weights[inside]}
        arrays = {"x": self.x[here], "edge_index": place[self.edges[:, inside]], "y": self.y[here], **weights}
        made = ipal.graph_from(arrays, directed=self.directed)
        return replace(made, train_mask=self.teaches[here] & (self.month[here] == now), ids=here)

    def without(self, gone: Array) -> "Months":
        """Those nodes have never been there: they come in a month that does not."""
        return replace(self, month=np.where(gone, 10**6, self.month)).until_last(int(self.month.max()))

    def until_last(self, last: int) -> "Months":
        stay = np.flatnonzero(self.month <= last)
        place = np.full(len(self.y), -1)
        place[stay] = np.arange(len(stay))
        inside = (place[self.edges] >= 0).all(axis=0)
        weights = None if self.weights is None else self.weights[inside]
        return replace(
            self,
            x=self.x[stay],
            edges=place[self.edges[:, inside]],
            weights=weights,
            y=self.y[stay],
            month=self.month[stay],
            teaches=self.teaches[stay],
        )

    def taught(self, learner: Any) -> Any:
        """A learner after all months; one in which nobody teaches brings nothing."""
        for graph in self.graphs():
            if graph.train_mask.any():
                learner.partial_fit(graph)
        return learner


def drawn(random: np.random.Generator) -> Months:
    """Two to four months, three to six classes of which some come late; most months are large enough to calibrate."""
    classes, months = int(random.integers(3, 7)), int(random.integers(2, 5))
    n = int(random.integers(110, 151)) * months
    first = np.sort(random.integers(0, months, classes))
    first[:2] = 0
    kind = random.permutation(np.concatenate([np.arange(classes).repeat(4), random.integers(0, classes, n)])[:n])
    month = first[kind] + (random.random(n) * (months - first[kind])).astype(np.int64)
    month[np.unique(kind, return_index=True)[1]] = first
    x = (random.normal(size=(classes, 6))[kind] * 1.5 + random.normal(size=(n, 6))).astype(np.float32)
    ends = random.integers(0, n, (2, 8 * n))
    ends = ends[:, (kind[ends[0]] == kind[ends[1]]) | (random.random(8 * n) < 0.1)]
    edges = np.unique(ends[:, ends[0] != ends[1]], axis=1)
    if random.random() < 0.5:  # no pair in both directions
        edges = np.unique(np.sort(edges, axis=0), axis=1)
    weights = np.exp(random.normal(size=edges.shape[1])).astype(np.float32) if random.random() < 0.5 else None
    y = random.permutation(NAMES)[kind] if random.random() < 0.5 else random.permutation(6)[kind] * 7
    return Months(x, edges, weights, y, month, random.random(n) < 0.8, bool(random.random() < 0.4))


# ---------------------------------------------------------------------- what is changed


@dataclass(frozen=True, eq=False)
class Change:
    """What is asked of a model, and the months as if it had always been so."""

    apply: Callable[[Any, list[Any]], Any]
    graphs: list[Any]
    never: Months
    first: int
    """The first month that is concerned."""


def some_nodes(random: np.random.Generator, months: Months) -> Array:
    """One node, several, or all that teach in a month."""
    gone, way = np.zeros(len(months.y), dtype=bool), random.random()
    if way < 0.4:
        gone[random.choice(np.flatnonzero(months.teaches))] = True
    elif way < 0.85:
        gone[random.choice(len(gone), int(random.integers(2, 12)), replace=False)] = True
        gone[random.choice(np.flatnonzero(months.teaches))] = True
    else:
        gone = months.teaches & (months.month == random.choice(months.month[months.teaches]))
    return gone


def nodes_forgotten(random: np.random.Generator, months: Months) -> Change:
    import ipal

    gone = some_nodes(random, months)
    marked = [replace(graph, forget_mask=gone[graph.ids]) for graph in months.graphs()]
    return Change(ipal.forget_nodes, marked, months.without(gone), int(months.month[gone].min()))


def rows_forgotten(random: np.random.Generator, months: Months) -> Change:
    import ipal

    gone = some_nodes(random, months) & months.teaches
    marked = [replace(graph, forget_mask=gone[graph.ids] & graph.train_mask) for graph in months.graphs()]
    never = replace(months, teaches=months.teaches & ~gone)
    return Change(ipal.forget_rows, marked, never, int(months.month[gone].min()))


def class_forgotten(random: np.random.Generator, months: Months) -> Change:
    import ipal

    label = random.choice(np.unique(months.y[months.teaches]))
    gone = (months.y == label) & months.teaches
    return Change(
        lambda learner, graphs: ipal.forget_class(learner, label, graphs),
        months.graphs(),
        replace(months, teaches=months.teaches & ~gone),
        int(months.month[gone].min()),
    )


def labels_corrected(random: np.random.Generator, months: Months) -> Change:
    import ipal

    wrong = months.teaches & (random.random(len(months.y)) < random.choice([0.02, 0.3]))
    wrong[random.choice(np.flatnonzero(months.teaches))] = True
    labels = np.unique(months.y)
    right = np.where(wrong, labels[(np.searchsorted(labels, months.y) + 1) % len(labels)], months.y)
    graphs = [replace(graph, new_y=right[graph.ids]) for graph in months.graphs()]
    return Change(ipal.relabel, graphs, replace(months, y=right), int(months.month[wrong].min()))


def class_split(random: np.random.Generator, months: Months) -> Change:
    import ipal

    label = random.choice(np.unique(months.y[months.teaches]))
    own = (months.y == label) & months.teaches
    moves = own & (random.random(len(own)) < random.choice([0.5, 1.0]))
    moves[random.choice(np.flatnonzero(own))] = True
    new = np.setdiff1d(NEW if months.y.dtype.kind == "U" else (98, 99), months.y)[0]
    y = np.where(moves, new, months.y)
    graphs = [replace(graph, new_y=y[graph.ids]) for graph in months.graphs()]
    return Change(ipal.relabel, graphs, replace(months, y=y), int(months.month[moves].min()))


CHANGES = (nodes_forgotten, rows_forgotten, class_forgotten, labels_corrected, class_split)


def learner_of(random: np.random.Generator) -> tuple[Any, bool]:
    """A learner, and whether it forgets to the bit."""
    import ipal

    method, seed = str(random.choice(METHODS)), int(random.integers(0, 100))
    if method != "analytic":
        return (ipal.NCM if method == "ncm" else ipal.SLDA)(steps=2, seed=seed), False
    ridge = None if random.random() < 0.7 else 0.1
    width = int(random.choice([16, 64]))
    return ipal.Analytic(width=width, steps=int(random.integers(0, 4)), ridge=ridge, seed=seed), True


# ---------------------------------------------------------------------- what must hold


def must_be_equal(found: Any, never: Any, *, exact: bool) -> None:
    """What the files of two learners hold, but for events that are no learning."""
    import torch

    from ipal.estimator import files

    one, other = files.snapshot(found.model_), files.snapshot(never.model_)
    for name in one.facts.keys() | other.facts.keys():
        mine, theirs = (_only_learned(name, facts[name]) for facts in (one.facts, other.facts))
        if mine != theirs:
            raise Failed(f"facts: {name} is {mine} and {theirs}")
    if one.tensors.keys() != other.tensors.keys():
        raise Failed(f"tensors: {sorted(one.tensors.keys() ^ other.tensors.keys())}")
    for name, tensor in one.tensors.items():
        theirs = other.tensors[name]
        if tensor.dtype != theirs.dtype or tensor.shape != theirs.shape:
            raise Failed(f"{name} is of another kind or shape")
        if exact or not tensor.is_floating_point():
            if not torch.equal(tensor, theirs):
                raise Failed(f"{name} differs by {(tensor.double() - theirs.double()).abs().max():.3g}")
        elif tensor.numel():
            must_be_near(tensor.double().numpy(), theirs.double().numpy(), name)


def _only_learned(name: str, fact: Any) -> Any:
    return [event for event in fact if event["what"] == "learned"] if name == "history" else fact


def must_be_near(one: Array, other: Array, what: str) -> None:
    scale = max(1.0, float(np.abs(other).max(initial=0)))
    if one.shape != other.shape or not np.abs(one - other).max(initial=0) <= ROUNDING * scale:
        raise Failed(
            f"{what} differ by {np.abs(one - other).max():.3g}, where the largest is {np.abs(other).max():.3g}"
        )


def must_answer_alike(found: Any, never: Any, graph: Any, *, exact: bool) -> None:
    """Labels, probabilities, novelty, rejection and sets."""
    import ipal

    p, q = found.predict_proba(graph), never.predict_proba(graph)
    ordered = np.sort(q, axis=1)
    clear = np.full(len(q), True) if exact or q.shape[1] < 2 else ordered[:, -1] - ordered[:, -2] > 2 * ROUNDING
    if not np.array_equal(found.predict(graph)[clear], never.predict(graph)[clear]):
        raise Failed("labels differ")
    if exact and not np.array_equal(p, q):
        raise Failed(f"probabilities differ by {np.abs(p - q).max():.3g}")
    must_be_near(p, q, "probabilities")
    asked: dict[str, Callable[[Any, float], Array]] = {
        "novelty": lambda one, _: ipal.score_unknown(one, graph),
        "rejected": lambda one, change: np.equal(one.predict(graph, reject=0.05 + change), None),
        "sets": lambda one, change: ipal.predict_sets(one, graph, 0.9 + change),
    }
    for name, ask in asked.items():
        mine, theirs = (_said(ask, one) for one in (found, never))
        if isinstance(mine, str) or isinstance(theirs, str):
            if not isinstance(mine, str) or mine != theirs:
                raise Failed(f"{name}: {mine} and {theirs}")
        elif exact:
            if not np.array_equal(mine, theirs):
                raise Failed(f"{name} differ")
        elif name == "novelty":
            must_be_near(mine, theirs, name)
        elif not (ask(never, -2 * ROUNDING) <= mine).all() or not (mine <= ask(never, 2 * ROUNDING)).all():
            raise Failed(f"{name} differ by more than shares of {2 * ROUNDING}")


def _said(ask: Callable[[Any, float], Array], learner: Any) -> Any:
    """What is answered, or why it is not."""
    from ipal.errors import IpalError

    try:
        return ask(learner, 0.0)
    except IpalError as error:
        return str(error)


def must_not_name(found: Any, never: Any, gone: list[str], folder: Path) -> None:
    """No word of what was forgotten is in the file that is not in the other's."""
    held = []
    for place, learner in enumerate((found, never)):
        learner.save(folder / f"{place}.safetensors")
        held.append((folder / f"{place}.safetensors").read_bytes())
    for word in gone:
        if word.encode() in held[0] and word.encode() not in held[1]:
            raise Failed(f"the file still names {word}")


# ---------------------------------------------------------------------- a case


def tried(seed: int, folder: Path) -> str:
    """Changes a model once or twice, and compares it with the one that was taught so; says what was tried."""
    import ipal
    from ipal.errors import DataError

    random = np.random.default_rng(seed)
    months, (learner, exact) = drawn(random), learner_of(random)
    blank = copy.deepcopy(learner)
    months.taught(learner)
    said, gone = [type(learner).__name__], []
    for kind in random.choice(len(CHANGES), int(random.integers(1, 3))):
        made = CHANGES[kind](random, months)
        said.append(CHANGES[kind].__name__)
        if not made.never.teaches.any():
            break
        if random.random() < 0.3:
            learner.save(folder / "model.safetensors")
            learner = ipal.load(folder / "model.safetensors")
        from_first = random.random() < 0.5  # all graphs may be given, too
        graphs = [graph for now, graph in enumerate(made.graphs) if not from_first or now >= made.first]
        graphs = [graph for graph in graphs if graph.train_mask.any()]
        learner = made.apply(learner, [graphs[place] for place in random.permutation(len(graphs))])
        try:
            made.apply(copy.deepcopy(learner), graphs)
        except DataError:
            pass
        else:
            raise Failed(f"{said[-1]}: done a second time")
        if CHANGES[kind] is class_forgotten:
            gone += sorted(set(map(str, months.y)) & set(NAMES) - set(map(str, learner.classes_)))
        months = made.never
    never = months.taught(copy.deepcopy(blank))
    what = ", ".join(said)
    try:
        must_be_equal(learner, never, exact=exact)
        must_answer_alike(learner, never, months.graphs()[-1], exact=exact)
        must_not_name(learner, never, gone, folder)
    except Failed as failure:
        raise Failed(f"{what}: {failure}") from failure
    return what


def attempt(prepared: None, case: Case) -> None:
    import torch

    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's, about sparse tensors
        tried(case.random.getrandbits(63), case.folder)


PART = Part("forgetting", count=1000, slice=10, seconds=120, attempt=attempt)
