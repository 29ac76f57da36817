"""Mutation testing: the core is changed in one small place at a time, and the tests must notice.

    python scripts/mutants.py --jobs 16                            all mutants of the core
    python scripts/mutants.py --only nn/losses.py --sample 0.2        a fifth of one file's

mutant_operators.py says what is changed. First every test is run once and traced, which gives the lines that it
reaches and how long it takes (kept, and renewed for test files that change). Then each mutant is given to the tests
that reach its lines, quickest first, until one fails: in a process forked from one that has all tests loaded, where the
code of one function is exchanged; or, if the change is in what an import runs, where the changed module is imported.

Results are in build/mutants/results.jsonl, one line each: a run that is cut short is continued, and mutants that
nobody noticed are tried again, as tests may have come. `--fresh` forgets all. scripts/mutants-equal.yaml lists mutants
that no test can tell from the original, and why. Exits with 1 if fewer than 90 % of the others are caught.
"""

import argparse
import ast
import gc
import importlib.abc
import importlib.util
import json
import os
import random
import resource
import shutil
import signal
import sys
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest
import yaml
from mutant_operators import Mutant, code_of, mutants_of
from mutant_tests import BUILD, PYTEST, ROOT, SOURCE, hash_of, reach_of_tests, say, side_by_side

CORE = """
nn/losses.py nn/head.py nn/network.py nn/propagated_features.py nn/truncated_beta.py evaluation/*.py data/streams/*.py
runs/run_folder.py methods/**/*.py closed_form/*.py engine/**/*.py estimator/**/*.py state/*.py
"""
MARK = 0.9
Run = Callable[[Mutant | None, list[str]], str]
"""Runs tests with a mutant, or with nothing changed, until one fails; which one."""

# ---------------------------------------------------------------------- one mutant


class Watch:
    """A pytest plugin: which test failed."""

    failed = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed = report.nodeid


class Trials(Watch):
    """A pytest plugin that, in place of running all tests, runs for each mutant those that reach it."""

    def __init__(self, mutants: Sequence[Mutant], trial: Callable[[Mutant, Run], None]) -> None:
        self.mutants, self.trial = mutants, trial
        self.items: dict[str, pytest.Item] = {}
        self.functions: dict[tuple[str, str, int], list[FunctionType]] = defaultdict(list)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.items = {item.nodeid: item for item in session.items}
        for function in gc.get_objects():
            if type(function) is FunctionType:  # to ask an object for its class can do anything, as to warn
                code = function.__code__
                self.functions[code.co_filename, code.co_qualname, code.co_firstlineno].append(function)
        for number, mutant in enumerate(self.mutants):
            if number % 50 == 0:
                say(f"{number} of {len(self.mutants)} mutants tried by one of the processes")
            self.trial(mutant, self.run)
        return True

    def run(self, mutant: Mutant | None, tests: list[str]) -> str:
        """In a process of its own: exchange the code, then run tests until one fails, and say which."""
        if mutant is not None and mutant.function is not None:
            new = code_of(changed_code(mutant), mutant.function)
            for function in self.functions[str(mutant.path), *mutant.function]:
                function.__code__ = new
        chosen = [self.items[test] for test in tests if test in self.items]
        for item, following in zip(chosen, [*chosen[1:], None], strict=True):
            try:
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            except (KeyboardInterrupt, SystemExit, pytest.exit.Exception):
                self.failed = item.nodeid
            if self.failed:
                break
        return self.failed


def import_changed(mutant: Mutant | None, tests: list[str]) -> str:
    """In a process of its own, where nothing of ours is imported yet: the changed module in place of the file's."""
    if mutant is not None:
        sys.meta_path.insert(0, Changed(mutant))
    watch = Watch()
    status = pytest.main([*PYTEST, "-x", f"--basetemp={BUILD}/tmp/{os.getpid()}", *tests], plugins=[watch])
    return watch.failed or ("" if status == pytest.ExitCode.OK else f"exit code {int(status)}")


