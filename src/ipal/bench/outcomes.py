"""How a run of a bench has ended."""

import traceback
from contextlib import suppress

from filelock import Timeout

from ipal.errors import IpalError, StoreError
from ipal.runs.run_folder import RunFolder

BUSY = "busy"
"""Why a run was not made: another process is making it."""
Outcome = tuple[int, str | None]
"""The place of a job among others, and why it failed (None: it did not)."""


def reason_of(error: BaseException, folder: RunFolder) -> str:
    """Why a run failed, which is also written to its log."""
    if isinstance(error, StoreError) and isinstance(error.__cause__, Timeout):
        return BUSY
    expected = isinstance(error, IpalError)
    with suppress(StoreError):
        folder.log(f"failed: {error if expected else ''.join(traceback.format_exception(error))}")
    return str(error) if expected else f"{type(error).__name__}: {error}"
