"""Table 1: the entries of an experiment file on many graphs, every model tested on both test graphs.

    python scripts/table1.py run experiments/table1-cs.yaml --datasets cs cora-ml --device cuda -o table1.jsonl
    python scripts/table1.py show table1.jsonl

    python scripts/table1.py run experiments/defaults.yaml --tune --datasets cs cora-ml -o search.jsonl
    python scripts/table1.py choose search.jsonl

`run` writes one line of JSON for every graph, entry and seed; what is in the file is not run again. With `--tune` it
runs all points of the grids with the tuning seeds of the file. `choose` prints, for every entry, the point with the
highest mean validation AP over all graphs and both test graphs. `show` prints the tables.

`ipal bench` makes the same runs, one test graph at a time.
"""

import argparse
import json
import multiprocessing
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

TEST_GRAPHS = ("isolated", "seen")
EXPERIMENT = Path(__file__).parents[1] / "experiments" / "table1-cs.yaml"
Line = dict[str, Any]


class Work(NamedTuple):
    """A run to be made."""

    dataset: str
    label: str
    method: str
    settings: str
    """As JSON, nested."""
    seed: int
    device: str

    @property
    def key(self) -> tuple[Any, ...]:
        return self.dataset, self.label, self.settings, self.seed


@lru_cache(maxsize=1)
def resolver_of(dataset: str) -> Any:
    """One graph at a time is in memory."""
    from ipal.data.datasets import load
    from ipal.runs.resolved import Resolver

    return Resolver(), load(dataset)


def perform(work: Work) -> Line:
    """AP and AF on both test graphs in percent, seconds, and bytes of the model."""
    import torch

    from ipal.config import nested, override, run_config

    torch.set_num_threads(1)
    resolver, data = resolver_of(work.dataset)
    tree = override(json.loads(work.settings), {"dataset": work.dataset, "seed": work.seed, "device": work.device})
    tree = override(tree, {"method": work.method, "protocol": {"calibration": 0.0}})
    runs = {
        graph: resolver.resolve(run_config(override(tree, nested("protocol.test_graph", graph))), data)
        for graph in TEST_GRAPHS
    }
    begin, found = time.perf_counter(), dict[str, Any]()
    configs = {graph: run.learner_config().model_copy(update={"test_graph": None}) for graph, run in runs.items()}
    shared = configs["isolated"] == configs["seen"]  # one model serves both
    for graphs in [TEST_GRAPHS] if shared else [(graph,) for graph in TEST_GRAPHS]:
        found |= learned({graph: runs[graph] for graph in graphs})
    line = {"dataset": work.dataset, "label": work.label, "settings": json.loads(work.settings), "seed": work.seed}
    return {**line, "seconds": round(time.perf_counter() - begin, 2), **found}


def learned(runs: Mapping[str, Any]) -> dict[str, Any]:
    """Scores of one model, which learns a stream, on the test graphs of each."""
    from ipal.engine.trainer import finished
    from ipal.estimator.model import begin_learning
    from ipal.estimator.registry import METHODS
    from ipal.evaluation.evaluate import evaluate

    run = next(iter(runs.values()))
    config, runtime, last = run.learner_config(), run.runtime(), len(run.stream) - 1
    untrained = config.model_copy(update={"train": config.train.model_copy(update={"epochs": 0})})
    keeps_all = METHODS.find(run.config.method).keeps == "everything"  # only its last model counts
    model, rows = None, {graph: list[Any]() for graph in runs}
    for index in range(last + 1):
        now = untrained if keeps_all and index < last else config
        model = replace(model, config=now) if model else None
        learning = begin_learning(now, model, run.stream.task(index), runtime)
        model = learning.finish(finished(learning.epochs()))
        for graph, of_graph in runs.items() if index == last or not keeps_all else ():
            rows[graph] += evaluate([model], of_graph.stream.test_splits(index), "balanced")
    return {graph: scores(some, keeps_all) for graph, some in rows.items()} | {"bytes": model.memory_report()["bytes"]}


def scores(rows: Sequence[Any], keeps_all: bool) -> dict[str, float | None]:
    own = [row.test[-1] for row in rows]
    forgotten = [after - before for after, before in zip(rows[-1].test[:-1], own[:-1], strict=True)] if own[1:] else []
    return {
        "AP": float(np.mean(rows[-1].test)),
        "AF": None if keeps_all or not forgotten else float(np.mean(forgotten)),
        "validation": float(np.mean(rows[-1].validation)),
    }


# ---------------------------------------------------------------------- which runs


def all_work(file: Path, datasets: Sequence[str], device: str, tune: bool, only: Sequence[str]) -> Iterator[Work]:
    from ipal.bench.experiment_file import as_tree, read_experiment

    experiment = read_experiment(file)
    seeds = experiment.tuning_seeds if tune else experiment.seeds
    for dataset in datasets:
        for entry in experiment.entries:
            for point in entry.points(tune) if not only or entry.label in only else ():
                own = {name: value for name, value in point.items() if name != "dataset"}
                settings = json.dumps(as_tree(own), sort_keys=True)
                for seed in seeds:
                    yield Work(dataset, entry.label, entry.method, settings, seed, device)


