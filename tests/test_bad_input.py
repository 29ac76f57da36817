"""Bad input gets one clear sentence, exit code 2, and loses nothing."""

import contextlib
import errno
import io
import itertools
import json
import os
import pickle
import shutil
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
import yaml
from torch_geometric.data import Data

import ipal
from ipal import IPAL, ConfigError, DataError, IpalError, StoreError, TrainConfig, experiment
from ipal.cli import main
from ipal.config import RunConfig, run_config
from ipal.datasets import Dataset, load
from ipal.evaluate import Row
from ipal.state import State
from ipal.store import RunFolder, RunStore
from tests.conftest import Ipal, write_graph

# Hard enough that accuracies are no round hundreds: equal matrices then mean equal runs.
GRAPH = "synthetic:nodes=240,classes=6,features=16,signal=0.3,homophily=0.2"
SMALL = ["--dataset", GRAPH, "--set", "train.epochs=2", "--threads", 1]
LEARN = ["--set", "train.epochs=1", "--threads", 1]


# ---------------------------------------------------------------------- the command, in this process


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


Command = Callable[..., Outcome]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command as `ipal` would run it, but without starting Python anew. A traceback fails the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IPAL_DATA", str(tmp_path / "no-data"))
    monkeypatch.delenv("IPAL_RUNS", raising=False)

    def call(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["ipal", *map(str, arguments)])
        capsys.readouterr()
        code: Any = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
        return Outcome(code, *capsys.readouterr())

    return call


def complaint(done: Outcome, *words: str, underway: bool = False) -> str:
    """The one sentence of a refused command. Where a run was under way, its progress may stand before it."""
    assert done.code == 2, done
    assert done.out == ""
    assert "Traceback" not in done.err
    lines = done.err.strip().splitlines()
    assert underway or len(lines) == 1, f"more than one line: {done.err}"
    assert lines[-1].startswith("Error: "), done.err
    for word in words:
        assert word in lines[-1]
    return lines[-1]


# ---------------------------------------------------------------------- names and options


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "--dataset", "digit"], ["Unknown dataset 'digit'", "'digits'"]),
        (["run", "--dataset", "coraful"], ["Unknown dataset 'coraful'", "'corafull'"]),
        (["run", "--dataset", "zzzzzz"], ["Unknown dataset 'zzzzzz'", "Known:", "digits", ".npz path"]),
        (["run", "--dataset", "digits", "--method", "ipa"], ["Unknown method 'ipa'", "'ipal'"]),
        (["run"], ["--dataset digits", "ipal list datasets"]),
        (["data", "digitz"], ["Unknown dataset 'digitz'", "'digits'"]),
        (["list", "methds"], ["'methds' cannot be listed", "'methods'"]),
        (["data", "--download"], ["which dataset", "ipal data --download cs"]),
        (["run", "--dataset", "synthetic:nods=5"], ["'nods'", "'nodes'"]),
        (["run", "--dataset", "synthetic:nodes=x"], ["'nodes'", "'x'"]),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else None,
)
def test_an_unknown_name_is_met_with_the_closest(command: Command, arguments: list[str], words: list[str]) -> None:
    complaint(command(*arguments), *words)


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("train.epoch=3", ["Unknown setting 'train.epoch'", "'train.epochs'"]),
        ("epochs=3", ["Unknown setting 'epochs'", "'train.epochs'"]),
        ("ipal.gama=1", ["Unknown setting 'ipal.gama'", "'ipal.gamma'"]),
        ("ipl.gamma=1", ["Unknown setting 'ipl", "'ipal"]),
        ("gamma=1", ["Unknown setting 'gamma'", "'ipal.gamma'"]),
        ("protocl.accuracy=micro", ["Unknown setting 'protocl", "'protocol"]),
        ("train.epochs=-1", ["'train.epochs'", "-1", "greater than or equal to 0"]),
        ("train.epochs=abc", ["'train.epochs'", "'abc'", "integer"]),
        ("train.epochs=[1", ["--set train.epochs=[1", "quote"]),
        ("train.lr_base=.inf", ["'train.lr_base'", "inf"]),
        ("train=fast", ["'train'", "'fast'"]),
        ("ipal=fast", ["'ipal'", "'fast'"]),
        ("ipal.distillation=foo", ["'ipal.distillation'", "'foo'", "'ipad'", "'none'"]),
        ("ipal.tau=0", ["'ipal.tau'", "greater than 0"]),
        ("ipal.gamma=.inf", ["'ipal.gamma'"]),
        ("ipal.beta=.nan", ["'ipal.beta'"]),
        ("ipal.k=many", ["'ipal.k'", "'many'"]),
        ("ipal.encoder=small", ["'ipal.encoder'"]),
        ("ipal.seed=3", ["'ipal.seed'"]),
        ("protocol.accuracy=best", ["'protocol.accuracy'", "'balanced' or 'micro'"]),
        ("protocol.class_order=random", ["'protocol.class_order'", "'label' or 'shuffled'"]),
        ("protocol.class_order=[1,2]", ["protocol.class_order", "each of the 6 classes once", "0, 1, 2, 3, 4, 5"]),
        ("protocol.train_share=0.9", ["protocol.train_share", "leave nothing for the test"]),
        ("train.epochs", ["NAME=VALUE", "'train.epochs'"]),
        ("=3", ["NAME=VALUE", "'=3'"]),
        ("seed=-1", ["'seed'", "-1"]),
        ("dataset=5", ["'dataset'", "string"]),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_wrong_assignment_is_named_and_nothing_is_left_behind(
    command: Command, tmp_path: Path, assignment: str, words: list[str]
) -> None:
    complaint(command("run", "--dataset", GRAPH, "--set", assignment), *words)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "--dataste", "digits"],
        ["rn"],
        ["run", "--dataset", "digits", "--seed", "one"],
        ["run", "--dataset", "digits", "--seed", "-1"],
        ["run", "--dataset", "digits", "--threads", "0"],
        ["run", "--dataset", "digits", "--checkpoint-every", "0"],
        ["show"],
    ],
    ids=" ".join,
)
def test_an_unknown_option_ends_with_exit_code_2_and_usage(command: Command, arguments: list[str]) -> None:
    done = command(*arguments)
    assert done.code == 2
    assert done.out == ""
    assert "Usage:" in done.err
    assert "Traceback" not in done.err


