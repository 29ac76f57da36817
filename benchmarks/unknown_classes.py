"""Unknown classes, calibration and prediction sets on real graphs. Nothing is tuned on what is measured.

    python benchmarks/unknown_classes.py unknown --datasets cora-ml --methods analytic ipal
    python benchmarks/unknown_classes.py calibration --datasets cora-ml --methods ncm --number 3

`unknown`: all classes but two are learned from the graph of their nodes; the whole graph is predicted. AUROC of telling
all nodes of the two from test nodes of the others; the share of known test nodes that are lost where 5 % are asked for,
and of unknown nodes found, beside those found by a threshold on the largest probability that loses as many.
`calibration`: expected calibration error (15 bins) of test nodes, and coverage of sets at 90 %, after one task of all
classes on the whole graph, and after tasks of two classes and of one, each learned and tested on its own graph; and the
share of known test nodes that are lost at 5 % after every task, as soon as two classes are calibrated: means over
seeds, then the least and the largest of a single seed.
"""

import argparse
import itertools
import sys
import warnings
from pathlib import Path

import numpy as np
import torch
from sklearn.metrics import roc_auc_score

sys.path.insert(0, str(Path(__file__).parents[1]))

import timing

import ipal
from ipal.data.graph import Graph
from ipal.data.task import Task
from ipal.errors import Qualified
from ipal.estimator.model import Model
from ipal.estimator.open_world import unknown
from ipal.estimator.registry import METHODS
from ipal.estimator.settings import LearnerConfig, learner_config

TRAIN, TEST = 0.6, 0.2


