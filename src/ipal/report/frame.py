"""Stored runs as a table of pandas."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipal.config import flat
from ipal.errors import ConfigError, StoreError
from ipal.evaluation.metrics import titled
from ipal.runs.run_folder import RunFolder, RunStore, overview
from ipal.system.optional import need_extra

if TYPE_CHECKING:
    from pandas import DataFrame


def results(runs: str | Path = "runs") -> "DataFrame":
    """One row for every run of a folder, the latest last: what it was, its cost, metrics by their titles, and settings.

    Metrics are in percent, `date` is when it was started, in UTC. Settings have their dotted names, as `ipal.gamma`.
    What a run does not have is missing: metrics of one that is not finished, settings of other methods.

    Parameters
    ----------
    runs : str or Path, default="runs"
        The folder.

    Returns
    -------
    DataFrame

    Raises
    ------
    ConfigError
        If there is no such folder.
    """
    need_extra("pandas", "pandas")
    import pandas

    if not Path(runs).is_dir():
        raise ConfigError(f"There is no folder {runs}: name that of your runs, as ipal.results('runs').")
    frame = pandas.DataFrame([_row(folder) for folder in RunStore(Path(runs)).all()])
    if len(frame):
        frame["date"] = pandas.to_datetime(frame["date"], utc=True)
    return frame


def _row(folder: RunFolder) -> dict[str, Any]:
    row = overview(folder)
    scores = {"AP": row.pop("average_performance"), "AF": row.pop("average_forgetting"), **titled(row.pop("metrics"))}
    settings: dict[str, Any] = {}
    with suppress(StoreError):
        settings = {name: value for name, value in flat(folder.config().to_tree()).items() if "." in name}
    return row | scores | settings