def test_a_misspelt_option_is_met_with_the_closest(command: Command) -> None:
    assert "--dataset" in command("run", "--dataste", "digits").err


@pytest.mark.parametrize("split", ["5;2", "a,b", "", "2,,2", "2.5,3.5", "2 2 2"])
def test_a_malformed_split_is_shown_how_it_is_written(command: Command, split: str) -> None:
    complaint(command("run", "--dataset", GRAPH, "--split", split), "--split", "5,2,2", f"'{split}'")


@pytest.mark.parametrize("split", ["2,2", "4,4", "6,1", "1"])
def test_a_split_that_does_not_add_up_is_met_with_one_that_does(command: Command, tmp_path: Path, split: str) -> None:
    total = sum(map(int, split.split(",")))
    words = (split.replace(",", "+"), f"adds up to {total} classes", "the graph has 6", "2,2,2")
    complaint(command("run", "--dataset", GRAPH, "--split", split), *words)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("split", ["6,0", "8,-2"])
def test_a_split_with_an_empty_task_is_not_blamed_on_its_sum(command: Command, split: str) -> None:
    sentence = complaint(command("run", "--dataset", GRAPH, "--split", split), "split")
    assert "adds up to 6 classes, but the graph has 6" not in sentence


@pytest.mark.parametrize("device", ["cuda:99", "gpu", "cuda:x", "meta", "mps:7", ""])
def test_a_device_that_is_not_there_is_refused_before_anything_starts(
    command: Command, tmp_path: Path, device: str
) -> None:
    complaint(command("run", *SMALL, "--device", device), "device", "cpu")
    assert list(tmp_path.iterdir()) == []


def test_a_cuda_device_that_is_not_there_is_counted(command: Command) -> None:
    words = (f"({torch.cuda.device_count()} CUDA device(s) found)", "--device cpu")
    complaint(command("run", *SMALL, "--device", "cuda:99"), *words)


# ---------------------------------------------------------------------- configuration files


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("dataset: [1\n", ["bad.yaml", "not valid YAML"]),
        ("a: b: c\n", ["bad.yaml, line 1", "not valid YAML"]),
        ("- dataset\n- digits\n", ["bad.yaml", "'name: value' lines"]),
        ("digits", ["bad.yaml", "'name: value' lines"]),
        ("dataset: digits\nsede: 1\n", ["'sede'", "'seed'"]),
        ("dataset: digits\ntrain: {epochs: many}\n", ["'train.epochs'", "'many'"]),
        ("dataset: digits\ntrain:\n", ["'train'"]),
        ("dataset: digits\nsettings: {gamma: 1}\n", ["'settings'", "'ipal'"]),
        ("dataset: digits\nsplit: 5,2\n", ["'split'"]),
        ("seed: 1\n", ["--dataset digits"]),
        ("", ["--dataset digits"]),
        ("dataset:\n", ["'dataset'"]),
    ],
)
def test_a_wrong_configuration_file_is_named(command: Command, tmp_path: Path, content: str, words: list[str]) -> None:
    (tmp_path / "bad.yaml").write_text(content)
    complaint(command("run", "--config", "bad.yaml"), *words)


