"""A graph that grows for months: every month the whole graph so far, with the labels that are new.

Nodes come over four months. New classes come evenly over them, and each returns in every later month with new nodes.
After every month the model is tested on all test nodes so far, over all classes so far, and saved.
"""

import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from numpy.typing import NDArray
from timing import begin, options

import ipal
from ipal.data.datasets import load
from ipal.estimator.registry import METHODS

SMALL = "synthetic:nodes=300,classes=6"
MONTHS = 4


def arrivals(y: NDArray[np.int64], random: np.random.Generator) -> NDArray[np.int64]:
    """The month of every node: the classes, in random order, begin evenly over the months, and go on to the last."""
    order, month = random.permutation(np.unique(y)), np.empty(len(y), dtype=np.int64)
    for place, label in enumerate(order):
        own, first = random.permutation(np.flatnonzero(y == label)), place * MONTHS // len(order)
        month[own] = first + np.arange(len(own)) * (MONTHS - first) // len(own)
    return month


def months(dataset: str, method: str, seed: int, *, at_once: bool = False) -> list[tuple[float, float, int]]:
    """After each month: balanced and plain accuracy in percent, bytes of the saved model. At once: all in the first."""
    data, random = load(dataset), np.random.default_rng(seed)
    month, draw = arrivals(data.y, random), random.random(len(data.y))
    if at_once:
        month[:] = 0
    learner, found = ipal.learner_class(METHODS.find(method))(seed=seed), []
    for now in range(1 if at_once else MONTHS):
        here = np.flatnonzero(month <= now)
        graph, y, mine, new = data.graph.induced(here), data.y[here], draw[here], month[here] == now
        seen = SimpleNamespace(x=graph.x, edge_index=graph.edges, y=y, train_mask=new & (mine < 0.6))
        learner.partial_fit(seen)
        right, test = learner.predict(seen) == y, mine >= 0.8
        by_class = [right[test & (y == label)].mean() for label in np.unique(y[test])]
        with tempfile.TemporaryDirectory() as folder:
            learner.save(Path(folder) / "model")
            size = (Path(folder) / "model").stat().st_size
        found.append((100 * float(np.mean(by_class)), 100 * float(right[test].mean()), size))
    return found


def main() -> None:
    parser = options("A graph that grows, with returning classes.", repeats=5)
    parser.add_argument("--dataset", default="cora-ml", help="which graph (default cora-ml)")
    parser.add_argument("--method", default="analytic", help="which method, as it is by default")
    chosen = parser.parse_args()
    begin(chosen.threads)
    dataset = chosen.dataset if chosen.size == "full" else SMALL
    runs = np.array([months(dataset, chosen.method, seed) for seed in range(chosen.repeats)])
    print(f"{dataset}, {chosen.method} as it is by default, {chosen.repeats} seeds, ipal {ipal.__version__}")
    print("| month | balanced accuracy | plain accuracy | model |\n|---|---|---|---|")
    for now in range(MONTHS):
        balanced, plain, size = runs[:, now].T
        cells = (f"{score.mean():.2f} ± {score.std():.2f}" for score in (balanced, plain))
        print(f"| {now + 1} | {' | '.join(cells)} | {size.mean() / 1e6:.2f} MB |")
    once = np.array([months(dataset, chosen.method, seed, at_once=True)[-1] for seed in range(chosen.repeats)])
    for name, column in (("balanced", 0), ("plain", 1)):
        print(f"the same nodes learned at once, {name}: {once[:, column].mean():.2f} ± {once[:, column].std():.2f}")
    print("last month, by seed: " + ", ".join(f"{score:.2f}" for score in runs[:, -1, 0]))


if __name__ == "__main__":
    main()
