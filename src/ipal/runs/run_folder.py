"""Runs on disk: one folder each, named by a hash of its full configuration, with files of fixed names.

    config.yaml         everything that decides the numbers
    environment.json    versions, machine, threads
    checkpoint.safetensors   while it runs: enough to go on exactly as if never interrupted
    history.csv         every named loss term of every epoch
    confusion.json      which classes' test nodes were taken for which, after every task
    model.safetensors   the learner, when all tasks are learned
    result.json         accuracy matrix, AP, AF, …; written last: a run is believed only if it is there
    log.txt             what happened when
    .asked-*            empty: which requests of `ipal run` it answers

Every file appears whole or not at all. No torch here: results can be read anywhere.
"""

import csv
import hashlib
import io
import json
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from os.path import isfile
from pathlib import Path
from typing import Any

from filelock import Timeout

from ipal.config import RunConfig, run_config
from ipal.data.names import split_names, stem
from ipal.errors import ConfigError, IpalError, StoreError
from ipal.runs.config_files import read_config_file
from ipal.runs.records import Confusion, Environment, Result, stream_in_words
from ipal.system.documents import Record, read_json, write_yaml
from ipal.system.files import alone_with, make_folder, read_bounded, sweep, write_atomically, writing

BUSY = "busy"
"""Why a run was not made: another process is making it."""
LATEST = "latest"
"""In place of a name: the run that was started last."""
MOST_HISTORY = 2**28
MOST_NAME = 100
"""Bytes of a dataset's name in that of a folder: a file's name has 255."""
History = list[dict[str, float]]


class RunFolder:
    """The folder of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoint = path / "checkpoint.safetensors"
        self.model = path / "model.safetensors"

    @classmethod
    def of_model(cls, model: Path) -> "RunFolder | None":
        """The run that made a model, where the file still lies in its folder."""
        folder = cls(model.parent)
        return folder if model == folder.model and (model.parent / "config.yaml").exists() else None

    @property
    def is_finished(self) -> bool:
        return (self.path / "result.json").exists()

    @property
    def status(self) -> str:
        if self.is_finished:
            return "finished"
        return "resumable" if self.checkpoint.exists() else "started"

    @property
    def date(self) -> str:
        """When it was started, as ISO 8601 in UTC: its configuration is written once."""
        changed = (self.path / "config.yaml").stat().st_mtime
        return datetime.fromtimestamp(changed, UTC).isoformat(timespec="seconds")

    def start(self, config: RunConfig, environment: dict[str, Any]) -> None:
        make_folder(self.path)
        # The configuration comes last: a folder that has one is a run, and can be resumed.
        self.write_json("environment.json", environment)
        write_atomically(self.path / "config.yaml", write_yaml(config.to_tree()))

    def config(self) -> RunConfig:
        """The configuration, with its hash checked against the folder's name."""
        try:
            config = run_config(read_config_file(self.path / "config.yaml"))
        except ConfigError as error:
            raise StoreError(f"{self.path}/config.yaml is damaged or of another version: {error}") from error
        if config.digest not in self.path.name:
            raise StoreError(
                f"{self.path}/config.yaml was changed: its hash is {config.digest}, which is not in the folder's "
                "name. Put it back, or start a new run with the settings you want."
            )
        return config

    def data_root(self) -> Path | None:
        """Where the run found its graph."""
        known = self.environment().get("data_root")
        return Path(known) if known else None

    def result(self) -> dict[str, Any]:
        """What result.json holds; metrics that it does not have, as those of a new package, are computed from it."""
        result = self._record("result.json", Result)
        from ipal.evaluation.metrics import METRICS, measured, stored_scores  # NumPy: help is shown without it

        if not METRICS.keys() <= result["metrics"].keys():
            result["metrics"] = measured(stored_scores(result, self.confusion())[-1]) | result["metrics"]
        return result

    def confusion(self) -> dict[str, Any]:
        return self._record("confusion.json", Confusion)

    def history(self) -> History:
        """Every named loss term of every epoch; a term that a task does not have is left out."""
        try:
            text = read_bounded(self.path / "history.csv", MOST_HISTORY).decode()
            return [
                {name: float(value) for name, value in row.items() if value}
                for row in csv.DictReader(io.StringIO(text))
            ]
        except FileNotFoundError:
            return []
        except (ValueError, OSError, AttributeError, TypeError, csv.Error) as error:
            raise StoreError(f"{self.path}/history.csv is damaged: delete it, or restore the file.") from error

    def environment(self) -> dict[str, Any]:
        return self._record("environment.json", Environment)

    def write_json(self, name: str, content: dict[str, Any], *, compact: bool = False) -> None:
        text = json.dumps(content, separators=(",", ":")) if compact else json.dumps(content, indent=2)
        write_atomically(self.path / name, text + "\n")

    def write_history(self, history: History) -> None:
        names = list(dict.fromkeys(name for row in history for name in row))
        rows, table = ([row.get(name, "") for name in names] for row in history), io.StringIO()
        csv.writer(table, lineterminator="\n").writerows([names, *rows])
        write_atomically(self.path / "history.csv", table.getvalue())

    def log(self, message: str) -> None:
        line = f"{datetime.now(UTC).isoformat(timespec='seconds')} {message}\n"
        path = self.path / "log.txt"
        with writing(path), path.open("a") as file:
            file.write(line)

    def note_failure(self, error: Exception) -> str:
        """Write to the log why the run failed; returns it as a line, or `BUSY` if another process is making the run."""
        if isinstance(error, StoreError) and isinstance(error.__cause__, Timeout):
            return BUSY
        expected = isinstance(error, IpalError)
        with suppress(StoreError):
            self.log(f"failed: {error if expected else ''.join(traceback.format_exception(error))}")
        return str(error) if expected else f"{type(error).__name__}: {error}"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """No other process works on this run meanwhile; what killed processes left behind is removed."""
        make_folder(self.path)
        with alone_with(self.path, self.path / ".lock"):
            sweep(self.path)
            if self.is_finished:
                with suppress(OSError):
                    self.checkpoint.unlink(missing_ok=True)
            yield

    def mark(self, request: RunConfig) -> None:
        """Let `RunStore.finished_before` find the run by what was asked for."""
        with suppress(OSError):
            (self.path / _mark(request)).touch()

    def tidy(self) -> None:
        """Remove what killed processes left behind, where the folder can be written and no process works on it."""
        with suppress(StoreError), self.locked():
            pass

    def _record(self, name: str, schema: type[Record]) -> dict[str, Any]:
        """What a JSON file of the folder holds, as the schema says."""
        try:
            content: dict[str, Any] = read_json(self.path / name)
            schema.model_validate(content)
        except FileNotFoundError as error:
            raise StoreError(f"{self.path} is no complete run: {name} is missing.") from error
        except (OSError, ValueError) as error:  # no text, no JSON, or not as its schema says
            raise StoreError(
                f"{self.path / name} is damaged: delete the folder and run again, or restore the file."
            ) from error
        return content