def test_a_configuration_file_that_is_no_text_or_not_there_is_named(command: Command, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_bytes(b"\xff\xfe\x00\x01")
    complaint(command("run", "--config", "bad.yaml"), "bad.yaml", "cannot be read as text")
    complaint(command("run", "--config", tmp_path), "cannot be read as text")
    complaint(command("run", "--config", "none.yaml"), "none.yaml does not exist")


# ---------------------------------------------------------------------- graphs that are not there


def test_a_graph_that_is_not_there_says_what_to_download_to_where(command: Command, tmp_path: Path) -> None:
    path = str(tmp_path / "no-data" / "pyg/CS/raw/ms_academic_cs.npz")
    words = (path, "ipal data --download cs", "--data-root", "IPAL_DATA")
    complaint(command("run", "--dataset", "cs"), *words)


def test_a_graph_that_cannot_be_downloaded_says_where_to_put_it(command: Command, tmp_path: Path) -> None:
    path = str(tmp_path / "elsewhere" / "graphs/arxiv-structure.npz")
    sentence = complaint(
        command("run", "--dataset", "arxiv-structure", "--data-root", tmp_path / "elsewhere"), path, "--data-root"
    )
    assert "--download" not in sentence
    # The command says what it is about to fetch before it tries.
    done = command("data", "arxiv-structure", "--download")
    complaint(done, "cannot be downloaded", "graphs/arxiv-structure.npz", underway=True)


def test_a_graph_file_that_is_not_there_is_named(command: Command, tmp_path: Path) -> None:
    complaint(command("run", "--dataset", "mine.npz"), str(tmp_path / "mine.npz"), "does not exist")
    complaint(command("data", "some/where.npz"), "some/where.npz", "does not exist")


# ---------------------------------------------------------------------- graphs that are broken


def refused(command: Command, path: Path, *words: str) -> str:
    """`path` as a graph is refused, by `run` and by `data`, and no run is left behind."""
    before = sorted(path.parent.iterdir())
    sentence = complaint(command("run", "--dataset", path, *LEARN), *words)
    complaint(command("data", path), *words)
    assert sorted(path.parent.iterdir()) == before
    return sentence


def one(values: np.ndarray[Any, Any], place: Any, value: object) -> np.ndarray[Any, Any]:
    changed = values.copy()
    changed[place] = value
    return changed


RANDOM = np.random.default_rng(0)
E = RANDOM.integers(0, 40, (2, 120))
X = RANDOM.normal(size=(40, 5))
Y = np.repeat(np.arange(4), 10)

BROKEN: dict[str, tuple[dict[str, object], list[str]]] = {
    "edge too far": ({"edge_index": one(E, (1, 3), 40)}, ["points to node 40", "0 to 39"]),
    "edge negative": ({"edge_index": one(E, (0, 3), -1)}, ["points to node -1", "0 to 39"]),
    "edges turned": ({"edge_index": E.T}, ["edge_index", "2 x edges", "(120, 2)"]),
    "edges flat": ({"edge_index": E[0]}, ["edge_index", "2 x edges", "(120,)"]),
    "edges a number": ({"edge_index": np.array(3)}, ["edge_index", "2 x edges"]),
    "edges fractional": ({"edge_index": E + 0.5}, ["edge_index", "whole numbers"]),
    "edges words": ({"edge_index": E.astype(str)}, ["edge_index", "whole numbers"]),
    "x NaN": ({"x": one(X, (3, 2), np.nan)}, ["features", "NaN or infinite"]),
    "x infinite": ({"x": one(X, (3, 2), -np.inf)}, ["features", "NaN or infinite"]),
    "x too large for a float": ({"x": one(X, (3, 2), 1e300)}, ["features"]),
    "x words": ({"x": X.astype(str)}, ["features x", "not numbers"]),
    "x complex": ({"x": X.astype(complex)}, ["features x", "not numbers"]),
    "x flat": ({"x": X[:, 0]}, ["eatures", "1 dimension"]),
    "x deep": ({"x": X[:, :, None]}, ["eatures", "3 dimension"]),
    "x a number": ({"x": np.array(1.0)}, []),
    "x without columns": ({"x": X[:, :0]}, ["empty"]),
    "too few labels": ({"y": Y[:-1]}, ["39 labels for 40 nodes"]),
    "too many labels": ({"y": np.append(Y, 3)}, ["41 labels for 40 nodes"]),
    "labels a number": ({"y": np.array(3)}, ["labels"]),
    "labels a number, no x": ({"y": np.array(3), "x": None}, ["labels"]),
    "labels flat in a table, no x": ({"y": np.eye(40), "x": None}, ["labels"]),
    "labels fractional": ({"y": Y + 0.5}, ["labels", "whole numbers", "0, 1, 2"]),
    "labels NaN": ({"y": one(Y.astype(float), 3, np.nan)}, ["labels", "whole numbers"]),
    "labels infinite": ({"y": one(Y.astype(float), 3, np.inf)}, ["labels", "whole numbers"]),
    "labels words": ({"y": np.array(list("abcd")).repeat(10)}, ["labels", "whole numbers"]),
    "no nodes": ({"x": X[:0], "y": Y[:0], "edge_index": E[:, :0]}, ["empty"]),
    "no nodes, no x": ({"x": None, "y": Y[:0], "edge_index": E[:, :0]}, ["empty"]),
    "no edge_index": ({"edge_index": None}, ["lacks the array(s) edge_index", "y", "x"]),
    "no y": ({"y": None}, ["lacks the array(s) y", "edge_index"]),
    "nothing": ({"edge_index": None, "y": None, "x": None}, ["lacks the array(s) edge_index, y"]),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_graph_is_refused_with_the_reason(command: Command, tmp_path: Path, name: str) -> None:
    changes, words = BROKEN[name]
    refused(command, write_graph(tmp_path / "mine.npz", **changes), *words)


def test_one_label_per_node_in_a_column_is_not_blamed_on_its_count(command: Command, tmp_path: Path) -> None:
    sentence = refused(command, write_graph(tmp_path / "mine.npz", y=Y[:, None]), "label")
    assert "40 labels for 40 nodes" not in sentence


def test_a_text_file_is_no_graph_and_is_not_called_a_pickle(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    path.write_text("source,target\n0,1\n1,2\n")
    assert "pickle" not in refused(command, path, str(path), ".npz")


def test_other_files_are_no_graphs(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    path.write_bytes(b"")
    refused(command, path, str(path))
    with path.open("wb") as file:
        np.save(file, X)  # a single array: .npy, not .npz
    refused(command, path, str(path))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello")
    refused(command, path, str(path), "lacks the array(s) edge_index, y")
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("edge_index.npy", "y.npy", "x.npy"):
            archive.writestr(name, "these are no numbers")
    refused(command, path, str(path))


def test_sparse_features_whose_parts_do_not_fit_are_refused(command: Command, tmp_path: Path) -> None:
    x = sp.csr_array(X)
    parts = {"x_values": x.data, "x_indices": x.indices, "x_indptr": x.indptr, "x_shape": np.array(x.shape)}
    path = tmp_path / "mine.npz"
    write_graph(path, x=None, **{**parts, "x_indices": x.indices + 5})
    refused(command, path, str(path), "sparse", "do not fit together")
    write_graph(path, x=None, **{**parts, "x_shape": np.array([39, 5])})
    refused(command, path, str(path), "sparse", "do not fit together")
    write_graph(path, x=None, **{**parts, "x_values": None})
    refused(command, path, str(path), "lacks the array(s) x_values")
    write_graph(path, x=None, **{**parts, "x_values": one(x.data, 0, np.nan)})
    refused(command, path, "NaN or infinite")


def test_a_graph_file_that_is_cut_short_is_refused_wherever_it_is_cut(tmp_path: Path) -> None:
    path = write_graph(tmp_path / "mine.npz")
    whole = path.read_bytes()
    for length in range(0, len(whole), 97):
        path.write_bytes(whole[:length])
        with pytest.raises(DataError, match=r"mine\.npz"):
            load(str(path))


@pytest.mark.parametrize("compressed", [False, True])
def test_a_graph_file_with_flipped_bytes_is_refused_or_read_as_it_was(tmp_path: Path, compressed: bool) -> None:
    path = write_graph(tmp_path / "mine.npz")
    if compressed:
        with np.load(path) as archive:
            arrays = dict(archive)
        np.savez_compressed(path, **arrays)
    expected = load(str(path)).hash
    whole = path.read_bytes()
    escaped: dict[str, int] = {}
    # Everywhere in the headers at both ends, and now and then between them.
    places = [*range(200), *range(200, len(whole) - 400, 61), *range(max(200, len(whole) - 400), len(whole))]
    for place in places:
        flipped = bytearray(whole)
        flipped[place] ^= 0x15
        path.write_bytes(flipped)
        try:
            # A flipped bit in a time stamp changes nothing that matters; a flipped number never passes. The list of
            # arrays at the end has no checksum: one that vanishes from it is a file without features, and says so.
            read = load(str(path))
            assert read.hash == expected or "structural" in read.preprocessing
        except DataError:
            pass
        except Exception as error:
            escaped[f"{type(error).__name__}: {error}"[:90]] = place
    assert not escaped


def test_a_damaged_graph_file_gets_one_sentence_from_the_command(command: Command, tmp_path: Path) -> None:
    path = write_graph(tmp_path / "mine.npz")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    refused(command, path, str(path), "damaged", "cut short")
    path.write_bytes(whole[:700] + bytes(200) + whole[900:])
    refused(command, path, str(path), "damaged")


def test_the_real_command_says_one_sentence_too(ipal: Ipal, tmp_path: Path) -> None:
    path = write_graph(tmp_path / "mine.npz", edge_index=E + 30)
    done = ipal("run", "--dataset", path)
    complaint(Outcome(done.returncode, done.stdout, done.stderr), "points to node")


# ---------------------------------------------------------------------- nothing is unpickled


class Bomb:
    """An object whose unpickling leaves a mark."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.marker),))


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    return tmp_path / "somebody-unpickled-this"


def test_the_bomb_goes_off_where_pickles_are_allowed(tmp_path: Path, marker: Path) -> None:
    # Otherwise the tests below would prove nothing.
    path = write_graph(tmp_path / "mine.npz", y=np.array([Bomb(marker)] * 2, dtype=object)[:1])
    with np.load(path, allow_pickle=True) as archive:
        _ = archive["y"]
    assert marker.exists()


@pytest.mark.parametrize("array", ["edge_index", "y", "x", "x_indices", "x_values", "x_shape"])
def test_a_pickled_array_is_refused_and_not_opened(command: Command, tmp_path: Path, marker: Path, array: str) -> None:
    sparse = dict.fromkeys(["x_indices", "x_values", "x_indptr", "x_shape"], np.arange(3)) if "x_" in array else {}
    dense = {"x": None} if sparse else {}
    bombs = np.array([Bomb(marker)], dtype=object)
    path = write_graph(tmp_path / "mine.npz", **{**sparse, **dense, array: bombs})
    refused(command, path, str(path), "pickled objects", "never opened", "plain arrays")
    assert not marker.exists()


def test_a_pickled_array_that_is_not_needed_is_not_opened(tmp_path: Path, marker: Path) -> None:
    path = write_graph(tmp_path / "mine.npz", remarks=np.array([Bomb(marker)], dtype=object))
    with contextlib.suppress(DataError):  # to read the rest, or to refuse the file: both are sound
        load(str(path))
    assert not marker.exists()


def test_a_pickle_with_the_name_of_a_graph_is_refused_and_not_opened(
    command: Command, tmp_path: Path, marker: Path
) -> None:
    path = tmp_path / "mine.npz"
    path.write_bytes(pickle.dumps(Bomb(marker)))
    refused(command, path, str(path))
    with path.open("wb") as file:
        np.save(file, np.array([Bomb(marker)], dtype=object), allow_pickle=True)
    refused(command, path, str(path))
    assert not marker.exists()


@pytest.mark.parametrize("file", ["reddit_data.npz", "reddit_graph.npz", "ms_academic_cs.npz"])
def test_pickles_in_benchmark_files_are_refused_and_not_opened(tmp_path: Path, marker: Path, file: str) -> None:
    bombs = np.array([Bomb(marker)], dtype=object)
    folder = tmp_path / ("pyg/CS/raw" if file.startswith("ms") else "pyg/Reddit/raw")
    folder.mkdir(parents=True)
    np.savez(folder / "reddit_data.npz", feature=X, label=Y)
    np.savez(folder / "reddit_graph.npz", row=E[0], col=E[1])
    names = ["feature", "label", "row", "col", "adj_data", "adj_indices", "adj_indptr", "adj_shape", "labels"]
    np.savez(folder / file, **dict.fromkeys(names, bombs))
    with pytest.raises(DataError, match="never opened"):
        load("cs" if file.startswith("ms") else "reddit", tmp_path)
    assert not marker.exists()


def test_a_pickle_in_place_of_a_model_is_refused_and_not_opened(tmp_path: Path, marker: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(pickle.dumps(Bomb(marker)))
    with pytest.raises(StoreError, match=r"model\.safetensors"):
        ipal.load(path)
    buffer = io.BytesIO()
    torch.save({"bomb": Bomb(marker)}, buffer)
    path.write_bytes(buffer.getvalue())
    with pytest.raises(StoreError, match=r"model\.safetensors"):
        ipal.load(path)
    assert not marker.exists()


def test_a_configuration_that_would_run_code_is_refused_and_not_run(
    command: Command, tmp_path: Path, marker: Path
) -> None:
    (tmp_path / "bad.yaml").write_text(f"dataset: !!python/object/apply:os.mkdir ['{marker}']\n")
    complaint(command("run", "--config", "bad.yaml"), "bad.yaml")
    complaint(command("run", "--set", f"dataset=!!python/object/apply:os.mkdir ['{marker}']"), "--set")
    assert not marker.exists()


# ---------------------------------------------------------------------- classes too small to split


def with_small_class(path: Path) -> Path:
    """Four classes, the last of two nodes: one part of the split would stay empty."""
    return write_graph(path, y=np.where(np.arange(40) >= 38, 3, np.arange(40) % 3))


def test_a_class_too_small_to_split_is_named_with_a_way_out(command: Command, tmp_path: Path) -> None:
    path = with_small_class(tmp_path / "mine.npz")
    words = ("Too small to split", "class 3 (2 node(s))", "protocol.small_classes=drop")
    complaint(command("run", "--dataset", path, *LEARN), *words)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("split", [[], ["--split", "1,2"]], ids=["default split", "own split"])
def test_small_classes_are_dropped_where_asked_and_the_record_says_so(
    command: Command, tmp_path: Path, split: list[str]
) -> None:
    path = with_small_class(tmp_path / "mine.npz")
    drop = ["--set", "protocol.small_classes=drop"]
    done = command("run", "--dataset", path, *LEARN, *drop, *split, "--json")
    assert done.code == 0, done.err
    protocol = json.loads(done.out)["protocol"]
    assert protocol["small_classes"] == "drop"
    assert protocol["dropped_classes"] == [3]
    assert sorted(itertools.chain(*protocol["classes"])) == [0, 1, 2]


def test_a_graph_of_small_classes_only_is_refused_even_where_they_may_be_dropped(
    command: Command, tmp_path: Path
) -> None:
    path = write_graph(tmp_path / "mine.npz", y=np.arange(40) // 2)
    drop = ["--set", "protocol.small_classes=drop"]
    complaint(command("run", "--dataset", path, *LEARN, *drop), "No class is large enough", "three nodes")


# ---------------------------------------------------------------------- the library's own face


@pytest.fixture(scope="module")
def fitted() -> IPAL:
    return IPAL(train=TrainConfig(epochs=1)).partial_fit(some_data())


def some_data(**changes: Any) -> Data:
    parts = {"x": X.astype(np.float32), "edge_index": E, "y": Y}
    data = Data(**{name: torch.from_numpy(value) for name, value in parts.items()})
    for name, value in changes.items():
        setattr(data, name, torch.as_tensor(value) if isinstance(value, np.ndarray) else value)
    return data


BROKEN_DATA: dict[str, tuple[dict[str, Any], str]] = {
    "no labelled node": ({"train_mask": np.zeros(40, dtype=bool)}, "No node of this graph has a label"),
    "mask too short": ({"train_mask": np.ones(39, dtype=bool)}, "train_mask must hold one True or False"),
    "mask of numbers": ({"train_mask": np.ones(40)}, "train_mask must hold one True or False"),
    "no x": ({"x": None}, "no features: set data.x"),
    "no y": ({"y": None}, "no labels: set data.y"),
    "too few labels": ({"y": Y[:-1]}, "39 labels for 40 nodes"),
    "labels fractional": ({"y": Y + 0.5}, "whole numbers or strings"),
    "labels NaN": ({"y": one(Y.astype(float), 3, np.nan)}, "whole numbers or strings"),
    "labels infinite": ({"y": one(Y.astype(float), 3, np.inf)}, "whole numbers or strings"),
    "labels of objects": ({"y": [None] * 40}, "whole numbers or strings"),
    "x NaN": ({"x": one(X, (0, 0), np.nan)}, "NaN or infinite"),
    "x sparse NaN": ({"x": torch.tensor(one(X, (0, 0), np.nan)).to_sparse()}, "NaN or infinite"),
    "x words": ({"x": [["a", "b"]] * 40}, "eatures"),
    "x ragged": ({"x": [[1.0], [1.0, 2.0]]}, "eatures"),
    "x flat": ({"x": X[:, 0]}, "1 dimension"),
    "x empty": ({"x": X[:0], "y": Y[:0], "edge_index": E[:, :0]}, "empty"),
    "edge too far": ({"edge_index": one(E, (0, 0), 40)}, "points to node 40"),
    "edge negative": ({"edge_index": one(E, (0, 0), -1)}, "points to node -1"),
    "edges turned": ({"edge_index": E.T.copy()}, "2 x edges"),
    "edges fractional": ({"edge_index": E + 0.5}, "whole numbers"),
}


@pytest.mark.parametrize("name", BROKEN_DATA)
def test_a_learner_refuses_broken_data_with_the_reason(name: str) -> None:
    changes, words = BROKEN_DATA[name]
    with pytest.raises(DataError, match=words):
        IPAL(train=TrainConfig(epochs=1)).partial_fit(some_data(**changes))


def test_a_learner_that_refused_broken_data_has_lost_nothing() -> None:
    learner = IPAL(train=TrainConfig(epochs=1)).partial_fit(some_data())
    expected = learner.predict_proba(some_data())
    for changes, _ in BROKEN_DATA.values():
        with pytest.raises(IpalError):
            learner.partial_fit(some_data(**changes))
    with pytest.raises(DataError):
        learner.partial_fit(some_data(x=X[:, :3], y=Y + 4))
    assert np.array_equal(learner.predict_proba(some_data()), expected)
    assert learner.classes_.tolist() == [0, 1, 2, 3]
    learner.partial_fit(some_data(y=Y + 4))
    assert learner.classes_.tolist() == list(range(8))


def test_a_learner_knows_how_many_features_it_was_trained_on(fitted: IPAL) -> None:
    for use in (fitted.predict, fitted.predict_proba, fitted.embed, fitted.partial_fit):
        with pytest.raises(DataError, match="3 features a node, the model was trained on 5"):
            use(some_data(x=X[:, :3]))


def test_a_learner_that_has_learned_nothing_says_so(tmp_path: Path) -> None:
    learner = IPAL()
    for use in (learner.predict, learner.predict_proba, learner.embed):
        with pytest.raises(ConfigError, match="call partial_fit first"):
            use(some_data())
    for other in (learner.memory_report, lambda: learner.save(tmp_path / "a"), lambda: learner.classes_):
        with pytest.raises(ConfigError, match="call partial_fit first"):
            other()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("device", ["cuda:99", "gpu", "meta", "mps:7"])
def test_a_learner_refuses_a_device_that_is_not_there(device: str) -> None:
    with pytest.raises(ConfigError, match="cpu"):
        IPAL(device=device, train=TrainConfig(epochs=1)).partial_fit(some_data())


# ---------------------------------------------------------------------- saved models


@pytest.fixture
def saved(fitted: IPAL, tmp_path: Path) -> Path:
    fitted.save(tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def test_a_model_file_that_is_not_there_or_a_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"none\.safetensors does not exist"):
        ipal.load(tmp_path / "none.safetensors")
    with pytest.raises(StoreError):
        ipal.load(tmp_path)


@pytest.mark.parametrize("content", [b"", b"hello", bytes(64), b"{}" * 50], ids=str)
def test_a_file_that_is_no_model_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"model\.safetensors"):
        ipal.load(path)


def test_a_model_file_that_is_cut_short_is_refused_wherever_it_is_cut(saved: Path) -> None:
    whole = saved.read_bytes()
    for length in [*range(0, 3000, 101), *range(3000, len(whole), 20011), len(whole) - 1]:
        saved.write_bytes(whole[:length])
        with pytest.raises(StoreError, match=r"model\.safetensors"):
            ipal.load(saved)


def test_a_model_file_with_flipped_bytes_is_never_believed(saved: Path, fitted: IPAL) -> None:
    whole = saved.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    expected = fitted.predict_proba(some_data())
    escaped: dict[str, int] = {}
    for place in [*range(300), *range(300, header, 7), *range(header, len(whole), 9001)]:
        flipped = bytearray(whole)
        flipped[place] ^= 0x01
        saved.write_bytes(flipped)
        try:
            learner = State.load(saved)
            # Only what means nothing may change unnoticed: the blanks that fill the header.
            assert whole[place : place + 1] == b" ", f"byte {place} of {header} changed unnoticed"
            assert learner.facts["method"] == "ipal"
        except StoreError:
            pass
        except Exception as error:
            escaped[f"{type(error).__name__}: {error}"[:90]] = place
    assert not escaped
    saved.write_bytes(whole)
    assert np.array_equal(ipal.load(saved).predict_proba(some_data()), expected)


def test_a_model_of_another_format_version_is_refused_with_both_versions(saved: Path) -> None:
    saved.write_bytes(saved.read_bytes().replace(b"ipal-state-1", b"ipal-state-9"))
    with pytest.raises(StoreError, match=r"'ipal-state-9'.*'ipal-state-1'.*the version that wrote it"):
        ipal.load(saved)


def test_a_safetensors_file_of_somebody_else_is_refused(tmp_path: Path) -> None:
    import safetensors.torch

    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file({"weight": torch.zeros(3)}, path)
    with pytest.raises(StoreError, match="format"):
        ipal.load(path)
    safetensors.torch.save_file({"weight": torch.zeros(3)}, path, metadata={"format": "pt"})
    with pytest.raises(StoreError, match="'pt'"):
        ipal.load(path)


@pytest.mark.parametrize("facts", [{}, {"method": None}, {"method": "other"}, {"progress": {}}])
def test_a_saved_model_of_another_kind_is_refused(tmp_path: Path, facts: dict[str, Any]) -> None:
    path = tmp_path / "model.safetensors"
    State({"weight": torch.zeros(3)}, facts).save(path)
    with pytest.raises(StoreError, match=r"model\.safetensors"):
        ipal.load(path)
    with pytest.raises(StoreError, match=r"model\.safetensors holds .* not 'ipal'"):
        IPAL.load(path)


def test_a_model_whose_parts_are_missing_is_refused(saved: Path) -> None:
    state = State.load(saved)
    for name in state.tensors:
        if not name.startswith("optimizer"):
            State({key: value for key, value in state.tensors.items() if key != name}, state.facts).save(saved)
            with pytest.raises(StoreError):
                ipal.load(saved)


def test_a_model_with_settings_of_another_version_is_refused(saved: Path) -> None:
    state = State.load(saved)
    settings = {**state.facts["settings"], "newer": 1}
    State(state.tensors, {**state.facts, "settings": settings}).save(saved)
    with pytest.raises(IpalError, match="newer"):
        ipal.load(saved)


def test_a_model_cannot_be_saved_where_there_is_no_folder(fitted: IPAL, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"none/model\.safetensors"):
        fitted.save(tmp_path / "none" / "model.safetensors")
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"file/model\.safetensors"):
        fitted.save(tmp_path / "file" / "model.safetensors")
    with pytest.raises(StoreError):
        fitted.save(tmp_path)


# ---------------------------------------------------------------------- run folders


class Watcher:
    """Watches a run, and interrupts it after some epochs."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.left = stop_after

    def started(self, tasks: int, epochs: int, done: int) -> None: ...

    def epoch(self, task: int, terms: dict[str, float]) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt

    def task(self, index: int, row: Row) -> None: ...


def wanted() -> tuple[RunConfig, Dataset]:
    return experiment.resolve(run_config({"dataset": GRAPH, "threads": 1, "train": {"epochs": 4, "lr_base": 0.01}}))


def learn(runs: Path, stop_after: int | None = None) -> RunFolder:
    config, dataset = wanted()
    folder = RunStore(runs).folder_for(config)
    try:
        experiment.run(config, dataset, folder, Watcher(stop_after), checkpoint_every=2)
    except KeyboardInterrupt:
        assert stop_after is not None
    return folder


@pytest.fixture(scope="module")
def finished_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learn(tmp_path_factory.mktemp("finished")).path


@pytest.fixture(scope="module")
def interrupted_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learn(tmp_path_factory.mktemp("interrupted"), stop_after=7).path


@pytest.fixture
def finished(finished_once: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished_once, tmp_path / "runs" / finished_once.name))


@pytest.fixture
def interrupted(interrupted_once: Path, tmp_path: Path) -> Path:
    folder = Path(shutil.copytree(interrupted_once, tmp_path / "runs" / interrupted_once.name))
    assert (folder / "checkpoint.safetensors").exists()
    assert not (folder / "result.json").exists()
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name not in {".lock", "log.txt"}}


def test_an_interrupted_run_that_is_whole_goes_on_to_the_same_numbers(
    command: Command, interrupted: Path, finished_once: Path
) -> None:
    # The other tests here damage such a folder: this one proves that it works undamaged.
    done = command("resume", interrupted.name, "--json")
    assert done.code == 0
    expected = json.loads((finished_once / "result.json").read_text())
    assert json.loads(done.out)["accuracy_matrix"] == expected["accuracy_matrix"]
    assert (interrupted / "history.csv").read_bytes() == (finished_once / "history.csv").read_bytes()


def cut(path: Path, share: float = 0.5) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.97])
@pytest.mark.parametrize("verb", ["show", "resume"])
def test_a_configuration_that_was_cut_is_refused(command: Command, finished: Path, verb: str, share: float) -> None:
    cut(finished / "config.yaml", share)
    before = contents(finished)
    complaint(command(verb, finished.name), "config.yaml")
    assert contents(finished) == before


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("seed: 0", "seed: 1", ["was changed", "its hash is", "folder's name"]),
        ("epochs: 4", "epochs: 5", ["was changed"]),
        ("gamma: 0.7", "gamma: 0.8", ["was changed"]),
        ("seed: 0", "seed: -1", ["damaged or of another version", "'seed'"]),
        ("seed: 0", "sede: 0", ["damaged or of another version", "'sede'"]),
        ("seed: 0", "seed: [0", ["damaged"]),
        ("format: 1", "format: 2", ["run format 2", "reads format 1", "the version that wrote it"]),
        ("format: 1\n", "", ["run format None", "reads format 1"]),
        ("method: ipal", "method: other", ["damaged or of another version"]),
        ("seed: 0", "seed: 0\n1: 2", ["damaged"]),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
