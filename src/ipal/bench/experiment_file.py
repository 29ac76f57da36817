"""Experiment files: which methods with which settings make the rows of a table. Reads and checks them.

A file holds only what differs from the defaults:

    about: Table 1 of the paper on CS-CL
    kind: table1                  # what `ipal report` makes of it: table1, table2, figure6, or study for any rows
    seeds: 5                      # 0 to 4, or a list
    tuning_seeds: 2               # 100 and 101, or a list: grids are searched with these, and grow at their edges
    preset: table1-cs             # another experiment, of which every entry takes the values chosen for its method
    all: {dataset: cs}            # settings of every run; those under a method's name are for its entries alone
    entries:
      ewc:                        # a label; the method, where none is given
        ewc.strength: 100         # the value chosen
        grid:                     # candidates; searched if no value is given, or with --tune
          ewc.strength: [1, 10, 100]

`like: table1-cs.yaml` takes over the entries, grids and settings of another file in the same folder, but no value
chosen from a grid, because choices depend on the dataset. `preset` takes the chosen values alone, for all
entries or in one; all that the file says itself goes over them. Errors name the file and the line.
"""

import itertools
import math
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, get_args

import yaml

from ipal.config import RunConfig, Tree, known_settings, nested, override, run_config
from ipal.data.streams import STREAMS
from ipal.errors import ConfigError, IpalError, did_you_mean, nearest, shortened
from ipal.estimator.registry import METHODS
from ipal.estimator.settings import own_settings
from ipal.runs.config_files import complaining, presets, read_config_node
from ipal.runs.manifest import Kind
from ipal.runs.resolved import check_settings
from ipal.system.documents import yaml_value
from ipal.system.files import is_file

PARTS = ("about", "like", "preset", "kind", "seeds", "tuning_seeds", "all", "entries")
MOST_SEEDS, MOST_RUNS = 1000, 10_000
"""Most runs of one file."""
NULL = "tag:yaml.org,2002:null"
ELSEWHERE = {
    "seed": "the seeds stand at the top of the file, as 'seeds: 5'",
    "dataset": "a file is about one dataset, which stands under 'all'",
    "method": "a grid is of one method: make another entry",
}


@dataclass(frozen=True)
class Setting:
    """A value, and its line."""

    value: Any
    path: Path
    line: int


Settings = dict[str, Setting]
"""By dotted name."""


@dataclass(frozen=True)
class ExperimentEntry:
    """One row of the table: a method and its settings."""

    label: str
    line: int
    method: str
    preset: Settings
    """What a preset has for this method."""
    common: Settings
    """The settings of all entries that apply to this method."""
    fixed: Settings
    grid: dict[str, list[Setting]]

    @property
    def given(self) -> Settings:
        """All that has a value."""
        return self.preset | self.common | self.fixed

    @property
    def own(self) -> Settings:
        """What has a value for this entry in particular."""
        return {name: self.given[name] for name in self.preset | self.fixed}

    def searched(self, tune: bool) -> dict[str, list[Setting]]:
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
    common: Settings
    entries: tuple[ExperimentEntry, ...]

    def config(self, entry: ExperimentEntry, point: Settings, seed: int) -> RunConfig:
        """The configuration of one run."""
        with self.blaming(entry, point):
            config = run_config({**as_tree(point), "method": entry.method, "seed": seed})
            check_settings(config)
        return config

    @contextmanager
    def blaming(self, entry: ExperimentEntry, point: Settings, about: str = "") -> Iterator[None]:
        """Add the line of the wrong setting, or of the entry, to an error."""
        try:
            yield
        except IpalError as error:
            name = getattr(error, "setting", None) or about
            # An error may be inside a value, as `protocol.class_order.2`.
            while name and name not in point:
                name = name.rpartition(".")[0]
            path, line = (point[name].path, point[name].line) if name else (self.path, entry.line)
            raise ConfigError(f"{path}, line {line}: {error}") from error


def as_tree(settings: Settings) -> Tree:
    """The values of settings, nested."""
    return reduce(override, (nested(name, setting.value) for name, setting in settings.items()), {})


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
        methods = ", ".join(dict.fromkeys(entry.method for entry in entries))
        count = f"{len(found)} entries" if found else "no entry"
        raise ConfigError(
            f"The preset '{name}' has {count} of the method '{shortened(method)}', and one is needed: name another "
            f"preset, or a method with one entry there ({methods})."
        )
    if missing := ", ".join(found[0].searched(tune=False)):
        raise ConfigError(
            f"The preset '{name}' has no value chosen yet for {missing} of {method}: 'ipal bench {known[name]}' "
            "searches one."
        )
    return found[0].given


