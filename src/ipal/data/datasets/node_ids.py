"""Nodes said by their numbers, on a command line or in a file."""

import re
from collections.abc import Iterable
from pathlib import Path

from ipal.errors import DataError, shortened
from ipal.system.files import is_file, read_bounded

NUMBER = re.compile(r"-?[0-9]{1,18}")
MOST_BYTES = 2**30


def node_numbers(text: str, n: int, option: str) -> list[int]:
    """Nodes of a graph of n: numbers with commas, or a file with one a line; `option` is where they were said."""
    numbers = list(_parsed(text, option))
    for number in numbers:
        if not 0 <= number < n:
            raise DataError(f"{option} names node {number}, but the nodes are 0 to {n - 1}.")
    return numbers


def _parsed(text: str, option: str) -> Iterable[int]:
    parts = [part.strip() for part in text.split(",")]
    if all(NUMBER.fullmatch(part) for part in parts):
        return map(int, parts)
    path = Path(text)
    if not is_file(path):
        raise DataError(
            f"{option} takes numbers of nodes with commas, as 3,17,25, or a file with one a line; '{shortened(text)}' "
            "is neither."
        )
    try:
        lines = read_bounded(path, MOST_BYTES).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as text: give a file with one node number a line.") from error
    for place, line in enumerate(lines, start=1):
        if line.strip() and not NUMBER.fullmatch(line.strip()):
            raise DataError(f"Line {place} of {path} is no node number: one whole number a line is needed.")
    return (int(line) for line in lines if line.strip())
