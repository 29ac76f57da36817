"""Whether a memory limit holds: every method on one mapped graph under a limit, in a process of its own.

    python benchmarks/memory_limits.py
    python benchmarks/memory_limits.py --limit 900MB --methods ewc ncm

Prints the way that was taken, what it was estimated to take, and the most that the process held, pages of mapped
files left out: the system takes those back when it needs them. A method that is refused under the limit is run once
more under what it says that it needs. Exits with 1 where a limit did not hold. Linux only.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from ipal.data import datasets
from ipal.estimator.registry import METHODS
from ipal.methods.base import Trained
from ipal.runs.memory_plan import parse_bytes

GIB = 2**30


class Outcome(NamedTuple):
    """Of one run under a limit."""

    way: str
    """Empty where the limit was refused."""
    estimated: float
    """GiB."""
    peak: int
    """Bytes."""


def anonymous_bytes(pid: int) -> int:
    """What a process holds now, without pages of mapped files."""
    try:
        found = re.search(r"RssAnon:\s*(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0


def watched(method: str, graph: str, folder: str, *options: str) -> tuple[int, int, str]:
    """The most that a run held, in bytes; its exit status; and what it said."""
    command = [sys.executable, "-m", "ipal", "run", "--dataset", graph, "--method", method, "--runs", folder]
    command += ["--threads", "1", *options]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        peak = 0
        while process.poll() is None:
            peak = max(peak, anonymous_bytes(process.pid))
            time.sleep(0.005)
        said = " ".join((process.stderr.read() if process.stderr else "").split())
    return peak, process.returncode, said


def under(limit: str, method: str, graph: Path, folder: str, *options: str) -> Outcome:
    peak, status, said = watched(method, str(graph), folder, "--memory-limit", limit, *options)
    if refused := re.search(r"takes about ([\d.]+) GiB at least", said):
        return Outcome("", float(refused[1]), peak)
    taken = re.search(r"Within \S+: ([^,]+), which takes at least about ([\d.]+) GiB", said)
    if status or not taken:
        raise SystemExit(f"{method} failed: {said[-2000:]}")
    return Outcome(taken[1], float(taken[2]), peak)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", default="synthetic:nodes=60000,classes=6,features=512,degree=40")
    parser.add_argument("--limit", default="1.2GB")
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    parser.add_argument("--repeats", type=int, default=1, help="runs of each; the highest peak counts (default 1)")
    parser.add_argument("--size", choices=["full", "small"], default="full", help="small: only to see that it runs")
    chosen = parser.parse_args()
    if chosen.size == "small":
        chosen.graph = "synthetic:nodes=600,classes=4,features=16"
    print(f"{chosen.graph}, mapped from files; GiB\n")
    print("| method | limit | way | estimated | peak | |\n|---|---|---|---|---|---|")
    held = True
    with tempfile.TemporaryDirectory() as folder:
        graph = Path(folder) / "mapped.graph"
        datasets.convert(chosen.graph, graph)
        for method in chosen.methods:
            options = ("--set", "train.epochs=1") if issubclass(METHODS.find(method), Trained) else ()
            limits = [chosen.limit]
            for limit in limits:
                runs = [f"{folder}/{method}-{limit}-{turn}" for turn in range(chosen.repeats)]
                found = max((under(limit, method, graph, run, *options) for run in runs), key=lambda run: run.peak)
                most = parse_bytes(limit) / GIB
                if not found.way:
                    print(f"| {method} | {most:.2f} | refused | {found.estimated:.1f} | | |", flush=True)
                    limits.append(f"{found.estimated + 0.1:.2f}GB")
                    continue
                peak = found.peak / GIB
                held &= peak <= most
                word = "" if peak <= most else "above the limit"
                row = (method, f"{most:.2f}", found.way, f"{found.estimated:.1f}", f"{peak:.2f}", word)
                print(f"| {' | '.join(row)} |", flush=True)
    if not held:
        sys.exit(1)


if __name__ == "__main__":
    main()
