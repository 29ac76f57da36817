"""Has a graph drifted since a model learned: class shares, features, homophily, unknown nodes, expected accuracy.

Compared with a graph that the model was made to `remember`, of which a few numbers are kept, or else with what it keeps
anyway: numbers of training nodes and of edges among them, and means of their features. A limit is what sampling
explains: a graph like the other exceeds any of them with a probability of at most about `false_alarms`.
"""

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import chi2
from torch import Tensor

from ipal.data.class_edges import edges_within_classes
from ipal.data.graph import Graph
from ipal.deploy.predict import neighbourhood, predict, read
from ipal.errors import ConfigError, did_you_mean, shortened
from ipal.estimator import history
from ipal.estimator.learner import Learner
from ipal.estimator.model import Model, model_of
from ipal.estimator.open_world.unknown import rejected
from ipal.methods.base import Trained

if TYPE_CHECKING:  # for annotations only: importing them takes seconds
    from torch_geometric.data import Data

MOST_NODES = 10_000
"""Features of so many nodes are looked at, drawn at random from more."""
NEGLIGIBLE = 0.1
"""A standardized difference below this is negligible (Austin 2009): features have no smaller limit."""
REJECTED = 0.05
"""Share of known nodes that may be rejected as unknown."""
LINES = {
    "class_shares": "share of nodes that would have to change class to be as learned",
    "features": "mean features of the model, in standard deviations from those learned",
    "homophily": "share of edges within a class, by predicted class",
    "unknown": "share of nodes rejected as of no known class",
    "expected_accuracy": "mean of the largest calibrated probability",
}
"""What is watched, in words."""

Fitted = TypeVar("Fitted", Learner, Model)


@dataclass(frozen=True)
class Line:
    """One thing that is watched."""

    name: str
    now: float
    learned: float | None
    """The same when the model learned; None where that is not known."""
    change: float
    """What is held against the limit."""
    limit: float | None
    """None where no alarm can be given."""
    alarm: bool

    @property
    def what(self) -> str:
        return LINES[self.name]


def total_variation(p: NDArray[np.float64], q: NDArray[np.float64]) -> float:
    r"""Share of nodes that would have to change class to make one distribution of classes the other.

    .. math:: d(p, q) = \tfrac12 \sum_c |p_c - q_c|

    Source: Levin & Peres 2017, "Markov Chains and Mixing Times", Prop. 4.2.
    """
    return float(np.abs(p - q).sum() / 2)


def total_variation_limit(p: NDArray[np.float64], n: int, m: int, level: float) -> float:
    r"""What samples of n and m nodes from one distribution exceed with a probability of at most `level`.

    .. math:: \tfrac12 \sum_c \sqrt{p_c (1 - p_c) s} + \sqrt{\tfrac12 s \ln(1 / \alpha)},
        \quad s = \tfrac1n + \tfrac1m

    Source: McDiarmid 1989, "On the Method of Bounded Differences": one node changes the distance by 1/n or 1/m. The
    first term bounds its mean, by Jensen's inequality.
    """
    s = 1 / n + 1 / m
    return float(np.sqrt(p * (1 - p) * s).sum() / 2 + math.sqrt(s * math.log(1 / level) / 2))


def standardized_difference(mean: Tensor, other: Tensor, deviation: Tensor) -> float:
    r"""Root mean square, over columns that vary, of the differences of means in standard deviations.

    .. math:: d = \Big( \tfrac1D \sum_j \big( (m_j - \mu_j) / s_j \big)^2 \Big)^{1/2}

    Source: Austin 2009, "Balance diagnostics for comparing the distribution of baseline covariates", of one column.
    Here `deviation` is that of the nodes that gave `mean`.
    """
    varies = deviation > 1e-6 * deviation.max()
    if not varies.any():
        return 0.0
    return float(((mean - other)[varies] / deviation[varies]).square().mean().sqrt())


def average_confidence(probabilities: NDArray[np.floating]) -> float:
    r"""Accuracy that calibrated probabilities promise.

    .. math:: \hat a = \tfrac1n \sum_i \max_c p_i(c)

    Source: Garg et al. 2022, "Leveraging Unlabeled Data to Predict Out-of-Distribution Performance", where it is
    called average confidence.
    """
    return float(probabilities.max(axis=1).mean(dtype=np.float64))


