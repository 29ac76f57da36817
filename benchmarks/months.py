"""A graph that grows for months: the engineer's bench. Nothing is tuned on what is measured.

Every month brings the whole graph so far and the labels that are new. `accounts` is made here: 3,000 accounts with
eight numbers and a category, 12,000 weighted payments, six months, new kinds of accounts in months 2, 3 and 4. A real
graph arrives in four months; its classes begin evenly over them and return in every later month.

After every month, on nodes without a label: accuracy, known nodes lost at reject=0.05 (also of all known nodes),
calibration error, coverage of sets at 90 %; on the graph of the next month, the share of nodes of new classes that are
found. In the end five nodes of the first month are forgotten, and the model is compared with one that never saw them.
"""

import argparse
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from timing import begin, options

import ipal
from ipal.data.datasets import load
from ipal.errors import IpalError
from ipal.estimator.registry import METHODS
from ipal.methods.base import Forgets

SMALL = "synthetic:nodes=300,classes=6"
KNOWN = 0.6
"""Share of nodes that have a label."""
FORGOTTEN = 5
GRAPHS = ("accounts", "accounts, no weights", "cora-ml", "photo", "computers", "dblp")
METHODS_SHOWN = ("analytic", "ipal", "ncm", "slda")


class Arriving(NamedTuple):
    """A graph whose nodes come in months."""

    x: Any
    edges: NDArray[np.int64]
    weights: NDArray[np.float32] | None
    y: NDArray[Any]
    month: NDArray[np.int64]
    labelled: NDArray[np.bool_]

    @property
    def months(self) -> int:
        return int(self.month.max()) + 1

    def until(self, now: int, *, without: NDArray[np.int64] | None = None) -> SimpleNamespace:
        """The graph of a month: all nodes so far, with the new labels as training nodes."""
        here = np.flatnonzero(self.month <= now)
        here = here if without is None else np.setdiff1d(here, without)
        place = np.full(len(self.y), -1)
        place[here] = np.arange(len(here))
        inside = (place[self.edges] >= 0).all(axis=0)
        return SimpleNamespace(
            x=self.x[here],
            edge_index=place[self.edges[:, inside]],
            edge_weight=None if self.weights is None else self.weights[inside],
            y=self.y[here],
            train_mask=self.labelled[here] & (self.month[here] == now),
            nodes=here,
        )


def accounts(seed: int, *, weights: bool = True, nodes: int = 3000) -> Arriving:
    """Accounts and payments: new kinds of accounts appear in months 2, 3 and 4."""
    random = np.random.default_rng([seed, 33])
    first = np.array([0, 0, 1, 2, 3])
    kind = random.choice(5, nodes, p=[0.34, 0.26, 0.16, 0.13, 0.11])
    month = first[kind] + (random.random(nodes) * (6 - first[kind])).astype(np.int64)
    numbers = random.normal(size=(5, 8))[kind] * 1.2 + random.normal(size=(nodes, 8))
    category = np.where(random.random(nodes) < 0.6, kind % 4, random.integers(0, 4, nodes))
    source = random.integers(0, nodes, 4 * nodes)
    by_kind = [np.flatnonzero(kind == one) for one in range(5)]
    alike = np.array([random.choice(by_kind[one]) for one in kind[source]])
    target = np.where(random.random(4 * nodes) < 0.75, alike, random.integers(0, nodes, 4 * nodes))
    amount = np.exp(random.normal(3, 1.2, 4 * nodes)).astype(np.float32)
    edges = np.stack([np.concatenate([source, target]), np.concatenate([target, source])])
    x = np.concatenate([numbers, np.eye(4)[category]], axis=1).astype(np.float32)
    names = np.array(["shop", "person", "bank", "broker", "fraud"])
    labelled = random.random(nodes) < KNOWN
    return Arriving(x, edges, np.tile(amount, 2) if weights else None, names[kind], month, labelled)


def arriving(dataset: str, seed: int, months: int = 4) -> Arriving:
    """A real graph: the classes, in random order, begin evenly over the months, and go on to the last."""
    data, random = load(dataset), np.random.default_rng(seed)
    order, month = random.permutation(np.unique(data.y)), np.empty(len(data.y), dtype=np.int64)
    for place, label in enumerate(order):
        own, first = random.permutation(np.flatnonzero(data.y == label)), place * months // len(order)
        month[own] = first + np.arange(len(own)) * (months - first) // len(own)
    graph = data.graph
    return Arriving(graph.x, graph.edges, graph.edge_weight, data.y, month, random.random(len(data.y)) < KNOWN)


def calibration_error(p: NDArray[Any], right: NDArray[np.bool_], bins: int = 15) -> float:
    """Expected calibration error in percent (Guo et al. 2017, Eq. 3)."""
    sure = p.max(axis=1)
    place = np.minimum((sure * bins).astype(int), bins - 1)
    return 100 * sum(abs(sure[place == b].sum() - right[place == b].sum()) for b in range(bins)) / len(p)


class Month(NamedTuple):
    """What was measured after a month; NaN where a method cannot say."""

    accuracy: float
    lost: float
    lost_of_all: float
    found: float
    error: float
    coverage: float
    seconds: float
    megabytes: float


