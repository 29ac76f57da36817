"""Export of stored runs to experiment trackers. They only read run folders.

    record.py       the common input: a run folder as plain data
    tensorboard.py, mlflow.py, wandb.py   one tool each: `track` a record, `how_to_look` at the result

To add one: a file here, a line in TRACKERS.
"""

from ipal.trackers import mlflow, tensorboard, wandb
from ipal.trackers.record import RunRecord, Tracked, read

__all__ = ["TRACKERS", "RunRecord", "Tracked", "read"]

TRACKERS = {"tensorboard": tensorboard, "mlflow": mlflow, "wandb": wandb}
