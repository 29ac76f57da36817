"""Labels of nodes: whole numbers or strings, one a node, and what stands where a node has none."""

import re
from collections.abc import Sequence
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipal.errors import DataError, shortened

Label = int | str
Labels = NDArray[Any]
"""Whole numbers of 64 bits, or strings."""

UNLABELLED, NO_NAME = -1, ""
"""In place of a label, among numbers and among strings."""


def labelled(y: Labels) -> NDArray[np.bool_]:
    """Which nodes have a label."""
    return np.asarray(y != (NO_NAME if y.dtype.kind == "U" else UNLABELLED))


MISSING = frozenset({"", "na", "n/a", "#n/a", "<na>", "nan", "-nan", "nat", "null", "none", "nil", "?", "-"})
"""Words, in any capitals, for a label or a value that is not there, in any file or table."""
TRUTH = {"true": "1", "false": "0"}
"""What a column of nothing else stands for."""
NUMBER = re.compile(r"[+-]?(0|[1-9][0-9]*)(\.[0-9]*(e[+-]?[0-9]+)?|e[+-][0-9]+)?", re.IGNORECASE)
"""A number as programs write it: 007 and 1E5 are codes."""
WHOLE = re.compile(r"0|-?[1-9][0-9]{0,17}")


def is_missing(word: str) -> bool:
    """Whether a word says that there is nothing."""
    return word.strip().lower() in MISSING


def written(value: Any) -> str:
    """A label, an id or a category as text; empty where there is none."""
    if isinstance(value, str):
        return value.strip()
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return ""
    if isinstance(value, float | np.floating):
        return "" if np.isnan(value) else str(int(value)) if float(value).is_integer() else str(value)
    return str(value)


def truth_as_numbers(words: Sequence[str]) -> list[str]:
    """True and False as 1 and 0 where all words are one of them; else the words as they are."""
    return [TRUTH[word.lower()] for word in words] if all(word.lower() in TRUTH for word in words) else list(words)


def labels_of(words: Sequence[str]) -> Labels:
    """Labels from words: whole numbers where all are, in whatever notation (1, 1.0, True), and strings otherwise.

    `UNLABELLED` or `NO_NAME` stands for words that say that there is none, and for -1. Among strings, too, 1 and 1.0
    are one.
    """
    is_there = [not is_missing(word) and _shortest(word) != str(UNLABELLED) for word in words]
    known = [_shortest(word) for word in truth_as_numbers(list(compress(words, is_there)))]
    fraction = next((word for word in known if NUMBER.fullmatch(word) and float(word) % 1), None)
    if fraction is not None and all(NUMBER.fullmatch(word) for word in known):
        raise DataError(f"A label is {shortened(fraction)}: classes are whole numbers or words, not fractions.")
    whole = bool(known) and all(WHOLE.fullmatch(word) for word in known)
    labels: Labels = np.full(len(words), UNLABELLED if whole else NO_NAME, dtype=np.int64 if whole else object)
    labels[is_there] = known
    return labels if whole else labels.astype(np.str_)


def _shortest(word: str) -> str:
    """1 of 1.0, +1 and 1e+00; what is no whole number as it is."""
    if not NUMBER.fullmatch(word):
        return word
    if WHOLE.fullmatch(word.removeprefix("+")):
        return str(int(word))
    value = float(word)
    return str(int(value)) if value.is_integer() and abs(value) <= 2**53 else word


def file_labels(y: NDArray[np.generic], n: int) -> Labels:
    """Labels as they are given, one per node: whole numbers or texts, of which some may say that there is none."""
    if y.shape != (n,):
        raise DataError(f"There are {y.size} labels for {n} nodes, of the shape {y.shape}: give a list, one per node.")
    if y.dtype.kind in "UO":
        places: dict[Any, int] = {}
        try:
            codes = np.array([places.setdefault(value, len(places)) for value in y.tolist()], dtype=np.int64)
        except TypeError as error:
            raise DataError("A label is a list or the like: labels are whole numbers or text.") from error
        labels: Labels | None = labels_of([written(value) for value in places])[codes]
    else:
        labels = whole_numbers(np.where(np.isnan(y), UNLABELLED, y) if y.dtype.kind == "f" else y)
    if labels is None:
        raise DataError("The labels are not whole numbers or strings: number the classes 0, 1, 2, …")
    if labels.dtype.kind == "i" and n and labels.min() < UNLABELLED:
        raise DataError(
            f"A label is {labels.min()}: number the classes 0, 1, 2, …, and write {UNLABELLED} where there is none."
        )
    return labels


def checked_ids(ids: NDArray[np.generic], n: int) -> Labels:
    """What nodes are called, in a file: n strings or whole numbers, all different."""
    is_text = ids.ndim == 1 and ids.dtype.kind == "U"
    named = np.array([written(name) for name in ids.tolist()], dtype=np.str_) if is_text else whole_numbers(ids)
    if named is None or named.shape != (n,) or len(np.unique(named)) < n:
        raise DataError(f"'ids' must be {n} strings or whole numbers, one per node, all different.")
    return named


def whole_numbers(values: NDArray[np.generic]) -> NDArray[np.int64] | None:
    """As 64-bit whole numbers; None where they are not that, or too large."""
    if values.dtype.kind == "f":
        wide = values.astype(np.float64)
        exact = np.array_equal(wide, np.floor(wide)) and not (abs(wide) > 2**53).any()
    else:
        fits = values.dtype != np.uint64 or not values.size or values.max() <= np.uint64(np.iinfo(np.int64).max)
        exact = values.dtype.kind in "iub" and fits
    return values.astype(np.int64) if exact else None