@pytest.mark.parametrize("verb", ["show", "resume"])
def test_a_configuration_that_was_edited_or_is_of_another_version_is_refused(
    command: Command, interrupted: Path, verb: str, old: str, new: str, words: list[str]
) -> None:
    path = interrupted / "config.yaml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    before = contents(interrupted)
    complaint(command(verb, interrupted.name), *words)
    assert contents(interrupted) == before


@pytest.mark.parametrize("share", [0.0, 0.2, 0.6, 0.99])
def test_a_result_that_was_cut_is_refused_by_every_command(command: Command, finished: Path, share: float) -> None:
    cut(finished / "result.json", share)
    for arguments in (["show", finished.name], ["resume", finished.name], ["list", "runs"]):
        complaint(command(*arguments), "result.json is damaged", "run again")


@pytest.mark.parametrize("content", ["[]", "{}", "null", '{"method": "ipal"}'])
def test_a_result_that_lacks_its_parts_is_refused(command: Command, finished: Path, content: str) -> None:
    (finished / "result.json").write_text(content)
    complaint(command("show", finished.name), "result.json")


def test_a_finished_run_with_a_damaged_result_is_not_silently_run_again(command: Command, tmp_path: Path) -> None:
    assert command("run", *SMALL).code == 0
    (folder,) = (tmp_path / "runs").iterdir()
    cut(folder / "result.json")
    complaint(command("run", *SMALL), "result.json is damaged", "delete the folder and run again")


