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
from time import perf_counter_ns

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

    def next_lap(self) -> None:
        """Begin a new section of a run: before the first task, and after every task. Open spans stay open."""


SILENT = Tracer()


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


class _Thread(threading.local):
    """Of each thread: its open spans, and until when its time is booked."""

    def __init__(self) -> None:
        self.open: list[Path] = []
        self.booked = 0


class Recorder(Tracer):
    """Records time and peaks of gauges by span, lap by lap, for the thread that started it."""

    def __init__(self, gauges: Mapping[str, Gauge] | None = None, settle: Callable[[], None] | None = None) -> None:
        """`settle` is called at both ends of a span, to wait for asynchronous work, as on a GPU."""
        self.laps = [Lap()]
        self._gauges = gauges or {}
        self._settle = settle
        self._main: int | None = None
        """The thread that listens."""
        self._thread = _Thread()

    @contextmanager
    def listening(self) -> Iterator["Recorder"]:
        """Start recording: in this context, for the calling thread."""
        if self.listens:
            raise RuntimeError("This recorder is listening already.")
        for gauge in self._gauges.values():
            gauge()
        self._main, self._thread.open, self._thread.booked = threading.get_ident(), [()], perf_counter_ns()
        try:
            yield self
        finally:
            self._book()
            self._main, self._thread.open = None, []

    def next_lap(self) -> None:
        self._book()
        self.laps.append(Lap())

    @property
    def listens(self) -> bool:
        return self._main is not None

    def span(self, name: str) -> AbstractContextManager[None]:
        return self._recorded(name) if self.listens else _SILENCE

    @contextmanager
    def _recorded(self, name: str) -> Iterator[None]:
        spans = self._thread.open
        depth = len(spans)
        self._book()
        spans.append((*spans[-1], name) if spans else (name,))
        self._ledger[spans[-1]].times += 1
        try:
            yield
        finally:
            self._book()
            del spans[depth:]  # also inner spans that were left open

    @property
    def _ledger(self) -> Ledger:
        lap = self.laps[-1]
        return lap.parts if threading.get_ident() == self._main else lap.background

    def _book(self) -> None:
        """Add the time since the last call to this thread's innermost span."""
        here = threading.get_ident() == self._main
        if here and self._settle:
            self._settle()
        now = perf_counter_ns()
        if self._thread.open:
            account = self._ledger[self._thread.open[-1]]
            account.nanoseconds += now - self._thread.booked
            for name, gauge in self._gauges.items() if here else ():
                account.peaks[name] = max(gauge(), account.peaks.get(name, 0))
        self._thread.booked = perf_counter_ns()
        if here:
            self.laps[-1].recording += self._thread.booked - now