def measured(learner: Any, data: Arriving, now: int, seconds: float) -> Month:
    """A month, on nodes without a label of classes that are known; and nodes of new classes in the next month."""
    seen = data.until(now)
    known = np.isin(seen.y, learner.classes_)
    test = known & ~data.labelled[seen.nodes]
    probabilities = learner.predict_proba(seen)
    right = learner.classes_[probabilities.argmax(axis=1)] == seen.y
    lost = rejected(learner, seen)
    found = np.nan
    if now + 1 < data.months:
        later = data.until(now + 1)
        new = ~np.isin(later.y, learner.classes_)
        found = 100 * rejected(learner, later)[new].mean() if new.any() else np.nan
    try:
        column = {label: place for place, label in enumerate(learner.classes_.tolist())}
        own = np.array([column[label] for label in seen.y[test].tolist()])
        coverage = 100 * ipal.predict_sets(learner, seen, 0.9)[test][np.arange(len(own)), own].mean()
    except IpalError:
        coverage = np.nan
    with tempfile.TemporaryDirectory() as folder:
        learner.save(Path(folder) / "model")
        size = (Path(folder) / "model").stat().st_size
    error = calibration_error(probabilities[test], right[test])
    return Month(
        100 * right[test].mean(),
        100 * lost[test].mean(),
        100 * lost[known].mean(),
        found,
        error,
        coverage,
        seconds,
        size / 1e6,
    )


def rejected(learner: Any, data: Any) -> NDArray[Any]:
    """Which nodes are rejected at 5 %; NaN where the method cannot say."""
    try:
        return np.equal(learner.predict(data, reject=0.05), None)
    except IpalError:
        return np.full(len(data.y), np.nan)


def lived(data: Arriving, method: str, seed: int) -> tuple[Any, list[Month]]:
    """A learner after all months, and what was measured after each."""
    learner, found = ipal.learner_class(METHODS.find(method))(seed=seed), []
    for now in range(data.months):
        start = time.perf_counter()
        learner.partial_fit(data.until(now))
        found.append(measured(learner, data, now, time.perf_counter() - start))
    return learner, found


def forgetting_error(learner: Any, data: Arriving, method: str, seed: int) -> float:
    """Largest difference of probabilities and novelty between a model that forgot nodes and one that never saw them."""
    some = np.random.default_rng([seed, 5]).permutation(np.flatnonzero(data.labelled & (data.month == 0)))[:FORGOTTEN]
    graphs = [data.until(now) for now in range(data.months)]
    for graph in graphs:
        graph.forget_mask = np.isin(graph.nodes, some)
    ipal.forget_nodes(learner, graphs)
    never = ipal.learner_class(METHODS.find(method))(seed=seed)
    for now in range(data.months):
        never.partial_fit(data.until(now, without=some))
    last = data.until(data.months - 1, without=some)
    if learner.classes_.tolist() != never.classes_.tolist():
        return np.inf
    pairs = ((one.predict_proba(last), ipal.score_unknown(one, last)) for one in (learner, never))
    return max(float(np.abs(one - other).max()) for one, other in zip(*pairs, strict=True))


def graphs(names: list[str], seed: int, small: bool) -> dict[str, Arriving]:
    """The graphs by name."""
    nodes = 600 if small else 3000
    made = {"accounts": lambda: accounts(seed, nodes=nodes)}
    made["accounts, no weights"] = lambda: accounts(seed, weights=False, nodes=nodes)
    return {name: made[name]() if name in made else arriving(SMALL if small else name, seed) for name in names}


def main() -> None:
    parser: argparse.ArgumentParser = options("A graph that grows for months.", repeats=1)
    parser.add_argument("--datasets", nargs="+", default=list(GRAPHS))
    parser.add_argument("--methods", nargs="+", default=list(METHODS_SHOWN), help="as they are by default")
    parser.add_argument("--first", type=int, default=0, help="seed: others than 0 to try something, 0 to publish")
    chosen = parser.parse_args()
    begin(chosen.threads)
    print(f"default settings, seeds {chosen.first} to {chosen.first + chosen.repeats - 1}, ipal {ipal.__version__}")
    heads = ("accuracy", "known lost", "of all", "new found", "error", "coverage", "seconds", "MB")
    print(f"\n| graph | method | month | {' | '.join(heads)} |\n|{'---|' * (len(heads) + 3)}")
    errors = []
    for name in chosen.datasets:
        for method in chosen.methods:
            runs = []
            for seed in range(chosen.first, chosen.first + chosen.repeats):
                data = graphs([name], seed, chosen.size != "full")[name]
                learner, found = lived(data, method, seed)
                runs.append(found)
                if isinstance(METHODS.find(method)(), Forgets):
                    errors.append((name, method, seed, forgetting_error(learner, data, method, seed)))
            for now, values in enumerate(np.array(runs).mean(axis=0), 1):
                cells = ["–" if np.isnan(value) else f"{value:.1f}" for value in values]
                print(f"| {name} | {method} | {now} | {' | '.join(cells)} |", flush=True)
    print("\nforgetting five nodes, largest difference from a model that never saw them:")
    for name, method, seed, error in errors:
        print(f"  {name}, {method}, seed {seed}: {error:.1e}")


if __name__ == "__main__":
    main()