@dataclass(frozen=True, eq=False)
class Measured:
    """What a graph looks like to a model."""

    counts: NDArray[np.int64]
    """Nodes predicted as each class."""
    edges: tuple[int, int]
    """Within a predicted class, and all."""
    confidence: float
    spread: float
    """Its standard deviation over nodes."""
    unknown: float | None
    """Share of rejected nodes; None where the model cannot say."""
    features: float | None
    """How far their mean is from that of the training nodes; None where the model keeps none."""

    @property
    def nodes(self) -> int:
        return int(self.counts.sum())

    @property
    def rejections(self) -> float:
        """About how many nodes are rejected or not, each for itself: novelty is a mean over neighbours."""
        return max(1.0, self.nodes / (1 + self.edges[1] / max(1, self.nodes)))


def measure(model: Model, graph: Graph) -> Measured:
    """What can be watched of a graph without any label."""
    found = predict(model, graph)
    counts = np.bincount(found.best, minlength=len(found.classes))
    classes = np.full(graph.num_nodes, -1)
    classes[found.nodes] = found.best
    edges = edges_within_classes(graph.neighbours, classes)
    unknown = None
    with suppress(ConfigError):  # it was not calibrated
        unknown = float(rejected(model, graph, REJECTED).mean())
    spread = float(found.confidence.std(dtype=np.float64))
    return Measured(counts, edges, average_confidence(found.probabilities), spread, unknown, _features(model, graph))


def remember(learner: Fitted, graph: "Graph | Data") -> Fitted:
    """With what a graph looks like now, to compare others with; until the model learns or its classes change.

    A learner is changed in place; of a model, another one is returned.
    """
    model = model_of(learner)
    found = measure(model, read(model, graph))
    reference = {
        "time": history.now(),
        "counts": found.counts.tolist(),
        "edges": list(found.edges),
        "confidence": found.confidence,
        "spread": found.spread,
        "unknown": found.unknown,
        "features": found.features,
    }
    changed = replace(model, reference=reference)
    if isinstance(learner, Model):
        return changed
    learner._become(changed)
    return learner


def watch(
    learner: Learner | Model,
    graph: "Graph | Data",
    *,
    false_alarms: float = 0.01,
    limits: Mapping[str, float] | None = None,
) -> list[Line]:
    """What can be compared between a graph and the one that was remembered, and whether a limit is exceeded.

    Where none was remembered: with the training nodes. Predictions are then held against labels, and what wrong ones
    explain is no alarm. `limits` by name replace those that follow from sampling: most change of class shares, features
    and homophily, most unknown, least expected accuracy.
    """
    limits, model = _checked(false_alarms, limits or {}), model_of(learner)
    now, z = measure(model, read(model, graph)), math.sqrt(chi2.ppf(1 - false_alarms / len(LINES), 1))
    remembered = _remembered(model)
    then, errors = (remembered, 0.0) if remembered else (_learned(model, now), 1 - now.confidence)
    lines = list[Line]()

    def add(name: str, found: float, before: float | None, change: float, limit: float) -> None:
        limit = limits.get(name, limit)
        lines.append(Line(name, found, before, change, limit, change > limit))

    if then.nodes:
        n, m = now.nodes, then.nodes
        p, q = then.counts / m, now.counts / n
        apart = total_variation(p, q)
        add("class_shares", apart, 0.0, apart, errors + total_variation_limit(p, n, m, false_alarms / len(LINES)))
    if now.features is not None and then.features is not None and then.nodes:
        noise = z * math.sqrt(1 / min(now.nodes, MOST_NODES) + 1 / min(then.nodes, MOST_NODES))
        add("features", now.features, then.features, now.features - then.features, max(NEGLIGIBLE, noise))
    if now.edges[1] and then.edges[1]:
        h, before = now.edges[0] / now.edges[1], then.edges[0] / then.edges[1]
        # Edges of a node depend on one another: there are no more draws than nodes. A wrong class spoils both ends.
        draws = (min(one.edges[1] / 2, one.nodes or math.inf) for one in (now, then))
        noise = z * math.sqrt(before * (1 - before) * sum(1 / number for number in draws))
        add("homophily", h, before, abs(h - before), 2 * errors + noise)
    if now.unknown is not None:
        share = REJECTED if then.unknown is None else then.unknown
        noise = z * math.sqrt(share * (1 - share) * (1 / now.rejections + 1 / then.rejections))
        add("unknown", now.unknown, share, now.unknown, share + noise)
    least = limits.get("expected_accuracy")
    if least is None and remembered:
        least = then.confidence - z * math.hypot(now.spread / now.nodes**0.5, then.spread / then.nodes**0.5)
    low = least is not None and now.confidence < least
    before_it = remembered.confidence if remembered else None
    return [*lines, Line("expected_accuracy", now.confidence, before_it, now.confidence, least, low)]


