"""Request bodies as .npz files that cannot be meant: refused in a sentence, and nothing is unpickled or unpacked."""

import io
import pickle
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest

from ipal.deploy.serving.bodies import NPZ, Limits, read_question
from ipal.errors import DataError
from ipal.system.arrays import MalformedError, TooLargeError
from tests.deploy.support import archive

LIMITS = Limits(bytes=100_000, nodes=50, edges=200)


def npy(header: str, content: bytes = b"", version: int = 1) -> bytes:
    """An array with any header."""
    text = header.encode().ljust(64) + b"\n"
    size = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + size + text + content


def zipped(compression: int = zipfile.ZIP_STORED, **members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as made:
        for name, content in members.items():
            made.writestr(f"{name}.npy", content)
    return file.getvalue()


X = np.array([[1, 2], [3, 4], [5.5, -6e3]])
EDGES = np.array([[0, 1], [1, 2]])
SOUND = archive(x=X, edge_index=EDGES)
REFUSED_NPZ: dict[str, tuple[bytes, type[DataError], str]] = {
    "empty": (b"", MalformedError, "no readable"),
    "a pickle": (pickle.dumps({"x": 1}), MalformedError, "no readable"),
    "no array": (zipped(x=b"hello", edge_index=b"x" * 200), MalformedError, "no readable"),
    "objects": (archive(x=np.array([{"a": 1}]), edge_index=EDGES), DataError, "pickled objects"),
    "edges beyond": (archive(x=X, edge_index=np.array([[0], [2**63]], dtype=np.uint64)), DataError, "points to node"),
    "reject in a list": (archive(x=X, edge_index=EDGES, reject=[0.5]), DataError, "reject: "),
    "a bomb": (zipped(zipfile.ZIP_DEFLATED, x=b"\0" * 50_000_000), TooLargeError, "when unpacked"),
    "a shape without numbers": (
        zipped(x=npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000, 16)}")),
        MalformedError,
        "no readable",
    ),
    "a header of brackets": (zipped(x=npy("(" * 3000)), MalformedError, "no readable"),
    "a header of code": (zipped(x=npy("__import__('os').system('false')")), MalformedError, "no readable"),
    "a later version": (zipped(x=npy("{}", version=4)), MalformedError, "no readable"),
    "another packing": (zipped(zipfile.ZIP_BZIP2, x=npy("{}")), MalformedError, "no readable"),
    "many members": (zipped(**{f"a{number}": b"" for number in range(70)}), MalformedError, "64 arrays"),
}


@pytest.mark.parametrize("case", REFUSED_NPZ)
def test_files_that_cannot_be_meant_are_refused_in_a_sentence(case: str) -> None:
    content, kind, words = REFUSED_NPZ[case]
    with pytest.raises(DataError) as refusal:
        read_question(content, NPZ, LIMITS)
    assert isinstance(refusal.value, kind)
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_an_array_that_is_there_twice_is_refused() -> None:
    file = io.BytesIO(SOUND)
    with zipfile.ZipFile(file, "a") as made:
        made.writestr("x.npy", b"")
    with pytest.raises(MalformedError, match="twice"):
        read_question(file.getvalue(), NPZ, LIMITS)


def test_a_member_that_unpacks_to_more_than_it_says_is_refused() -> None:
    honest = zipped(zipfile.ZIP_DEFLATED, x=b"\0" * 50_000_000)
    lying = honest.replace(struct.pack("<I", 50_000_000), struct.pack("<I", 50_000))
    tracemalloc.start()
    with pytest.raises(MalformedError):
        read_question(lying, NPZ, LIMITS)
    assert tracemalloc.get_traced_memory()[1] < 5_000_000
    tracemalloc.stop()