class RunStore:
    """All runs under one folder.

    Parameters
    ----------
    root : Path
        The folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder_for(self, config: RunConfig) -> RunFolder:
        """Where a run of this configuration lies, whether or not it does yet."""
        dataset = "+".join(map(stem, split_names(config.dataset)))
        dataset = dataset.encode(errors="replace")[:MOST_NAME].decode(errors="ignore")
        return RunFolder(self.root / f"{dataset}-{config.method}-seed{config.seed}-{config.digest}")

    def finished_before(self, request: RunConfig) -> RunFolder | None:
        """A finished run that was asked for in the same words of the same code; its graph may have changed since.

        Only the methods know all defaults, and with them a folder's name, and they load torch.
        """
        found = (RunFolder(path.parent) for path in self.root.glob(f"*/{_mark(request)}"))
        return next((folder for folder in found if folder.is_finished), None)

    def find(self, name: str) -> RunFolder:
        """A run by its path, its name, any part of its name that no other run shares, or as `latest`."""
        for path in (Path(name), self.root / name):
            if isfile(path / "config.yaml"):
                return RunFolder(path.resolve())
        known = self.all()
        matching = known[-1:] if name == LATEST else [folder for folder in known if name and name in folder.path.name]
        if len(matching) == 1:
            return matching[0]
        if matching:
            names = ", ".join(folder.path.name for folder in matching[:4])
            raise StoreError(
                f"'{name}' fits {len(matching)} runs under {self.root}: {names}; say more of the name, or "
                f"'{LATEST}' for the one started last."
            )
        raise StoreError(f"There is no run '{name}' under {self.root}: 'ipal list runs' shows them all.")

    def model_file(self, name: str) -> Path:
        """The file of a saved model; links are followed.

        Parameters
        ----------
        name : str
            The file, the run folder, a part of the run's name, or "latest".

        Returns
        -------
        Path

        Raises
        ------
        StoreError
            If there is no such run, or it is not finished.
        """
        path = Path(name)
        if isfile(path) or path.suffix == ".safetensors":
            return path.resolve()
        folder = self.find(name)
        if not folder.is_finished or not folder.model.exists():
            raise StoreError(f"{folder.path.name} has no model yet: 'ipal resume {folder.path.name}' finishes it.")
        return folder.model.resolve()

    def all(self) -> Sequence[RunFolder]:
        """Every run, the one started last at the end: the configuration is written once, the folder changes."""
        configs = sorted(self.root.glob("*/config.yaml"), key=lambda path: (path.stat().st_mtime, path.parent.name))
        return [RunFolder(path.parent) for path in configs]


def _mark(request: RunConfig) -> str:
    """The name of a file for a request and the package's own files, as their sizes and times have them."""
    package = Path(__file__).parents[1]
    code = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(package.rglob("*.py"))]
    asked = json.dumps([request.model_dump(mode="json", exclude_unset=True), code], sort_keys=True)
    return f".asked-{hashlib.sha256(asked.encode()).hexdigest()[:16]}"


def overview(folder: RunFolder) -> dict[str, Any]:
    """What a list says of a run; where it is not finished, or its files are damaged, the rest is None."""
    status = folder.status
    about: dict[str, Any] = {}
    result: dict[str, Any] = {}
    try:
        if folder.is_finished:
            about = result = folder.result()
        else:
            about = folder.config().to_tree()
    except StoreError:  # one damaged run does not hide the others
        status = "damaged"
    protocol, timing, kept = (result.get(part, {}) for part in ("protocol", "timing", "retained"))
    return {
        "run": folder.path.name,
        "status": status,
        "date": folder.date,
        **{name: about.get(name) for name in ("dataset", "method", "seed")},
        "stream": stream_in_words(protocol["stream"]) if protocol else None,
        "test_graph": protocol.get("test_graph"),
        **{name: result.get(name) for name in ("average_performance", "average_forgetting")},
        "metrics": result.get("metrics", {}),
        "seconds": timing.get("total_seconds"),
        "peak_memory_bytes": result.get("peak_memory_bytes"),
        "retained_bytes": kept.get("bytes"),
        "stores_exemplars": kept.get("stores_exemplars"),
    }
