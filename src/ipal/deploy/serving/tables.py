"""Tables of numbers in JSON that are mostly zeros: read without making an object of each zero."""

import msgspec
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

NO_NUMBERS = (b'"', b"{", b"t", b"f", b"n")
"""One of these is in every JSON text with something else than lists and numbers."""
NOT_OF_NUMBERS = b"[] \t\r\n"


def mostly_zeros(text: bytes, share: int) -> sp.csr_array | None:
    """The table in a valid JSON text with fewer than one nonzero in `share` numbers; None for anything else.

    A number without a digit of 1 to 9 is zero. The others are found by their digits, and they alone are parsed.
    """
    characters = np.frombuffer(text, dtype=np.uint8)
    commas = np.flatnonzero(characters == ord(","))
    digits = np.flatnonzero(characters - np.uint8(ord("1")) < 9)
    if not len(commas) or any(other in text for other in NO_NUMBERS):
        return None
    brackets = np.flatnonzero(characters & 0xF9 == ord("[") & 0xF9)  # and "]", which differs in two bits
    begins, ends = brackets[1:-1:2], brackets[2:-1:2]
    if not len(begins) or bytes(characters[brackets]) != b"[" + b"[]" * len(begins) + b"]":
        return None
    sizes = np.searchsorted(commas, ends) - np.searchsorted(commas, begins) + 1
    if (sizes != sizes[:1]).any() or len(sizes) * sizes[0] != len(commas) + 1 or _is_empty(text, begins, ends):
        return None
    places = np.searchsorted(commas, digits)
    places = places[np.diff(places, prepend=-1) > 0]
    if share * len(places) >= len(commas) + 1:
        return None
    # The text of these numbers, each with the comma behind it.
    starts = np.where(places, commas[places - 1] + 1, 0)
    lengths = np.where(places < len(commas), commas.take(places, mode="clip"), len(text) - 1) + 1 - starts
    at = np.repeat(starts - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())
    numbers = characters[at].tobytes().translate(None, NOT_OF_NUMBERS).rstrip(b",")
    values = np.array(msgspec.json.decode(b"[" + numbers + b"]", type=list[float]), dtype=np.float64)
    rows, columns = np.divmod(places, sizes[0])
    with np.errstate(over="ignore"):  # overflows become infinite, which is refused
        entries = values.astype(np.float32), columns, np.searchsorted(rows, np.arange(len(sizes) + 1))
    return sp.csr_array(entries, shape=(len(sizes), int(sizes[0])))


def _is_empty(text: bytes, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> bool:
    """Whether a row holds nothing: then there is no comma in it either."""
    return any(not text[begin + 1 : end].strip() for begin, end in zip(begins.tolist(), ends.tolist(), strict=True))