def test_a_damaged_environment_is_refused(command: Command, interrupted: Path) -> None:
    cut(interrupted / "environment.json")
    complaint(command("resume", interrupted.name), "environment.json is damaged")


def flip(path: Path, place: float) -> None:
    data = bytearray(path.read_bytes())
    data[int(len(data) * place)] ^= 0xFF
    path.write_bytes(data)


DAMAGES: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "emptied": (lambda path: path.write_bytes(b""), ["damaged"]),
    "cut at the start": (lambda path: cut(path, 0.01), ["damaged"]),
    "cut in the middle": (cut, ["damaged"]),
    "cut at the end": (lambda path: cut(path, 0.999), ["damaged"]),
    "flipped at the start": (lambda path: flip(path, 0), ["damaged"]),
    "flipped in the header": (lambda path: flip(path, 0.01), ["damaged"]),
    "flipped in the middle": (lambda path: flip(path, 0.5), ["damaged"]),
    "flipped at the end": (lambda path: flip(path, 0.9999), ["damaged"]),
    "text": (lambda path: path.write_text("hello"), ["damaged"]),
    "another version": (
        lambda path: path.write_bytes(path.read_bytes().replace(b"ipal-state-1", b"ipal-state-2")),
        ["'ipal-state-2'", "'ipal-state-1'", "the version that wrote it"],
    ),
    "a name in the header": (
        lambda path: path.write_bytes(path.read_bytes().replace(b'"facts"', b'"fects"')),
        ["damaged"],
    ),
    "a model": (lambda path: State(State.load(path).tensors, {"method": "ipal"}).save(path), ["checkpoint"]),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_checkpoint_is_refused_by_resume_and_left_as_it_is(
    command: Command, interrupted: Path, name: str
) -> None:
    damage, words = DAMAGES[name]
    damage(interrupted / "checkpoint.safetensors")
    before = contents(interrupted)
    complaint(command("resume", interrupted.name), "checkpoint.safetensors", *words)
    assert contents(interrupted) == before


