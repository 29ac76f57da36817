"""Named spans of a run, for time and memory by part; without a recorder a span costs almost nothing.

    with runtime.tracer.span("encoder"):
        ...

Spans nest. Time counts for the innermost span only, so that all parts of a run add up to its total. The time of other
threads is recorded separately.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import wraps
from time import perf_counter_ns
from typing import Concatenate, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

Path = tuple[str, ...]
"""Names of the open spans, the outermost first; () outside of all."""
Gauge = Callable[[], int]
"""Returns the highest value since the last call."""

_SILENCE = nullcontext()


class Tracer:
    """Makes spans; this one records nothing."""

    @property
    def listens(self) -> bool:
        """Whether spans are being recorded."""
        return False

    def span(self, name: str) -> AbstractContextManager[None]:
        """Context manager for a part of a run. Not around a `yield`, which would include the caller's time."""
        return _SILENCE


SILENT = Tracer()


class Traced(Protocol):
    """Something that has a tracer."""

    @property
    def tracer(self) -> Tracer: ...


T = TypeVar("T", bound=Traced)


def spanned(name: str) -> Callable[[Callable[Concatenate[T, P], R]], Callable[Concatenate[T, P], R]]:
    """Decorator: a span around every call of a method (not of a generator), with the tracer of its object."""

    def wrap(method: Callable[Concatenate[T, P], R]) -> Callable[Concatenate[T, P], R]:
        @wraps(method)
        def within(self: T, /, *args: P.args, **kwargs: P.kwargs) -> R:
            with self.tracer.span(name):
                return method(self, *args, **kwargs)

        return within

    return wrap


@dataclass
class Account:
    """Time and peaks of one part."""

    nanoseconds: int = 0
    """Own time, without inner spans."""
    times: int = 0
    """How often the part was entered."""
    peaks: dict[str, int] = field(default_factory=dict)
    """Highest value of every gauge while the part was the innermost."""


Ledger = defaultdict[Path, Account]


@dataclass
class Lap:
    """A section of a run, for instance a task."""

    parts: Ledger = field(default_factory=lambda: defaultdict(Account))
    background: Ledger = field(default_factory=lambda: defaultdict(Account))
    """The same, of other threads."""
    recording: int = 0
    """Nanoseconds of the recorder itself, counted for no part."""

    @property
    def nanoseconds(self) -> int:
        """Wall-clock time."""
        return self.recording + sum(account.nanoseconds for account in self.parts.values())


class Recorder(Tracer):
    """Records time and peaks of gauges by span, lap by lap, for the thread that started it."""

    def __init__(self, gauges: Mapping[str, Gauge] | None = None, settle: Callable[[], None] | None = None) -> None:
        """`settle` is called at both ends of a span, to wait for asynchronous work, as on a GPU."""
        self.laps = [Lap()]
        self._gauges = gauges or {}
        self._settle = settle
        self._thread = threading.get_ident()
        self._open: list[Path] = []
        self._since = 0
        self._elsewhere = threading.local()

    @contextmanager
    def listening(self) -> Iterator["Recorder"]:
        """Start recording: in this context, for the calling thread."""
        if self.listens:
            raise RuntimeError("This recorder is listening already.")
        for gauge in self._gauges.values():
            gauge()
        self._thread, self._open, self._since = threading.get_ident(), [()], perf_counter_ns()
        try:
            yield self
        finally:
            self._book()
            self._open = []

    def next_lap(self) -> None:
        """Begin a new lap; open spans stay open."""
        self._book()
        self.laps.append(Lap())

    @property
    def listens(self) -> bool:
        return bool(self._open)

    def span(self, name: str) -> AbstractContextManager[None]:
        if not self._open:
            return _SILENCE
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
            del self._open[depth:]  # also inner spans that were left open

    def _book(self) -> None:
        """Add the time since the last call to the innermost span."""
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
        outer: tuple[Path, int] | None = getattr(self._elsewhere, "open", None)  # span, and time of inner spans
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
