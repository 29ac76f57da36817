"""One line that says what is being done, on a terminal alone."""

from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column


class Status:
    """A line with the time so far and the time left, from `with` on until its end; `keep` leaves a line above it."""

    def __init__(self, console: Console, text: str = "") -> None:
        self._console = console
        self._progress = Progress(
            *(TimeElapsedColumn(), TimeRemainingColumn()),
            TextColumn("[dim]{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis")),
            console=console,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            disable=not console.is_terminal,
            speed_estimate_period=3600,
        )
        self._line = self._progress.add_task(escape(text), total=1.0)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        if not self._progress.disable:
            self._progress.stop()

    @property
    def seconds(self) -> float:
        """Since the line is there."""
        return self._progress.tasks[0].elapsed or 0.0

    def show(self, text: str, done: float = 0.0) -> None:
        """What is being done; `done` is the share of all that is done already."""
        self._progress.update(self._line, description=escape(text), completed=done)

    def keep(self, text: str) -> None:
        self._console.print(text, soft_wrap=True, markup=False, highlight=False)