def read(path: Path) -> list[Line]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def run(asked: argparse.Namespace) -> None:
    made = {
        (line["dataset"], line["label"], json.dumps(line["settings"], sort_keys=True), line["seed"])
        for line in read(asked.output)
    }
    todo = [
        work
        for work in all_work(asked.file, asked.datasets, asked.device, asked.tune, asked.only)
        if work.key not in made
    ]
    until = time.monotonic() + asked.seconds
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(asked.jobs, mp_context=context) as pool, asked.output.open("a") as output:
        under_way = {pool.submit(perform, work): work for work in todo}
        for number, future in enumerate(as_completed(under_way), 1):
            work = under_way[future]
            if future.cancelled():
                continue
            if error := future.exception():
                print(*work, f"failed: {error}", flush=True)
                continue
            line = future.result()
            output.write(json.dumps(line) + "\n")
            output.flush()
            found = ", ".join(f"{graph} {line[graph]['AP']:.2f}" for graph in TEST_GRAPHS)
            print(f"{number}/{len(todo)} {work.dataset} {work.label} {work.settings} {work.seed}: {found}", flush=True)
            if time.monotonic() > until:
                pool.shutdown(wait=False, cancel_futures=True)


# ---------------------------------------------------------------------- what they say


def choose(asked: argparse.Namespace) -> None:
    """Points in the order of their mean validation AP, of those that were run on all graphs of their entry."""
    by_point: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for line in [line for path in asked.files for line in read(path)]:
        point = by_point[line["label"], json.dumps(line["settings"], sort_keys=True)]
        point[line["dataset"]] += [line[graph]["validation"] for graph in TEST_GRAPHS]
    for label in dict.fromkeys(label for label, _ in by_point):
        points = {settings: found for (name, settings), found in by_point.items() if name == label}
        most = max(map(len, points.values()))
        whole = {s: found for s, found in points.items() if len(found) == most}
        mean = {s: float(np.mean([np.mean(values) for values in found.values()])) for s, found in whole.items()}
        print(f"{label}: {most} graphs")
        for settings in sorted(mean, key=lambda one: -mean[one])[: asked.most]:
            each = " ".join(f"{name} {np.mean(values):.1f}" for name, values in sorted(whole[settings].items()))
            print(f"  {mean[settings]:.2f} {settings} ({each})")


def show(asked: argparse.Namespace) -> None:
    """Tables of AP and AF on each test graph: mean ± standard deviation over seeds, or with `--short` means of AP."""
    lines = [line for path in asked.files for line in read(path)]
    datasets, labels = (list(dict.fromkeys(line[part] for line in lines)) for part in ("dataset", "label"))
    cells: dict[tuple[str, str], list[Line]] = defaultdict(list)
    for line in lines:
        cells[line["label"], line["dataset"]].append(line)
    for score, graph in ((score, graph) for score in ("AP", "AF")[: 1 if asked.short else 2] for graph in TEST_GRAPHS):
        head = [*datasets, "mean"] if score == "AP" else datasets
        print(f"\n**{score}, {graph} test graph**\n\n| method | {' | '.join(head)} |\n|{'---|' * (len(head) + 1)}")
        for label in sorted(labels, key=_place):
            found = [[line[graph][score] for line in cells[label, dataset]] for dataset in datasets]
            means = [float(np.mean(some)) if some and None not in some else np.nan for some in found]
            row = [f"{mean:.1f}" for mean in means] if asked.short else [_cell(some) for some in found]
            print(f"| {' | '.join([_title(label), *row, *[f'{np.mean(means):.1f}'] * (score == 'AP')])} |")
    seeds = sorted({len({line["seed"] for line in some}) for some in cells.values()})
    print(f"\n{len(lines)} runs, seeds of a cell: {seeds}; {sum(line['seconds'] for line in lines) / 3600:.2f} hours.")


def _title(label: str) -> str:
    """As in tables of `ipal report`."""
    from ipal.estimator.registry import METHODS

    method = METHODS.get(label)
    return label if method is None else method.title + " †" * (method.keeps != "statistics")


def _place(label: str) -> int:
    """Methods in the order of the file of Table 1."""
    from ipal.bench.experiment_file import read_experiment

    order = [entry.label for entry in read_experiment(EXPERIMENT).entries]
    return order.index(label) if label in order else len(order)


def _cell(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{np.mean(known):.2f} ± {np.std(known, ddof=1):.2f}" if len(known) > 1 else "–"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("run")
    command.add_argument("file", type=Path)
    command.add_argument("--datasets", nargs="+", required=True)
    command.add_argument("--only", nargs="+", default=(), help="labels of entries")
    command.add_argument("--tune", action="store_true", help="all points of the grids, with the tuning seeds")
    command.add_argument("--device", default="cpu")
    command.add_argument("--jobs", type=int, default=1, help="processes")
    command.add_argument("--seconds", type=float, default=float("inf"), help="then no further run is begun")
    command.add_argument("-o", "--output", type=Path, required=True)
    command.set_defaults(do=run)
    for name, do in (("choose", choose), ("show", show)):
        command = commands.add_parser(name)
        command.add_argument("files", type=Path, nargs="+")
        command.add_argument("--most", type=int, default=3, help="points shown of every entry by 'choose'")
        command.add_argument("--short", action="store_true", help="means of AP alone, by 'show'")
        command.set_defaults(do=do)
    asked = parser.parse_args()
    asked.do(asked)


if __name__ == "__main__":
    main()
