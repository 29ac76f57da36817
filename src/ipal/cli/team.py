"""The command as one of several processes of one run, which torchrun has started. The first one speaks for all."""

import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, TypeVar

from ipal.cli import render
from ipal.errors import ConfigError, IpalError

if TYPE_CHECKING:  # torch takes seconds to load
    from ipal.backend.distributed import Team

Item = TypeVar("Item")

PATIENCE = 2.0
"""Seconds for the first process to say what is wrong, before the end of another ends it."""
COMMANDS = (["run"], ["resume"])


def is_team() -> bool:
    """Whether torchrun has started this process, and others."""
    return "TORCHELASTIC_RUN_ID" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


def told(make: Callable[[], Item]) -> Item:
    """What the first process makes of it; the others are told."""
    if not is_team():
        return make()
    from ipal.backend.distributed import team

    return team().told(make)


def together(app: Callable[[], None]) -> None:
    """Run the command with the other processes; whatever goes wrong is said once."""
    from ipal.backend.distributed import joined

    with joined() as team:
        code = _outcome(app, team)
        if code != 0:
            sys.stdout.flush()
            # At once: to take leave of others who may be missing could take forever.
            os._exit(code)


def _outcome(app: Callable[[], None], team: "Team") -> int:
    """The exit code of the command."""
    try:
        if sys.argv[1:2] not in COMMANDS:
            raise ConfigError("torchrun starts 'ipal run' and 'ipal resume': other commands need one process only.")
        with nullcontext() if team.leads else _silence():
            app()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if code and not team.leads:
            time.sleep(PATIENCE)
        return code
    except KeyboardInterrupt:
        return 130
    except IpalError as error:
        if team.is_first_to_tell():
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