def test_a_damaged_checkpoint_is_refused_by_run_as_well(command: Command, interrupted: Path) -> None:
    cut(interrupted / "checkpoint.safetensors")
    before = contents(interrupted)
    settings = ["--set", "train.epochs=4", "--set", "train.lr_base=0.01", "--threads", 1]
    # `run` first says that it found an interrupted run.
    done = command("run", "--dataset", GRAPH, *settings)
    complaint(done, "checkpoint.safetensors", "damaged", underway=True)
    assert interrupted.name in done.err, "this was meant to be the same run"
    assert contents(interrupted) == before


@pytest.mark.parametrize("other", [{"encoder": {"width": 8}}, {"seed": 1}, {"ipal": {"gamma": 0.1}}], ids=str)
def test_the_checkpoint_of_another_run_is_refused(
    command: Command, interrupted: Path, tmp_path: Path, other: dict[str, Any]
) -> None:
    config, dataset = experiment.resolve(run_config({"dataset": GRAPH, "threads": 1, **other}))
    folder = RunStore(tmp_path / "elsewhere").folder_for(config)
    with pytest.raises(KeyboardInterrupt):
        experiment.run(config, dataset, folder, Watcher(3), checkpoint_every=1)
    shutil.copy(folder.checkpoint, interrupted / "checkpoint.safetensors")
    complaint(command("resume", interrupted.name), "does not fit")


