"""Damaged and hostile files of every kind that the command reads."""

import io
import json
import os
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ipal.config import run_config
from ipal.evaluation.metrics import Scores, measured
from ipal.runs.run_folder import RunStore

LONG = 5000
GRAPH = "synthetic:nodes=60,classes=3,features=4"


class HostileFiles:
    """Damaged files of every kind, the same whenever they are made."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.sound_graph = _npz()
        self.graphs = [self._write(f"graph-{name}.npz", make()) for name, make in GRAPHS.items()]
        self.graphs += [self._folder(f"{name}.graph", change) for name, change in FOLDERS.items()]
        self.graphs += [self._pipe("pipe.npz"), self._made("folder.npz"), "/dev/zero", "/dev/tty", "/proc/self/mem"]
        self.configs = [self._write(f"config-{name}.yaml", text) for name, text in CONFIGS.items()]
        self.configs += [self._pipe("pipe.yaml"), str(folder), "/dev/zero", "/dev/null", "none.yaml", "x" * 300]
        self.experiments = [self._write(f"bench-{name}.yaml", text) for name, text in EXPERIMENTS.items()]
        self.experiments += [self._pipe("bench-pipe.yaml"), "/dev/zero", "/dev/null", "x" * 300]
        self.runs = [self._run(place, change) for place, change in enumerate(RESULTS.values())]

    def _write(self, name: str, content: str | bytes) -> str:
        path = self.folder / name
        path.write_bytes(content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content)
        return str(path)

    def _pipe(self, name: str) -> str:
        path = self.folder / name
        if not path.exists():
            os.mkfifo(path)
        return str(path)

    def _made(self, name: str) -> str:
        (self.folder / name).mkdir(exist_ok=True)
        return str(self.folder / name)

    def _folder(self, name: str, change: Callable[[Path], object]) -> str:
        """A graph folder, sound but for one change."""
        path = self.folder / name
        path.mkdir(exist_ok=True)
        n = 12
        np.save(path / "y.npy", np.arange(n, dtype=np.int64) % 3)
        np.save(path / "indptr.npy", np.arange(n + 1, dtype=np.int64))
        np.save(path / "indices.npy", ((np.arange(n) + 1) % n).astype(np.int32))
        np.save(path / "x.npy", np.ones((n, 4), dtype=np.float32))
        (path / "meta.json").write_text(json.dumps(META))
        change(path)
        return str(path)

    def _run(self, seed: int, change: Callable[[dict[str, Any]], Any]) -> str:
        """A finished run whose result.json was changed; its name."""
        config = run_config({"dataset": "digits", "seed": seed, "split": [2, 2]})
        folder = RunStore(self.folder / "runs").folder_for(config)
        folder.start(config, {"device_name": None, "processor": "a processor", "threads": 1, "data_root": ""})
        result = sound_result()
        changed = change(result)
        text = changed if isinstance(changed, str) else json.dumps(result)
        (folder.path / "result.json").write_text(text)
        return folder.path.name


META: dict[str, Any] = {
    "format": "ipal-graph",
    "version": 1,
    "num_features": 4,
    "sparse": False,
    "symmetric": True,
    "hash": "0" * 64,
    "split": None,
    "preprocessing": "",
    "remark": "",
}


def _npz(**changes: Any) -> bytes:
    arrays: dict[str, Any] = {
        "edge_index": np.arange(40).reshape(2, 20) % 12,
        "y": np.arange(12) % 3,
        "x": np.ones((12, 4), dtype=np.float32),
        **changes,
    }
    file = io.BytesIO()
    np.savez(file, **{name: value for name, value in arrays.items() if value is not None})
    return file.getvalue()


def _npy(header: str, content: bytes = b"") -> bytes:
    """An array with any header."""
    text = header.encode("latin-1") + b"\n"
    return b"\x93NUMPY\x02\x00" + struct.pack("<I", len(text)) + text + content


def _zip(**members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return file.getvalue()


def _twice() -> bytes:
    """Two arrays that numpy knows by one name."""
    file = io.BytesIO(_npz())
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("x", _npy(_header("(1, 1)"), bytes(4)))
    return file.getvalue()


def _header(shape: str, kind: str = "'<f4'") -> str:
    return f"{{'descr': {kind}, 'fortran_order': False, 'shape': {shape}, }}"


def _claiming(size: int) -> bytes:
    """A small .npz file that says of its features that they take so many bytes."""
    content = bytearray(_zip(x=_npy(_header(f"({size // 4}, 1)"), bytes(1000))))
    place = content.rindex(b"PK\x01\x02")
    content[place + 24 : place + 28] = struct.pack("<I", size)
    return bytes(content)


def _bomb(unpacked: int) -> bytes:
    """Zeros, well packed: the same packed piece again and again. Its checksum is wrong, which shows at the end only."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    header, piece = _npy(_header(f"({unpacked // 4}, 1)")), bytes(2**20)
    begin = packer.compress(header) + packer.flush(zlib.Z_FULL_FLUSH)
    again = packer.compress(piece) + packer.flush(zlib.Z_FULL_FLUSH)
    packed = begin + again * (unpacked // len(piece)) + packer.flush()
    size, name = len(header) + unpacked, b"x.npy"
    local = struct.pack("<4s5H3I2H", b"PK\x03\x04", 20, 0, 8, 0, 0, 0, len(packed), size, len(name), 0)
    entry = struct.pack(
        "<4s6H3I5H2I", b"PK\x01\x02", 20, 20, 0, 8, 0, 0, 0, len(packed), size, len(name), 0, 0, 0, 0, 0, 0
    )
    before = len(local) + len(name) + len(packed)
    end = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 1, 1, len(entry) + len(name), before, 0)
    return local + name + packed + entry + name + end


SPARSE = {
    "x": None,
    "x_values": np.ones(8, dtype=np.float32),
    "x_indices": np.arange(8),
    "x_indptr": np.minimum(np.arange(13), 8),
}

GRAPHS: dict[str, Callable[[], bytes]] = {
    "bomb": lambda: _bomb(2**29),
    "claims": lambda: _claiming(4 * 10**9),
    "shape": lambda: _zip(x=_npy(_header("(1000000000000000000,)"))),
    "shapes": lambda: _zip(edge_index=_npy(_header("(2, 1000000000000000000)", "'<i8'")), y=_npy(_header("(3,)"))),
    "negative": lambda: _zip(x=_npy(_header("(-1, 4)"))),
    "digits": lambda: _zip(x=_npy(_header("(" + "9" * LONG + ",)"))),
    "nested": lambda: _zip(x=_npy("(" * LONG)),
    "string": lambda: _zip(x=_npy("{'descr': \"'''")),
    "code": lambda: _zip(x=_npy("__import__('os').getcwd()")),
    "objects": lambda: _zip(x=_npy(_header("(1,)", "'|O'"), b"cos\ngetcwd\n.")),
    "void": lambda: _zip(x=_npy(_header("(1,)", "[('a', '<f4'), ('b', '|O')]"), bytes(12))),
    "letters": lambda: _npz(x=np.full((12, 4), "[/bold]")),
    "columns": lambda: _npz(**SPARSE, x_shape=np.array([12, 2 * 10**9])),
    "rows": lambda: _npz(**SPARSE, x_shape=np.array([10**18, 8])),
    "many shapes": lambda: _npz(**SPARSE, x_shape=np.array([12] * 9)),
    "nan": lambda: _npz(x=np.full((12, 4), np.nan)),
    "edges": lambda: _npz(edge_index=np.full((2, 3), 10**15)),
    "labels": lambda: _npz(y=np.full(12, 1e300)),
    "zip in zip": lambda: _zip(x=_zip(x=b"")),
    "empty": lambda: b"",
    "text": lambda: b"hello",
    "half": lambda: _npz()[:300],
    "no arrays": lambda: _zip(),
    "twice": _twice,
}

FOLDERS: dict[str, Callable[[Path], object]] = {
    "header": lambda path: (path / "x.npy").write_bytes(_npy("{'descr': \"'''")),
    "pickle": lambda path: (path / "x.npy").write_bytes(_npy(_header("(1,)", "'|O'"), b"cos\ngetcwd\n.")),
    "meta nested": lambda path: (path / "meta.json").write_text("[" * 100000),
    "meta version": lambda path: (path / "meta.json").write_text(json.dumps({**META, "version": "[/b]"})),
    "meta bytes": lambda path: (path / "meta.json").write_bytes(b"\xff\xfe{"),
}

ALIASES = "b0: &b0 [x, x]\n" + "".join(f"b{n + 1}: &b{n + 1} [*b{n}, *b{n}]\n" for n in range(20))

CONFIGS: dict[str, str | bytes] = {
    "aliases": ALIASES,
    "aliases in": ALIASES + "dataset: *b20\n",
    "itself": "dataset: digits\nipal: &a {gamma: *a}\n",
    "nested": "dataset: " + "[" * 100000,
    "digits": "dataset: digits\nseed: " + "9" * 10000,
    "method": "dataset: digits\nmethod: []\n",
    "timestamp": "dataset: digits\nseed: 2020-99-99\n",
    "tag": "dataset: digits\nseed: !!timestamp x\n",
    "key": "? [a, b]\n: c\n",
    "null byte": 'dataset: "a\\0b.npz"\n',
    "bytes": b"dataset: \xff\xfe\n",
    "control": b"dataset: \x1b[31m\n",
    "markup": "dataset: '[/bold]'\n",
    "escape": 'dataset: "\\e[2J"\n',
    "long": "dataset: " + "x" * LONG + "\n",
    "large": "dataset: digits\n" + "# " + "x" * 2_000_000 + "\n",
    "twice": "dataset: digits\ndataset: cs\n",
    "split": "dataset: digits\nsplit: [" + "1, " * 50000 + "1]\n",
    "order": "dataset: digits\nprotocol: {class_order: [" + "9" * 400 + "]}\n",
    "list": "- a\n",
    "unknown": f"dataset: digits\n{'y' * LONG}: 1\n",
}


def _experiment(**changes: str) -> str:
    parts = {
        "kind": "study",
        "seeds": "2",
        "all": f"{{dataset: '{GRAPH}', train.epochs: 1}}",
        "entries": "{ipal: {}}",
        **changes,
    }
    return "".join(f"{name}: {value}\n" for name, value in parts.items() if value)


GRID = "[" + ", ".join(str(1 + place / 100) for place in range(100)) + "]"

EXPERIMENTS: dict[str, str] = {
    "seeds": _experiment(seeds="1000000000"),
    "seeds digits": _experiment(seeds="9" * 10000),
    "grid": _experiment(entries=f"{{ipal: {{grid: {{ipal.gamma: {GRID}, ipal.tau: {GRID}, ipal.beta: {GRID}}}}}}}"),
    "method": _experiment(entries="{ipal: {method: []}}"),
    "kind": _experiment(kind="[]"),
    "like": _experiment(like="x" * LONG),
    "like itself": _experiment(like="bench-like itself.yaml"),
    "like folder": _experiment(like="."),
    "like device": _experiment(like="/dev/zero"),
    "like pipe": _experiment(like="bench-pipe.yaml"),
    "label": _experiment(entries="{'[/bold]': {}}"),
    "dataset": _experiment(all="{dataset: []}"),
    "dataset long": _experiment(all="{dataset: " + "x" * LONG + "}"),
    "dataset size": _experiment(all="{dataset: 'synthetic:nodes=99999999999999'}"),
    "aliases": ALIASES + _experiment(),
    "aliased": _experiment(about="&a [*a]"),
    "nested": _experiment(entries="[" * 50000),
    "tag": _experiment(seeds="!!timestamp x"),
    "null byte": _experiment(all='{dataset: "a\\0.npz"}'),
    "nothing": "",
    "list": "- a\n",
    "twice": _experiment() + "seeds: 3\n",
}


def sound_result() -> dict[str, Any]:
    return {
        "method": "ipal",
        "title": "IPAL",
        "dataset": "digits",
        "seed": 0,
        "average_performance": 50.0,
        "average_forgetting": -10.0,
        "average_performance_curve": [60.0, 50.0],
        "accuracy_matrix": [[60.0, None], [50.0, 50.0]],
        "metrics": measured(Scores(np.array([[60.0, np.nan], [50.0, 50.0]]))),
        "before_learning": [None, None],
        "per_class": {"0": 50.0},
        "validation": {"average_performance": 50.0, "accuracy_matrix": [[60.0, None], [50.0, 50.0]]},
        "protocol": {
            **run_config({"dataset": "digits"}).protocol.model_dump(mode="json"),
            "split": [2, 2],
            "split_hash": "x",
            "classes": [[0, 1], [2, 3]],
            "exemplar_free": True,
        },
        "data": {"hash": "x", "preprocessing": "", "remark": ""},
        "timing": {
            "seconds_per_task": [1.0, 1.0],
            "seconds_per_epoch": [0.1, 0.1],
            "evaluation_seconds": 0.1,
            "total_seconds": 2.1,
            "runs_taking_turns": 1,
        },
        "peak_memory_bytes": 1000,
        "retained": {
            "items": [],
            "bytes": 10,
            "stores_exemplars": False,
            "stores_all_tasks": False,
            "nodes_behind_class": {},
        },
    }


def put(*path: Any) -> Callable[[dict[str, Any]], None]:
    """Puts the last of `path` at the place that the others name."""

    def change(result: dict[str, Any]) -> None:
        *way, name, value = path
        place: Any = result
        for part in way:
            place = place[part]
        place[name] = value

    return change


RESULTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "words": put("average_performance", "[/bold]"),
    "null": put("average_forgetting", None),
    "ragged": put("accuracy_matrix", [[60.0], [50.0, 50.0, 50.0]]),
    "matrix of nothing": put("accuracy_matrix", [[None, None], [None, None]]),
    "no matrix": put("accuracy_matrix", []),
    "tests before learning": put("before_learning", [None, None, None]),
    "curve": put("average_performance_curve", [1.0]),
    "protocol": put("protocol", []),
    "split": put("protocol", "split", "ab"),
    "classes": put("protocol", "classes", [None, None]),
    "batch": put("protocol", "batch", [1]),
    "data": put("data", None),
    "remark": put("data", "remark", ["[/x]"]),
    "timing": put("timing", {}),
    "memory": put("peak_memory_bytes", {}),
    "retained": put("retained", []),
    "nested": lambda _: "[" * 100000,
    "digits": lambda result: json.dumps(result).replace("1000", "9" * 10000),
    "nan": lambda result: json.dumps(result).replace("-10.0", "NaN"),
    "list": lambda _: "[]",
    "text": lambda _: "hello",
}
"""Changes to the parsed result, or the whole text where one is returned."""
