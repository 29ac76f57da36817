"""Arrays in untrusted .npy and .npz files: nothing is unpickled, and sizes are checked before reading."""

import io
import math
import re
import zipfile
import zlib
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ipal.errors import DataError
from ipal.system.files import open_plain

MOST_MEMBERS = 64
MOST_HEADER = 2**12
MOST_DEFLATED = 1040
"""The highest compression ratio of deflate: a file that claims more has a wrong size."""
PIECE = 2**20
MAGIC = b"\x93NUMPY"
HEADER = re.compile(
    rb"\{ *'descr': *'([<>|=]?[a-zA-Z][0-9]{0,9})', *'fortran_order': *(True|False), *"
    rb"'shape': *\(([0-9L, ]{0,99})\),? *\} *\n?"
)


class MalformedError(DataError):
    """The input is no JSON, no .npz file, or no HTTP."""


class TooLargeError(DataError):
    """The input is too large."""


class Header(NamedTuple):
    """The header of an .npy array."""

    dtype: "np.dtype[Any]"
    fortran: bool
    """Whether columns come first."""
    shape: tuple[int, ...]
    begin: int
    """Offset of the data."""

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def read_header(file: BinaryIO) -> Header:
    """The header of an array, or a ValueError. numpy's reader uses Python's parser: not for untrusted files."""
    start = file.read(8)
    width = {b"\1": 2, b"\2": 4, b"\3": 4}.get(start[6:7], 0)
    length = file.read(width)
    size = int.from_bytes(length, "little")
    if start[:6] != MAGIC or not width or len(length) < width or size > MOST_HEADER:
        raise ValueError("no array")
    found = HEADER.fullmatch(file.read(size))
    if found is None:
        raise ValueError("no plain array")
    kind, fortran, shape = found.groups()
    sizes = tuple(int(part.strip().removesuffix(b"L")) for part in shape.split(b",") if part.strip())
    try:
        dtype = np.dtype(kind.decode())
    except TypeError as error:
        raise ValueError("no kind of numbers") from error
    return Header(dtype, fortran == b"True", sizes, 8 + width + size)


def read_npz(
    file: BinaryIO,
    wanted: Callable[[str], bool],
    allow: Callable[[int, int], None],
    unreadable: str,
    kinds: Collection[str] = "fiub",
) -> dict[str, NDArray[Any]]:
    """The `wanted` arrays of an .npz file. `allow` is called first, with their compressed and uncompressed bytes.

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
            allow(
                sum(info.compress_size for info in members.values()), sum(info.file_size for info in members.values())
            )
            return {name: _member(archive, info, name, kinds, unreadable) for name, info in members.items()}
    except (DataError, MemoryError):
        raise
    except (OSError, ValueError, TypeError, LookupError, EOFError, RuntimeError, NotImplementedError) as error:
        raise MalformedError(unreadable) from error
    except (zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, OverflowError, AttributeError) as error:
        raise MalformedError(unreadable) from error


def _member(
    archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str, kinds: Collection[str], unreadable: str
) -> NDArray[Any]:
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or info.flag_bits & 1:
        raise MalformedError(
            "The .npz file is packed in a way that is not taken: use numpy's savez or savez_compressed."
        )
    if info.file_size > MOST_DEFLATED * (info.compress_size + 1):
        raise MalformedError(unreadable)
    with archive.open(info) as member:
        header = read_header(member)  # type: ignore[arg-type]
        if header.dtype.hasobject:
            raise DataError(
                f"The array {name} holds pickled objects, which are never opened: save it again as plain arrays."
            )
        if header.dtype.kind not in kinds:
            raise DataError(f"The array {name} holds {header.dtype.name}, not numbers.")
        if header.bytes != info.file_size - header.begin:
            raise MalformedError(unreadable)
        values = np.empty(math.prod(header.shape), header.dtype)
        room, done = values.view(np.uint8), 0
        while done < len(room):
            piece = member.read(min(PIECE, len(room) - done))
            if not piece:
                raise MalformedError(unreadable)
            room[done : done + len(piece)] = np.frombuffer(piece, np.uint8)
            done += len(piece)
        member.read(1)  # compares the checksum at the end
    _check_text(values)
    array = values.reshape(header.shape, order="F" if header.fortran else "C")
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
        length = file.seek(0, io.SEEK_END)
        if header.dtype.kind not in kinds:
            raise ValueError("no numbers")
        if header.bytes != length - header.begin:
            raise ValueError("the file is cut short, or longer than its array")
        order: Any = "F" if header.fortran else "C"
        if not header.bytes:  # an empty file cannot be mapped
            return np.empty(header.shape, header.dtype, order=order)
        array = np.memmap(file, header.dtype, "r", offset=header.begin, shape=header.shape, order=order)
        _check_text(array.ravel(order="K"))
        return array


def _check_text(values: NDArray[Any]) -> None:
    """A ValueError if an array of strings holds what is no character: Python would stumble over it later."""
    if values.dtype.kind == "U" and values.dtype.itemsize:
        codes = values.view(np.dtype(np.uint32).newbyteorder(values.dtype.byteorder))
        if ((codes > 0x10FFFF) | ((codes >= 0xD800) & (codes < 0xE000))).any():
            raise ValueError("no text")
