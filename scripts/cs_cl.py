"""CS-CL, paper protocol, five seeds: how the defaults were chosen, and the tables of docs/results.md.

    python scripts/cs_cl.py choose            mean validation AP over the grid of gamma, epochs, last activation
    python scripts/cs_cl.py ablate            Table 2 and further switches, on test nodes, with the defaults

Runs are kept under --runs: what is finished is not repeated. Choosing reads validation scores only.
"""

import argparse
import itertools
import os
import statistics
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

SEEDS = range(5)
GRID = {
    "encoder.last_activation": ["none", "relu"],
    "train.epochs": [50, 100, 200],
    "ipal.gamma": [round(0.1 * step, 1) for step in range(1, 11)],
}
ABLATIONS = {
    "IPAL": {},
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
}


class Silent:
    """Watches a run and says nothing."""

    def started(self, *_: object) -> None: ...
    def epoch(self, *_: object) -> None: ...
    def task(self, *_: object) -> None: ...


def one(job: tuple[dict[str, object], int, argparse.Namespace]) -> dict[str, object]:
    """One run, or what is stored of it."""
    settings, seed, options = job
    from ipal import experiment
    from ipal.config import override, parse_assignment, run_config
    from ipal.store import RunStore

    tree: dict[str, object] = {"dataset": options.dataset, "seed": seed, "threads": options.threads}
    for name, value in settings.items():
        tree = override(tree, parse_assignment(f"{name}={value}"))
    config, dataset = experiment.resolve(run_config(tree))
    folder = RunStore(options.runs).folder_for(config)
    if folder.is_finished:
        return folder.result()
    return experiment.run(config, dataset, folder, Silent(), checkpoint_every=10**9)


def summary(results: list[dict[str, object]], part: str) -> str:
    scores = [result if part == "test" else result["validation"] for result in results]
    cells = []
    for key in ("average_performance", "average_forgetting"):
        values = [score[key] for score in scores]
        cells.append(f"{statistics.mean(values):6.2f} ± {statistics.stdev(values):.2f}")
    return " | ".join(cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=["choose", "ablate"])
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--dataset", default="cs")
    parser.add_argument("--threads", type=int, default=1, help="threads of each run")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="runs at a time")
    options = parser.parse_args()
    if options.what == "choose":
        variants = [dict(zip(GRID, values, strict=True)) for values in itertools.product(*GRID.values())]
        names = [" ".join(f"{key}={value}" for key, value in variant.items()) for variant in variants]
        part = "validation"
    else:
        names, variants, part = list(ABLATIONS), list(ABLATIONS.values()), "test"
    print(f"| {options.dataset}, {part} nodes, {len(SEEDS)} seeds | AP | AF |\n|---|---|---|", flush=True)
    with ProcessPoolExecutor(options.jobs) as pool:
        jobs = [(variant, seed, options) for variant in variants for seed in SEEDS]
        results = pool.map(one, jobs)
        best = (-1.0, "")
        for name in names:
            of_variant = list(itertools.islice(results, len(SEEDS)))
            print(f"| {name} | {summary(of_variant, part)} |", flush=True)
            if part == "validation":
                mean = statistics.mean(r["validation"]["average_performance"] for r in of_variant)
                best = max(best, (mean, name))
    if part == "validation":
        print(f"\nhighest mean validation AP: {best[1]} ({best[0]:.2f})")


if __name__ == "__main__":
    sys.exit(main())
