"""Ways to damage a file: of any kind, and those that know what is inside it."""

import io
import json
import random
import re
import struct
import zipfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

DEEP, DIGITS, LONG = "@deep@", "@digits@", "@long@"
"""Stand for what Python itself would not write: deep nesting, numbers of very many digits, long words."""
STAND_FOR = {DEEP: "[" * 20_000 + "]" * 20_000, DIGITS: "9" * 10_000, LONG: '"' + "x" * 5_000 + '"'}
VALUES: tuple[Any, ...] = (
    *(None, True, [], {}, [[]], [None], {"": None}, {"a": {"b": []}}, "", "x", "[/bold]", "\x1b[31m", "é\ud800", "NaN"),
    *(-1, 0, 1, 2, 0.5, -0.0, 10**12, 10**23, 2**31, 2**63, -(2**63) - 1, 1e308, float("nan"), float("inf"), 1e-320),
    *("../../etc/passwd", "/dev/zero", "2020-99-99", [0] * 300, DEEP, DIGITS, LONG),
)
DTYPES = ("<f4", "<f8", "<i8", "<i4", "|b1", "<u8", "<c8", "<U3", "<f2", "|S5", "<M8[s]", ">f4", "|u1")
SHAPES = ("(0,)", "()", "(1,)", "(-1,)", f"({10**18},)", "(2, 3, 4)", f"({2**40}, {2**40})", "(10, 99999999)", "('a',)")
HEADERS = ("None", "{", "{'descr': 1}", "(" * 3000, "{'shape': (1,)}", "[[" * 99, "__import__('os')", "{'descr': '|O'}")


# ---------------------------------------------------------------------- bytes of any kind


def flip(draw: random.Random, content: bytearray, _: bytes) -> None:
    for _turn in range(draw.choice((1, 1, 2, 8))):
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)


def cut(draw: random.Random, content: bytearray, _: bytes) -> None:
    del content[draw.randrange(len(content)) :]


def cut_begin(draw: random.Random, content: bytearray, _: bytes) -> None:
    del content[: draw.randint(1, len(content))]


def insert(draw: random.Random, content: bytearray, _: bytes) -> None:
    place = draw.randint(0, len(content))
    content[place:place] = draw.randbytes(draw.choice((1, 4, 100)))


def remove(draw: random.Random, content: bytearray, _: bytes) -> None:
    begin, end = _span(draw, content)
    del content[begin:end]


