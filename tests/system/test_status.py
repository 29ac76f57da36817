"""The line that says what is being done."""

import io
import time

import pytest
from rich.console import Console

from ipal.system.status import Status


def test_on_a_terminal_it_is_there_at_once_and_gone_at_the_end() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=40, color_system=None)
    with Status(console, "reading digits") as status:
        assert "reading digits, 0 s" in console.file.getvalue()  # type: ignore[attr-defined]
        status.show("task 1 of 2, epoch 12 of 200, loss 0.412, and so on and so on")
        time.sleep(0.3)
        shown = console.file.getvalue()  # type: ignore[attr-defined]
        assert "task 1 of 2, epoch 12 of 200, loss 0.41…" in shown, "one line, whatever the width"
        status.keep("task 1 of 2 learned")
    assert console.file.getvalue().endswith("\x1b[2K")  # type: ignore[attr-defined]
    assert "task 1 of 2 learned\n" in console.file.getvalue()  # type: ignore[attr-defined]


def test_without_a_terminal_it_is_printed_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(file=io.StringIO(), width=200)
    clock = iter(range(0, 1000, 4))
    monkeypatch.setattr("ipal.system.status.time.perf_counter", lambda: float(next(clock)))
    with Status(console) as status:
        for epoch in range(1, 11):
            status.show(f"epoch {epoch} of 10", done=epoch / 10)
        status.keep("done")
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines[-1] == "done"
    assert 2 <= len(lines) < 11
    assert "s left" in lines[0]


def test_nothing_is_printed_of_what_ends_soon() -> None:
    console = Console(file=io.StringIO())
    with Status(console, "reading") as status:
        status.show("task 1 of 1")
    assert console.file.getvalue() == ""  # type: ignore[attr-defined]
