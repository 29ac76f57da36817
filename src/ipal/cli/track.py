"""`ipal track`: runs shown in TensorBoard, MLflow or Weights & Biases."""

from typing import Annotated

import typer

from ipal.cli import render
from ipal.cli.app import RUNS, AsJson, Runs
from ipal.errors import ConfigError, did_you_mean
from ipal.runs.run_folder import RunStore


def track(
    names: Annotated[list[str], typer.Argument(metavar="RUN", help="Paths, names, or parts of names of runs.")],
    to: Annotated[str, typer.Option(help="tensorboard, mlflow or wandb.")],
    out: Annotated[str, typer.Option("--out", "-o", help="Folder; for mlflow also the address of a server.")],
    runs: Runs = RUNS,
    as_json: AsJson = False,
) -> None:
    """Show runs in TensorBoard, MLflow or W&B: settings, losses, accuracies, AP, AF, recall of classes, time, memory.

    Runs may be finished or running. Tracking a run again adds only what is
    new. Needs the extra tensorboard, mlflow or wandb. For W&B (Weights & Biases)
    nothing is sent: wandb sync does that.
    """
    from ipal.trackers import TRACKERS, read

    if to not in TRACKERS:
        raise ConfigError(f"Runs cannot be tracked with '{to}'.{did_you_mean(to, TRACKERS)}")
    if not out:
        raise ConfigError("Say where to track the runs: -o and a folder.")
    folders = {folder.path: folder for folder in map(RunStore(runs).find, names)}
    records = list(map(read, folders.values()))
    tracked = [TRACKERS[to].track(record, out) for record in records]
    if as_json:
        render.as_json([one._asdict() for one in tracked])
        return
    for record, one in zip(records, tracked, strict=True):
        unfinished = "" if record.finished else " (not finished yet)"
        render.say(f"{one.change:9}  {one.run}{unfinished}")
    render.note(TRACKERS[to].how_to_look(out))
