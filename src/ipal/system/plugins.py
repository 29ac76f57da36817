"""Code from outside the package: plugin files, and entry points of installed packages.

A plugin is a Python file. What it defines is known by name from then on: methods, encoders, streams, metrics and
datasets, each an object of its own kind. A plugin is code: a file is loaded only when it is named, an entry point only
when what it offers is asked for by its name.

Loaded files are modules of the package `ipal_plugins` in `sys.modules`, which is all that is remembered of them.
"""

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar, cast

from ipal.errors import ConfigError, did_you_mean

PACKAGE = "ipal_plugins"
Thing = TypeVar("Thing")


def load(path: str | Path) -> ModuleType:
    """Run a plugin file, once."""
    path = Path(path).expanduser().resolve()
    if not path.is_file() or path.suffix != ".py":
        raise ConfigError(f"There is no plugin file {path}: name a Python file, as --plugin my_method.py.")
    name = f"{PACKAGE}.{path.stem}"
    known = sys.modules.get(name)
    if known is not None:
        if known.__file__ != str(path):
            raise ConfigError(f"Two plugin files have the name {path.name}: rename {path}.")
        return known
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} is no Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ConfigError(f"The plugin {_place(path, error)} cannot be loaded: {_reason(error)}.") from error
    return module


def loaded() -> list[ModuleType]:
    """The plugin files that were loaded in this process."""
    return [module for name, module in list(sys.modules.items()) if name.startswith(PACKAGE + ".")]


@dataclass(frozen=True, eq=False)
class Registry(Mapping[str, Thing], Generic[Thing]):
    """All things of one kind by name: the package's own, those of loaded plugin files, those of entry points."""

    kind: str
    """What it is in a sentence, as method; its entry points are in the group ipal.methods."""
    own: tuple[Thing, ...]
    is_one: Callable[[Any], bool]
    """Whether an object is such a thing."""

    def find(self, name: str) -> Thing:
        """What has this name, or a sentence."""
        if name not in self:
            raise ConfigError(f"Unknown {self.kind} '{name}'.{did_you_mean(name, self)}")
        return self[name]

    def origin(self, name: str) -> str | None:
        """The file or package that brings a thing; None for the package's own."""
        if name in self._own:
            return None
        if name in self._of_files:
            return inspect.getfile(cast(Any, sys.modules[self._of_files[name].__module__]))
        return self._entries[name].value

    def __getitem__(self, name: str) -> Thing:
        known = self._own | self._of_files
        return known[name] if name in known else self._loaded(self._entries[name])

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self._own, *self._of_files, *self._entries]))

    def __len__(self) -> int:
        return len(list(iter(self)))

    @property
    def _own(self) -> dict[str, Thing]:
        return {_name(thing): thing for thing in self.own}

    @property
    def _of_files(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for module in loaded():
            for thing in vars(module).values():
                if self.is_one(thing) and thing.__module__ == module.__name__ and hasattr(thing, "name"):
                    if thing.name in found or thing.name in self._own:
                        raise ConfigError(f"{where(thing)} has the name of another {self.kind}: '{thing.name}'.")
                    found[thing.name] = self._complete(thing)
        return found

    @property
    def _entries(self) -> dict[str, EntryPoint]:
        return {entry.name: entry for entry in entry_points(group=f"ipal.{self.kind}s")}

    def _loaded(self, entry: EntryPoint) -> Thing:
        try:
            thing = entry.load()
        except Exception as error:
            raise ConfigError(f"The {self.kind} '{entry.name}' of {entry.value} cannot be loaded: {error}.") from error
        if not self.is_one(thing) or getattr(thing, "name", None) != entry.name:
            raise ConfigError(f"The entry point '{entry.name}' ({entry.value}) is no {self.kind} of that name.")
        return self._complete(thing)

    def _complete(self, thing: Any) -> Thing:
        missing = sorted(getattr(thing, "__abstractmethods__", ()))
        if missing:
            raise ConfigError(f"{where(thing)} is no complete {self.kind}: it lacks {', '.join(missing)}.")
        return cast(Thing, thing)


def where(thing: Any) -> str:
    """A class or function with its file and line."""
    thing = thing if inspect.isclass(thing) or inspect.isfunction(thing) else type(thing)
    return f"{thing.__name__} ({inspect.getfile(thing)}, line {inspect.getsourcelines(thing)[1]})"


def _name(thing: Any) -> str:
    return str(thing.name)


def _place(path: Path, error: BaseException) -> str:
    """The file, and the line in it where an error came up."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f"{path}, line {error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f"{path}, line {lines[-1]}," if lines else str(path)


def _reason(error: BaseException) -> str:
    text = str(error).splitlines()[0][:200] if str(error) else ""
    return f"{type(error).__name__}{text and ': '}{text}".rstrip(".")
