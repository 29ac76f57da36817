"""One line that says what is being done: updated in place on a terminal, now and then printed where there is none."""

import time
from functools import partial
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

EVERY = 10.0
"""Seconds between two lines where there is no terminal."""


class Status:
    """A line on a console, from `with` on until its end; `keep` leaves a line above it."""

    def __init__(self, console: Console, text: str = "") -> None:
        self._console, self._text, self._left = console, text, ""
        self._begin = self._printed = time.perf_counter()
        quiet = partial(Live, transient=True, redirect_stdout=False, redirect_stderr=False)
        self._live = quiet(get_renderable=self._line, console=console, refresh_per_second=8)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start(refresh=True)
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    @property
    def seconds(self) -> float:
        """Since the line is there."""
        return time.perf_counter() - self._begin

    def show(self, text: str, done: float = 0.0) -> None:
        """What is being done; `done` is the share of all that is done already, and says how long the rest takes."""
        left = self.seconds * (1 - done) / done if 0 < done < 1 and self.seconds > 1 else 0
        self._text, self._left = text, f", about {left:.0f} s left" if left >= 1 else ""
        if not self._console.is_terminal and self._begin + self.seconds > self._printed + EVERY:
            self._printed = self._begin + self.seconds
            self._console.print(self._line())

    def keep(self, text: str) -> None:
        """A line that stays."""
        self._printed = self._begin + self.seconds
        self._console.print(text, soft_wrap=True, markup=False, highlight=False)

    def _line(self) -> Text:
        line = f"{self._text}, {self.seconds:.0f} s{self._left}" if self._text else ""
        return Text(line, style="dim", no_wrap=True, overflow="ellipsis")