def test_a_run_whose_graph_has_changed_or_gone_is_refused(command: Command, tmp_path: Path) -> None:
    path = write_graph(tmp_path / "mine.npz")
    config, dataset = experiment.resolve(run_config({"dataset": str(path), "threads": 1}))
    folder = RunStore(tmp_path / "runs").folder_for(config)
    with pytest.raises(KeyboardInterrupt):
        experiment.run(config, dataset, folder, Watcher(3), checkpoint_every=1)
    before = contents(folder.path)
    write_graph(path, x=X)
    complaint(command("resume", "mine"), "mine.npz", "content has changed")
    path.unlink()
    complaint(command("resume", "mine"), "mine.npz", "does not exist")
    assert contents(folder.path) == before


@pytest.mark.parametrize("verb", ["show", "resume"])
def test_a_folder_that_is_no_run_is_refused(command: Command, tmp_path: Path, verb: str) -> None:
    (tmp_path / "holiday").mkdir()
    (tmp_path / "runs" / "empty").mkdir(parents=True)
    complaint(command(verb, "holiday"), "holiday is no run folder", "config.yaml")
    complaint(command(verb, "empty"), "empty is no run folder", "config.yaml")
    (tmp_path / "letter.txt").touch()
    complaint(command(verb, "letter.txt"), "letter.txt", "ipal list runs")


@pytest.mark.parametrize("verb", ["show", "resume"])
def test_a_run_that_is_not_there_is_named(command: Command, verb: str) -> None:
    complaint(command(verb, "nothing"), "'nothing'", "runs", "ipal list runs")
    complaint(command(verb, "nothing", "--runs", "other"), "'nothing'", "other", "ipal list runs")