def _checked(false_alarms: float, limits: Mapping[str, float]) -> Mapping[str, float]:
    if not 0 < false_alarms < 1:
        raise ConfigError(f"The probability of a false alarm is between 0 and 1, not {false_alarms}.")
    for name, limit in limits.items():
        if name not in LINES:
            raise ConfigError(f"'{shortened(name)}' is not watched.{did_you_mean(name, LINES)}")
        if not 0 <= limit < math.inf:
            raise ConfigError(f"The limit of {name} is a number of 0 or more, not {limit}.")
    return limits


def _remembered(model: Model) -> Measured | None:
    kept = model.reference
    if kept is None:
        return None
    rest = (kept[name] for name in ("confidence", "spread", "unknown", "features"))
    return Measured(np.array(kept["counts"], dtype=np.int64), (kept["edges"][0], kept["edges"][1]), *rest)


def _learned(model: Model, now: Measured) -> Measured:
    """What is known of the training nodes: their numbers, and the edges among them."""
    counts = model.nodes_behind_class()
    behind = np.array([counts.get(str(label), 0) for label in model.labels], dtype=np.int64)
    edges = history.edges_learned(model.history)
    # Prototypes are weighted, and moved with the encoder: they differ from the mean of any graph's nodes.
    features = None if isinstance(model.method, Trained) else 0.0
    return Measured(behind, edges, now.confidence, now.spread, None, features)


def _features(model: Model, graph: Graph) -> float | None:
    """How far the mean of the nodes' embeddings is from that of all training nodes."""
    kept = model.method.statistics(model.state.memory)
    if kept is None or not kept.count.sum():
        return None
    nodes = np.arange(graph.num_nodes)
    if len(nodes) > MOST_NODES:
        drawn = np.sort(np.random.default_rng(0).choice(nodes, MOST_NODES, replace=False))
        part = neighbourhood(graph, drawn, model.reach)
        graph, nodes = part.graph, part.nodes
    with torch.no_grad():
        rows = model.embed(model.checked(graph))[torch.from_numpy(nodes)]
        share = (kept.count / kept.count.sum()).to(kept.mean.dtype)
        return standardized_difference(rows.mean(dim=0), (share @ kept.mean).to(rows.dtype), rows.std(dim=0))


def prometheus(lines: list[Line], model: str) -> str:
    """Gauges in Prometheus' text format, as node_exporter's textfile collector reads them."""
    name = model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    gauges: dict[str, tuple[str, list[tuple[str, float | None]]]] = {
        "value": ("What is watched, as it is now.", [(line.name, line.now) for line in lines]),
        "limit": ("The limit of what is watched.", [(line.name, line.limit) for line in lines]),
        "alarm": ("Whether a limit is exceeded.", [(line.name, line.alarm) for line in lines]),
    }
    found = []
    for gauge, (about, values) in gauges.items():
        found += [f"# HELP ipal_watch_{gauge} {about}", f"# TYPE ipal_watch_{gauge} gauge"]
        known = ((what, value) for what, value in values if value is not None)
        found += [f'ipal_watch_{gauge}{{model="{name}",what="{what}"}} {value:.6g}' for what, value in known]
    return "\n".join(found) + "\n"
