"""Estimates of memory against measured peaks: ten configurations, each in a process of its own.

    python benchmarks/memory_estimates.py
    python benchmarks/memory_estimates.py --only 3 4

Measured is the most that the process held at any time (RssAnon, looked at every 5 ms: without pages of mapped files)
less the same of a run of the same method on a graph of 200 nodes. Estimated is what `memory_plan.ways` says less the
same of that graph: what grows with the graph. Linux only.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from memory_limits import watched

from ipal.config import run_config
from ipal.data import datasets
from ipal.runs.memory_plan import ways
from ipal.runs.resolved import resolve

MB = 1e6
MINIMAL = "synthetic:nodes=200,classes=4,features=16"
GRAPHS = {
    "wide": "synthetic:nodes=60000,classes=6,features=512,degree=40",
    "long": "synthetic:nodes=200000,classes=8,features=64,degree=20",
    "dense": "synthetic:nodes=30000,classes=6,features=64,degree=300",
}


class Case(NamedTuple):
    method: str
    graph: str
    way: str
    mapped: bool = True
    settings: tuple[str, ...] = ()


CASES = (
    Case("bare", "wide", "full"),
    Case("bare", "wide", "sampled"),
    Case("bare", "wide", "chunked"),
    Case(
        "ipal",
        "long",
        "full",
        settings=("encoder.kind=gcn", "encoder.layers=2", "encoder.hidden=128", "encoder.width=128"),
    ),
    Case("ewc", "dense", "sampled"),
    Case("joint", "long", "full", mapped=False),
    Case("lwf", "dense", "full", mapped=False),
    Case("ncm", "dense", "full"),
    Case("slda", "wide", "full"),
    Case("analytic", "long", "full"),
)
EPOCHS = "train.epochs=1"


def estimated(case: Case, graph: str) -> int:
    """Bytes that the way is said to take."""
    tree: dict[str, Any] = {"dataset": graph, "method": case.method}
    for setting in (EPOCHS, *case.settings):
        (section, name), value = setting.partition("=")[0].split("."), setting.partition("=")[2]
        tree.setdefault(section, {})[name] = float(value) if value.replace(".", "").isdigit() else value
    (found,) = [way for way in ways(resolve(run_config(tree))) if way.name == case.way]
    return found.bytes


def held(case: Case, graph: str, folder: str, limit: int) -> int:
    """Bytes at the peak of a run in this way."""
    words = [word for setting in (EPOCHS, *case.settings) for word in ("--set", setting)]
    if case.way == "sampled":
        words += ["--set", "protocol.batch.nodes=2000"]
    if case.way == "chunked":
        words += ["--memory-limit", str(limit)]
    peak, status, said = watched(case.method, graph, folder, *words)
    if status:
        raise SystemExit(f"{case} failed: {said[-2000:]}")
    return peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=int, nargs="*", default=range(len(CASES)), help="numbers of configurations")
    parser.add_argument("--size", choices=["full", "small"], default="full", help="small: only to see that it runs")
    parser.add_argument("--repeats", type=int, default=1, help="runs of each; the highest peak counts (default 1)")
    chosen = parser.parse_args()
    print("| method | graph | way | estimated, MB | measured, MB | estimated / measured |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for case in [CASES[number] for number in chosen.only]:
            name = MINIMAL if chosen.size == "small" else GRAPHS[case.graph]
            graph = name
            if case.mapped:
                graph = f"{folder}/{case.graph}.graph"
                if not Path(graph).exists():
                    datasets.convert(name, Path(graph))
            least = estimated(case, MINIMAL)
            most = estimated(case, graph)
            place = f"{folder}/{CASES.index(case)}"
            base = held(case, MINIMAL, f"{place}-minimal", least)
            peak = max(held(case, graph, f"{place}-{turn}", most) for turn in range(chosen.repeats))
            words = case.graph if case.mapped else f"{case.graph}, in memory"
            numbers = (most - least) / MB, (peak - base) / MB
            ratio = numbers[0] / max(numbers[1], 1e-9)
            print(
                f"| {case.method} | {words} | {case.way} | {numbers[0]:.0f} | {numbers[1]:.0f} | {ratio:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