def swap(draw: random.Random, content: bytearray, _: bytes) -> None:
    size = draw.randint(1, max(1, len(content) // 4))
    one, other = (draw.randrange(max(1, len(content) - size)) for _turn in range(2))
    content[one : one + size], content[other : other + size] = (
        content[other : other + size],
        content[one : one + size],
    )


def fill(draw: random.Random, content: bytearray, _: bytes) -> None:
    begin, end = _span(draw, content)
    content[begin:end] = draw.choice((b"\0", b"\xff", b"9", b"[", b" ")) * (end - begin)


def repeat(draw: random.Random, content: bytearray, _: bytes) -> None:
    begin, end = _span(draw, content)
    content[begin:begin] = content[begin:end] * draw.choice((1, 2, 20))


def splice(draw: random.Random, content: bytearray, other: bytes) -> None:
    content[draw.randint(0, len(content)) :] = other[draw.randint(0, len(other)) :]


def numbers(draw: random.Random, content: bytearray, _: bytes) -> None:
    """A number written in digits becomes another."""
    found = list(re.finditer(rb"\d+", bytes(content)))
    if found:
        place = draw.choice(found)
        content[place.start() : place.end()] = draw.choice(
            (b"-1", b"0", b"99999999999999999999", b"1e999", b"nan", b"9" * 5000, b"0x10", b"")
        )


def sizes(draw: random.Random, content: bytearray, _: bytes) -> None:
    """Four or eight bytes in a row become a size that cannot be."""
    value = draw.choice((0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1))
    code = "<I" if value < 2**32 and draw.random() < 0.5 else "<Q"
    place = draw.choice((0, draw.randrange(len(content)), max(0, len(content) - draw.randint(1, 80))))
    content[place : place + struct.calcsize(code)] = struct.pack(code, value)


ANY: tuple[Callable[[random.Random, bytearray, bytes], None], ...] = (
    *(flip, flip, cut, cut_begin, insert, remove, swap, fill, repeat, splice, numbers, sizes),
)


def damaged(draw: random.Random, content: bytes, other: bytes = b"") -> bytes:
    """A file with some of its bytes changed; `other` is one of the same kind."""
    changed = bytearray(content)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        if changed:
            draw.choice(ANY)(draw, changed, other or content)
    return bytes(changed)


def _span(draw: random.Random, content: bytearray) -> tuple[int, int]:
    begin = draw.randrange(len(content))
    return begin, min(len(content), begin + draw.choice((1, 4, 16, 256, len(content))))


# ---------------------------------------------------------------------- JSON and YAML


def changed_tree(draw: random.Random, tree: Any) -> Any:
    """Plain data with one thing in it changed."""
    if isinstance(tree, dict) and tree and draw.random() < 0.85:
        return _changed_dict(draw, tree)
    if isinstance(tree, list) and tree and draw.random() < 0.75:
        place = draw.randrange(len(tree))
        kind = draw.random()
        if kind < 0.1:
            return tree[:place]
        if kind < 0.2:
            return [*tree, *tree[place:]]
        return [*tree[:place], changed_tree(draw, tree[place]), *tree[place + 1 :]]
    return draw.choice(VALUES)


def _changed_dict(draw: random.Random, tree: Mapping[Any, Any]) -> dict[Any, Any]:
    name = draw.choice(list(tree))
    kind = draw.random()
    if kind < 0.1:
        return {key: value for key, value in tree.items() if key != name}
    if kind < 0.2:
        return {**tree, draw.choice(("x", "", "[/b]", f"{name} ", "é" * 300)): draw.choice(VALUES)}
    if kind < 0.25:
        return {(f"{name}x" if key == name else key): value for key, value in tree.items()}
    return {**tree, name: changed_tree(draw, tree[name])}


def as_json(tree: Any) -> bytes:
    text = json.dumps(tree)
    for word, meaning in STAND_FOR.items():
        text = text.replace(json.dumps(word), meaning)
    return text.encode()


def as_yaml(draw: random.Random, tree: Any) -> bytes:
    text = yaml.safe_dump(tree, sort_keys=False, allow_unicode=False)
    for word, meaning in STAND_FOR.items():
        text = text.replace(f"'{word}'", meaning)
    if draw.random() < 0.15:
        text += draw.choice(YAML_LINES)
    return text.encode()


YAML_LINES = (
    "a: &a [1]\nb: &b [*a, *a]\nc: *b\n",
    "".join(f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 9) if n else '0'}]\n" for n in range(12)),
    "self: &s [*s]\n",
    "x: !!python/object/apply:os.getcwd []\n",
    "when: 2020-99-99\n",
    "? [a, b]\n: c\n",
    "<<: {a: 1}\n",
    "x: !!binary abc\n",
    "\tx: 1\n",
    "x: 1_000:99:99\n",
    "...\n---\nx: 1\n",
    "x: " + "{a: " * 3000 + "\n",
)


# ---------------------------------------------------------------------- arrays


