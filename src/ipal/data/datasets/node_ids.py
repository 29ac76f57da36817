"""Nodes said on a command line or in a file, by what they are called: by their ids, or else their numbers."""

import re
from pathlib import Path

from ipal.data.labels import Labels
from ipal.errors import DataError, shortened
from ipal.system.files import is_file, read_bounded

NUMBER = re.compile(r"-?[0-9]{1,18}")
MOST_BYTES = 2**30


def node_numbers(text: str, n: int, option: str, ids: Labels | None = None) -> list[int]:
    """Nodes of a graph of n: with commas, or a file with one a line; `option` is where they were said."""
    if ids is None:
        numbers = list(map(int, _parts(text, option, NUMBER)))
        for number in numbers:
            if not 0 <= number < n:
                raise DataError(f"{option} names node {number}, but the nodes are 0 to {n - 1}.")
        return numbers
    place = {str(name): number for number, name in enumerate(ids.tolist())}
    parts = [text.strip()] if text.strip() in place else _parts(text, option)
    unknown = next((part for part in parts if part not in place), None)
    if unknown is not None:
        some = ", ".join(shortened(name, 40) for name in list(place)[:3])
        raise DataError(f"{option} names the node '{shortened(unknown)}', which is no id of the graph, as {some} are.")
    return [place[part] for part in parts]


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
