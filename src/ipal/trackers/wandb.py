"""Runs for Weights & Biases, in offline folders: nothing is sent. Identified by the hash of their configuration.

A folder is replaced as a whole, as W&B does with a run of the same id that is sent again.
"""

import os
import shutil
from pathlib import Path

from ipal.errors import StoreError
from ipal.system.files import aside, make_folder
from ipal.system.optional import need_extra
from ipal.trackers.record import RunRecord

PROJECT = "ipal"
STEPS = {"loss": "epoch", "along": "batch"}
"""What the series of a group count; all else counts tasks."""
SETTINGS = {
    "mode": "offline",
    "reinit": "create_new",  # otherwise a run of the caller, which may be online, is written to
    "silent": True,
    "console": "off",
    "symlink": False,
    # About the process that copies, not the run.
    "disable_code": True,
    "disable_git": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_disable_machine_info": True,
    "x_save_requirements": False,
}


def track(record: RunRecord, out: str) -> str:
    """Write a run to a folder of its own under `out`."""
    need_extra("wandb", "wandb")
    os.environ["WANDB_ERROR_REPORTING"] = "false"
    import wandb

    make_folder(Path(out))
    with aside(Path(out) / record.name, folder=True) as temporary:
        try:
            run = wandb.init(
                project=PROJECT,
                id=record.digest,
                name=record.name,
                config={**record.settings, "environment": record.facts},
                dir=str(temporary),
                settings=wandb.Settings(**SETTINGS),
            )
            for group in {name.partition("/")[0] for name in record.series}:
                run.define_metric(f"{group}/*", step_metric=STEPS.get(group, "task"))
            for row in _rows(record):
                run.log(row)
            run.finish()
        except wandb.Error as error:
            raise StoreError(f"Weights & Biases cannot write to {out}: {error}") from error
        for folder in Path(out).glob(f"offline-run-*-{record.digest}"):
            shutil.rmtree(folder)
        written = Path(run.dir).parent
        return str(written.rename(Path(out) / written.name))


def _rows(record: RunRecord) -> list[dict[str, float]]:
    """All numbers of the same step together; W&B's own counter just counts rows."""
    rows: dict[tuple[str, int], dict[str, float]] = {}
    for name, points in record.series.items():
        counted = STEPS.get(name.partition("/")[0], "task")
        for step, value in points:
            rows.setdefault((counted, step), {counted: step})[name] = value
    return [rows[key] for key in sorted(rows)]
