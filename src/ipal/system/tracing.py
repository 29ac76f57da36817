"""Named spans of a run, for time and memory by part; without a recorder a span costs almost nothing.

    with runtime.tracer.span("encoder"):
        ...

Spans nest. Time counts for the innermost span only, so that all parts of a run add up to its total. Spans of other
threads are not recorded.
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


Lap = dict[Path, Account]
"""A section of a run, for instance a task: its parts."""


class Recorder(Tracer):
    """Records time and peaks of gauges by span, lap by lap, for the thread that started it."""

    def __init__(self, gauges: Mapping[str, Gauge] | None = None, settle: Callable[[], None] = lambda: None) -> None:
        """`settle` is called at both ends of a span, to wait for asynchronous work, as on a GPU."""
        self.laps: list[Lap] = [defaultdict(Account)]
        self._gauges, self._settle = gauges or {}, settle
        self._thread: int | None = None
        """The thread that listens."""
        self._open: list[Path] = [()]
        self._booked = 0
        """Until when time is booked."""

    @contextmanager
    def listening(self) -> Iterator["Recorder"]:
        """Start recording: in this context, for the calling thread."""
        for gauge in self._gauges.values():
            gauge()
        self._thread, self._open, self._booked = threading.get_ident(), [()], perf_counter_ns()
        try:
            yield self
        finally:
            self._book()
            self._thread = None

    def next_lap(self) -> None:
        if self.listens:
            self._book()
        self.laps.append(defaultdict(Account))

    @property
    def listens(self) -> bool:
        return self._thread is not None

    def span(self, name: str) -> AbstractContextManager[None]:
        return self._recorded(name) if self._thread == threading.get_ident() else _SILENCE

    @contextmanager
    def _recorded(self, name: str) -> Iterator[None]:
        depth = len(self._open)
        self._book()
        self._open.append((*self._open[-1], name))
        self.laps[-1][self._open[-1]].times += 1
        try:
            yield
        finally:
            self._book()
            del self._open[depth:]  # also inner spans that were left open

    def _book(self) -> None:
        """Add the time since the last call to the innermost span."""
        self._settle()
        account = self.laps[-1][self._open[-1]]
        for name, gauge in self._gauges.items():
            account.peaks[name] = max(gauge(), account.peaks.get(name, 0))
        now = perf_counter_ns()
        account.nanoseconds += now - self._booked
        self._booked = now
