"""How IPAL's defaults were chosen, and the tables of docs/results.md.

    python scripts/tables.py choose     mean validation AP over the grid of last activation, epochs and gamma
    python scripts/tables.py ablate     Table 2 and further switches on test nodes, with the defaults

Paper protocol, five seeds. Runs are kept under --runs: what is finished is not repeated. Choosing looks at
validation scores only.
"""

import argparse
import itertools
import os
import statistics
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

SEEDS = range(5)
GRID = {
    "encoder.last_activation": ["none", "relu"],
    "train.epochs": [1, 2, 5, 10, 25, 50, 100, 200],
    "ipal.gamma": [round(0.1 * step, 1) for step in range(1, 11)],
}
ABLATIONS: dict[str, dict[str, Any]] = {
    "IPAL, all parts": {},
    "mean prototypes instead of TIGP": {"ipal.node_weights": "uniform"},
    "no distillation": {"ipal.distillation": "none"},
    "feature distillation instead of IPAD": {"ipal.distillation": "fd"},
    "no DBP": {"ipal.boundary": False},
    "IPAD as printed (Eq. 8)": {"ipal.distillation": "ipad-printed"},
    "no Gaussian replay": {"ipal.replay": False},
    "no drift compensation": {"ipal.compensation": "none"},
    "drift weights as printed (Eq. 12)": {"ipal.compensation": "printed"},
    "node weights by degree": {"ipal.node_weights": "degree"},
    "hardness by margin": {"ipal.hardness": "margin"},
    "hardness by energy": {"ipal.hardness": "energy"},
    "last ReLU kept": {"encoder.last_activation": "relu"},
    "Adam's moments reset at each task": {"train.moments": "reset"},
    "no training at all (random encoder, prototypes alone)": {"train.epochs": 0},
    "1 epoch a task": {"train.epochs": 1},
    "50 epochs a task, gamma 0.7": {"train.epochs": 50, "ipal.gamma": 0.7},
    "200 epochs a task, gamma 0.7": {"train.epochs": 200, "ipal.gamma": 0.7},
    "tested on the union of all seen nodes": {"protocol.test_graph": "seen"},
}


class Silent:
    """Watches a run and says nothing."""

    def started(self, *_: object) -> None: ...
    def epoch(self, *_: object) -> None: ...
    def task(self, *_: object) -> None: ...


def one(job: tuple[str, dict[str, Any], int, Path, int]) -> dict[str, Any]:
    """One run, or what is stored of it."""
    from ipal import experiment
    from ipal.config import override, parse_assignment, run_config
    from ipal.store import RunStore

    dataset, settings, seed, runs, threads = job
    tree: dict[str, Any] = {"dataset": dataset, "seed": seed, "threads": threads}
    for name, value in settings.items():
        tree = override(tree, parse_assignment(f"{name}={value}"))
    config, graph = experiment.resolve(run_config(tree))
    folder = RunStore(runs).folder_for(config)
    if folder.is_finished:
        return folder.result()
    return experiment.run(config, graph, folder, Silent(), checkpoint_every=10**9)


def all_seeds(options: argparse.Namespace, variants: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """For every variant and every dataset: the results of all seeds."""
    jobs = [
        (dataset, variant, seed, options.runs, options.threads)
        for variant in variants
        for dataset in options.datasets
        for seed in SEEDS
    ]
    with ProcessPoolExecutor(options.jobs) as pool:
        results = pool.map(one, jobs)
        for _ in range(len(variants) * len(options.datasets)):
            yield list(itertools.islice(results, len(SEEDS)))


def spread(values: list[float]) -> str:
    return f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}"


def choose(options: argparse.Namespace) -> None:
    grid = GRID | ({"train.epochs": options.epochs} if options.epochs else {})
    variants = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    head = [
        *(name.partition(".")[2] for name in GRID),
        *(f"{name}: validation AP" for name in options.datasets),
        "mean",
    ]
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head), flush=True)
    results = all_seeds(options, variants)
    ranking = []
    for variant in variants:
        scores = [[result["validation"]["average_performance"] for result in next(results)] for _ in options.datasets]
        mean = statistics.mean(statistics.mean(values) for values in scores)
        ranking.append((mean, variant))
        cells = [*map(str, variant.values()), *map(spread, scores), f"{mean:.2f}"]
        print("| " + " | ".join(cells) + " |", flush=True)
    mean, best = max(ranking, key=lambda entry: entry[0])
    print(f"\nhighest mean validation AP: {mean:.2f} with {best}")


def ablate(options: argparse.Namespace) -> None:
    columns = [f"{name}: {score}" for name in options.datasets for score in ("AP", "AF")]
    print("| test nodes, 5 seeds | " + " | ".join(columns) + " |\n|" + "---|" * (1 + len(columns)), flush=True)
    results = all_seeds(options, list(ABLATIONS.values()))
    for name in ABLATIONS:
        cells = []
        for _ in options.datasets:
            seeds = next(results)
            cells += [
                spread([result[key] for result in seeds]) for key in ("average_performance", "average_forgetting")
            ]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=["choose", "ablate"])
    parser.add_argument("--datasets", nargs="+", default=["cs"])
    parser.add_argument("--epochs", nargs="+", type=int, help="choose: these numbers of epochs only")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--threads", type=int, default=1, help="threads of each run")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="runs at a time")
    options = parser.parse_args()
    {"choose": choose, "ablate": ablate}[options.what](options)


if __name__ == "__main__":
    main()
