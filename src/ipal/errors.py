"""What can go wrong through no fault of the program.

IpalError            one sentence: what is wrong, what to do; the command ends with exit code 2
├── ConfigError      an option, a setting or a configuration file
├── DataError        a graph, its labels or its split
├── StoreError       a run folder or a saved model
├── NonFiniteError   what is computed has become NaN or infinite
├── CapacityError    memory: too little of it
├── ClusterError     other machines, or the way to them
└── TeamError        another process of the same run is gone; exit code 1

IgnoredInput         a warning: a part of the input is not used
"""

import warnings
from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache
from typing import ClassVar


class IpalError(Exception):
    """Something the user can put right. The message says what is wrong and what to do."""

    exit_code: ClassVar[int] = 2


class ConfigError(IpalError):
    """An option, a setting or a configuration file is wrong."""

    def __init__(self, message: str, setting: str | None = None) -> None:
        super().__init__(message)
        self.setting = setting
        """The dotted name of the setting complained about, so that its place in a file can be found."""


class DataError(IpalError):
    """A graph cannot be used as it is."""


class StoreError(IpalError):
    """A run folder or a saved model cannot be read or written."""


class NonFiniteError(IpalError):
    """What is computed has become NaN or infinite: nothing that is made of it would mean anything."""

    def __init__(self, what: str, place: str = "") -> None:
        super().__init__(what, place)
        self.what, self.place = what, place

    def __str__(self) -> str:
        at = f" in {self.place}" if self.place else ""
        return (
            f"NaN or infinite values{at}: {self.what}; use a lower learning rate, smaller features or other settings."
        )

    def within(self, place: str) -> "NonFiniteError":
        """The same, with what the place is a part of."""
        return NonFiniteError(self.what, ", ".join(filter(None, [place, self.place])))


class CapacityError(IpalError):
    """There is too little memory for what is asked for."""


class ClusterError(IpalError):
    """Other machines cannot be reached, or cannot do what is asked of them."""


class TeamError(IpalError):
    """Another process of the same run is gone: nothing is wrong with what was asked for."""

    exit_code: ClassVar[int] = 1


class IgnoredInput(UserWarning):
    """A part of the input is not used: what is learned and predicted does not depend on it."""


@cache  # Python itself would say it again after every `catch_warnings`, as in most libraries
def say_ignored(what: str) -> None:
    """Warn about a part of the input that is not used, once in a process."""
    message = f"Not used: {what}; every edge counts the same, whatever its weight, attributes or type."
    warnings.warn(message, IgnoredInput, stacklevel=2)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`` Did you mean 'gamma'?`` for the known name nearest to `name`, or the list of known names."""
    known = sorted(known)
    near = get_close_matches(name, known, n=1, cutoff=0.55)
    if near:
        return f" Did you mean '{near[0]}'?"
    return f" Known: {', '.join(known)}." if known else ""
