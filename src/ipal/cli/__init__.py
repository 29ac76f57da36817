"""The command `ipal`."""

import errno
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import typer

from ipal.cli import (
    audit,
    bench,
    data,
    discover,
    drift,
    explain,
    export,
    models,
    predict,
    report,
    serve,
)
from ipal.cli.app import EXPERIMENT, MAINTAIN, USE, app, settings_of_methods
from ipal.cli.render import plain_warnings
from ipal.config import RunConfig, known_settings
from ipal.errors import ConfigError, IpalError, StoreError, nearest

__all__ = ["app", "main"]

for _panel, _commands in (
    (EXPERIMENT, (data.data, bench.bench, report.report, drift.drift, report.track)),
    (USE, (predict.predict, explain.explain, discover.discover, serve.serve, export.export)),
    (MAINTAIN, (audit.audit, models.forget, models.merge, models.rename, models.merge_classes, models.relabel)),
):
    for _one in _commands:
        app.command(rich_help_panel=_panel)(_one)

UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""What typer raises where options and arguments do not fit a command."""


def main() -> None:
    """Run the command; an error the user can correct is one sentence on stderr, with exit code 2."""
    # Before torch is loaded: waiting threads sleep. Spinning, two runs of two threads on two cores were
    # measured to slow each other down thirtyfold.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    _occupy_closed_streams()
    try:
        with plain_warnings(), _interrupted_once():
            _command()
        sys.stdout.flush()
    except KeyboardInterrupt:
        sys.exit(130)
    except IpalError as error:
        _end(error)
    except BrokenPipeError:  # the reader of the output has closed it
        _drop_output()
        sys.exit(1)
    except OSError as error:
        _drop_output()
        _end(_explained(error))


@contextmanager
def _interrupted_once() -> Iterator[None]:
    """The first Ctrl-C ends the command, which cleans up; further ones would only interrupt that."""

    def interrupt(*_: object) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler or not _is_main_thread():
        yield  # ignored, or somebody else's
        return
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is interrupt:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _command() -> None:
    try:
        asked = app(standalone_mode=False)
        code = asked() if callable(asked) else asked  # an exit code where nothing is left to do, as after --help
    except typer.Exit as end:
        code = end.exit_code
    except KeyboardInterrupt:
        code = 130
    except UsageError as error:
        message = _complaint(error)
        if "\n" in message:  # the help, where nothing was asked for
            error.show()  # type: ignore[attr-defined]
            sys.exit(2)
        context = getattr(error, "ctx", None)
        name = context.command_path if context else "ipal"
        raise ConfigError(f"{message} (see '{name} --help').") from error
    if isinstance(code, int) and code:
        sys.exit(code)


def _complaint(error: Any) -> str:
    """What is wrong with options and arguments; of an unknown option or command, what is meant."""
    context: Any = getattr(error, "ctx", None)
    if (option := getattr(error, "option_name", None)) is not None and context is not None:
        return f"There is no option {option}{_instead(option.lstrip('-'), context.command)}"
    message = str(error.format_message()).rstrip(".")
    if found := re.match(r"No such command '(.*)'", message, re.DOTALL):
        near = nearest(found[1], context.command.commands)
        return f"There is no command '{found[1]}'" + (f": did you mean {near}?" if near else "")
    return message


def _instead(name: str, command: Any) -> str:
    """The setting of an unknown option's name, or the nearest option."""
    known = [one.lstrip("-") for part in command.params for one in part.opts]
    if "set" in known:
        settings = [*known_settings(RunConfig), *settings_of_methods()]
        wanted = name.replace("-", "_")
        if found := next((one for one in settings if one.rpartition(".")[2] == wanted), None):
            return f": --set {found}=VALUE sets it"
    if near := nearest(name, known):
        return f": did you mean --{near}?"
    return ": a setting is given with --set NAME=VALUE" if "set" in known else ""


def _end(error: IpalError) -> None:
    print(f"Error: {error}", file=sys.stderr)
    sys.exit(error.exit_code)


def _explained(error: OSError) -> IpalError:
    """A file or folder that the system refuses, or output that cannot be written."""
    reason = error.strerror or str(error)
    if error.filename is not None:
        return StoreError(f"{error.filename} cannot be used ({reason}): name another file or folder, or fix it.")
    if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF}:
        return StoreError(f"The output could not be written ({reason}): send it elsewhere; what was saved is whole.")
    return StoreError(f"The system refused to read or write ({reason}): name another file or folder.")


def _occupy_closed_streams() -> None:
    """Open os.devnull for a closed stream (>&-), so that the next opened file does not take its place."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            handle = os.open(os.devnull, os.O_RDWR)
            if handle != number:
                os.dup2(handle, number)
                os.close(handle)
            # It lasts as long as the process.
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115


def _drop_output() -> None:
    """Drop what is still in the buffer, so that Python does not report it again at exit."""
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
