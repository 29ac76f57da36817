"""Experiment files: which methods with which settings make the rows of a table. Reads and checks them.

A file holds only what differs from the defaults:

    about: Table 1 of the paper on CS-CL
    kind: table1                  # what `ipal report` makes of it: table1, table2, figure6, or study for any rows
    seeds: 5                      # 0 to 4, or a list
    tuning_seeds: 2               # 100 and 101, or a list: grids are searched with these
    preset: table1-cs             # another experiment, of which every entry takes the values chosen for its method
    all: {dataset: cs}            # settings of every run; those under a method's name are for its entries alone
    entries:
      ewc:                        # a label; the method, where none is given
        ewc.strength: 100         # the value chosen
        grid:                     # candidates; searched if no value is given, or with --tune
          ewc.strength: [1, 10, 100]

`like: table1-cs.yaml` takes over the entries, grids and settings of another file in the same folder, but no value
chosen from a grid, because choices depend on the dataset. `preset` takes the chosen values alone, for all
entries or in one; all that the file says itself goes over them. Errors name the file and the entry.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from os.path import isfile
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from ipal.config import RunConfig, Section, Seed, Tree, flat, nested, override, run_config
from ipal.errors import ConfigError, IpalError, did_you_mean, nearest, shortened
from ipal.estimator.registry import METHODS
from ipal.runs.config_files import presets, read_config_file
from ipal.runs.manifest import Kind, Settings
from ipal.runs.resolved import check_settings

MOST_SEEDS, MOST_RUNS = 1000, 10_000
"""Most runs of one file."""
ELSEWHERE = {"seed", "dataset", "method"}
"""Settings that have another place in a file than an entry or a grid."""
Seeds = (
    Annotated[int, Field(ge=1, le=MOST_SEEDS)] | Annotated[tuple[Seed, ...], Field(min_length=1, max_length=MOST_SEEDS)]
)


class _File(Section):
    """The parts of a file."""

    about: str = ""
    like: str | None = None
    preset: str | None = None
    kind: Kind | None = None
    seeds: Seeds = 5
    tuning_seeds: Seeds | None = None
    all: Tree
    entries: Annotated[dict[str, Tree | None], Field(default_factory=dict)]


@dataclass(frozen=True)
class ExperimentEntry:
    """One row of the table: a method and its settings."""

    label: str
    method: str
    given: Settings
    """All that has a value, for this entry or for all."""
    own: Settings
    """What has a value for this entry in particular, by itself or by a preset."""
    grid: dict[str, list[Any]]

    def searched(self, tune: bool) -> dict[str, list[Any]]:
        """The part of the grid to search: settings without a value, or all with `tune`."""
        return {name: values for name, values in self.grid.items() if tune or name not in self.given}

    def points(self, tune: bool) -> list[Settings]:
        """The full settings at every point of the grid; one point where nothing is searched."""
        grid = self.searched(tune)
        return [self.given | dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


@dataclass(frozen=True)
class Experiment:
    """A file, checked as far as possible without its dataset."""

    path: Path
    about: str
    kind: Kind
    seeds: tuple[int, ...]
    tuning_seeds: tuple[int, ...]
    """Of the runs by which settings are chosen; none: those above."""
    entries: tuple[ExperimentEntry, ...]

    def __post_init__(self) -> None:
        """Refuse too many runs before they are listed."""
        seeds = max(len(self.seeds), len(self.tuning_seeds))
        runs = seeds * sum(math.prod(map(len, entry.grid.values())) for entry in self.entries)
        if runs > MOST_RUNS:
            raise ConfigError(
                f"{self.path} asks for {runs} runs ({seeds} seeds at every point of its grids); at most {MOST_RUNS} "
                "are taken: make the grids or the seeds fewer, or several files of it."
            )

    def config(self, entry: ExperimentEntry, point: Settings, seed: int) -> RunConfig:
        with blaming(self.path, entry.label):
            config = run_config({**as_tree(point), "method": entry.method, "seed": seed})
            check_settings(config)
        return config


@contextmanager
def blaming(path: Path, label: str) -> Iterator[None]:
    """Add the file and the entry to an error."""
    try:
        yield
    except IpalError as error:
        raise ConfigError(f"{path}, entry '{shortened(label)}': {error}") from error


def as_tree(settings: Settings) -> Tree:
    """The values of settings, nested."""
    return reduce(override, (nested(name, value) for name, value in settings.items()), {})


def read_preset(name: str, method: str, takers: tuple[Path, ...] = ()) -> Settings:
    """The settings that an experiment of the package gives a method. `takers` are files that are being read."""
    known = {name: path for name, path in presets().items() if path.resolve() not in takers}
    if name not in known:
        near = nearest(name, known)
        hint = f" Did you mean '{near}'?" if near else ""
        raise ConfigError(f"There is no preset '{shortened(name)}' (see 'ipal list presets').{hint}")
    entries = read_experiment(known[name], takers or (known[name].resolve(),)).entries
    of_method = [entry for entry in entries if entry.method == method]
    found = [entry for entry in of_method if entry.label == method] or of_method
    if len(found) != 1:
        raise ConfigError(
            f"The preset '{name}' has {len(found)} entries of the method '{shortened(method)}', and one is needed; it "
            f"has {', '.join(dict.fromkeys(entry.method for entry in entries))}."
        )
    if missing := ", ".join(found[0].searched(tune=False)):
        raise ConfigError(f"The preset '{name}' has no value chosen yet for {missing} of {method}: search one.")
    return found[0].given


def read_experiment(path: Path, takers: tuple[Path, ...] = ()) -> Experiment:
    """Read an experiment file and check names and values. `takers` are the files that take this one over."""
    file = _read(path, takers)
    if file.kind is None or "dataset" not in file.all or not file.entries:
        part = "kind" if file.kind is None else "entries" if not file.entries else "all: dataset"
        raise ConfigError(f"{path}: The part '{part}' is missing.")
    entries = tuple(_entry(file, path, label, (*takers, path.resolve())) for label in file.entries)
    seeds, tuning = _listed(file.seeds, 0), _listed(file.tuning_seeds or (), 100)
    if both := set(seeds) & set(tuning):
        raise ConfigError(f"{path}: Seed {min(both)} is reported and tuned by: take others to choose settings by.")
    experiment = Experiment(path, file.about, file.kind, seeds, tuning, entries)
    for entry in () if takers else entries:  # what another file takes over is checked there
        for point in entry.points(tune=False) + entry.points(tune=True):
            experiment.config(entry, point, seeds[0])
    return experiment


def _listed(seeds: int | Sequence[int], first: int) -> tuple[int, ...]:
    return tuple(range(first, first + seeds) if isinstance(seeds, int) else dict.fromkeys(seeds))


def _read(path: Path, takers: tuple[Path, ...]) -> _File:
    """A file with what it takes over by `like`; settings by dotted name."""
    tree = read_config_file(path)
    try:
        file = _File(**tree)
        entries = {label: flat(settings or {}) for label, settings in file.entries.items()}
        file = file.model_copy(update={"all": flat(file.all), "entries": entries})
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    if file.like is None:
        return file
    other = path.parent / file.like
    takers = (*takers, path.resolve())
    if not isfile(other) or other.resolve() in takers:
        raise ConfigError(f"{path}: There is no other experiment file {other}.")
    like = _read(other, takers)
    own = {name: getattr(file, name) for name in file.model_fields_set - {"like"}}
    merged = {label: _merged(like.entries.get(label) or {}, entries.get(label, {})) for label in like.entries | entries}
    return like.model_copy(update={"about": "", **own, "all": like.all | file.all, "entries": merged})


def _merged(like: Settings, own: Settings) -> Settings:
    """An entry of two files: without the values chosen from the other's grid, and without that where it has its own."""
    has_grid = any(name.startswith("grid.") for name in own)
    dropped = {name for name in like if f"grid.{name}" in like or (has_grid and name.startswith("grid."))}
    return {name: value for name, value in like.items() if name not in dropped} | own


