"""The manifest of a bench, RUNS/benches/<name>.json: which run folder belongs to which row. No torch here.

It holds names of run folders, never scores: those are read from the folders.
"""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from ipal.config import Section
from ipal.errors import StoreError
from ipal.system.documents import read_json
from ipal.system.files import make_folder, write_atomically

Kind = Literal["table1", "table2", "figure6", "study"]
Name = Annotated[str, Field(min_length=1, max_length=255)]
"""Of a folder."""
Settings = dict[str, Any]
"""Dotted names and their values."""


class GridPoint(Section):
    """One point of a row's grid (where nothing is searched, the only one), and its run for every seed."""

    settings: Settings
    runs: tuple[Name, ...]
    """Names of run folders, in the order of the seeds."""


class ManifestRow(Section):
    """One row."""

    label: str
    method: str
    stores_exemplars: bool
    settings: Settings
    """Settings of this row alone: fixed by the file, or chosen from the grid."""
    runs: tuple[Name, ...] = ()
    """The row's runs, in the order of the seeds; empty while nothing is chosen."""
    grid: dict[str, tuple[Any, ...]]
    tried: tuple[GridPoint, ...] = ()
    """Every point of the grid that was searched."""
    failures: dict[Name, str]


class Manifest(Section):
    """The rows of one experiment file."""

    name: str
    about: str = ""
    kind: Kind
    dataset: str
    seeds: tuple[int, ...]
    command: str
    """The command that makes these runs again."""
    entries: tuple[ManifestRow, ...]

    def write(self, runs: Path) -> None:
        path = manifest_path(runs, self.name)
        make_folder(path.parent)
        write_atomically(path, json.dumps(self.model_dump(mode="json"), indent=2) + "\n")


def manifest_path(runs: Path, name: str) -> Path:
    return runs / "benches" / f"{name}.json"


def read_manifest(path: Path) -> Manifest:
    try:
        return Manifest.model_validate(read_json(path))
    except FileNotFoundError as error:
        raise StoreError(f"There is no manifest {path}: 'ipal bench' writes it.") from error
    except (OSError, ValueError) as error:  # also pydantic's
        raise StoreError(
            f"{path} is damaged, or of another version: run 'ipal bench' again with its experiment file; finished runs "
            "are not repeated."
        ) from error
