"""Bodies: broken, too large when unpacked, pickled, or no graph."""

import io
import pickle
import random
import struct
import zipfile
from typing import Any

import numpy as np

from hostile.asking import Status, Target, post, said, way
from ipal.deploy.serving.bodies import NPZ

# ---------------------------------------------------------------------- JSON


@way("JSON: cut short or broken", {400, 422}, 4)
def broken_json(target: Target, rng: random.Random) -> Status:
    sound = bytearray(target.any_sample(rng).body)
    del sound[rng.randrange(len(sound)) :]
    return post(
        target, bytes(rng.choice([sound, sound + b"\xff", rng.randbytes(100), b"", b"[" * 60, b'{"\\ud800":1}']))
    )


@way("JSON: bombs", {400, 413, 422}, 4)
def json_bombs(target: Target, rng: random.Random) -> Status:
    size = target.most_bytes // 16
    bombs = [
        lambda: b"[" * size,
        lambda: b'{"x":' * (size // 5),
        lambda: b'{"x":[' + b"[]," * (size // 3) + b"[]]}",
        lambda: b'{"x":[[' + b"9" * size + b"]]}",
        lambda: b'{"x":[["' + b"a" * (size // 2) + b'"' + b",0" * (size // 4) + b']],"edge_index":[[],[]]}',
        lambda: b'{"x":[[' + b"0," * (size // 2) + b'0]],"edge_index":[[],[]]}',
        lambda: b'{"' + b"k" * size + b'":1}',
    ]
    return post(target, rng.choice(bombs)())


@way("JSON: no graph", {400, 413, 422}, 10)
def no_graph(target: Target, rng: random.Random) -> Status:
    wrong: list[dict[str, Any]] = [
        {"x": [[1.0]]},
        {"x": []},
        {"x": [[]]},
        {"x": "text"},
        {"x": None},
        {"x": [[float("nan")]]},
        {"x": [[1e308]]},
        {"x": [[10**400]]},
        {"x": [[1], [1, 2]]},
        {"x": [[True, "1", None]]},
        {"x": None, "x_indices": [0], "x_indptr": [0, 1], "x_values": [1], "x_shape": [10**12, 10**12]},
        {"x": None, "x_indices": [-1], "x_indptr": [0, 1], "x_values": [1], "x_shape": [1, 1]},
        {"edge_index": [[0, 3], [1, 1]]},
        {"edge_index": [[-1], [0]]},
        {"edge_index": [[0.5], [1]]},
        {"edge_index": [[2**70], [1]]},
        {"edge_index": [[0, 1]]},
        {"edge_index": [[[0]], [[1]]]},
        {"nodes": [3]},
        {"nodes": []},
        {"nodes": ["0"]},
        {"nodes": [True]},
        {"degree": [0, 0, 0]},
        {"degree": [1e9, 1, 1]},
        {"reject": 2},
        {"reject": 0},
        {"reject_known": 0.05},
        {"coverage": 1},
        {"reject": "0.5"},
        {"directed": "yes"},
        {"unknown": 1},
    ]
    return said(target, **rng.choice(wrong))


# ---------------------------------------------------------------------- .npz


def _npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def _zip(member: bytes, name: str = "x.npy", copies: int = 1) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(copies):
            archive.writestr(name if copies == 1 else f"{number}{name}", member)
    return file.getvalue()


_PICKLED = _npz(x=np.array([{"a": 1}], dtype=object), edge_index=np.zeros((2, 0), int))
_BOMB = _zip(b"\0" * 40_000_000)
_LYING = _BOMB.replace(struct.pack("<I", 40_000_000), struct.pack("<I", 20_000))
_SHAPE = (
    b"\x93NUMPY\1\0\x76\0" + b"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999, 9), }".ljust(117) + b"\n"
)
_CROWD = _zip(b"", copies=5_000)


@way("npz: broken", {400, 413, 422}, 4)
def broken_npz(target: Target, rng: random.Random) -> Status:
    sound = bytearray(rng.choice(target.small(NPZ)).body)
    if rng.random() < 0.5:
        del sound[rng.randrange(len(sound)) :]
    else:  # somewhere in the list of members, so that it cannot be another sound file
        sound[-60:-40] = rng.randbytes(20)
    return post(target, bytes(rng.choice([sound, rng.randbytes(1000), b"PK\5\6" + b"\0" * 18])), NPZ)


@way("npz: pickles and bombs", {400, 413, 422}, 5)
def npz_bombs(target: Target, rng: random.Random) -> Status:
    bodies = [
        _PICKLED,
        pickle.dumps({"x": [1]}),
        _BOMB,
        _LYING,
        _CROWD,
        _zip(_SHAPE),
        _zip(b"\x93NUMPY\1\0\xff\xff" + b"(" * 65535),
    ]
    return post(target, rng.choice(bodies), NPZ)


@way("npz: no graph", {400, 413, 422}, 3)
def npz_no_graph(target: Target, rng: random.Random) -> Status:
    none = np.zeros((2, 0), int)
    bodies = [
        _npz(x=np.ones((2, 1)), edge_index=none),
        _npz(x=np.full((2, 9), np.nan), edge_index=none),
        _npz(x=np.array([["a"]]), edge_index=none),
        _npz(x=np.ones((2, 2, 2)), edge_index=none),
        _npz(x=np.ones((2, 2)), edge_index=np.ones((2, 3))),
        _npz(x=np.ones((2, 2)), edge_index=np.full((2, 3), 2**63, dtype=np.uint64)),
        _npz(x=np.ones((2, 2)), edge_index=none, other=none),
        _npz(edge_index=none),
    ]
    return post(target, rng.choice(bodies), NPZ)
