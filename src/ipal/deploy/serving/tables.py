"""Tables of numbers in JSON that are mostly zeros: read without making an object of each zero.

With zeros in the place of its other numbers, every row of such a table is the same text, and is compared with it.
"""

import re

import msgspec
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

OPENING = re.compile(rb'"x"[ \t\r\n]*:[ \t\r\n]*(?=\[\[)')
ZERO = re.compile(rb"[\[ ](-?0(?:\.0{1,6})?)(, ?)")
"""A zero and the comma behind it: all zeros and commas of a table must be written as the first."""
WITHIN = 4096
"""Characters of a table in which the first zero is looked for."""
LONGEST = 32
"""Characters of a number."""
OF_NUMBERS = np.isin(np.arange(256), list(b"+-.0123456789eE"))

Places = NDArray[np.int64]


def mostly_zeros(body: bytes | bytearray, share: int) -> tuple[sp.csr_array, bytes] | None:
    """The table "x" of a JSON object with fewer than one nonzero in `share` numbers, and the object with null instead.

    None for anything else, valid or not. The table is valid; the rest is still to be decoded.
    """
    opening = OPENING.match(body, max(0, body.find(b'"x"')))
    begin = opening.end() if opening else len(body)
    written = ZERO.search(body, begin, begin + WITHIN)
    view = memoryview(body)[begin:]
    characters = np.frombuffer(view, dtype=np.uint8)
    signs = np.flatnonzero(characters > ord("0")) if written else np.arange(0)  # brackets, letters, digits but 0
    closing = signs[characters[signs] == ord("]")]
    ends = closing[1:][np.diff(closing) == 1] + 1
    if not len(ends) or written is None:
        return None
    rest = b"".join([memoryview(body)[:begin], b"null", view[ends[0] :]])
    if rest.count(b'"x"') != 1 or b"\\" in rest:  # an escaped x is an x
        return None
    signs = signs[: np.searchsorted(signs, ends[0])]
    table = _table(view, characters, signs, written[1], written[2], share)
    return None if table is None else (table, rest)


def _table(
    view: memoryview, characters: NDArray[np.uint8], signs: Places, zero: bytes, comma: bytes, share: int
) -> sp.csr_array | None:
    """The table that `view` begins with; `signs` are where it has brackets, letters and digits but 0."""
    brackets = signs[characters[signs] & 0xF9 == ord("[") & 0xF9]  # and "]", which differs in two bits
    begins, ends = brackets[1:-1:2], brackets[2:-1:2] + 1
    if bytes(characters[brackets]) != b"[" + b"[]" * len(begins) + b"]":
        return None
    digits = signs[characters[signs] <= ord("9")]
    found = _around(characters, digits[np.diff(digits, prepend=-1) > 1])
    width, step = bytes(view[begins[0] : ends[0]]).count(b",") + 1, len(zero) + len(comma)
    if found is None or share * len(found[0]) >= len(begins) * width:
        return None
    starts, stops = found
    first, row = np.searchsorted(starts, [*begins, len(characters)]), b"[" + comma.join([zero] * width) + b"]" + comma
    for place, (begin, end) in enumerate(zip(begins.tolist(), [*begins[1:].tolist(), int(ends[-1])], strict=True)):
        text, some = bytes(view[begin:end]), slice(first[place], first[place + 1])
        pieces = zip([0, *(stops[some] - begin).tolist()], [*(starts[some] - begin).tolist(), end - begin], strict=True)
        plain = zero.join([text[after:before] for after, before in pieces])
        if plain != (row if place + 1 < len(begins) else row.removesuffix(comma)):
            return None
    try:
        values = np.array(msgspec.json.decode(_listed(characters, starts, stops), type=list[float]), dtype=np.float64)
    except msgspec.DecodeError:
        return None
    longer = np.cumsum(stops - starts - len(zero))
    columns = (stops - longer - len(zero) - 2) % len(row) // step
    with np.errstate(over="ignore"):  # overflows become infinite, which is refused
        return sp.csr_array((values.astype(np.float32), columns, first), shape=(len(begins), width))


def _around(characters: NDArray[np.uint8], places: Places) -> tuple[Places, Places] | None:
    """Where the numbers at some places begin and end, each once; None where one is too long."""
    starts, stops = places.copy(), places + 1
    for _ in range(LONGEST):
        before, behind = OF_NUMBERS[characters[starts - 1]], OF_NUMBERS[characters[stops]]
        if not before.any() and not behind.any():
            once = np.diff(starts, prepend=-1) > 0
            return starts[once], stops[once]
        starts -= before
        stops += behind
    return None


def _listed(characters: NDArray[np.uint8], starts: Places, stops: Places) -> bytes:
    """Numbers as a JSON list, each taken with the character behind it, which becomes a comma."""
    lengths = stops + 1 - starts
    ends = np.cumsum(lengths)
    text = characters[np.repeat(stops + 1 - ends, lengths) + np.arange(lengths.sum())]
    text[ends - 1] = ord(",")
    return b"[" + text[:-1].tobytes() + b"]"
