"""Methods with their default settings on many graphs and both test graphs: the table in docs/closed-form.md.

    python scripts/defaults.py --datasets cs cora-ml --device cuda -o defaults.jsonl

One line of JSON for every run: AP and AF of test nodes, seconds, and bytes of the model. What is in the file is not run
again. `--set analytic.width=8192` changes a setting of all runs.
"""

import argparse
import itertools
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from ipal.config import nested, override, parse_assignment, run_config
from ipal.data.dataset import Dataset
from ipal.data.datasets import load
from ipal.engine.trainer import finished
from ipal.estimator.model import Model, begin_learning
from ipal.evaluation.evaluate import evaluate
from ipal.runs.resolved import Resolver

METHODS = ("analytic", "ipal", "ncm", "slda")
TEST_GRAPHS = ("isolated", "seen")
SPLITS = {"flickr": [3, 2, 2, 2], "blogcatalog": [2, 2, 2], "wiki": [5, 3, 3, 3, 3]}
"""Where the general rule makes other tasks."""


def scored(resolver: Resolver, data: Dataset, tree: dict[str, Any]) -> dict[str, float]:
    """AP and AF in percent, seconds, and bytes."""
    run = resolver.resolve(run_config(tree), data)
    config, runtime, begin = run.learner_config(), run.runtime(), time.perf_counter()
    model: Model | None = None
    own: list[float] = []
    row: list[float] = []
    for index in range(len(run.stream)):
        learning = begin_learning(config, model, run.stream.task(index), runtime)
        model = learning.finish(finished(learning.epochs()))
        row = evaluate(model, run.stream.test_splits(index), run.config.protocol.accuracy).row.test
        own.append(row[-1])
    forgotten = [after - before for after, before in zip(row[:-1], own[:-1], strict=True)]
    return {
        "AP": float(np.mean(row)),
        "AF": float(np.mean(forgotten)) if forgotten else 0.0,
        "seconds": round(time.perf_counter() - begin, 2),
        "bytes": model.memory_report()["bytes"] if model else 0,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--datasets", nargs="+", required=True)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--seeds", nargs="+", type=int, default=range(5))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--set", nargs="*", default=(), metavar="NAME=VALUE")
    parser.add_argument("-o", "--output", type=Path, required=True)
    chosen = parser.parse_args()
    done = [json.loads(line) for line in chosen.output.read_text().splitlines()] if chosen.output.exists() else []
    made = {tuple(one["run"]) for one in done}
    resolver = Resolver()
    for name in chosen.datasets:
        data = load(name)
        for method, graph, seed in itertools.product(chosen.methods, TEST_GRAPHS, chosen.seeds):
            key = [name, method, graph, seed, *chosen.set]
            if tuple(key) in made:
                continue
            tree = {"dataset": name, "method": method, "seed": seed, "device": chosen.device}
            tree = override(tree, nested("protocol", {"test_graph": graph, "calibration": 0.0}))
            tree |= {"split": SPLITS[name]} if name in SPLITS else {}
            for assignment in chosen.set:
                tree = override(tree, parse_assignment(assignment))
            found = {"run": key, **scored(resolver, data, tree)}
            with chosen.output.open("a") as file:
                file.write(json.dumps(found) + "\n")
            print(*key, f"AP {found['AP']:.2f}, AF {found['AF']:.2f}, {found['seconds']} s", flush=True)


if __name__ == "__main__":
    main()
