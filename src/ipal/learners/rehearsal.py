"""Rehearsal: what is left open of a learner's settings is chosen on its first task, from training nodes alone.

Half of the nodes are set aside. Of the others some classes are held back and learned as if they came later, every part
on a graph of its own, in two ways: several classes at once, and one after the other. In the end the held-out nodes are
predicted, on the kind of graph that the learner will be tested on: those of the parts, or one with the edges between
them. Untrained encoders, which cost one pass each, are compared first, then how nodes weigh in prototypes; the simplest
that is as good as the best is trained unless that does harm, with as little to hold old knowledge as is one step from
harm. Rates are small: a step changes weights by a small share of their size.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ipal.config import EncoderConfig, EncoderSettings, TestGraph, TrainConfig, TrainSettings, without_auto
from ipal.data.centrality import NodeWeights
from ipal.data.streams import Task
from ipal.errors import CapacityError, ConfigError, NonFiniteError
from ipal.learners.held_back import ENOUGH, FEWEST, GRAPHS, Rehearsal, cut, members, parts
from ipal.nn.encoders import ENCODERS

if TYPE_CHECKING:
    from ipal.learners.base import Learner

WIDE, NARROW = 1024, 128
"""Widths of encoders to choose from."""
USUAL, FAR, FARTHEST = 2, 4, 8
"""Layers of encoders to choose from: far where test graphs have the classes of one task alone."""
MOST_WEIGHTS = 2**25
"""Of the first layer of an encoder that is chosen."""
STEP = 0.001
"""A step of the optimiser changes a weight by about this share of the size of all weights."""
NEAR, ERRORS = 0.005, 2
"""A difference in accuracy up to this, or up to so many standard errors of it, is none."""
REASON = (
    "the simplest encoder, and then the simplest weights of nodes in prototypes, that are as good as the best (within "
    f"half a point, or {ERRORS} standard errors of the difference; where there are edges between classes that were "
    "learned apart, an encoder of the same size need only be better every time) on held-out training nodes, "
)
HELD_BACK = (
    "; trained unless that did harm where some classes were held back and learned as if they came later, with a gamma "
    "one step above the least that did none"
)
UNTRIED = f"; training was not rehearsed, as fewer than {ENOUGH} classes are too few to hold some back"
NOTHING = f"no rehearsal, which needs two classes of {FEWEST} training nodes: the simplest of what there is"


class Candidate(NamedTuple):
    """What may be chosen."""

    encoder: EncoderConfig
    epochs: int
    gamma: float
    """The weight of what holds old knowledge in place; without epochs it has no effect."""
    node_weights: NodeWeights = "uniform"
    """How nodes weigh in prototypes."""

    def plain(self) -> dict[str, Any]:
        network = {name: getattr(self.encoder, name) for name in ("kind", "layers", "hidden", "width")}
        return self._asdict() | {"encoder": network}


@dataclass(frozen=True)
class Options:
    """What there is to choose from; what comes first is the simpler, or does less harm, or is usual."""

    encoders: Sequence[EncoderConfig]
    epochs: Sequence[int]
    gammas: Sequence[float]
    node_weights: Sequence[NodeWeights] = ("uniform",)

    @property
    def simplest(self) -> Candidate:
        return Candidate(self.encoders[0], min(self.epochs), self.gammas[0], self.node_weights[0])


class Make(Protocol):
    """Makes a learner of these settings; with all that `like` has learned, where given, which has the same encoder."""

    def __call__(self, candidate: Candidate, like: Any = None) -> "Learner": ...


class Shown(NamedTuple):
    """Of the held-out nodes in a rehearsal."""

    hits: NDArray[np.float64]
    """1 where a node was recognised, else 0; the mean over kinds of test graphs."""
    weights: NDArray[np.float64]
    """Every class counts the same; their sum is 1."""


def mean_and_error(values: NDArray[np.float64], weights: NDArray[np.float64]) -> tuple[float, float]:
    r"""Weighted mean of independent values, and its standard error; the weights sum to 1.

    .. math:: \bar v = \sum_i w_i v_i, \quad \Big( \sum_i w_i^2 (v_i - \bar v)^2 \Big)^{1/2}
    """
    mean = float(values @ weights)
    return mean, math.sqrt(float(weights**2 @ (values - mean) ** 2))


def chance(error: float) -> float:
    """The largest difference in accuracy that is none, by its standard error."""
    return max(NEAR, ERRORS * error)


def rate_for(weights: Iterable[Tensor]) -> float:
    r"""The learning rate at which a step of Adam changes weights by a small share of their size.

    .. math:: \eta = s \, \Big( \frac 1 n \sum_{i=1}^n w_i^2 \Big)^{1/2}

    over all n weights of matrices, with s = 1/1000.

    Source: Shazeer & Stern 2018, "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost", Sec. 8: relative step
    sizes; here one for all matrices, by their weights at the start. Adam's steps are about as large as the rate,
    whatever the width; one rate for all widths would turn the embeddings of a wide network around within a few steps.
    """
    matrices = [one.detach() for one in weights if one.dim() > 1]
    squares = sum(float(one.square().sum()) for one in matrices)
    return STEP * math.sqrt(squares / max(1, sum(one.numel() for one in matrices))) or STEP


def rates(train: TrainSettings, chosen: float | None) -> dict[str, float]:
    """Of the first task and of later ones: those that are set, the others as chosen, or else as usual."""
    usual = {name: chosen or getattr(TrainConfig(), name) for name in ("lr_base", "lr_next")}
    return usual | {name: rate for name, rate in without_auto(train).items() if name in usual}


def choose(task: Task, options: Options, make: Make, seed: int, test_graph: TestGraph = "both") -> dict[str, Any]:
    """The simplest candidate that is as good as the best, why, and what was tried, as plain data."""
    large = members(task)
    if len(large) < 2:
        return {"chosen": options.simplest.plain(), "reason": NOTHING}
    random = np.random.default_rng([seed, len(task.nodes)])
    names = list(large)
    cuts = cut([names[place] for place in random.permutation(len(names))], isolated=test_graph == "isolated")
    trains = len(cuts) > 1
    made = [list(parts(task, large, groups, random)) for groups in cuts]
    stage = Stage([Rehearsal.of(task.graph, some, test_graph) for some in made], make, test_graph)
    best = stage.best(options, trains=trains)
    blank = stage.blanks.get(best.encoder)  # none where its network does not fit
    return {
        "chosen": best.plain() | ({"rate": rate_for(blank.parameters().values())} if blank else {}),
        "reason": REASON + GRAPHS[test_graph] + (HELD_BACK if trains else UNTRIED),
        "rehearsed": ["+".join(str(len(group)) for group in groups) + " classes" for groups in cuts],
        "nodes_set_aside": [len(one.truth) for one in stage.rehearsals],
        "tried": [candidate.plain() | {"accuracy": stage.accuracies(candidate)} for candidate in stage.tried],
    }


@dataclass(frozen=True, eq=False)
class Stage:
    """Rehearsals, and what candidates have shown in them; none is tried in the second that fails in the first."""

    rehearsals: Sequence[Rehearsal]
    make: Make
    test_graph: TestGraph = "both"
    blanks: "dict[EncoderConfig, Learner]" = field(default_factory=dict)
    """Of each encoder a learner that has learned nothing: weights are drawn once."""
    tried: dict[Candidate, list[Shown | None]] = field(default_factory=dict)
    """By the number of the rehearsal; None where numbers were not finite, or memory was short."""
    begun: "dict[tuple[Candidate, int], Learner]" = field(default_factory=dict)
    """Learners that were trained on the first part of a rehearsal, by their candidate without gamma."""

    def shown(self, candidate: Candidate, number: int) -> Shown | None:
        """Which held-out nodes a candidate recognises in a rehearsal, and their weights."""
        found = self.tried.setdefault(candidate, [])
        for place in range(len(found), number + 1):
            try:
                found.append(rehearsed(self.rehearsals[place], self.beginner(candidate, place)))
            except (NonFiniteError, CapacityError):
                found.append(None)
        return found[number]

    def beginner(self, candidate: Candidate, number: int) -> "Learner":
        """A learner that has learned the first part of a rehearsal; gamma has no effect there."""
        first, key = self.rehearsals[number].parts[0].task, (candidate._replace(gamma=0.0), number)
        if key in self.begun:
            return self.make(candidate, self.begun[key])
        if candidate.encoder not in self.blanks:
            blank = self.make(candidate)
            blank.initialise(first.graph.num_features)
            self.blanks[candidate.encoder] = blank
        learner = learned(self.make(candidate, self.blanks[candidate.encoder]), [first])
        if candidate.epochs:  # other gammas may follow
            self.begun[key] = learner
            learner = self.make(candidate, learner)
        return learner

    def accuracies(self, candidate: Candidate) -> list[float]:
        """In percent, in the rehearsals in which it was tried."""
        return [100 * mean_and_error(*one)[0] for one in self.tried[candidate] if one is not None]

    def gains(self, one: Candidate, other: Candidate) -> Iterator[tuple[float, float]]:
        """Of a candidate over another in each rehearsal, with its standard error; infinite where only one was tried."""
        for number in range(len(self.rehearsals)):
            mine, theirs = self.shown(one, number), self.shown(other, number)
            if mine is None or theirs is None:
                yield (-math.inf if mine is None else math.inf), 0.0
            else:
                yield mean_and_error(mine.hits - theirs.hits, mine.weights)

    def is_better(self, one: Candidate, other: Candidate) -> bool:
        """Whether a candidate is better than another in every rehearsal, and in their mean by more than chance.

        Between encoders of one size, where edges between parts count: better at all. Few of all edges between tasks are
        in a rehearsal, so that it shows too little of what they do.
        """
        alike = self.test_graph != "isolated" and differ_in_kind_alone(one.encoder, other.encoder)
        found = list(takewhile(lambda shown: shown[0] > (0 if alike else NEAR), self.gains(one, other)))
        gain, error = np.mean(found, axis=0) if found else (0, 0)
        return len(found) == len(self.rehearsals) and bool(alike or gain > chance(error))

    def does_harm(self, one: Candidate, other: Candidate) -> bool:
        """Whether a candidate is worse than another in some rehearsal, by more than chance."""
        return any(gain < -chance(error) for gain, error in self.gains(one, other))

    def best(self, options: Options, *, trains: bool) -> Candidate:
        """The simplest encoder and node weights that none is better than untrained, trained as long as that helps."""
        untrained = options.simplest._replace(epochs=0)
        encoder = self.simplest([untrained._replace(encoder=one) for one in options.encoders])
        start = self.simplest([encoder._replace(node_weights=one) for one in options.node_weights])
        if trains:
            return self.trained(start, options)
        return start._replace(epochs=options.epochs[0], gamma=max(options.gammas))  # what holds most does least harm

    def simplest(self, candidates: Sequence[Candidate]) -> Candidate:
        """The last that is better than all before it."""
        before = {one: candidates[:number] for number, one in enumerate(candidates)}
        return next(one for one in reversed(candidates) if all(self.is_better(one, other) for other in before[one]))

    def trained(self, start: Candidate, options: Options) -> Candidate:
        """With little to hold old knowledge, and one step from harm; where no training is usual, only if it is better.

        More tasks may come than are rehearsed, and what few of them do not harm, many may.
        """
        epochs, gammas = sorted(filter(None, options.epochs)), sorted(options.gammas, reverse=True)
        untrained, safe = [start] if 0 in options.epochs else [], list[Candidate]()
        for one in (start._replace(epochs=number, gamma=gamma) for number in epochs for gamma in gammas):
            if any(self.does_harm(one, other) for other in [*untrained, *safe]):
                break
            safe.append(one)
        best = safe[-2:][0] if safe else start
        return start if options.epochs[0] == 0 and not self.is_better(best, start) else best


def encoders(settings: EncoderSettings, num_features: int, *, isolated: bool = False) -> list[EncoderConfig]:
    """Encoders to choose from, with what is set as it is; none is larger than it need be for so many features.

    Where every task is tested on a graph of its own (`isolated`), what is far from a node still tells its task.
    """
    most = max(NARROW, MOST_WEIGHTS // num_features)
    wide, isometric = min(WIDE, most), min(WIDE, most, num_features)
    fixed, found = without_auto(settings), list[EncoderConfig]()
    nearest = FAR if isolated else USUAL
    reaches = (nearest, FARTHEST) if fixed.get("kind", "linear") == "linear" else (USUAL,)
    linear = [("linear", layers, isometric, isometric) for layers in reaches]
    lazy = "lazy", USUAL, isometric, isometric
    known = [*linear, lazy, ("gcn", USUAL, wide, wide // 2), ("gcn", USUAL, NARROW, NARROW)]
    for kind, layers, hidden, width in known:
        one = EncoderConfig(**{"kind": kind, "layers": layers, "hidden": hidden, "width": width, **fixed})
        try:
            ENCODERS.find(one.kind).check(one)
        except ConfigError:  # widths that this kind cannot have
            continue
        found += [one] if one not in found else []
    return found


def differ_in_kind_alone(one: EncoderConfig, other: EncoderConfig) -> bool:
    """Whether two encoders are of one size, so that neither is the simpler one."""
    return one.kind != other.kind and one.model_copy(update={"kind": other.kind}) == other


def learned(learner: "Learner", tasks: Iterable[Task]) -> "Learner":
    """The same learner, with these tasks learned."""
    for task in tasks:
        for _ in learner.learn(task):
            pass
    return learner


def rehearsed(rehearsal: Rehearsal, beginner: "Learner") -> Shown:
    """Learn all parts but the first, then predict the held-out nodes."""
    learner, truth = learned(beginner, (part.task for part in rehearsal.parts[1:])), rehearsal.truth
    found = [np.concatenate([learner.predict_graph(graph)[nodes] for graph, nodes in exam]) for exam in rehearsal.exams]
    _, place, counts = np.unique(truth, return_inverse=True, return_counts=True)
    return Shown(np.mean([one == truth for one in found], axis=0), 1 / (len(counts) * counts[place]))
