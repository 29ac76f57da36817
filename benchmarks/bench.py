"""All benchmarks on the machine at hand, as one table: ours, a reference, the ratio, the floor and our share of it.

    python benchmarks/bench.py -o here.json
    python benchmarks/bench.py --only "sparse products" --size small
    python benchmarks/bench.py compare here.json there.json

The reference is what stock layers of PyTorch Geometric, SciPy or torch take for the same work (benchmarks/README.md
says which for each line); ratio: how many times longer than ours. The floor is the least that the work takes on this
machine, from bytes and operations (work.py) and its measured speed (machine.py); share: the floor's part of our time.
Details of every benchmark go to stderr. Lines of a GPU are there where the machine has one.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import closed_form_learn
import encoder_step
import gpu
import ipal_step
import large_graphs
import methods
import sampled_epoch
import serving
import sparse_products
import torch
from machine import Speed, described
from timing import Line, begin, cs

COLUMNS = ("what", "ours", "reference", "ratio", "floor", "share of the floor", "reference is")


@dataclass(frozen=True)
class Benchmark:
    name: str
    lines: Callable[[str], Line | list[Line]]
    """From a size, small or full."""
    on_gpu: bool = False


def product_lines(size: str) -> list[Line]:
    graph = cs(size).graph
    return sparse_products.products(graph.normalised, graph.x, 3 if size == "small" else 15)


def huge_line(size: str) -> Line:
    words = ["--graph", "huge", "--device", "cuda", "--size", size]
    return large_graphs.measure(large_graphs.parser().parse_args(words))


BENCHMARKS = (
    Benchmark("encoder step, CS", lambda size: encoder_step.measure("sparse", size, rounds(size, 7))),
    Benchmark("encoder step, Arxiv", lambda size: encoder_step.measure("dense", size, rounds(size, 5))),
    Benchmark("IPAL step", lambda size: ipal_step.measure(size, rounds(size, 7))),
    Benchmark("methods", lambda size: methods.measure(size, 1, methods.CASES)),
    Benchmark("closed form, Cora-ML", lambda size: closed_form_learn.measure("cora", size, rounds(size, 3))),
    Benchmark("closed form, CS", lambda size: closed_form_learn.measure("cs", size, rounds(size, 1))),
    Benchmark("sampled epoch", lambda size: sampled_epoch.measure(size, rounds(size, 10))),
    Benchmark("serving", lambda size: serving.measure(size, rounds(size, 200))),
    Benchmark("sparse products", product_lines),
    Benchmark("stream on a GPU", lambda size: gpu.measure("stream", size), on_gpu=True),
    Benchmark("grid on a GPU", lambda size: gpu.measure("grid", size), on_gpu=True),
    Benchmark("closed form on a GPU", lambda size: gpu.measure("closed-form", size), on_gpu=True),
    Benchmark("large graph on a GPU", huge_line, on_gpu=True),
)


def rounds(size: str, full: int) -> int:
    return 1 if size == "small" else full


def collected(chosen: Iterable[Benchmark], size: str) -> tuple[list[Line], list[str]]:
    """All lines, with what the benchmarks print on stderr; and the benchmarks that failed."""
    lines, failed = list[Line](), list[str]()
    with redirect_stdout(sys.stderr):
        for benchmark in chosen:
            print(f"\n== {benchmark.name}", flush=True)
            try:
                found = benchmark.lines(size)
            except (Exception, SystemExit) as error:  # the others go on
                print(f"{type(error).__name__}: {error}", flush=True)
                failed.append(benchmark.name)
            else:
                lines += found if isinstance(found, list) else [found]
    return lines, failed


def result(line: Line, speed: Speed) -> dict[str, Any]:
    """A line as it is stored and shown; seconds."""
    floor = None if line.work is None else speed.floor(line.work)
    ratio = None if line.reference is None else line.reference / line.ours
    share = None if floor is None else floor / line.ours
    return {**asdict(line), "ratio": ratio, "floor": floor, "share": share}


def seconds(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.2f} s" if value >= 1 else f"{1e3 * value:.1f} ms" if value >= 1e-3 else f"{1e6 * value:.0f} us"


def rows(found: Iterable[dict[str, Any]]) -> Iterable[tuple[str, ...]]:
    for one in found:
        ratio = "" if one["ratio"] is None else f"{one['ratio']:.1f} x"
        share = "" if one["share"] is None else f"{100 * one['share']:.0f} %"
        ours, reference, floor = (seconds(one[name]) for name in ("ours", "reference", "floor"))
        yield one["what"], ours, reference, ratio, floor, share, one["beside"]


def printed(columns: Iterable[str], body: Iterable[Iterable[str]]) -> None:
    columns = list(columns)
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for row in body:
        print(f"| {' | '.join(row)} |")


def machine_words(machine: dict[str, Any]) -> str:
    """A machine in one line."""
    words = f"{machine['processor']}, {machine['cores']} cores, {machine['threads']} thread(s); "
    words += f"torch {machine['packages']['torch']}; {machine['gpu'] or 'no GPU'}"
    for name, speed in machine["speed"].items():
        words += f"; {name}: {speed['bandwidth'] / 1e9:.1f} GB/s, {speed['single'] / 1e9:.0f} and "
        words += f"{speed['double'] / 1e9:.0f} GFLOP/s in single and double precision"
    return words


def faster(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """A machine that was measured twice, at its best both times: other programs may have held it up."""
    speeds = {}
    for name, speed in one["speed"].items():
        both = speed, other["speed"][name]
        speeds[name] = {key: (min if key == "start" else max)(each[key] for each in both) for key in speed}
    return {**one, "speed": speeds}


def run(chosen: argparse.Namespace) -> None:
    wanted = [one for one in BENCHMARKS if chosen.only in (None, one.name)]
    if not wanted:
        sys.exit(f"There is no benchmark '{chosen.only}': choose one of {', '.join(one.name for one in BENCHMARKS)}.")
    with redirect_stdout(sys.stderr):
        begin(chosen.threads)
    before = described(chosen.size)
    lines, failed = collected([one for one in wanted if not one.on_gpu or before["gpu"]], chosen.size)
    machine = faster(before, described(chosen.size))
    found = [result(line, Speed(**machine["speed"][line.device])) for line in lines]
    print(machine_words(machine) + "\n")
    printed(COLUMNS, rows(found))
    if chosen.output:
        chosen.output.write_text(json.dumps({"machine": machine, "size": chosen.size, "lines": found}, indent=1))
    if failed:
        sys.exit(f"Failed: {', '.join(failed)}.")


def compare(chosen: argparse.Namespace) -> None:
    """Two machines, or two versions on one: lines that both have."""
    first, second = (json.loads(file.read_text()) for file in chosen.files)
    for file, one in zip(chosen.files, (first, second), strict=True):
        print(f"{file.stem}: {machine_words(one['machine'])}")
    other = {line["what"]: line for line in second["lines"]}
    names = [file.stem for file in chosen.files]
    columns = ["what", *names, "first / second", *(f"share of the floor, {name}" for name in names)]
    both = [(line, other[line["what"]]) for line in first["lines"] if line["what"] in other]
    print()
    printed(columns, (compared_row(*pair) for pair in both))


def compared_row(first: dict[str, Any], second: dict[str, Any]) -> tuple[str, ...]:
    shares = ("" if one["share"] is None else f"{100 * one['share']:.0f} %" for one in (first, second))
    times = seconds(first["ours"]), seconds(second["ours"])
    return first["what"], *times, f"{first['ours'] / second['ours']:.2f}", *shares


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.set_defaults(command=run)
    parser.add_argument("--size", choices=["full", "small"], default="full", help="small: seconds, to see that it runs")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="CPU threads (default all cores)")
    parser.add_argument("--only", help="the name of one benchmark")
    parser.add_argument("-o", "--output", type=Path, help="file for the results, JSON")
    commands = parser.add_subparsers()
    other = commands.add_parser("compare", help="two files of results")
    other.add_argument("files", type=Path, nargs=2)
    other.set_defaults(command=compare)
    chosen = parser.parse_args()
    chosen.command(chosen)


if __name__ == "__main__":
    main()
