"""What further passes of a prediction gain, method by method and graph by graph, and whether the rehearsal chose right.

    python scripts/second_pass.py --datasets cora-ml photo --methods ncm analytic --seeds 5 -o second-pass.jsonl

Every model is learned once, and tested without further passes, with one, and with two, whatever it has chosen. A line
is printed for each method, graph and test graph: AP without further passes, the gain of one, of two and of what was
chosen with its 95 % interval over seeds, and in how many runs the choice was the best of the three, or level with it.
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t

from ipal.config import run_config
from ipal.data.datasets import load
from ipal.evaluation.evaluate import evaluate
from ipal.runs.resolved import Resolver

PASSES = (0, 1, 2)
TEST_GRAPHS = ("isolated", "seen")
LEVEL = 0.1
"""Points of AP by which a choice may be below the best and still be right."""


def tested(dataset: str, method: str, seed: int) -> list[dict[str, Any]]:
    """AP with each number of passes, on both test graphs."""
    data, resolver = load(dataset), Resolver()
    settings = {"dataset": dataset, "method": method, "seed": seed}
    runs = {
        graph: resolver.resolve(run_config({**settings, "protocol": {"test_graph": graph}}), data)
        for graph in TEST_GRAPHS
    }
    stream, learner = runs["isolated"].stream, runs["isolated"].learner()
    for index in range(len(stream)):
        for _ in learner.learn(stream.task(index)):
            pass
    chosen = learner.second_pass_ or {"passes": 0, "sharpness": 1.0}
    found = []
    for graph, run in runs.items():
        scores = []
        for passes in PASSES:
            learner.second_pass_ = {**chosen, "passes": passes}
            row = evaluate(learner, run.stream.exams(len(stream) - 1), run.config.protocol.accuracy).row
            scores.append(float(np.mean(row.test)))
        about = {"dataset": dataset, "method": method, "seed": seed, "test_graph": graph}
        found.append({**about, "ap": scores, "chosen": chosen["passes"], "choice": chosen})
    return found


def with_interval(values: list[float]) -> str:
    """Mean and half the width of its 95 % interval."""
    n = len(values)
    half = t.ppf(0.975, n - 1) * float(np.std(values, ddof=1)) / math.sqrt(n) if n > 1 else math.nan
    return f"{np.mean(values):+.2f} ± {half:.2f}"


def summary(records: list[dict[str, Any]]) -> list[str]:
    """The rows of a table."""
    rows = []
    groups = dict.fromkeys((record["dataset"], record["method"], record["test_graph"]) for record in records)
    for group in groups:
        mine = [record for record in records if (record["dataset"], record["method"], record["test_graph"]) == group]
        gains = [[record["ap"][passes] - record["ap"][0] for record in mine] for passes in PASSES[1:]]
        chosen = [record["ap"][record["chosen"]] - record["ap"][0] for record in mine]
        right = sum(record["ap"][record["chosen"]] >= max(record["ap"]) - LEVEL for record in mine)
        cells = [*group, f"{np.mean([record['ap'][0] for record in mine]):.2f}"]
        cells += [with_interval(gain) for gain in (*gains, chosen)]
        rows.append("| " + " | ".join([*cells, f"{right} of {len(mine)}"]) + " |")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", nargs="*", default=["digits"])
    parser.add_argument("--methods", nargs="+", default=["ncm", "analytic", "ipal", "joint"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("-o", "--output", type=Path, default=Path("second-pass.jsonl"))
    options = parser.parse_args()
    known = [json.loads(line) for line in options.output.read_text().splitlines()] if options.output.exists() else []
    done = {(record["dataset"], record["method"], record["seed"]) for record in known}
    for dataset in options.datasets:
        for method in options.methods:
            for seed in range(options.seeds):
                if (dataset, method, seed) not in done:
                    records = tested(dataset, method, seed)
                    with options.output.open("a") as file:
                        file.writelines(json.dumps(record) + "\n" for record in records)
                    known += records
    print("| graph | method | test graph | AP | one more | two more | as chosen | right |")
    print("|---" * 8 + "|")
    print("\n".join(summary(known)))


if __name__ == "__main__":
    main()
