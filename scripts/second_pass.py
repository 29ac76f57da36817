"""What further passes of a prediction gain, method by method and graph by graph, and whether the rehearsal chose right.

    python scripts/second_pass.py --datasets cora-ml photo --methods ncm analytic --seeds 5 -o second-pass.jsonl

A model is learned for each test graph, and tested without further passes, with one, and with two, whatever it has
chosen. A line is printed for each graph and method: on either test graph AP without further passes, the gain of one, of
two and of what was chosen, with its 95 % interval over seeds, in how many runs a pass was chosen, and in how many the
choice was the best of the three, or level with it.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from ipal.config import run_config
from ipal.data.datasets import load
from ipal.evaluation.evaluate import evaluate
from ipal.learners.second_pass import chosen
from ipal.report.statistics import paired_interval
from ipal.runs.resolved import Resolver

PASSES = (0, 1, 2)
TEST_GRAPHS = ("isolated", "seen")
LEVEL = 0.1
"""Points of AP by which a choice may be below the best and still be right."""


def tested(dataset: str, method: str, seed: int, device: str) -> list[dict[str, Any]]:
    """AP with each number of passes, on either test graph."""
    data, resolver = load(dataset), Resolver()
    found = []
    for graph in TEST_GRAPHS:
        about = {"dataset": dataset, "method": method, "seed": seed}
        protocol = {"test_graph": graph, "calibration": 0.0}  # a pass has a sharpness of its own
        run = resolver.resolve(run_config({**about, "device": device, "protocol": protocol}), data)
        stream, learner = run.stream, run.learner()

        def row(index: int, run: Any = run, learner: Any = learner) -> list[float]:
            return evaluate(learner, run.stream.exams(index), run.config.protocol.accuracy).row.test

        rows, scores = list[list[float]](), list[float]()
        for index in range(len(stream)):
            for _ in learner.learn(stream.task(index)):
                pass
            rows.append(row(index))
        choice = chosen(learner)
        for passes in PASSES:
            learner.second_pass_ = {**choice, "passes": passes}
            scores.append(float(np.mean(row(len(stream) - 1))))
        kept = {"ap": scores, "chosen": choice["passes"], "choice": choice, "rows": rows}
        found.append({**about, "test_graph": graph, **kept})
    return found


def gain(records: list[dict[str, Any]], passes: int | None = None) -> str:
    """What so many passes gain, or as many as were chosen, with a 95 % interval."""
    found = {record["seed"]: record["ap"][record["chosen"] if passes is None else passes] for record in records}
    interval = paired_interval(found, {record["seed"]: record["ap"][0] for record in records})
    return "" if interval is None else f"{interval.difference:+.2f} ± {interval.high - interval.difference:.2f}"


def is_right(record: dict[str, Any]) -> bool:
    """Whether the choice is the best, or level with it."""
    return bool(record["ap"][record["chosen"]] >= max(record["ap"]) - LEVEL)


def summary(records: list[dict[str, Any]]) -> list[str]:
    """The rows of a table, one for each graph and method."""
    rows = []
    for group in dict.fromkeys((record["dataset"], record["method"]) for record in records):
        cells = list(group)
        for graph in TEST_GRAPHS:
            mine = [one for one in records if (one["dataset"], one["method"], one["test_graph"]) == (*group, graph)]
            cells += [f"{np.mean([record['ap'][0] for record in mine]):.2f}", *(gain(mine, n) for n in PASSES[1:])]
            counts = sum(record["chosen"] > 0 for record in mine), sum(map(is_right, mine))
            cells += [gain(mine), *(f"{count} of {len(mine)}" for count in counts)]
        rows.append("| " + " | ".join(cells) + " |")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", nargs="*", default=["digits"])
    parser.add_argument("--methods", nargs="+", default=["ncm", "analytic", "ipal", "joint"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("-o", "--output", type=Path, default=Path("second-pass.jsonl"))
    options = parser.parse_args()
    known = [json.loads(line) for line in options.output.read_text().splitlines()] if options.output.exists() else []
    done = {(record["dataset"], record["method"], record["seed"]) for record in known}
    for dataset in options.datasets:
        for method in options.methods:
            for seed in range(options.seeds):
                if (dataset, method, seed) not in done:
                    records = tested(dataset, method, seed, options.device)
                    with options.output.open("a") as file:
                        file.writelines(json.dumps(record) + "\n" for record in records)
                    known += records
    scores = [f"{graph}: AP | one pass | two | as chosen | chosen | right" for graph in TEST_GRAPHS]
    print(f"| graph | method | {' | '.join(scores)} |")
    print("|---" * 14 + "|")
    print("\n".join(summary(known)))


if __name__ == "__main__":
    main()
