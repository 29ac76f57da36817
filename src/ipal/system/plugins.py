"""Code from outside the package: plugin files, and entry points of installed packages.

A plugin is a Python file. What it defines is known by name from then on: methods, encoders, streams, metrics and
datasets, each a class, function or object of its own kind. A plugin is code: a file is loaded only when it is named, an
entry point only when what it offers is asked for by its name.

Loaded files are modules of the package `ipal_plugins` in `sys.modules`, which is all that is remembered of them.
"""

import hashlib
import re
import shlex
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar, cast

from ipal.errors import ConfigError, did_you_mean, shortened
from ipal.system.files import is_file, read_bounded

PACKAGE = "ipal_plugins"
MOST_BYTES = 2**24
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
"""What can be the name of a folder, and typed on a command line."""
Thing = TypeVar("Thing")
Origin = tuple[str, str]
"""Where a thing comes from: a file's name and its SHA-256, or a package's name and its version."""


@dataclass(frozen=True, eq=False)
class Registry(Mapping[str, Thing], Generic[Thing]):
    """All things of one kind by name: the package's own, those of loaded plugin files, those of entry points."""

    kind: str
    """What it is in a sentence, as method; its entry points are in the group ipal.methods."""
    own: tuple[Thing, ...]
    is_one: Callable[[Any], bool]
    """Whether an object is such a thing."""
    check: Callable[[Any], object] = bool
    """Raises what is wrong with a thing from outside."""

    def find(self, name: str) -> Thing:
        """What has this name, or a sentence."""
        if name not in self:
            near = did_you_mean(name, self)
            raise ConfigError(f"Unknown {self.kind} '{shortened(name)}'.{near} One of your own needs --plugin FILE.py.")
        return self[name]

    def here(self) -> dict[str, Thing]:
        """All that can be used without loading a package: what is its own, and what loaded files define."""
        return self._own | {name: thing for name, (_, thing) in self._files.items()}

    def origin(self, name: str) -> Origin | None:
        """Who brings a thing; None for the package's own."""
        if name in self._own:
            return None
        files = self._files
        return origin(files[name][0]) if name in files else _of_package(self._entries[name])

    def check_file(self, module: ModuleType) -> bool:
        """Refuse a plugin file with a thing that breaks the contract of its kind; whether it has any."""
        mine = {name: thing for name, (file, thing) in self._files.items() if file is module}
        for name, thing in mine.items():
            self._check(thing, f"The {self.kind} '{name}' of {module.__file__}")
        return bool(mine)

    def __getitem__(self, name: str) -> Thing:
        here = self._own if name in self._own else self.here()
        if name in here or name not in self:
            return here[name]
        entry = self._entries[name]
        what = f"The {self.kind} '{name}' ({entry.value}) of {in_words(_of_package(entry))}"
        try:
            thing = entry.load()
        except Exception as error:
            raise ConfigError(f"{what} cannot be loaded: {_reason(error)}.") from error
        if not self.is_one(thing) or getattr(thing, "name", None) != name:
            raise ConfigError(f"{what} is no {self.kind} of that name.")
        self._check(thing, what)
        return cast(Thing, thing)

    def __contains__(self, name: object) -> bool:
        if name in self._own or name in self._files:
            return True
        # To look for packages takes milliseconds: paths, which may be asked for often, are none of their names.
        return isinstance(name, str) and bool(NAME.fullmatch(name)) and name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter([*self.here(), *self._entries])

    def __len__(self) -> int:
        return len(list(iter(self)))

    @property
    def _own(self) -> dict[str, Thing]:
        return {cast(Any, thing).name: thing for thing in self.own}

    @property
    def _files(self) -> dict[str, tuple[ModuleType, Thing]]:
        """What loaded plugin files define, each with its file; of what they import, nothing."""
        found: dict[str, tuple[ModuleType, Thing]] = {}
        for module, thing in [(file, value) for file in loaded() for value in vars(file).values()]:
            if not self._is_defined(module, thing):
                continue
            name = thing.name
            if not isinstance(name, str) or not NAME.fullmatch(name):
                raise ConfigError(
                    f"A {self.kind} of {module.__file__} has the name {shortened(repr(name))}: use letters, digits, "
                    "hyphens and underscores."
                )
            if name in self._own or found.setdefault(name, (module, thing))[1] is not thing:
                raise ConfigError(f"{module.__file__} defines a {self.kind} '{name}', and there is another: rename it.")
        return found

    @property
    def _entries(self) -> dict[str, EntryPoint]:
        taken, found = self.here(), dict[str, EntryPoint]()
        for entry in entry_points(group=f"ipal.{self.kind}s"):
            if entry.name in taken or found.setdefault(entry.name, entry) != entry:
                raise ConfigError(
                    f"{in_words(_of_package(entry))} names a {self.kind} '{entry.name}', and there is another of that "
                    "name: uninstall one, or rename it."
                )
        return found

    def _is_defined(self, module: ModuleType, thing: Any) -> bool:
        if not self.is_one(thing) or any(thing is own for own in self.own):
            return False
        if not isinstance(thing, type):
            return hasattr(thing, "name")
        # A class without a name of its own is a base for others.
        return thing.__module__ == module.__name__ and "name" in vars(thing)

    def _check(self, thing: Any, what: str) -> None:
        if missing := sorted(getattr(thing, "__abstractmethods__", ())):
            raise ConfigError(f"{what} is no complete {self.kind}: it lacks {', '.join(missing)}.")
        try:
            self.check(thing)
        except Exception as error:
            raise ConfigError(f"{what} cannot be used as a {self.kind}: {_reason(error)}.") from error


