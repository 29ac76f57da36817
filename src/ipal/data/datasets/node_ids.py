"""Nodes said on a command line or in a file, by what they are called: by their ids, or else their numbers."""

import re
from collections.abc import Sequence
from pathlib import Path

from ipal.data.labels import Labels
from ipal.errors import DataError, shortened
from ipal.system.files import is_file, read_bounded

NUMBER = re.compile(r"[0-9]{1,18}")
MOST_BYTES = 2**30


def node_numbers(text: str, n: int, option: str, ids: Labels | None = None) -> list[int]:
    """Nodes of a graph of n: with commas, or a file with one a line; `option` is where they were said."""
    return node_numbers_in(text, [(n, ids)], option)[0]


def node_numbers_in(text: str, graphs: Sequence[tuple[int, Labels | None]], option: str) -> list[list[int]]:
    """The same of several graphs, each of so many nodes and with ids or without: a node must be in one of them."""
    places = [None if ids is None else {str(name): at for at, name in enumerate(ids.tolist())} for _, ids in graphs]

    def number(part: str, graph: int) -> int | None:
        place = places[graph]
        if place is not None:
            return place.get(part)
        return int(part) if NUMBER.fullmatch(part) and int(part) < graphs[graph][0] else None

    every = range(len(graphs))
    parts = _parts(text, option, is_one=any(number(text.strip(), graph) is not None for graph in every))
    found = [[number(part, graph) for part in parts] for graph in every]
    for part, *numbers in zip(parts, *found, strict=True):
        if all(number is None for number in numbers):
            n, ids = graphs[0]
            which = (
                f"0 to {n - 1}" if ids is None else ", ".join(shortened(name, 40) for name in ids[:3].tolist()) + ", …"
            )
            raise DataError(f"{option} names the node '{shortened(part)}', and the nodes are {which}.")
    return [[number for number in numbers if number is not None] for numbers in found]


def _parts(text: str, option: str, *, is_one: bool) -> list[str]:
    """What a text or a file names."""
    if is_one or not is_file(Path(text)):
        return [text.strip()] if is_one else [part.strip() for part in text.split(",")]
    try:
        lines = read_bounded(Path(text), MOST_BYTES).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{option}: {text} cannot be read as text: give a file with one node a line.") from error
    return [line.strip() for line in lines if line.strip()]
