"""The settings of Joint, chosen for each graph and test graph by validation nodes: the search behind Table 1.

    python scripts/joint_search.py --datasets cora-ml photo --device cuda --seconds 300 -o joint.jsonl

One setting is varied at a time, the others as chosen so far, twice around; the value with the highest mean validation
AP over the tuning seeds is kept. AP of Joint depends on its last task alone, so only that one is trained; every model
is tested on both test graphs. What is in the file is not trained again. Prints the entries of an experiment file.
"""

import argparse
import itertools
import json
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ipal.config import nested, override, run_config
from ipal.data.dataset import Dataset
from ipal.data.datasets import load
from ipal.engine.trainer import finished
from ipal.estimator.model import begin_learning, empty_model
from ipal.evaluation.evaluate import evaluate
from ipal.runs.resolved import Resolver

SPACE: Mapping[str, tuple[Any, ...]] = {
    "train.epochs": (200, 50, 100, 500, 1000),
    "protocol.train_graph": ("isolated", "seen"),
    "encoder.kind": ("gcn", "sage", "gat", "skip"),
    "train.lr_base": (3.0e-3, 3.0e-4, 1.0e-3, 1.0e-2),
    "encoder.dropout": (0.5, 0.0, 0.8),
    "joint.label_smoothing": (0.1, 0.0, 0.3),
    "train.weight_decay": (5.0e-4, 0.0, 5.0e-3),
    "encoder.hidden": (256, 128, 512),
}
"""Candidates of every setting, the first of them where the search begins."""
TEST_GRAPHS = ("isolated", "seen")
ROUNDS = 2


def validated(data: Dataset, settings: Mapping[str, Any], seed: int, device: str) -> dict[str, float]:
    """Validation AP on each test graph."""
    tree: dict[str, Any] = {"dataset": data.name, "method": "joint", "seed": seed, "device": device}
    for name, value in settings.items():
        tree = override(tree, nested(name, value))
    resolver = Resolver()
    runs = [
        resolver.resolve(run_config(override(tree, nested("protocol.test_graph", graph))), data)
        for graph in TEST_GRAPHS
    ]
    stream, config, runtime = runs[0].stream, runs[0].learner_config(), runs[0].runtime()
    untrained = config.model_copy(update={"train": config.train.model_copy(update={"epochs": 0})})
    model, last = empty_model(config, stream.task(0).graph, runtime), len(stream) - 1
    for index in range(last + 1):
        now = config if index == last else untrained
        learning = begin_learning(now, replace(model, config=now), stream.task(index), runtime)
        model = learning.finish(finished(learning.epochs()))
    rows = [evaluate([model], run.stream.test_splits(last), run.config.protocol.accuracy)[0] for run in runs]
    return {graph: float(np.mean(row.validation)) for graph, row in zip(TEST_GRAPHS, rows, strict=True)}


class Search:
    """All models trained so far on one graph."""

    def __init__(self, data: Dataset, seeds: range, device: str, output: Path, until: float) -> None:
        self.data, self.seeds, self.device, self.output, self.until = data, seeds, device, output, until
        self.known: dict[str, dict[str, float]] = {}
        for line in output.read_text().splitlines() if output.exists() else []:
            record = json.loads(line)
            if record["dataset"] == data.name:
                self.known[self._key(record["settings"], record["seed"])] = record["validation"]

    def score(self, settings: Mapping[str, Any], test_graph: str) -> float:
        """Mean validation AP; nothing is trained once the time is over."""
        scores = []
        for seed in self.seeds:
            key = self._key(settings, seed)
            if key not in self.known:
                if time.monotonic() > self.until:
                    return -1.0
                self.known[key] = validated(self.data, settings, seed, self.device)
                record = {"dataset": self.data.name, "seed": seed, "settings": settings, "validation": self.known[key]}
                with self.output.open("a") as file:
                    file.write(json.dumps(record) + "\n")
            scores.append(self.known[key][test_graph])
        return float(np.mean(scores))

    def best(self, test_graph: str) -> tuple[dict[str, Any], float]:
        """The best settings tried by varying one at a time."""
        chosen = {name: values[0] for name, values in SPACE.items()}
        tried = [chosen]
        for _, name in itertools.product(range(ROUNDS), SPACE):
            candidates = [{**chosen, name: value} for value in SPACE[name]]
            chosen = max(candidates, key=lambda one: self.score(one, test_graph))
            tried += candidates
        best = max(tried, key=lambda one: self.score(one, test_graph))
        return best, self.score(best, test_graph)

    @staticmethod
    def _key(settings: Mapping[str, Any], seed: int) -> str:
        return json.dumps([seed, dict(settings)], sort_keys=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", nargs="+", default=["digits"])
    parser.add_argument("--seeds", type=int, default=2, help="how many, from 100 on")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="for each graph; then the best so far")
    parser.add_argument("-o", "--output", type=Path, default=Path("joint.jsonl"))
    options = parser.parse_args()
    for name in options.datasets:
        seeds, until = range(100, 100 + options.seeds), time.monotonic() + options.seconds
        search = Search(load(name), seeds, options.device, options.output, until)
        for graph in TEST_GRAPHS:
            settings, score = search.best(graph)
            done = f"{len(search.known)} models"
            print(f"# {name}, {graph} test graph: validation AP {score:.2f}, {done}", flush=True)
            print(f"joint: {json.dumps(settings)}", flush=True)


if __name__ == "__main__":
    main()
