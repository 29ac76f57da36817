"""Arrays in untrusted .npy and .npz files: nothing is unpickled, and sizes are checked before reading."""

import io
import math
import zipfile
import zlib
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from ipal.errors import DataError
from ipal.system.files import open_plain

MOST_MEMBERS = 64
MOST_HEADER = 512
"""Letters: a header is a Python literal, whose parser is not for long untrusted texts."""
MOST_DEFLATED = 1040
"""The highest compression ratio of deflate: a file that claims more has a wrong size."""
READERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
DAMAGED = (
    *(OSError, ValueError, TypeError, LookupError, EOFError, RuntimeError, OverflowError, AttributeError),
    *(zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error),
)


class MalformedError(DataError):
    """The input is no JSON, no .npz file, or no HTTP."""


class TooLargeError(DataError):
    """The input is too large."""


class Header(NamedTuple):
    """The header of an .npy array."""

    shape: tuple[int, ...]
    fortran: bool
    """Whether columns come first."""
    dtype: "np.dtype[Any]"

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def read_header(file: BinaryIO) -> Header:
    """The header of an array, or a ValueError."""
    try:
        return Header(*READERS[npy.read_magic(file)](file, max_header_size=MOST_HEADER))
    except Exception as error:  # also of Python's parser and tokenizer
        raise ValueError("no plain array") from error


def read_npz(
    file: BinaryIO,
    wanted: Callable[[str], bool],
    allow: Callable[[int], None],
    unreadable: str,
    kinds: Collection[str] = "fiub",
) -> dict[str, NDArray[Any]]:
    """The `wanted` arrays of an .npz file. `allow` is called first, with their uncompressed bytes.

    `unreadable` is the message for a damaged or other file; `kinds` are the accepted numpy kinds.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            members: dict[str, zipfile.ZipInfo] = {}
            for info in archive.infolist():
                name = info.filename.removesuffix(".npy")
                if wanted(name):
                    if name in members:
                        raise MalformedError(f"The array {name} is there twice.")
                    members[name] = info
            allow(sum(info.file_size for info in members.values()))
            return {name: _member(archive, info, name, kinds) for name, info in members.items()}
    except (DataError, MemoryError):
        raise
    except DAMAGED as error:
        raise MalformedError(unreadable) from error


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str, kinds: Collection[str]) -> NDArray[Any]:
    packed = info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
    if packed or info.flag_bits & 1 or info.file_size > MOST_DEFLATED * (info.compress_size + 1):
        raise ValueError("not as numpy writes it")
    with archive.open(info) as member:
        header = read_header(member)  # type: ignore[arg-type]
        if header.dtype.hasobject:
            raise DataError(
                f"The array {name} holds pickled objects, which are never opened: save it again as plain arrays."
            )
        if header.dtype.kind not in kinds:
            raise DataError(f"The array {name} holds {header.dtype.name}, not numbers.")
        if header.bytes != info.file_size - member.tell():
            raise ValueError("another size than it claims")
        member.seek(0)
        array = npy.read_array(member, allow_pickle=False, max_header_size=MOST_HEADER)
    _check_text(array)
    # Native byte order, C order.
    return np.ascontiguousarray(array, dtype=header.dtype.newbyteorder("=")).reshape(header.shape)


def npz_of(content: bytes | bytearray) -> BinaryIO:
    """An .npz file from bytes; its number of arrays is checked before they are listed."""
    if content.count(b"PK\x01\x02") > MOST_MEMBERS:
        raise MalformedError(f"The .npz file holds more than {MOST_MEMBERS} arrays.")
    return io.BytesIO(content)


def mapped(path: Path, kinds: Collection[str] = "fiub") -> NDArray[Any]:
    """The memory-mapped array of an .npy file; a ValueError if the file is none or has another length."""
    with open_plain(path) as file:
        header = read_header(file)
        begin, length = file.tell(), file.seek(0, io.SEEK_END)
        if header.dtype.kind not in kinds or min(header.shape, default=0) < 0 or header.bytes != length - begin:
            raise ValueError("no numbers, cut short, or longer than its array")
        order: Any = "F" if header.fortran else "C"
        if not header.bytes:  # an empty file cannot be mapped
            return np.empty(header.shape, header.dtype, order=order)
        array = np.memmap(file, header.dtype, "r", offset=begin, shape=header.shape, order=order)
        _check_text(array.ravel(order="K"))
        return array


def _check_text(values: NDArray[Any]) -> None:
    """A ValueError if an array of strings holds what is no character: Python would stumble over it later."""
    if values.dtype.kind == "U" and values.size and values.dtype.itemsize:
        codes = np.frombuffer(np.ascontiguousarray(values), np.dtype(np.uint32).newbyteorder(values.dtype.byteorder))
        if ((codes > 0x10FFFF) | ((codes >= 0xD800) & (codes < 0xE000))).any():
            raise ValueError("no text")
