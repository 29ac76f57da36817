"""Runs for MLflow, identified by the hash of their configuration.

mlflow-skinny writes to folders and servers; a database needs the full package. MLflow's telemetry is switched off.
"""

import os
import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ipal.errors import ConfigError, StoreError
from ipal.system.optional import need_extra
from ipal.trackers.record import Change, RunRecord, Tracked

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

EXPERIMENT = "ipal"
HASH = "ipal_hash"
PLACES = {"file", "http", "https", "databricks", "databricks-uc", "uc"}
DATABASES = {"sqlite", "postgresql", "mysql", "mssql"}
ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
UNLESS_SET = {
    "MLFLOW_ALLOW_FILE_STORE": "true",  # otherwise folders are refused
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",  # otherwise a missing server is retried for minutes
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
}
LONGEST = 5000
"""Most characters of a tag or a parameter."""

Numbers = dict[str, dict[int, float]]
"""By name and step."""


def track(record: RunRecord, address: str) -> Tracked:
    """Write a run to MLflow: existing numbers are not repeated, and a changed run is replaced."""
    need_extra("mlflow", "mlflow")
    uri = _uri(address)
    os.environ.update(ENVIRONMENT)
    for name, value in UNLESS_SET.items():
        os.environ.setdefault(name, value)
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    try:
        client = MlflowClient(uri)
        run_id, change = _brought(client, record)
    except (MlflowException, OSError) as error:
        raise _explained(address, error) from error
    return Tracked(record.name, run_id, change)


def how_to_look(address: str) -> str:
    uri = _uri(address)
    if uri.startswith(("http:", "https:")):
        return f"Look at them at {address}"
    folder = "MLFLOW_ALLOW_FILE_STORE=true " * uri.startswith("file:")
    return f"Look at them with the whole of MLflow: {folder}mlflow ui --backend-store-uri {address}"


def _uri(address: str) -> str:
    """A folder may be given as a plain path."""
    scheme, separator, _ = address.partition(":")
    # A drive letter on Windows.
    if not separator or len(scheme) == 1:
        return Path(address).resolve().as_uri()
    if scheme.partition("+")[0] in DATABASES:
        if not (find_spec("sqlalchemy") and find_spec("alembic")):
            raise ConfigError(
                f"A database ({address}) needs the whole of MLflow: pip install mlflow; or give -o a folder, or the "
                "address of a server."
            )
    elif scheme not in PLACES:
        raise ConfigError(f"'{address}' is no place for MLflow: give -o a folder, or an address as http://HOST:PORT.")
    return address


def _explained(address: str, error: Exception) -> StoreError:
    if isinstance(error.__cause__, OSError) or "Max retries exceeded" in str(error):
        return StoreError(f"No MLflow server answers at {address}: start it (mlflow server), or correct the address.")
    lines = str(error).strip().splitlines()
    return StoreError(f"MLflow cannot write to {address}: {lines[0] if lines else type(error).__name__}")


def _brought(client: "MlflowClient", record: RunRecord) -> tuple[str, Change]:
    known = _known(client, record)
    change: Change = "new" if known is None else "updated"
    here = {_name(name): dict(points) for name, points in record.series.items()}
    there = {} if known is None else _metrics(client, known)
    if known is not None and not _is_beginning(there, here):
        client.delete_run(known.info.run_id)  # the run was repeated: MLflow has the old numbers
        known, there = None, {}
    missing = [
        (name, step, value)
        for name, points in here.items()
        for step, value in points.items()
        if step not in there.get(name, {})
    ]
    status = "FINISHED" if record.finished else "RUNNING"
    if known is not None and known.info.status == status and not missing:
        return known.info.run_id, "unchanged"
    run_id = _created(client, record) if known is None else known.info.run_id
    _log(client, run_id, record, missing)
    if record.finished:
        client.set_terminated(run_id, status, end_time=_milliseconds(record.ended))
    return run_id, change


def _known(client: "MlflowClient", record: RunRecord) -> "Run | None":
    experiment = client.get_experiment_by_name(EXPERIMENT)
    if experiment is None:
        return None
    found = client.search_runs([experiment.experiment_id], f"tags.{HASH} = '{record.digest}'", max_results=1)
    return found[0] if found else None


def _metrics(client: "MlflowClient", run: "Run") -> Numbers:
    """All numbers of a run in MLflow."""
    return {
        name: {metric.step: metric.value for metric in client.get_metric_history(run.info.run_id, name)}
        for name in run.data.metrics
    }


def _is_beginning(there: Numbers, here: Numbers) -> bool:
    """Whether MLflow has no other numbers than the run."""
    return all(
        step in here.get(name, {}) and np.isclose(value, here[name][step], rtol=1e-12, atol=0, equal_nan=True)
        for name, values in there.items()
        for step, value in values.items()
    )


def _created(client: "MlflowClient", record: RunRecord) -> str:
    experiment = client.get_experiment_by_name(EXPERIMENT)
    experiment_id = client.create_experiment(EXPERIMENT) if experiment is None else experiment.experiment_id
    began, tags = _milliseconds(record.began), {HASH: record.digest}
    return str(client.create_run(experiment_id, began, tags, run_name=record.name).info.run_id)


def _log(client: "MlflowClient", run_id: str, record: RunRecord, numbers: Sequence[tuple[str, int, float]]) -> None:
    """Write settings and facts (idempotent), and these numbers."""
    from mlflow.entities import Metric, Param, RunTag

    when = _milliseconds(record.ended)
    settings = [Param(_name(name), str(value)[:LONGEST]) for name, value in record.settings.items()]
    facts = [RunTag(_name(name), value[:LONGEST]) for name, value in record.facts.items()]
    metrics = [Metric(name, value, when, step) for name, step, value in numbers]
    for kind, entries, most in (("params", settings, 100), ("tags", facts, 100), ("metrics", metrics, 1000)):
        for begin in range(0, len(entries), most):  # the most that one request may hold
            client.log_batch(run_id, **{kind: entries[begin : begin + most]})


def _name(name: str) -> str:
    """Names as MLflow allows them."""
    return re.sub(r"[^\w\-. :/]", "_", name)


def _milliseconds(seconds: float) -> int:
    return round(1000 * seconds)