# ---------------------------------------------------------------------- files


def load(path: str | Path, registries: Iterable[Registry[Any]] = ()) -> ModuleType:
    """Run a plugin file, once, and check what it defines."""
    path = Path(path).expanduser()
    if path.suffix != ".py" or not is_file(path):
        raise ConfigError(f"There is no plugin file {path}: name a Python file, as --plugin my_method.py.")
    path = path.parent.resolve() / path.name
    name = f"{PACKAGE}.{path.stem}"
    known = sys.modules.get(name)
    if known is not None:
        if known.__file__ != str(path):
            raise ConfigError(f"Two plugin files have the name {path.name}: rename {path}.")
        return known
    source = read_bounded(path, MOST_BYTES)
    module = ModuleType(name)
    module.__file__, module.__dict__["__sha256__"] = str(path), hashlib.sha256(source).hexdigest()
    sys.modules[name] = module
    try:
        exec(compile(source, str(path), "exec", dont_inherit=True), module.__dict__)
        if not any([registry.check_file(module) for registry in registries]) and registries:
            kinds = ", ".join(registry.kind for registry in registries)
            raise ConfigError(f"The plugin {path} defines nothing of its own that has a name (a {kinds}).")
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, ConfigError) or not isinstance(error, Exception | SystemExit):
            raise
        raise ConfigError(f"The plugin {_where(path, error)} cannot be loaded: {_reason(error)}.") from error
    return module


def loaded() -> list[ModuleType]:
    """The plugin files that were loaded in this process."""
    # Every state of a learner asks, with thousands of modules there: their names alone, so that no objects are made.
    prefix = f"{PACKAGE}."
    return [sys.modules[name] for name in list(sys.modules) if name.startswith(prefix)]


def loaded_files() -> tuple[Path, ...]:
    """Their paths."""
    return tuple(Path(str(module.__file__)) for module in loaded())


def options_for(files: Iterable[Path]) -> str:
    """What a command must be given to have these files, with a space before."""
    return "".join(f" --plugin {shlex.quote(str(path))}" for path in sorted(files))


def origin(module: ModuleType) -> Origin:
    """A plugin file's name, and the SHA-256 of what was run."""
    return Path(str(module.__file__)).name, module.__dict__["__sha256__"]


def record(*kinds: type) -> dict[str, dict[str, str]]:
    """What a saved model says of the plugin files that define these classes; nothing where there are none."""
    modules = {kind.__module__ for kind in kinds}
    used = dict(origin(module) for module in loaded() if module.__name__ in modules)
    return {"plugins": used} if used else {}


def named_in(facts: Mapping[str, Any]) -> dict[str, str]:
    """The plugin files that a saved model names, which may come from anywhere."""
    named = facts.get("plugins")
    files = named.items() if isinstance(named, dict) else ()
    return {Path(name).name: str(digest) for name, digest in files if name.endswith(".py")}


def require(recorded: Mapping[str, str], what: str) -> None:
    """Refuse to go on without the plugins that something was made with; warn where one is not as it was."""
    here = dict(map(origin, loaded()))
    for name, before in recorded.items():
        if name.endswith(".py"):
            now = here.get(name)
            advice = f"name it with --plugin {name} (in Python: ipal.load_plugin('{name}'))"
        else:
            now = installed_version(name)
            advice = f"install the package {name}"
        if now is None:
            raise ConfigError(f"{what} was made with the plugin {name}, which is not loaded: {advice}.")
        if now != before:
            warnings.warn(
                f"{what} was made with another version of the plugin {name}: numbers may differ.", stacklevel=1
            )


# ---------------------------------------------------------------------- sentences


def _where(path: Path, error: BaseException) -> str:
    """The file, and the line in it where an error came up."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f"{path}, line {error.lineno},"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f"{path}, line {lines[-1]}," if lines else str(path)


def _reason(error: BaseException) -> str:
    if isinstance(error, ConfigError):
        return str(error).rstrip(".")
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    first = shortened(text.strip().splitlines()[0], 200) if text.strip() else ""
    return f"{type(error).__name__}{first and ': '}{first}".rstrip(".")


def in_words(origin: Origin | None) -> str | None:
    """A plugin file, or a package with its version."""
    if origin is None or origin[0].endswith(".py"):
        return origin and origin[0]
    return f"the package {' '.join(origin)}".strip()


def _of_package(entry: EntryPoint) -> Origin:
    return (entry.dist.name, entry.dist.version) if entry.dist else (entry.module, "")


def installed_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
