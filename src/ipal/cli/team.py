"""The command as one of several processes of one run, started by torchrun; only rank 0 prints."""

import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from ipal.cli import render
from ipal.errors import ConfigError, IpalError

if TYPE_CHECKING:  # torch takes seconds to load
    from ipal.backend.distributed import Team

Item = TypeVar("Item")

PATIENCE = 2.0
"""Seconds for rank 0 to print its error before another process exits and torchrun ends it."""
COMMANDS = (["run"], ["resume"])


def is_team() -> bool:
    """Whether torchrun has started this process, and others."""
    return "TORCHELASTIC_RUN_ID" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


def broadcast(team: "Team | None", make: Callable[[], Item]) -> Item:
    """The value that `make` returns in the process of rank 0, in all processes; None: there is only one."""
    return make() if team is None else team.broadcast(make)


def together(app: Callable[["Team"], None]) -> None:
    """Run the command in this process group; an error is printed once."""
    from ipal.backend.distributed import joined

    with joined() as team:
        code = _outcome(partial(app, team), team)
        if code != 0:
            sys.stdout.flush()
            # At once: leaving the process group could block forever if a process is missing.
            os._exit(code)


def _outcome(app: Callable[[], None], team: "Team") -> int:
    """The exit code of the command."""
    try:
        if sys.argv[1:2] not in COMMANDS:
            raise ConfigError("torchrun starts 'ipal run' and 'ipal resume': other commands need one process only.")
        with nullcontext() if team.is_main else _silence():
            app()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if code and not team.is_main:
            time.sleep(PATIENCE)
        return code
    except KeyboardInterrupt:
        return 130
    except IpalError as error:
        if team.is_first_to_report():
            print(f"Error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    except Exception:
        traceback.print_exc()
        return 1
    return 0


@contextmanager
def _silence() -> Iterator[None]:
    render.out.quiet = render.err.quiet = True
    try:
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
            yield
    finally:
        render.out.quiet = render.err.quiet = False
