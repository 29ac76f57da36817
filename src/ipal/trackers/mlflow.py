"""Runs for MLflow, identified by the hash of their configuration.

mlflow-skinny writes to folders and servers; a database needs the full package. MLflow's telemetry is switched off.
"""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from ipal.errors import StoreError
from ipal.system.optional import need_extra
from ipal.trackers.record import RunRecord, cells

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

EXPERIMENT = "ipal"
HASH = "ipal_hash"
ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ALLOW_FILE_STORE": "true",  # otherwise folders are refused
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",  # otherwise a missing server is retried for minutes
}
"""Unless they are set."""
LONGEST, MOST = 5000, 1000
"""Characters of a tag or a parameter, and numbers of one request."""


def track(record: RunRecord, address: str) -> str:
    """Write a run to MLflow: to a folder, or the address of a server or database."""
    need_extra("mlflow", "mlflow")
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    try:
        # A folder may be given as a plain path.
        uri = address if re.match(r"\w[\w+-]+:", address) else Path(address).resolve().as_uri()
        return f"run {_brought(MlflowClient(uri), record)} in {address}"
    except (MlflowException, OSError, ImportError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise StoreError(
            f"MLflow cannot write to {address} ({reason}): give -o a folder, or the address of a server that runs; a "
            "database needs the whole of MLflow (pip install mlflow)."
        ) from error


def _brought(client: "MlflowClient", record: RunRecord) -> str:
    from mlflow.entities import Metric, Param

    experiment = client.get_experiment_by_name(EXPERIMENT)
    place = client.create_experiment(EXPERIMENT) if experiment is None else experiment.experiment_id
    known = client.search_runs([place], f"tags.{HASH} = '{record.digest}'")
    facts = {_name(name): str(value)[:LONGEST] for name, value in cells(record.facts).items()}
    settings = [Param(_name(name), str(value)[:LONGEST]) for name, value in cells(record.settings).items()]
    points = [(_name(name), *point) for name, points in record.series.items() for point in points]
    began, ended = (round(1000 * seconds) for seconds in (record.began, record.ended))
    made = str(client.create_run(place, began, {**facts, HASH: record.digest}, run_name=record.name).info.run_id)
    client.log_batch(made, params=settings)
    for begin in range(0, len(points), MOST):
        metrics = [Metric(name, value, ended, step) for name, step, value in points[begin : begin + MOST]]
        client.log_batch(made, metrics=metrics)
    client.set_terminated(made, "FINISHED", end_time=ended)
    for run in known:
        client.delete_run(run.info.run_id)
    return made


def _name(name: str) -> str:
    """Names as MLflow allows them."""
    return re.sub(r"[^\w\-. :/]", "_", name)