def read_experiment(path: Path, takers: tuple[Path, ...] = ()) -> Experiment:
    """Read an experiment file and check names and values. `takers` are the files that include this one by `like`."""
    source = _Source(path)
    node = read_config_node(path)
    if node is not None and not isinstance(node, yaml.MappingNode):
        raise ConfigError(f"The configuration file {path} must hold settings as 'name: value' lines.")
    parts = source.mapping(node)
    for name, (line, _) in parts.items():
        if name not in PARTS:
            raise source.error(line, f"Unknown name '{name}'.{did_you_mean(name, PARTS)}")
    like = _like(source, *parts["like"], takers) if "like" in parts else None
    for name in ("all",) if like else ("kind", "all", "entries"):
        if name not in parts:
            raise ConfigError(f"{path}: The part '{name}' is missing.")
    kind: Any = source.value(parts["kind"][1]) if "kind" in parts else like.kind if like else None
    if kind not in get_args(Kind):
        known = did_you_mean(shortened(kind), get_args(Kind))
        raise source.error(parts["kind"][0], f"Unknown kind '{shortened(kind)}'.{known}")
    line, node = parts["all"]
    named = [name.partition(".")[0] for name in source.mapping(node)]
    methods = dict.fromkeys([*METHODS.own, *(name for name in named if name in METHODS)])
    shared = _shared()
    everywhere = [*shared, "dataset", "method", "preset", *itertools.chain.from_iterable(map(_own, methods))]
    common = (like.common if like else {}) | source.settings({"preset": parts["preset"]} if "preset" in parts else {})
    common |= source.settings(source.leaves(source.mapping(node), everywhere))
    if "dataset" not in common:
        raise source.error(line, "The setting 'dataset' is missing.")
    inherited = {entry.label: entry for entry in like.entries} if like else {}
    own = source.mapping(parts["entries"][1]) if "entries" in parts else {}
    nothing: Place = line, yaml.ScalarNode(NULL, "")
    entries = [
        _entry(source, label, *own.get(label, nothing), common, shared, inherited.get(label), takers)
        for label in dict.fromkeys([*inherited, *own])
    ]
    if not entries:
        raise source.error(parts["entries"][0], "There are no entries.")
    seeds = _seeds(source, *parts["seeds"]) if "seeds" in parts else like.seeds if like else tuple(range(5))
    tuning = like.tuning_seeds if like else ()
    if "tuning_seeds" in parts:
        tuning = _seeds(source, *parts["tuning_seeds"], name="tuning_seeds", first=100)
    if both := set(seeds) & set(tuning):
        line = parts["tuning_seeds" if "tuning_seeds" in parts else "seeds"][0]
        raise source.error(line, f"Seed {min(both)} is reported and tuned by: take other seeds to choose settings by.")
    experiment = Experiment(
        path=path,
        about=str(source.value(parts["about"][1])) if "about" in parts else "",
        kind=kind,
        seeds=seeds,
        tuning_seeds=tuning,
        common=common,
        entries=tuple(entries),
    )
    check_runs(experiment, max(len(seeds), len(tuning)))
    for entry in () if takers else experiment.entries:  # what another file takes over is checked there
        for point in entry.points(tune=False) + entry.points(tune=True):
            experiment.config(entry, point, experiment.seeds[0])
    return experiment


def check_runs(experiment: Experiment, seeds: int) -> None:
    """Refuse a file with too many runs before they are listed."""
    runs = seeds * sum(math.prod(map(len, entry.grid.values())) for entry in experiment.entries)
    if runs > MOST_RUNS:
        raise ConfigError(
            f"{experiment.path} asks for {runs} runs ({seeds} seeds at every point of its grids); at most {MOST_RUNS} "
            "are taken: make the grids or the seeds fewer, or several files of it."
        )


def _like(source: "_Source", line: int, node: yaml.Node, takers: tuple[Path, ...]) -> Experiment:
    other = source.path.parent / str(source.value(node))
    takers = (*takers, source.path.resolve())
    if not is_file(other) or other.resolve() in takers:
        raise source.error(line, f"There is no other experiment file {other}.")
    return read_experiment(other, takers)


def _entry(
    source: "_Source",
    label: str,
    line: int,
    node: yaml.Node,
    common: Settings,
    shared: list[str],
    like: ExperimentEntry | None,
    takers: tuple[Path, ...],
) -> ExperimentEntry:
    parts = source.mapping(node)
    _, grid = parts.pop("grid", (line, None))
    method = Setting(like.method, source.path, line) if like else common.get("method")
    if "method" in parts:
        method = source.settings({"method": parts.pop("method")})["method"]
    method = method or Setting(label, source.path, line)
    if not isinstance(method.value, str) or method.value not in METHODS:
        name = shortened(method.value)
        raise source.error(method.line, f"Unknown method '{name}'.{did_you_mean(name, METHODS)}")
    known = [*shared, *_own(method.value)]
    taken_over = {name: setting for name, setting in like.fixed.items() if name not in like.grid} if like else {}
    choices = {name: source.choices(name, *at) for name, at in source.leaves(source.mapping(grid), known).items()}
    own = source.settings(source.leaves(parts, [*known, "preset"]))
    chosen = like.preset if like else {}
    if preset := own.pop("preset", common.get("preset")):
        chosen = _chosen(preset, method.value, (*takers, source.path.resolve()))
    return ExperimentEntry(
        label=label,
        line=line,
        method=method.value,
        preset=chosen,
        common={name: setting for name, setting in common.items() if name in {*known, "dataset"}},
        fixed=taken_over | own,
        grid=choices or (like.grid if like else {}),
    )


