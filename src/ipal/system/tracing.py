"""Named spans of a run: a recorder that listens learns where time and memory go; without one a span costs next to
nothing.

    with span("encoder"):
        ...

Spans nest. Time counts for the innermost span alone, so that all parts of a run add up to its whole, to the
nanosecond. What another thread does meanwhile is told apart: it takes time, but nobody waits for it.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import wraps
from time import perf_counter_ns
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

Path = tuple[str, ...]
"""Names of the spans around a moment, the outermost first; of all spans there are, none is ()."""
Gauge = Callable[[], int]
"""The highest value since it was asked last."""

_recorder: "Recorder | None" = None
_SILENCE = nullcontext()


def span(name: str) -> AbstractContextManager[None]:
    """Around a part of a run. Not around a `yield`: what the caller does then is no part of it."""
    return _SILENCE if _recorder is None else _recorder.span(name)


def spanned(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """The same around every call of a function. Not of a generator: its call ends before its work begins."""

    def wrap(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def within(*args: P.args, **kwargs: P.kwargs) -> R:
            with span(name):
                return function(*args, **kwargs)

        return within

    return wrap


def is_listening() -> bool:
    """Whether spans are being recorded."""
    return _recorder is not None


@dataclass
class Account:
    """What was booked on one part."""

    nanoseconds: int = 0
    """Own time: without that of spans inside."""
    times: int = 0
    """How often the part was entered."""
    peaks: dict[str, int] = field(default_factory=dict)
    """Highest value of every gauge while the part was the innermost."""


Ledger = defaultdict[Path, Account]


@dataclass
class Lap:
    """A stretch of a run."""

    parts: Ledger = field(default_factory=lambda: defaultdict(Account))
    background: Ledger = field(default_factory=lambda: defaultdict(Account))
    """The same, of other threads."""
    recording: int = 0
    """Nanoseconds that the recorder itself took: they are on no part's account."""

    @property
    def nanoseconds(self) -> int:
        """All of it, as a clock on the wall says."""
        return self.recording + sum(account.nanoseconds for account in self.parts.values())


class Recorder:
    """Books time, and peaks of gauges, on the spans that are open in the thread that listens, lap by lap."""

    def __init__(self, gauges: Mapping[str, Gauge] | None = None, settle: Callable[[], None] | None = None) -> None:
        """`settle` is called at both ends of a span: it waits for what was started and runs elsewhere, as on a GPU."""
        self.laps = [Lap()]
        self._gauges = gauges or {}
        self._settle = settle
        self._thread = threading.get_ident()
        self._open: list[Path] = []
        self._since = 0
        self._elsewhere = threading.local()

    @contextmanager
    def listening(self) -> Iterator["Recorder"]:
        """From here on, spans are recorded; there is one recorder at a time."""
        global _recorder
        if _recorder is not None:
            raise RuntimeError("Another recorder is listening.")
        for gauge in self._gauges.values():
            gauge()
        self._thread, self._open, self._since = threading.get_ident(), [()], perf_counter_ns()
        _recorder = self
        try:
            yield self
        finally:
            _recorder = None
            self._book()
            self._open = []

    def next_lap(self) -> None:
        """What comes next is booked on a new lap; open spans stay open."""
        self._book()
        self.laps.append(Lap())

    def span(self, name: str) -> AbstractContextManager[None]:
        return self._here(name) if threading.get_ident() == self._thread else self._in_background(name)

    @contextmanager
    def _here(self, name: str) -> Iterator[None]:
        depth = len(self._open)
        self._book()
        self._open.append((*self._open[-1], name) if self._open else (name,))
        self.laps[-1].parts[self._open[-1]].times += 1
        try:
            yield
        finally:
            self._book()
            del self._open[depth:]  # also what was left open inside

    def _book(self) -> None:
        """Put what has happened since the last time on the account of the innermost span."""
        if not self._open:
            return
        if self._settle:
            self._settle()
        now = perf_counter_ns()
        lap = self.laps[-1]
        account = lap.parts[self._open[-1]]
        account.nanoseconds += now - self._since
        for name, gauge in self._gauges.items():
            account.peaks[name] = max(gauge(), account.peaks.get(name, 0))
        self._since = perf_counter_ns()
        lap.recording += self._since - now

    @contextmanager
    def _in_background(self, name: str) -> Iterator[None]:
        outer: tuple[Path, int] | None = getattr(self._elsewhere, "open", None)  # where, and time of spans inside
        path = (*outer[0], name) if outer else (name,)
        self._elsewhere.open = (path, 0)
        begin = perf_counter_ns()
        try:
            yield
        finally:
            whole = perf_counter_ns() - begin
            account = self.laps[-1].background[path]
            account.nanoseconds += whole - self._elsewhere.open[1]
            account.times += 1
            self._elsewhere.open = (outer[0], outer[1] + whole) if outer else None
