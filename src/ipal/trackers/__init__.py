"""Runs shown in other tools. They read what the store writes; no method and no run knows of them.

    record.py       a run folder as every tracker takes it
    tensorboard.py, mlflow.py   one tool each

To add one: a file here, a line in TRACKERS.
"""

from collections.abc import Callable
from typing import NamedTuple

from ipal.trackers import mlflow, tensorboard
from ipal.trackers.record import Record, Tracked, read

__all__ = ["TRACKERS", "Record", "Tracked", "Tracker", "read"]


class Tracker(NamedTuple):
    """A tool that shows runs."""

    track: Callable[[Record, str], Tracked]
    """Bring a record to a folder or an address."""
    how_to_look: Callable[[str], str]
    """What to do to see what is there."""


TRACKERS = {
    "tensorboard": Tracker(tensorboard.track, tensorboard.how_to_look),
    "mlflow": Tracker(mlflow.track, mlflow.how_to_look),
}