def split(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Training and test nodes."""
    drawn = np.random.default_rng([seed, 1]).random(n)
    return drawn < TRAIN, drawn >= 1 - TEST


def learn(
    config: LearnerConfig, model: Model | None, graph: Graph, y: np.ndarray, train: np.ndarray, classes: np.ndarray
) -> Model:
    """The model after one more task: some classes, on the graph of their nodes."""
    nodes = np.flatnonzero(np.isin(y, classes))
    taught = np.flatnonzero(train[nodes])
    return timing.learn(config, model, Task(graph.induced(nodes), taught, y[nodes][taught]))


def probabilities(model: Model, graph: Graph) -> np.ndarray:
    with torch.no_grad():
        return model.scores_and_probabilities(graph)[1].double().cpu().numpy()


def calibration_error(p: np.ndarray, truth: np.ndarray, bins: int = 15) -> float:
    """Expected calibration error in percent (Guo et al. 2017, Eq. 3)."""
    sure, right = p.max(axis=1), p.argmax(axis=1) == truth
    place = np.minimum((sure * bins).astype(int), bins - 1)
    return 100 * sum(abs(sure[place == b].sum() - right[place == b].sum()) for b in range(bins)) / len(p)


def measure_unknown(name: str, method: str, pairs: int, first: int) -> None:
    dataset = ipal.load_dataset(name)
    graph, y = dataset.graph, np.asarray(dataset.y)
    all_pairs = list(itertools.combinations(np.unique(y).tolist(), 2))
    chosen = np.random.default_rng(first).permutation(len(all_pairs))[:pairs]
    rows = []
    for number, place in enumerate(chosen, first):
        train, test = split(len(y), number)
        config = learner_config(METHODS[method], {"seed": number})
        is_unknown = np.isin(y, all_pairs[place])
        model = learn(config, None, graph, y, train, np.setdiff1d(y, all_pairs[place]))
        known = test & ~is_unknown
        score, either = unknown.score_unknown(model, graph), known | is_unknown
        rejected = unknown.rejected(model, graph, 0.05)
        sure = probabilities(model, graph).max(axis=1)
        below = np.quantile(sure[known], rejected[known].mean())
        rows.append(
            [
                float(roc_auc_score(is_unknown[either], score[either])),
                100 * rejected[known].mean(),
                100 * rejected[is_unknown].mean(),
                100 * (sure[is_unknown] < below).mean(),
            ]
        )
    found = np.array(rows)
    auc, lost, unknown_found, by_probability = found.mean(axis=0)
    print(
        f"{name:15s} {method:9s} {len(rows)} pairs: AUROC {auc:.3f}, known lost {lost:.1f} % "
        f"({found[:, 1].min():.1f} to {found[:, 1].max():.1f}), unknown found {unknown_found:.0f} %, "
        f"by largest probability {by_probability:.0f} %",
        flush=True,
    )


def predicted(model: Model, graph: Graph, y: np.ndarray, test: np.ndarray, tasks: list[np.ndarray]) -> tuple:
    """Probabilities before and after calibration, classes and rejection of the test nodes of all tasks."""
    rows = {label: row for row, label in enumerate(model.labels)}
    plain, p, truth, lost = [], [], [], []
    for task in tasks:
        nodes = np.flatnonzero(np.isin(y, task))
        part, tested = graph.induced(nodes), np.flatnonzero(test[nodes])
        p.append(probabilities(model, part)[tested])
        truth += [rows[label] for label in y[nodes][tested].tolist()]
        lost.append(unknown.rejected(model, part, 0.05)[tested])
        with torch.no_grad():
            plain.append(model.probabilities(model.forward(part).scores, part).double().cpu().numpy()[tested])
    return np.concatenate(plain), np.concatenate(p), np.array(truth), 100 * np.concatenate(lost).mean()


def measure_calibration(name: str, method: str, seeds: int, first: int) -> None:
    dataset = ipal.load_dataset(name)
    graph, y = dataset.graph, np.asarray(dataset.y)
    found: dict[str, list[list[float]]] = {"one task": [], "tasks of two": [], "tasks of one": []}
    for seed in range(first, first + seeds):
        train, test = split(len(y), seed)
        classes = np.random.default_rng([seed, 2]).permutation(np.unique(y))
        streams = [[classes], np.array_split(classes, max(1, len(classes) // 2)), np.array_split(classes, len(classes))]
        for words, stream in zip(found, streams, strict=True):
            config = learner_config(METHODS[method], {"seed": seed})
            model, every = None, []
            for number, task in enumerate(stream):
                model = learn(config, model, graph, y, train, task)
                if (model.calibration.latest() >= 0).sum() > 1:
                    before, own, labels, lost = predicted(model, graph, y, test, stream[: number + 1])
                    every.append(lost)
            sets = unknown.sets(model, own.astype(np.float32), 0.9)
            found[words].append(
                [
                    100 * (own.argmax(axis=1) == labels).mean(),
                    calibration_error(before, labels),
                    calibration_error(own, labels),
                    100 * sets[np.arange(len(labels)), labels].mean(),
                    sets.sum(axis=1).mean(),
                    *every,
                ]
            )
    for words, values in found.items():
        accuracy, before, after, coverage, size, *lost = np.mean(values, axis=0)
        every = np.array(values)[:, 5:]
        print(
            f"{name:15s} {method:9s} {words:12s} accuracy {accuracy:.1f} %, calibration error {before:.1f} -> "
            f"{after:.1f} %, coverage {coverage:.1f} % with {size:.2f} classes, known lost "
            f"{', '.join(f'{share:.1f}' for share in lost)} % (single seeds {every.min():.1f} to {every.max():.1f})",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["unknown", "calibration"])
    parser.add_argument("--datasets", nargs="+", default=["digits"])
    parser.add_argument("--methods", nargs="+", default=["analytic"])
    parser.add_argument("--number", type=int, default=10, help="of pairs, or seeds")
    parser.add_argument("--first", type=int, default=0, help="seed: others than 0 to try something, 0 to publish")
    asked = parser.parse_args()
    warnings.simplefilter("ignore", Qualified)  # what they say is measured here
    measure = measure_unknown if asked.what == "unknown" else measure_calibration
    for name, method in itertools.product(asked.datasets, asked.methods):
        measure(name, method, asked.number, asked.first)


if __name__ == "__main__":
    main()
