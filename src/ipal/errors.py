"""Errors that a user can correct, and warnings: one sentence that says what is wrong and what to do."""

import re
import warnings
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

MOST_WORD, MOST_MESSAGE, MOST_VALUE, MOST_NAME = 240, 1200, 120, 80
"""Characters of one word of a message (as a path), of all of it, of a value in it, of a name worth a suggestion."""
CLOSE = 0.65
"""How alike two names are, of 1, for one to be suggested in place of the other."""


def visible(text: str) -> str:
    """Text with every character that is not printable (control, escape, lone surrogate) escaped."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode() for char in text
    )


def shortened(value: object, most: int = MOST_VALUE) -> str:
    """A user's value as a message shows it: on one line, the middle of long ones left out."""
    try:
        text = visible(value if isinstance(value, str) else repr(value))
    except (ValueError, RecursionError):  # a number of thousands of digits, an endlessly nested list
        text = f"this {type(value).__name__}"
    return text if len(text) <= most else f"{text[: most // 2]}…{text[-(most // 2 - 1) :]}"


class IpalError(Exception):
    """An error the user can correct; the command ends with exit code 2.

    The message is one line of bounded length: long words in it, as paths, are shortened first.
    """

    def __init__(self, message: str) -> None:
        words = re.sub(rf"\S{{{MOST_WORD + 1},}}", lambda word: shortened(word[0], MOST_WORD), visible(message))
        super().__init__(shortened(words, MOST_MESSAGE))


class ConfigError(IpalError, ValueError):
    """An option, a setting or a configuration file is wrong."""


class NotFittedError(ConfigError, AttributeError):
    """A model was asked for what it has not learned yet; as scikit-learn's, so that `hasattr` says no."""


class DataError(IpalError):
    """A graph cannot be used as it is."""


class StoreError(IpalError):
    """A run folder or a saved model cannot be read or written."""


class NonFiniteError(IpalError):
    """A computation has given NaN or infinite values."""

    def __init__(self, what: str, place: str = "") -> None:
        at = f" in {place}" if place else ""
        advice = "use a lower learning rate, smaller features or other settings"
        super().__init__(f"NaN or infinite values{at}: {what}; {advice}.")
        self.what, self.place = what, place

    def __reduce__(self) -> tuple[Any, ...]:
        return NonFiniteError, (self.what, self.place)

    def within(self, place: str) -> "NonFiniteError":
        """The same error, with the place that contains its place."""
        return NonFiniteError(self.what, ", ".join(filter(None, [place, self.place])))


class CapacityError(IpalError):
    """There is too little memory."""


class ClusterError(IpalError):
    """A cluster cannot be reached or used."""


class IgnoredInput(UserWarning):
    """A part of the input is not used: what is learned and predicted does not depend on it."""


class Qualified(UserWarning):
    """A result rests on less than usual; the message says on what."""


def say_unused(what: str) -> None:
    """Warn about an unused part of the input; as of every warning, Python shows the first one of its text."""
    warnings.warn(f"Not used: {what}.", IgnoredInput, stacklevel=3)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`` Did you mean 'gamma'?`` for the known name nearest to `name`, or the known names beside it."""
    known = list(dict.fromkeys(known))
    near = nearest(name, known)
    if near:
        return f" Did you mean '{near}'?"
    section = name.rpartition(".")[0]
    beside = [one for one in known if section and one.rpartition(".")[0] == section]
    listed = beside or {one.partition(".")[0] for one in known}
    return f" Known: {', '.join(sorted(listed))}." if listed else ""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name, or section, that is written much like this one.

    Of dotted names the parts after the last dot are compared; of several alike, the one in the same section comes
    first.
    """
    section, _, last = name.lower().rpartition(".")
    written: dict[str, str] = {}
    for one in known:
        above, _, own = one.rpartition(".")
        if own.lower() not in written or above == section:
            written[own.lower()] = one
        written.setdefault(above.lower(), above)
    near = get_close_matches(last, written, n=1, cutoff=CLOSE) if len(name) <= MOST_NAME else []
    return written[near[0]] if near else None