def npy(array: NDArray[Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def changed_array(draw: random.Random, array: NDArray[Any]) -> bytes:
    """An .npy file with another header, or with other numbers."""
    kind = draw.random()
    if kind < 0.5:
        return _changed_header(draw, array)
    with np.errstate(all="ignore"):
        return npy(draw.choice(ARRAYS)(draw, array))


def _changed_header(draw: random.Random, array: NDArray[Any]) -> bytes:
    descr, shape = array.dtype.str, str(array.shape)
    kind = draw.random()
    if kind < 0.35:
        shape = draw.choice(SHAPES)
    elif kind < 0.6:
        descr = draw.choice(DTYPES)
    text = f"{{'descr': '{descr}', 'fortran_order': {draw.choice(('True', 'False', '3'))}, 'shape': {shape}, }}"
    if kind > 0.85:
        text = draw.choice(HEADERS)
    header = text.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(header) % 2**16) + header + array.tobytes()


def _one_value(draw: random.Random, array: NDArray[Any]) -> NDArray[Any]:
    changed = array.astype(np.float64) if draw.random() < 0.3 and array.dtype.kind != "U" else array.copy()
    if changed.size and changed.dtype.kind in "fiu":
        values = (np.nan, np.inf, -np.inf, 1e300, -1.0, 1e-320) if changed.dtype.kind == "f" else (-1, 2**31 - 1, 99)
        changed.reshape(-1)[draw.randrange(changed.size)] = draw.choice(values)
    elif changed.size and changed.dtype.kind == "U":
        changed.reshape(-1)[draw.randrange(changed.size)] = draw.choice(
            ("", "0", "-1", "nan", "é", " ", changed.flat[0])
        )
    return changed


def _another_type(draw: random.Random, array: NDArray[Any]) -> NDArray[Any]:
    kinds = ("U1", "U40", "S5") if array.dtype.kind == "U" else ("f2", "f8", "i1", "u8", "c8", "U3", "?", "i8")
    return array.astype(draw.choice(kinds))


ARRAYS: tuple[Callable[[random.Random, NDArray[Any]], NDArray[Any]], ...] = (
    _one_value,
    _one_value,
    lambda draw, array: array.reshape(-1),
    lambda draw, array: array[..., None],
    lambda draw, array: array.T.copy(),
    lambda draw, array: array[: draw.randint(0, len(array))] if array.ndim else array,
    lambda draw, array: np.concatenate([array, array]) if array.ndim else array,
    lambda draw, array: np.zeros_like(array),
    _another_type,
    lambda draw, array: np.array([{"a": 1}], dtype=object),
    lambda draw, array: np.array(draw.choice((0, 1e38, "text", True, -1))),
    lambda draw, array: array * array.dtype.type(3) if array.dtype.kind in "fi" else array,
)


def archive(members: Mapping[str, bytes], draw: random.Random | None = None) -> bytes:
    """An .npz file from its members; now and then with sizes that are not true."""
    file = io.BytesIO()
    packed = zipfile.ZIP_DEFLATED if draw and draw.random() < 0.5 else zipfile.ZIP_STORED
    with zipfile.ZipFile(file, "w", packed) as target:
        for name, content in members.items():
            target.writestr(name, content)
    content = file.getvalue()
    if draw and draw.random() < 0.1:
        size = struct.pack("<I", len(draw.choice(list(members.values()))))
        content = content.replace(size, struct.pack("<I", draw.choice((0, 10, 2**31, 2**32 - 1))))
    return content


def changed_archive(draw: random.Random, arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """An .npz file with something changed in one of its arrays, or in the list of them."""
    members = {f"{name}.npy": npy(array) for name, array in arrays.items()}
    name = draw.choice(list(arrays))
    kind = draw.random()
    if kind < 0.08:
        del members[f"{name}.npy"]
    elif kind < 0.14:
        members[draw.choice(("x.npy", "../x.npy", "x_values.npy", "y", "forget.npy"))] = members[f"{name}.npy"]
    elif kind < 0.2:
        members[f"{name}.npy"] = damaged(draw, members[f"{name}.npy"])
    else:
        members[f"{name}.npy"] = changed_array(draw, arrays[name])
    return archive(members, draw)


def one_of(draw: random.Random, items: Sequence[Any]) -> Any:
    return items[draw.randrange(len(items))]
