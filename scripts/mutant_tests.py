"""Which lines of the core each test reaches, and how long it takes: what mutants.py chooses tests by."""

import hashlib
import json
import os
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
SOURCE, TESTS, BUILD = ROOT / "src" / "ipal", ROOT / "tests", ROOT / "build" / "mutants"
ELSEWHERE = """
browser deploy project trackers backend/test_distributed.py bench/test_processes.py bench/test_ray_executor.py
data/test_real.py
"""
"""Tests that run other processes, or look at files alone: a changed function is not seen by them."""
PYTEST = [
    "-p",
    "no:cacheprovider",
    "-p",
    "no:xdist",
    "-q",
    "-W",
    "ignore::pytest.PytestAssertRewriteWarning",
    "-o",
    "addopts=",
    "-s",
    "--hypothesis-seed=0",
]


class Tracer:
    """A pytest plugin: the lines of the core that each test reaches, its own fixtures' and shared ones' among them."""

    def __init__(self, files: Iterable[Path]) -> None:
        self.files = {str(path): str(path.relative_to(SOURCE)) for path in files}
        self.lines: set[tuple[str, int]] = set()
        self.shared: dict[str, set[tuple[str, int]]] = {}
        self.reach: dict[str, dict[str, Any]] = {}
        self.passed = True
        self.set_up = 0.0
        """Seconds of what all tests of a session share: not the time of the first of them."""

    def trace(self, frame: FrameType, event: str, argument: object) -> Any:
        name = self.files.get(frame.f_code.co_filename)
        if name is None:
            return None

        def each_line(frame: FrameType, event: str, argument: object) -> Any:
            self.lines.add((name, frame.f_lineno))
            return each_line

        return each_line(frame, event, argument)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        if fixturedef.scope == "function":
            return (yield)
        before, self.lines, start = self.lines, set(), time.perf_counter()
        try:
            return (yield)
        finally:
            self.set_up += time.perf_counter() - start if fixturedef.scope == "session" else 0.0
            self.shared[fixturedef.argname] = self.lines
            self.lines = before | self.lines

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Function) -> Iterator[None]:
        self.lines, self.passed, self.set_up, start = set(), True, 0.0, time.perf_counter()
        sys.settrace(self.trace)
        threading.settrace(self.trace)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)
            lines = self.lines.union(*(self.shared.get(name, set()) for name in item.fixturenames))
            files = {name: sorted(line for file, line in lines if file == name) for name in {file for file, _ in lines}}
            if self.passed:
                seconds = time.perf_counter() - start - self.set_up
                self.reach[item.nodeid] = {"seconds": seconds, "lines": files}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome != "passed":
            self.passed = False
            if report.failed:
                say(f"fails without any change, and is left out: {report.nodeid}: {str(report.longrepr)[-300:]}")


def reach_of_tests(core: list[Path], chosen: list[str], jobs: int) -> dict[str, dict[str, Any]]:
    """What each test reaches; test files whose text has not changed are not run again."""
    (BUILD / "tmp").mkdir(parents=True, exist_ok=True)
    cache = BUILD / "reach.json"
    known = json.loads(cache.read_text()) if cache.exists() else {}
    apart = {TESTS / name for name in ELSEWHERE.split()}
    files = [path for path in sorted(TESTS.rglob("test_*.py")) if not apart & {path, *path.parents}]
    shared = [*sorted(SOURCE.rglob("*.py")), *sorted(set(TESTS.rglob("*.py")) - set(TESTS.rglob("test_*.py")))]
    base = hash_of(*shared)
    wanted = {str(path.relative_to(ROOT)): hash_of(path) + base for path in files}
    known = {name: entry for name, entry in known.items() if wanted.get(name) == entry["hash"]}
    asked = [str((TESTS / name).relative_to(ROOT)) for name in chosen]
    left = [name for name in wanted if name not in known and any(name.startswith(start) for start in asked)]

    def trace(name: str) -> None:
        tracer = Tracer(core)
        pytest.main([*PYTEST, f"--basetemp={BUILD}/tmp/{os.getpid()}", name], plugins=[tracer])
        (BUILD / f"reach-{os.getpid()}").write_text(json.dumps({name: {"hash": wanted[name], "tests": tracer.reach}}))

    for number, (pid, _) in enumerate(side_by_side([partial(trace, name) for name in left], jobs)):
        part = BUILD / f"reach-{pid}"
        if part.exists():
            known.update(json.loads(part.read_text()))
            part.unlink()
            cache.write_text(json.dumps(known))
        if number % 10 == 9:
            say(f"tracing: {number + 1} of {len(left)} test files")
    return {test: entry for file in known.values() for test, entry in file["tests"].items()}


def side_by_side(works: Sequence[Callable[[], None]], jobs: int) -> Iterator[tuple[int, int]]:
    """Each in a child, so many at a time; process and exit status of each as it ends. Nothing of it is printed."""
    waiting, running = list(works), set[int]()
    while waiting or running:
        while waiting and len(running) < jobs:
            work = waiting.pop(0)
            pid = os.fork()
            if pid == 0:
                silent = os.open(os.devnull, os.O_WRONLY)
                os.dup2(silent, 1)
                try:
                    work()
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(0)
            running.add(pid)
        pid, status = os.wait()
        running.discard(pid)
        shutil.rmtree(BUILD / "tmp" / str(pid), ignore_errors=True)
        yield pid, status


def hash_of(*paths: Path) -> str:
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in paths)).hexdigest()[:16]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
