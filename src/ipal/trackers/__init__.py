"""Export of stored runs to experiment trackers. They only read run folders.

    record.py       the common input: a run folder as plain data
    tensorboard.py, mlflow.py, wandb.py   one tool each

To add one: a file here with `track`, a line in TRACKERS.
"""

from ipal.trackers import mlflow, tensorboard, wandb
from ipal.trackers.record import RunRecord, read

__all__ = ["TRACKERS", "RunRecord", "read"]

TRACKERS = {"tensorboard": tensorboard.track, "mlflow": mlflow.track, "wandb": wandb.track}
"""What writes a run to a folder or an address, in place of the same run if it was there, and says where."""
