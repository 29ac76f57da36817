""".npz files from anywhere. Nothing is unpickled, and nothing is unpacked before its size is known and allowed."""

import io
import math
import re
import zipfile
from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipal.errors import DataError, did_you_mean
from ipal.serving.limits import MalformedError, TooLargeError

MOST_MEMBERS = 64
CENTRAL_HEADER = b"PK\x01\x02"
MAGIC = b"\x93NUMPY"
HEADER = re.compile(
    rb"\{ *'descr': *'([<>|=]?[a-zA-Z][0-9]{0,9})', *'fortran_order': *(True|False), *"
    rb"'shape': *\(([0-9, ]{0,99})\),? *\} *\n?"
)
UNREADABLE = "The body is no readable .npz file: it is damaged, cut short or something else."


def read_arrays(
    content: bytes | bytearray, wanted: Collection[str], ignored: Collection[str], most: int
) -> dict[str, NDArray[Any]]:
    """The `wanted` arrays of numbers in an .npz file, which take at most so many bytes; others are errors."""
    # One header a member, before a list of a million of them is made.
    if content.count(CENTRAL_HEADER) > MOST_MEMBERS:
        raise MalformedError(f"The .npz file holds more than {MOST_MEMBERS} arrays.")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = _members(archive, wanted, ignored, most)
            return {name: _array(archive, info, name) for name, info in members.items()}
    except (DataError, MemoryError):
        raise
    except Exception as error:  # whatever a file made up by hand lets the parsers stumble over
        raise MalformedError(UNREADABLE) from error


def _members(
    archive: zipfile.ZipFile, wanted: Collection[str], ignored: Collection[str], most: int
) -> dict[str, zipfile.ZipInfo]:
    members: dict[str, zipfile.ZipInfo] = {}
    for info in archive.infolist():
        name = info.filename.removesuffix(".npy")
        if name in ignored:
            continue
        if name not in wanted:
            raise DataError(f"The array '{name[:40]}' is not known.{did_you_mean(name[:40], wanted)}")
        if name in members:
            raise MalformedError(f"The array {name} is there twice.")
        members[name] = info
    unpacked = sum(info.file_size for info in members.values())
    if unpacked > most:
        raise TooLargeError(f"The arrays take {unpacked} bytes when unpacked; at most {most} are taken (--max-bytes).")
    return members


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str) -> NDArray[Any]:
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or info.flag_bits & 1:
        raise MalformedError(
            "The .npz file is packed in a way that is not taken: use numpy's savez or savez_compressed."
        )
    with archive.open(info) as member:
        content = member.read(info.file_size)  # never more, whatever it unpacks to
    if len(content) != info.file_size:
        raise MalformedError(UNREADABLE)
    dtype, fortran, shape, begin = _header(content)
    if dtype.hasobject:
        raise DataError(f"The array {name} holds pickled objects, which are never opened: send plain numbers.")
    if dtype.kind not in "fiub":
        raise DataError(f"The array {name} holds {dtype.name}, not numbers.")
    count = math.prod(shape)
    if count * dtype.itemsize != len(content) - begin:
        raise MalformedError(UNREADABLE)
    values = np.frombuffer(content, dtype, count, begin).reshape(shape, order="F" if fortran else "C")
    # Numbers in this machine's own order, in memory that may be written to.
    return np.array(values, dtype=dtype.newbyteorder("="), order="C")


def _header(content: bytes) -> tuple[np.dtype[Any], bool, tuple[int, ...], int]:
    """Kind of numbers, whether columns come first, shape, and where the numbers begin.

    Not by numpy, which would have Python's own parser look at it: that is for headers one trusts.
    """
    wide = content[6:7] in (b"\2", b"\3")
    begin = 12 if wide else 10
    end = begin + int.from_bytes(content[8:begin], "little")
    found = HEADER.fullmatch(content[begin:end])
    if content[:6] != MAGIC or content[6:7] not in (b"\1", b"\2", b"\3") or found is None:
        raise MalformedError(UNREADABLE)
    kind, fortran, shape = found.groups()
    sizes = tuple(int(size) for size in shape.split(b",") if size.strip())
    return np.dtype(kind.decode()), fortran == b"True", sizes, end
