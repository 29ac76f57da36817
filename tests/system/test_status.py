"""The line that says what is being done."""

import io
import time

from rich.console import Console

from ipal.system.status import Status


def test_on_a_terminal_it_is_there_at_once_and_gone_at_the_end() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=60, color_system=None)
    with Status(console, "reading [digits]") as status:
        assert "reading [digits]" in console.file.getvalue()  # type: ignore[attr-defined]
        status.show("task 1 of 2, epoch 12 of 200, loss 0.412, and so on and so on")
        time.sleep(0.3)
        assert "task 1 of 2, epoch 12" in console.file.getvalue()  # type: ignore[attr-defined]
        status.keep("task 1 of 2 learned")
    assert console.file.getvalue().endswith("\x1b[2K")  # type: ignore[attr-defined]
    assert "task 1 of 2 learned\n" in console.file.getvalue()  # type: ignore[attr-defined]


def test_without_a_terminal_there_is_only_what_stays() -> None:
    console = Console(file=io.StringIO())
    with Status(console, "reading") as status:
        status.show("task 1 of 1")
        status.keep("done")
    assert console.file.getvalue() == "done\n"  # type: ignore[attr-defined]