def _entry(file: _File, path: Path, label: str, takers: tuple[Path, ...]) -> ExperimentEntry:
    fixed = dict(file.entries[label] or {})
    grid = {name.removeprefix("grid."): fixed.pop(name) for name in [*fixed] if name.partition(".")[0] == "grid"}
    method, preset = fixed.pop("method", file.all.get("method", label)), fixed.pop("preset", file.preset)
    with blaming(path, label):
        if not isinstance(method, str) or method not in METHODS:
            raise ConfigError(f"Unknown method '{shortened(method)}'.{did_you_mean(shortened(method), METHODS)}")
        for name in ELSEWHERE & {*fixed, *grid}:
            raise ConfigError(f"'{name}' cannot be set here: all entries have the seeds and the dataset of the file.")
        for name, values in grid.items():
            if not isinstance(values, list) or not values:
                raise ConfigError(f"The grid of '{shortened(name)}' must be a list of values, as [1, 10].")
        chosen = {} if preset is None else read_preset(str(preset), method, takers)
    chosen = {name: value for name, value in chosen.items() if name != "dataset"}
    others = {"method", *METHODS} - {method}
    common = {name: value for name, value in file.all.items() if name.partition(".")[0] not in others}
    given = chosen | common | fixed
    return ExperimentEntry(label, method, given, {name: given[name] for name in chosen | fixed}, grid)
