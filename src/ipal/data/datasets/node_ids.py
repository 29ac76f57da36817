"""Nodes said on a command line or in a file, by what they are called: by their ids, or else their numbers."""

import re
from collections.abc import Sequence
from pathlib import Path

from ipal.data.labels import Labels
from ipal.errors import DataError, shortened
from ipal.system.files import is_file, read_bounded

NUMBER = re.compile(r"-?[0-9]{1,18}")
MOST_BYTES = 2**30


def node_numbers(text: str, n: int, option: str, ids: Labels | None = None) -> list[int]:
    """Nodes of a graph of n: with commas, or a file with one a line; `option` is where they were said."""
    return node_numbers_in(text, [(n, ids)], option)[0]


def node_numbers_in(text: str, graphs: Sequence[tuple[int, Labels | None]], option: str) -> list[list[int]]:
    """The same of several graphs, each of so many nodes and with ids or without: a node must be in one of them."""
    with_ids = all(ids is not None for _, ids in graphs)
    if not with_ids and any(ids is not None for _, ids in graphs):
        raise DataError("Some of the graphs have ids of nodes, others have none: nodes cannot be named in all of them.")
    if not with_ids:
        numbers = list(map(int, _parts(text, option, NUMBER)))
        most = max(n for n, _ in graphs)
        for number in numbers:
            if not 0 <= number < most:
                raise DataError(f"{option} names node {number}, but the nodes are 0 to {most - 1}.")
        return [[number for number in numbers if number < n] for n, _ in graphs]
    places = [{str(name): at for at, name in enumerate(ids.tolist())} for _, ids in graphs if ids is not None]
    parts = [text.strip()] if any(text.strip() in place for place in places) else _parts(text, option)
    unknown = next((part for part in parts if not any(part in place for place in places)), None)
    if unknown is not None:
        some = ", ".join(shortened(name, 40) for name in list(places[0])[:3])
        raise DataError(f"{option} names the node '{shortened(unknown)}', which is no id of the graph, as {some} are.")
    return [[place[part] for part in parts if part in place] for place in places]


def _parts(text: str, option: str, kind: re.Pattern[str] | None = None) -> list[str]:
    """What a text or a file names; without a `kind` anything that is no file."""
    parts = [part.strip() for part in text.split(",")]
    path = Path(text)
    if all(kind.fullmatch(part) for part in parts) if kind else not is_file(path):
        return parts
    if not is_file(path):
        raise DataError(
            f"{option} takes numbers of nodes with commas, as 3,17,25, or a file with one a line; '{shortened(text)}' "
            "is neither."
        )
    try:
        lines = read_bounded(path, MOST_BYTES).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as text: give a file with one node a line.") from error
    for place, line in enumerate(lines, start=1):
        if kind and line.strip() and not kind.fullmatch(line.strip()):
            raise DataError(f"Line {place} of {path} is no node number: one whole number a line is needed.")
    return [line.strip() for line in lines if line.strip()]
