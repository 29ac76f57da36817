"""The command `ipal`."""

import errno
import os
import signal
import sys
import warnings
from contextlib import suppress
from typing import Any

import typer

from ipal.cli import audit, bench, data, experiment, models, render, report, use
from ipal.cli.app import add, app
from ipal.config import RunConfig, known_settings
from ipal.errors import ConfigError, IpalError, StoreError

__all__ = ["app", "main"]

add("Experiment", experiment.run, experiment.resume, experiment.show, experiment.list_, data.data, bench.bench)
add("Experiment", report.report, report.track)
add("Use a model", use.predict, use.explain, use.discover, use.serve, use.export)
add("Maintain a model", models.learn, audit.audit, models.forget, models.merge, models.rename, models.relabel)

UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""What typer raises where options and arguments do not fit a command."""


def main() -> None:
    """Run the command; an error the user can correct is one sentence on stderr, with exit code 2."""
    # Before torch is loaded: waiting threads sleep. Spinning, two runs of two threads on two cores were
    # measured to slow each other down thirtyfold.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed (>&-): the next opened file would take its place
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not ignored, nor somebody else's
        with suppress(ValueError):  # in another thread than the main one
            signal.signal(signal.SIGINT, _interrupt)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = render.warning
            code = app(standalone_mode=False)
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:  # the reader of the output has closed it
        _drop_output()
        code = 1
    except (UsageError, IpalError, OSError) as error:
        if isinstance(error, OSError):
            _drop_output()
        explained = _explained(error)
        print(f"Error: {explained}", file=sys.stderr)
        code = 2
    if code:
        sys.exit(code)


def _interrupt(*_: object) -> None:
    """The first Ctrl-C ends the command, which cleans up; further ones would only interrupt that."""
    sys.unraisablehook = lambda _: None  # it would say that another one was ignored
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


def _complaint(error: Any) -> str:
    """What is wrong with options and arguments; of an option that is the name of a setting, how to give it."""
    message, context = str(error.format_message()).rstrip("."), getattr(error, "ctx", None)
    if context is None:
        return message
    wanted = str(getattr(error, "option_name", "")).lstrip("-").replace("-", "_")
    if wanted and any("--set" in part.opts for part in context.command.params):
        known = [*known_settings(RunConfig), *experiment.settings_of_methods()]
        name = next((one for one in known if one.rpartition(".")[2] == wanted), "NAME")
        message += f": settings are given as --set {name}=VALUE"
    return f"{message} (see '{context.command_path} --help')."


def _explained(error: Exception) -> IpalError:
    """What the user can correct; also a file or folder that the system refuses, or output that cannot be written."""
    if isinstance(error, IpalError):
        return error
    if not isinstance(error, OSError):
        return ConfigError(_complaint(error))
    reason = error.strerror or str(error)
    if error.filename is None and error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF}:
        return StoreError(f"The output could not be written ({reason}): send it elsewhere; what was saved is whole.")
    what = error.filename or "A file"
    return StoreError(f"{what} cannot be used ({reason}): name another file or folder, or fix it.")


def _drop_output() -> None:
    """Drop what is still in the buffer, so that Python does not report it again at exit."""
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