def _chosen(preset: Setting, method: str, takers: tuple[Path, ...]) -> Settings:
    """What a preset has for a method; the dataset is that of the file which names it."""
    try:
        found = read_preset(str(preset.value), method, takers)
    except ConfigError as error:
        raise ConfigError(f"{preset.path}, line {preset.line}: {error}") from error
    return {name: setting for name, setting in found.items() if name != "dataset"}


def _seeds(source: "_Source", line: int, node: yaml.Node, name: str = "seeds", first: int = 0) -> tuple[int, ...]:
    value = source.value(node)
    count = value if type(value) is int else len(value) if isinstance(value, list) else 0
    if count > MOST_SEEDS:
        raise source.error(line, f"'{name}' says {shortened(count)} seeds, at most {MOST_SEEDS} are taken: name fewer.")
    seeds = value if isinstance(value, list) else range(first, first + count)
    if not seeds or not all(type(seed) is int and 0 <= seed < 2**63 for seed in seeds):
        raise source.error(line, f"'{name}' takes how many, from 1 on, or a list as [0, 3]; got {shortened(value)}.")
    return tuple(dict.fromkeys(seeds))


def _shared() -> list[str]:
    """Names of the settings that every method has and an entry may change."""
    streams = [f"protocol.stream.{name}" for kind in STREAMS.values() for name in known_settings(kind.Settings)]
    known = [*known_settings(RunConfig), "protocol.stream", *streams]
    return [name for name in known if name not in {"settings", *ELSEWHERE}]


def _own(method: str) -> list[str]:
    return [f"{method}.{name}" for name in own_settings(METHODS.find(method))]


Place = tuple[int, yaml.Node]
"""A line and its content."""


@dataclass(frozen=True)
class _Source:
    """Reads the nodes of a YAML file, with their lines."""

    path: Path

    def error(self, line: int, message: str) -> ConfigError:
        return ConfigError(f"{self.path}, line {line}: {message}")

    def value(self, node: yaml.Node) -> Any:
        with complaining(self.path):
            return yaml_value(node)

    def mapping(self, node: yaml.Node | None) -> dict[str, Place]:
        """The keys of a node; repeated keys are refused."""
        if node is None or node.tag == NULL:
            return {}
        if not isinstance(node, yaml.MappingNode):
            raise self.error(node.start_mark.line + 1, "Here must be 'name: value' lines.")
        places: dict[str, Place] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise self.error(line, "Here must be 'name: value' lines.")
            if key.value in places:
                raise self.error(line, f"'{key.value}' was given before, in line {places[key.value][0]}.")
            places[key.value] = line, value
        return places

    def leaves(self, places: dict[str, Place], known: Collection[str], prefix: str = "") -> dict[str, Place]:
        """All settings below by dotted name, written nested or dotted."""
        found: dict[str, Place] = {}
        for key, (line, node) in places.items():
            name = prefix + key
            below = {name: (line, node)}
            if isinstance(node, yaml.MappingNode):
                below = self.leaves(self.mapping(node), known, f"{name}.")
            elif name in ELSEWHERE and name not in known:
                raise self.error(line, f"'{name}' cannot be set here: {ELSEWHERE[name]}.")
            elif name not in known:
                raise self.error(line, f"Unknown setting '{name}'.{did_you_mean(name, known)}")
            for twice in below.keys() & found.keys():
                raise self.error(below[twice][0], f"'{twice}' was given before, in line {found[twice][0]}.")
            found |= below
        return found

    def settings(self, leaves: dict[str, Place]) -> Settings:
        return {name: Setting(self.value(node), self.path, line) for name, (line, node) in leaves.items()}

    def choices(self, name: str, line: int, node: yaml.Node) -> list[Setting]:
        """The values of a grid, each with its own line."""
        if not isinstance(node, yaml.SequenceNode) or not node.value:
            raise self.error(line, f"The grid of '{name}' must be a list of values, as [1, 10].")
        return [Setting(self.value(choice), self.path, choice.start_mark.line + 1) for choice in node.value]