@pytest.mark.parametrize("verb", ["show", "resume"])
def test_a_name_that_fits_several_runs_lists_them(command: Command, finished: Path, verb: str) -> None:
    other = finished.with_name(finished.name.replace("seed0", "seed1"))
    shutil.copytree(finished, other)
    complaint(command(verb, "synthetic"), "fits 2 runs", finished.name, other.name, "say more")


def test_a_run_that_is_not_finished_is_not_shown_but_told_how_to_finish(command: Command, interrupted: Path) -> None:
    complaint(command("show", interrupted.name), "not finished", f"ipal resume {interrupted.name}")


def test_a_run_that_another_process_works_on_is_left_alone(command: Command, interrupted: Path) -> None:
    before = contents(interrupted)
    with RunFolder(interrupted).locked():
        complaint(command("resume", interrupted.name), "another process")
    assert contents(interrupted) == before


# ---------------------------------------------------------------------- folders that cannot be written


def test_a_file_in_the_way_of_the_runs_folder_is_named(command: Command, tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("my notes")
    complaint(command("run", *SMALL), "Cannot write", "runs", "--runs")
    assert (tmp_path / "runs").read_text() == "my notes"
    complaint(command("run", *SMALL, "--runs", "runs/deeper"), "Cannot write", "runs", "--runs")


def test_a_place_where_no_folder_can_be_made_is_named(command: Command) -> None:
    complaint(command("run", *SMALL, "--runs", "/proc/ipal-runs"), "Cannot write", "/proc/ipal-runs", "--runs")


@pytest.mark.parametrize("what", ["lock", "temporary file"])
def test_a_run_folder_that_may_not_be_written_is_named(
    command: Command, interrupted: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def refuse(*_: object, **__: object) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied")

    # Tests may run as root, who may write everywhere: the refusal itself is put in place.
    place = "filelock.FileLock.acquire" if what == "lock" else "tempfile.mkstemp"
    monkeypatch.setattr(place, refuse)
    before = contents(interrupted)
    complaint(command("resume", interrupted.name), "Permission denied", underway=what != "lock")
    assert contents(interrupted) == before


# ---------------------------------------------------------------------- no room on the disk

WRITES = 14  # config, environment, 3 tasks x 3 checkpoints, history, model, result


def fill_disk(monkeypatch: pytest.MonkeyPatch, function: str, after: int) -> list[int]:
    """From the `after`-th atomic write on, the disk is full. Returns a list that grows with every write."""
    module, name = function.split(".")
    real = getattr(sys.modules[module], name)
    calls: list[int] = []
    # Every atomic write makes two calls of fsync: for the file, and for its folder.
    most = after * (2 if name == "fsync" else 1)

    def limited(*arguments: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) > most:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*arguments, **named)

    monkeypatch.setattr(sys.modules[module], name, limited)
    return calls


def test_a_run_makes_as_many_writes_as_the_tests_below_think(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = fill_disk(monkeypatch, "os.replace", 1000)
    learn(tmp_path)
    assert len(calls) == WRITES


@pytest.mark.parametrize("after", range(WRITES))
@pytest.mark.parametrize("function", ["os.fsync", "os.replace", "tempfile.mkstemp"])
def test_a_full_disk_loses_nothing(
    tmp_path: Path, finished_once: Path, monkeypatch: pytest.MonkeyPatch, function: str, after: int
) -> None:
    config, dataset = wanted()
    folder = RunStore(tmp_path).folder_for(config)
    with monkeypatch.context() as full:
        fill_disk(full, function, after)
        with pytest.raises(StoreError, match=r"No room on the disk.*free some space.*what was saved before is whole"):
            experiment.run(config, dataset, folder, Watcher(), checkpoint_every=2)
    assert not folder.is_finished
    assert not list(folder.path.glob(".*.*")), "a half-written file was left behind"
    assert folder.checkpoint.exists() == (after > 2)
    if folder.checkpoint.exists():
        State.load(folder.checkpoint)
    result = experiment.run(config, dataset, folder, Watcher(), checkpoint_every=2)
    expected = json.loads((finished_once / "result.json").read_text())
    for part in ("accuracy_matrix", "average_performance", "per_class", "validation", "protocol", "retained"):
        assert json.loads(json.dumps(result[part])) == expected[part]
    assert folder.result()["accuracy_matrix"] == expected["accuracy_matrix"]
    assert (folder.path / "history.csv").read_bytes() == (finished_once / "history.csv").read_bytes()
    assert not folder.checkpoint.exists()


@pytest.mark.parametrize("after", range(5))
def test_every_run_that_is_listed_after_a_full_disk_can_be_resumed(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    with monkeypatch.context() as full:
        fill_disk(full, "os.replace", after)
        complaint(command("run", *SMALL), "No room on the disk", underway=True)
    for run in json.loads(command("list", "runs", "--json").out):
        done = command("resume", run["run"])
        assert done.code == 0, done.err
    assert command("run", *SMALL).code == 0


def test_the_accuracies_of_these_runs_could_differ(finished_once: Path) -> None:
    # Otherwise "the same matrix" above would be cheap.
    result = json.loads((finished_once / "result.json").read_text())
    values = {value for row in result["accuracy_matrix"] for value in row if value is not None}
    assert len(values) > 3


def test_a_full_disk_is_one_sentence_of_the_command(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as full:
        fill_disk(full, "os.replace", 4)
        sentence = complaint(command("run", *SMALL), "No room on the disk", "repeat the command", underway=True)
    assert "checkpoint.safetensors" in sentence
    done = command("run", *SMALL, "--json")
    assert done.code == 0
    assert "resuming" in done.err
    assert json.loads(done.out)["accuracy_matrix"]


def test_a_full_disk_keeps_the_model_that_was_saved_before(
    saved: Path, fitted: IPAL, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = saved.read_bytes()
    fill_disk(monkeypatch, "os.fsync", 0)
    with pytest.raises(StoreError, match="No room on the disk"):
        fitted.save(saved)
    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


def test_the_record_of_a_run_is_the_configuration_that_was_asked_for(finished_once: Path) -> None:
    # What the tests above damage is worth protecting: it describes the run in full.
    tree = yaml.safe_load((finished_once / "config.yaml").read_text())
    assert tree.pop("format") == 1
    assert run_config(tree) == wanted()[0]
