"""Runs the parts one after the other, prints a table, and ends with 1 where anything failed."""

import argparse
import importlib
import os
import sys
import tempfile
from pathlib import Path

PARTS = (
    "kills_forked",
    "kills_command",
    "kills_bench",
    "disks",
    "inputs",
    "commands",
    "server",
    "metamorphic",
    "forgetting",
)
ROOT = Path(__file__).parents[1]


def set_environment() -> None:
    """Before numpy and torch are loaded: no threads that a fork would lose, no GPU, no colours, no data of the user."""
    one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    os.environ.update(one, OMP_WAIT_POLICY="PASSIVE", CUDA_VISIBLE_DEVICES="", NO_COLOR="1", TERM="dumb", COLUMNS="120")
    os.environ["IPAL_DATA"] = "/nonexistent"
    os.environ["SOURCE_DATE_EPOCH"] = "1700000000"  # models name the time at which they were changed
    for name in ("IPAL_RUNS", "PYTHONDONTWRITEBYTECODE"):  # what one process has compiled the next one reads
        os.environ.pop(name, None)
    # The command in processes of its own, and the hostile invocations of the tests.
    known = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *map(os.path.abspath, known)])
    sys.path.insert(0, str(ROOT))


def parse() -> argparse.Namespace:
    known = [name.replace("_", "-") for name in PARTS]
    parser = argparse.ArgumentParser(prog="python -m faults", description="Tries what can go wrong.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(known)}, or kills for all three of them")
    parser.add_argument("--seed", type=int, default=0, help="decides every case (default 0)")
    parser.add_argument("--count", type=int, help="cases of each part (default: as many as the part says)")
    parser.add_argument("--case", type=int, help="this case only, to repeat a failure")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time (default: cores)")
    parser.add_argument("--quick", action="store_true", help="a small slice of each part, as in 'make test'")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="for scratch files")
    chosen = parser.parse_args()
    for name in chosen.parts:
        if not any(part.startswith(name) for part in known):
            parser.error(f"there is no part '{name}': known are {', '.join(known)}")
    wanted = [part for part in known if not chosen.parts or any(part.startswith(name) for name in chosen.parts)]
    chosen.parts = wanted
    return chosen


def main() -> int:
    chosen = parse()
    set_environment()
    from faults.core import Plan, head, run_part

    chosen.folder.mkdir(parents=True, exist_ok=True)
    print(head(), flush=True)
    good = True
    for name in chosen.parts:
        part = importlib.import_module(f"faults.{name.replace('-', '_')}").PART
        count = chosen.count or (part.slice if chosen.quick else part.count)
        numbers = range(count) if chosen.case is None else range(chosen.case, chosen.case + 1)
        row = run_part(part, Plan(chosen.folder.resolve(), chosen.seed, numbers, chosen.jobs))
        print(row.line(), flush=True)
        for line in row.failures():
            print(f"    {line}", flush=True)
        good = good and not row.failed
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
