""".npz files in requests: within the limits, and with no arrays but those that are known."""

from collections.abc import Collection
from typing import Any

from numpy.typing import NDArray

from ipal.errors import DataError, did_you_mean
from ipal.system.arrays import TooLargeError, npz_of, read_npz

UNREADABLE = "The body is no readable .npz file: it is damaged, cut short or something else."


def read_arrays(
    content: bytes | bytearray, wanted: Collection[str], ignored: Collection[str], most: int
) -> dict[str, NDArray[Any]]:
    """The `wanted` arrays of an .npz file, of at most so many bytes; other arrays are errors."""

    def is_wanted(name: str) -> bool:
        if name not in wanted and name not in ignored:
            raise DataError(f"The array '{name[:40]}' is not known.{did_you_mean(name[:40], wanted)}")
        return name not in ignored

    def allow(_: int, unpacked: int) -> None:
        if unpacked > most:
            raise TooLargeError(
                f"The arrays take {unpacked} bytes when unpacked; at most {most} are taken (--max-bytes)."
            )

    return read_npz(npz_of(content), is_wanted, allow, UNREADABLE)