class Changed(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Finds the mutant's module, and nothing else."""

    def __init__(self, mutant: Mutant) -> None:
        self.mutant = mutant

    def find_spec(self, fullname: str, path: object, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != self.mutant.module:
            return None
        return importlib.util.spec_from_file_location(fullname, self.mutant.path, loader=self)

    def is_package(self, fullname: str) -> bool:
        return self.mutant.path.name == "__init__.py"

    def get_code(self, fullname: str) -> CodeType:
        return changed_code(self.mutant)

    def get_source(self, fullname: str) -> str:
        return self.mutant.path.read_text()


def changed_code(mutant: Mutant) -> CodeType:
    """The code of the changed file; the tree is left as it was."""
    mutant.exchange()
    try:
        return compile(ast.fix_missing_locations(mutant.tree), str(mutant.path), "exec", dont_inherit=True)
    finally:
        mutant.exchange()


def in_function(mutant: Mutant) -> bool:
    """Whether the code of one function can be exchanged: one that uses the same names from around it."""
    if mutant.function is None:
        return False
    original = compile(mutant.tree, str(mutant.path), "exec", dont_inherit=True)
    old, new = (code_of(code, mutant.function) for code in (original, changed_code(mutant)))
    return old.co_freevars == new.co_freevars


def in_a_fork(work: Callable[[], str], seconds: float) -> str:
    """What `work` returns, done by a child with limits on time and memory; or how it died."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 2))
        resource.setrlimit(resource.RLIMIT_DATA, (16 << 30, 16 << 30))
        signal.alarm(int(4 * seconds) + 30)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        code = 0
        try:
            said = work()
        except BaseException:
            code, said = 1, traceback.format_exc()
        os.write(write, said[-4000:].encode())
        os._exit(code)
    os.close(write)
    _, status = os.waitpid(pid, 0)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # what its tests have started
    with open(read, errors="replace") as pipe:
        said = pipe.read()
    shutil.rmtree(BUILD / "tmp" / str(pid), ignore_errors=True)
    if os.WIFSIGNALED(status):
        return f"ended by signal {os.WTERMSIG(status)}"
    if status:
        raise RuntimeError(said)  # a fault of this script, and no mutant caught
    return said


# ---------------------------------------------------------------------- all of them


def try_mutants(
    mutants: list[Mutant], reach: dict[str, dict[str, Any]], hashes: dict[Path, str], arguments: Any
) -> None:
    """Each mutant to its tests; a line of the results for each."""
    lines: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    quickest = sorted(reach, key=lambda test: float(reach[test]["seconds"]))
    for test in quickest:
        for file, numbers in reach[test]["lines"].items():
            for number in numbers:
                lines[file][number].append(test)

    def tests(mutant: Mutant) -> list[str]:
        """Those that reach it, as many as there is time for.

        What an import runs, as a default, is reached by all that reach the file, and seen by quick ones beside them.
        """
        own, seconds = lines[str(mutant.path.relative_to(SOURCE))], 0.0
        found = {test for number in (mutant.lines if mutant.function else own) for test in own.get(number, ())}
        if not mutant.function:
            beside = {test.split("::")[0] for test in found}
            found |= {test for test in quickest if reach[test]["seconds"] < 0.1 and test.split("::")[0] in beside}
        chosen: list[str] = []
        for test in (test for test in quickest if test in found):
            seconds += reach[test]["seconds"]
            if chosen and seconds > arguments.seconds:
                break
            chosen.append(test)
        return chosen

    sound, unsound = set[str](), set[str]()

    def trial(mutant: Mutant, run: Run) -> None:
        start, by = time.perf_counter(), ""
        while chosen := [test for test in tests(mutant) if test not in unsound]:
            seconds = 20 + 5 * sum(reach[test]["seconds"] for test in chosen)
            by = in_a_fork(partial(run, mutant, chosen), seconds)
            if by not in reach or by in sound:
                break
            if not in_a_fork(partial(run, None, [by]), seconds):  # it passes where nothing is changed
                sound.add(by)
                break
            unsound.add(by)
            say(f"fails without any change, and is left out: {by}")
        entry = {
            "mutant": mutant.name,
            "source": hashes[mutant.path],
            "caught": bool(by),
            "by": by or (f"none of {len(chosen)} tests" if chosen else "no test, as none reaches it"),
            "seconds": round(time.perf_counter() - start, 2),
        }
        with (BUILD / "results.jsonl").open("a") as file:
            file.write(json.dumps(entry, ensure_ascii=False) + "\n")

    def share(mine: list[Mutant]) -> None:
        inside = [mutant for mutant in mine if in_function(mutant)]
        for mutant in mine:
            if mutant not in inside:
                trial(mutant, import_changed)
        needed = sorted({test.split("::")[0] for mutant in inside for test in tests(mutant)})
        if inside:
            options = [*PYTEST, "--continue-on-collection-errors", f"--basetemp={BUILD}/tmp/{os.getpid()}"]
            pytest.main([*options, *needed], plugins=[Trials(inside, trial)])

    random.Random(0).shuffle(mutants)
    jobs = min(arguments.jobs, len(mutants))
    for _ in side_by_side([partial(share, mutants[n::jobs]) for n in range(jobs)], jobs):
        pass


def table(mutants: list[Mutant], results: dict[str, dict[str, Any]], equal: set[str]) -> bool:
    """Print survivors as diffs and a line for each file; whether the mark is reached."""
    rows: dict[str, Counter[str]] = defaultdict(Counter)
    for mutant in mutants:
        result = results.get(mutant.name)
        noticed = "caught" if result and result["caught"] else "equal" if mutant.name in equal else "lived"
        kind = noticed if result else "untried"
        rows[str(mutant.path.relative_to(SOURCE))][kind] += 1
        if kind == "caught" and mutant.name in equal:
            print(f"\nis listed as equal, and was caught by {results[mutant.name]['by']}: {mutant.name}")
        if kind == "lived":
            print(f"\n{mutant.name}\n  - {mutant.before}\n  + {mutant.after}\n  by {results[mutant.name]['by']}")
    rows["all"] = sum(rows.values(), Counter())
    print(f"\n{'file':28}{'mutants':>9}{'caught':>9}{'lived':>9}{'equal':>9}{'untried':>9}{'score':>9}")
    for file, row in rows.items():
        tried = row["caught"] + row["lived"]
        score = row["caught"] / tried if tried else 0.0
        counts = "".join(f"{row[kind]:9}" for kind in ("caught", "lived", "equal", "untried"))
        print(f"{file:28}{row.total():9}{counts}" + (f"{100 * score:8.1f}%" if tried else ""))
    return score >= MARK


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", nargs="+", default=CORE.split(), help="files below src/ipal, as nn/losses.py or methods/*.py"
    )
    parser.add_argument("--tests", nargs="+", default=[""], help="folders or files below tests, as methods")
    parser.add_argument("--sample", type=float, default=1.0, help="share of each file's mutants")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="time of the tests that one mutant is given to, at most"
    )
    parser.add_argument("--fresh", action="store_true", help="forget what is known")
    parser.add_argument("--show", action="store_true", help="print what is known, and try nothing")
    arguments = parser.parse_args()
    if arguments.fresh:
        shutil.rmtree(BUILD, ignore_errors=True)
    core = sorted({path for name in CORE.split() for path in SOURCE.glob(name)})
    mutants: list[Mutant] = []
    for path in sorted({path for name in arguments.only for path in SOURCE.glob(name)} & set(core)):
        module = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")
        found = mutants_of(path, module)
        mutants += random.Random(arguments.seed).sample(found, round(arguments.sample * len(found)))
    hashes = {path: hash_of(path) for path in core}
    if not arguments.show:
        os.environ.update(OMP_NUM_THREADS="1", HYPOTHESIS_STORAGE_DIRECTORY=str(BUILD / "hypothesis"))
        sys.path[:0] = [str(SOURCE.parent), str(ROOT)]
        os.chdir(ROOT)
        for name in ("torch", "torch_geometric.data", "sklearn.datasets", "pydantic", "typer", "matplotlib.figure"):
            importlib.import_module(name)
        reach = reach_of_tests(core, arguments.tests, arguments.jobs)
        caught = {name for name, entry in known_results(hashes).items() if entry["caught"]}
        left = [mutant for mutant in mutants if mutant.name not in caught]
        say(f"{len(mutants)} mutants, {len(left)} to try with {len(reach)} tests")
        try_mutants(left, reach, hashes, arguments)
    listed = yaml.safe_load((ROOT / "scripts" / "mutants-equal.yaml").read_text()) or {}
    equal = {f"{where}: {change}" for where, changes in listed.items() for change in changes}
    return 0 if table(mutants, known_results(hashes), equal) else 1


def known_results(hashes: dict[Path, str]) -> dict[str, dict[str, Any]]:
    """The last result of every mutant of the files as they are."""
    path = BUILD / "results.jsonl"
    entries = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {entry["mutant"]: entry for entry in entries if entry["source"] in hashes.values()}


if __name__ == "__main__":
    sys.exit(main())
