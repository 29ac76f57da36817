"""Export of stored runs to experiment trackers. They only read run folders.

    record.py       the common input: a run folder as plain data
    tensorboard.py, mlflow.py, wandb.py   one tool each

To add one: a file here, a line in TRACKERS.
"""

from collections.abc import Callable
from typing import NamedTuple

from ipal.trackers import mlflow, tensorboard, wandb
from ipal.trackers.record import RunRecord, Tracked, read

__all__ = ["TRACKERS", "RunRecord", "Tracked", "Tracker", "read"]


class Tracker(NamedTuple):
    """An experiment tracker."""

    track: Callable[[RunRecord, str], Tracked]
    """Write a record to a folder or a server."""
    how_to_look: Callable[[str], str]
    """How to view the result."""


TRACKERS = {
    "tensorboard": Tracker(tensorboard.track, tensorboard.how_to_look),
    "mlflow": Tracker(mlflow.track, mlflow.how_to_look),
    "wandb": Tracker(wandb.track, wandb.how_to_look),
}
