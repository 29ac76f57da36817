"""The second pass: predict, weigh every edge by how far the predictions of its ends agree, and predict again.

Tasks are learned on graphs of their own. A graph to be predicted may have edges between them, which mix classes that no
learned graph had side by side; an edge whose ends are unlikely to be of one class then counts less. Nothing is stored
for it, and no label is used. Whether it helps differs from graph to graph: the number of passes is rehearsed on the
training nodes of the first task. Its classes are learned in two parts, each on a graph of its own, and held-out nodes
are predicted on graphs without and with the edges between the parts.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ipal.backend.distributed import ONE_PROCESS
from ipal.config import TestGraph
from ipal.data.csr import Neighbours
from ipal.data.graph import Graph
from ipal.data.streams import Task
from ipal.errors import CapacityError, DataError, NonFiniteError
from ipal.learners import held_back
from ipal.learners.analytic.rehearsal import balanced_mean
from ipal.learners.analytic.ridge import best_scale
from ipal.learners.facts import NO_PASSES
from ipal.system.memory_budget import Budget

if TYPE_CHECKING:
    from ipal.learners.base import Learner

CLEARLY = 2
"""Standard errors by which the accuracy with a further pass must be higher: it also costs time, and reaches further."""
MOST = 2
"""Passes that are rehearsed; more changed nothing where it was tried."""
FEWEST = 64
"""Training nodes, half of which are predicted: fewer, as in a small first batch, show nothing by more than chance."""
LEAST = 1e-12
"""No edge weighs less: a sparse matrix would lose it."""
VALUES_AT_ONCE = 2**22

REASON = f"a further pass has to be better by {CLEARLY} standard errors on held-out nodes, "
COUNTED: Mapping[TestGraph, Sequence[int]] = MappingProxyType({"isolated": [0], "seen": [1], "both": [0, 1]})
"""The graphs that count; see `_Rehearsed.hits`."""
TOO_FEW = (
    f"no rehearsal, which needs two classes of {held_back.FEWEST} training nodes, and {FEWEST} in all: the number set, "
    "or no further pass"
)
FAILED = "the number set, or no further pass, for the rehearsal failed"


def agreement(one: Tensor, other: Tensor) -> Tensor:
    r"""Probability that both ends of an edge are of one class, were they independent.

    .. math:: a_{ij} = \sum_c p_i(c) \, p_j(c)
    """
    return (one * other).sum(dim=-1)


def sharpened(probabilities: Tensor, sharpness: float) -> Tensor:
    r"""Probabilities raised to a power.

    .. math:: \tilde p_i(c) = p_i(c)^s \Big/ \sum_k p_i(k)^s

    Source: Guo et al. 2017, "On Calibration of Modern Neural Networks", Sec. 4.2, with s = 1 / T.
    """
    return (sharpness * _logs(probabilities)).softmax(dim=-1)


def weighed(graph: Graph, probabilities: Tensor, budget: Budget) -> Graph:
    """The graph with the weight of every edge times the agreement of its ends."""
    return graph.changed(lambda rows: _weighed(rows, probabilities, budget), symmetric=graph.symmetric)


def _weighed(neighbours: Neighbours, probabilities: Tensor, budget: Budget) -> Neighbours:
    weights = budget.room((neighbours.num_edges, 1), np.float32).reshape(-1)
    step, done = max(1, VALUES_AT_ONCE // probabilities.shape[1]), 0
    for ends in neighbours.edge_chunks():
        for begin in range(0, len(ends[0]), step):
            one, other = (torch.from_numpy(end[begin : begin + step]).to(probabilities.device) for end in ends)
            found = agreement(probabilities[one], probabilities[other]).float().cpu().numpy()
            weights[done : done + len(found)] = found
            done += len(found)
    if neighbours.weights is not None:
        weights *= neighbours.weights
    np.maximum(weights, LEAST, out=weights)
    # Degrees follow from the weights, also where edges to other nodes were cut off.
    return replace(neighbours, whole_degree=None, weights=weights)


def passed(learner: "Learner", graph: Graph, passes: int, sharpness: float) -> Graph:
    """The graph after so many further passes."""
    for _ in range(passes):
        probabilities = sharpened(learner.probabilities(learner.scores(graph), graph), sharpness)
        graph = weighed(graph, probabilities, learner.runtime_.budget)
    return graph


def chosen(learner: "Learner") -> dict[str, Any]:
    """The number of further passes of a learner, and their sharpness; none while it learns its first task."""
    return learner.second_pass_ or NO_PASSES


def refined(learner: "Learner", graph: Graph) -> Graph:
    """The graph after the further passes of a learner."""
    found = chosen(learner)
    return passed(learner, graph, found["passes"], found["sharpness"])


def whole_reach(learner: "Learner") -> int | None:
    """How many hops away a node can be and still count in another's prediction; None where that is not known.

    A further pass needs what the one before gave for every node that it reads from, and for the nodes beside those,
    which count in their degrees.
    """
    passes = chosen(learner)["passes"]
    return None if learner.reach is None else learner.reach + passes * (learner.reach + 1)


# ---------------------------------------------------------------------- how many


def settled(learner: "Learner", task: Task) -> dict[str, Any]:
    """Further passes of a learner that has learned a task; once known, they are part of the model."""
    if learner.second_pass_ is not None:
        return learner.second_pass_
    if learner.passes == 0:
        return NO_PASSES
    passes = None if learner.passes == "auto" else learner.passes
    with learner.tracer.span("choice"):
        made = partial(choose, task, passes, partial(_blank, learner), learner.seed, learner.test_graph)
        return learner.runtime_.team.broadcast(made)


def _blank(learner: "Learner") -> "Learner":
    """A learner that has learned nothing, in one process, and makes no choice of its own."""
    blank = learner.blank()
    blank.passes, blank.calibration, blank.runtime_ = 0, 0.0, replace(learner.runtime_, team=ONE_PROCESS)
    return blank


def choose(
    task: Task, passes: int | None, blank: Callable[[], "Learner"], seed: int, test_graph: TestGraph = "both"
) -> dict[str, Any]:
    """How many further passes (`passes`, unless None) and their sharpness, why, and what was tried, as plain data.

    `blank` makes learners that have learned nothing.
    """
    try:
        rehearsed = [_Rehearsed.of(*one) for one in _rehearsals(task, blank, seed)]
        return (
            _best(rehearsed, passes, test_graph)
            if rehearsed
            else {**NO_PASSES, "passes": passes or 0, "reason": TOO_FEW}
        )
    except (NonFiniteError, CapacityError, DataError) as error:
        return {**NO_PASSES, "passes": passes or 0, "reason": f"{FAILED}: {error}"}


def _best(rehearsed: Sequence["_Rehearsed"], passes: int | None, test_graph: TestGraph) -> dict[str, Any]:
    sharpness = float(np.exp(np.mean([np.log(one.sharpness) for one in rehearsed])))
    labels = torch.cat([one.labels for one in rehearsed])
    tried, best = [_tried(rehearsed, 0)], 0
    while passes is None and len(tried) <= MOST:
        tried.append(_tried(rehearsed, len(tried)))
        gain, error = balanced_mean((tried[-1] - tried[best])[COUNTED[test_graph]].mean(dim=0), labels)
        if gain <= CLEARLY * error:
            break
        best += 1
    accuracies = [[100 * balanced_mean(hits, labels)[0] for hits in one] for one in tried]
    return {
        "passes": best if passes is None else passes,
        "sharpness": sharpness,
        "reason": REASON + held_back.GRAPHS[test_graph],
        "accuracy_without_edges_between": [one[0] for one in accuracies],
        "accuracy_with_edges_between": [one[1] for one in accuracies],
    }


@dataclass(frozen=True, eq=False)
class _Rehearsed:
    """A learner that has learned some classes in two parts, and the nodes held out."""

    learner: "Learner"
    graphs: tuple[list[Graph], Graph]
    """The graphs of the parts, and the one graph of both."""
    places: tuple[list[Tensor], Tensor]
    """Of the held-out nodes in each of them, in the same order."""
    labels: Tensor
    sharpness: float

    @classmethod
    def of(cls, learner: "Learner", whole: Task, parts: Sequence[held_back.Part]) -> "_Rehearsed":
        for part in parts:
            stay = np.delete(np.arange(part.task.graph.num_nodes), part.aside)
            learned = np.searchsorted(stay, part.task.nodes)
            for _ in learner.learn(Task(part.task.graph.induced(stay), learned, part.task.labels)):
                pass
        joined, at = held_back.together(whole.graph, parts)
        made = cls(
            learner,
            ([part.task.graph for part in parts], joined),
            ([torch.from_numpy(part.aside) for part in parts], torch.from_numpy(at)),
            learner.rows(np.concatenate([part.truth for part in parts])).cpu(),
            1.0,
        )
        logs = torch.cat([_logs(made._read(learner, which, 0)) for which in (0, 1)])
        labels = made.labels.repeat(2)
        weights = 1 / torch.bincount(labels)[labels]
        return replace(made, sharpness=best_scale(logs, labels, weights))

    def hits(self, passes: int) -> Tensor:
        """1 where a held-out node is recognised, else 0: on the graphs of the parts, and on that of both."""
        found = [self._read(self.learner, which, passes).argmax(dim=1) == self.labels for which in (0, 1)]
        return torch.stack(found).double()

    def _read(self, learner: "Learner", which: int, passes: int) -> Tensor:
        """Probabilities of the held-out nodes."""
        graphs, places = self.graphs[which], self.places[which]
        pairs = zip(graphs, places, strict=True) if isinstance(graphs, list) else [(graphs, places)]
        return torch.cat([self._probabilities(learner, graph, passes)[place] for graph, place in pairs])

    @torch.no_grad()
    def _probabilities(self, learner: "Learner", graph: Graph, passes: int) -> Tensor:
        graph = passed(learner, graph, passes, self.sharpness)
        return learner.probabilities(learner.scores(graph), graph).cpu()


def _tried(rehearsed: Sequence[_Rehearsed], passes: int) -> Tensor:
    """On both kinds of graphs, which held-out nodes are recognised."""
    return torch.cat([one.hits(passes) for one in rehearsed], dim=1)


def _rehearsals(
    task: Task, blank: Callable[[], "Learner"], seed: int
) -> Iterator[tuple["Learner", Task, list[held_back.Part]]]:
    """Twice: the nodes held out first are learned then."""
    members = held_back.members(task)
    if len(members) < 2 or sum(map(len, members.values())) < FEWEST:
        return
    random = np.random.default_rng([seed, len(task.nodes), 2])
    names = [list(members)[place] for place in random.permutation(len(members))]
    groups = [names[::2], names[1::2]]
    parts = list(held_back.parts(task, members, groups, random))
    yield blank(), task, parts
    yield blank(), task, [part.turned() for part in parts]


def _logs(probabilities: Tensor) -> Tensor:
    return probabilities.clamp_min(torch.finfo(probabilities.dtype).tiny).log()
