"""Things by name: the package's own, and those that installed packages offer by entry points.

A package is code: an entry point is loaded only when what it offers is asked for.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from typing import Any, TypeVar, cast

from ipal.errors import ConfigError, did_you_mean, shortened

Thing = TypeVar("Thing")


class Registry(Mapping[str, Thing]):
    """All things of one kind, as methods; those of packages are in the group ipal.methods."""

    def __init__(
        self, kind: str, own: Iterable[Thing], is_one: Callable[[Any], bool], check: Callable[[Any], object] = bool
    ) -> None:
        self.kind, self._is_one, self._check = kind, is_one, check
        self.own: dict[str, Thing] = {cast(Any, thing).name: thing for thing in own}

    @cached_property
    def entries(self) -> dict[str, EntryPoint]:
        """What installed packages offer, not loaded. To look for them takes milliseconds: once."""
        found = dict[str, EntryPoint]()
        for entry in entry_points(group=f"ipal.{self.kind}s"):
            if entry.name in self.own or found.setdefault(entry.name, entry) != entry:
                raise ConfigError(
                    f"{_package(entry)} names a {self.kind} '{entry.name}', and there is another of that name: "
                    "uninstall one, or rename it."
                )
        return found

    def find(self, name: str) -> Thing:
        """What has this name, or a sentence."""
        if name not in self:
            raise ConfigError(f"Unknown {self.kind} '{shortened(name)}'.{did_you_mean(name, self)}")
        return self[name]

    def package(self, name: str) -> str | None:
        """Name and version of the package that brings a thing; None for what is this package's own."""
        return _package(self.entries[name]) if name not in self.own and name in self.entries else None

    def __getitem__(self, name: str) -> Thing:
        if name in self.own:
            return self.own[name]
        entry = self.entries[name]
        try:
            thing = entry.load()
            if not self._is_one(thing) or getattr(thing, "name", None) != name:
                raise ConfigError(f"it is no {self.kind} of that name")
            if missing := sorted(getattr(thing, "__abstractmethods__", ())):
                raise ConfigError(f"it lacks {', '.join(missing)}")
            self._check(thing)
        except (Exception, SystemExit) as error:
            text = shortened(next(iter(str(error).splitlines()), ""), 200).rstrip(".")
            reason = text if isinstance(error, ConfigError) else f"{type(error).__name__}: {text}"
            what = f"The {self.kind} '{name}' ({entry.value}) of {_package(entry)}"
            raise ConfigError(f"{what} cannot be used: {reason}.") from error
        return cast(Thing, thing)

    def __contains__(self, name: object) -> bool:
        return name in self.own or name in self.entries

    def __iter__(self) -> Iterator[str]:
        return iter([*self.own, *self.entries])

    def __len__(self) -> int:
        return len(self.own) + len(self.entries)


def _package(entry: EntryPoint) -> str:
    return f"the package {entry.dist.name} {entry.dist.version}" if entry.dist else f"the package {entry.module}"


def installed_version(package: str) -> str | None:
    try:
        return version(package)
    except (PackageNotFoundError, ValueError):  # not installed; no name of a package
        return None
