"""Graphs that are missing, broken or too small are refused with the reason."""

import itertools
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

from ipal import DataError
from ipal.data.datasets import load
from tests.bad_input.support import LEARN, E, X, Y, one, refused
from tests.support import Command, complaint, write_graph

# ---------------------------------------------------------------------- graphs that are not there


def test_a_graph_that_is_not_there_says_where_to_put_it(command: Command, tmp_path: Path) -> None:
    path = str(tmp_path / "no-data" / "pyg/CS/raw/ms_academic_cs.npz")
    complaint(command("run", "--dataset", "cs"), path, "ipal data --download cs", "--data-root", "IPAL_DATA")
    # The command says what it is about to fetch before it tries.
    done = command("data", "arxiv-structure", "--download")
    complaint(done, "cannot be downloaded", "graphs/arxiv-structure.npz", underway=True)
    complaint(command("run", "--dataset", "mine.npz"), str(tmp_path / "mine.npz"), "does not exist")


# ---------------------------------------------------------------------- graphs that are broken

BROKEN: dict[str, tuple[dict[str, object], list[str]]] = {
    "edge too far": ({"edge_index": one(E, (1, 3), 40)}, ["points to node 40", "0 to 39"]),
    "edges turned": ({"edge_index": E.T}, ["edge_index", "2 x edges", "(120, 2)"]),
    "x NaN": ({"x": one(X, (3, 2), np.nan)}, ["features", "NaN or infinite"]),
    "too few labels": ({"y": Y[:-1]}, ["39 labels for 40 nodes"]),
    "labels in a column": ({"y": Y[:, None]}, ["40 labels for 40 nodes", "(40, 1)"]),
    "labels too large": ({"y": np.full(40, 2**64 - 1, dtype=np.uint64)}, ["labels are not whole numbers"]),
    "labels fractional": ({"y": Y + 0.5}, ["labels", "whole numbers", "0, 1, 2"]),
    "labels NaN": ({"y": np.full(40, np.nan)}, ["No node", "has a label"]),
    "labels of no text": ({"y": np.array([b"\xff"] * 40)}, ["array y", "not numbers"]),
    "labels missing by words": ({"y": np.array(["NaN", "none", "?", "-1.0"] * 10)}, ["No node", "has a label"]),
    "labels fractional words": ({"y": np.array(["0.5", "1", "2", "3"] * 10)}, ["A label is 0.5", "not fractions"]),
    "ids twice": ({"ids": np.array(["a", "b"] * 20)}, ["'ids'", "all different"]),
    "no nodes": ({"x": X[:0], "y": Y[:0], "edge_index": E[:, :0]}, ["empty"]),
    "no edge_index": ({"edge_index": None}, ["lacks the array(s) edge_index", "y", "x"]),
    "nothing": ({"edge_index": None, "y": None, "x": None}, ["lacks the array(s) edge_index, y"]),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_graph_is_refused_with_the_reason(tmp_path: Path, name: str) -> None:
    changes, words = BROKEN[name]
    with pytest.raises(DataError) as found:
        load(str(write_graph(tmp_path / "mine.npz", **changes)))
    assert all(word in str(found.value) for word in words), found.value


def test_other_files_get_one_sentence_from_the_command(command: Command, tmp_path: Path) -> None:
    path = write_graph(tmp_path / "mine.npz")
    with path.open("wb") as file:
        np.save(file, X)  # a single array: .npy, not .npz
    refused(command, path, str(path))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello")
    refused(command, path, str(path), "lacks the array(s) edge_index, y")


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
    # In the headers at both ends, each kind of file at every other place, and now and then between them.
    places = [*range(200), *range(200, len(whole) - 400, 61), *range(max(200, len(whole) - 400), len(whole))]
    for place in places[compressed::2]:
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


# ---------------------------------------------------------------------- classes too small to split


def with_small_class(path: Path) -> Path:
    """Four classes, the last of two nodes: one part of the split would stay empty."""
    return write_graph(path, y=np.where(np.arange(40) >= 38, 3, np.arange(40) % 3))


def test_classes_too_small_to_split_are_named_or_dropped_where_asked(command: Command, tmp_path: Path) -> None:
    run = ["run", "--dataset", with_small_class(tmp_path / "mine.npz"), *LEARN]
    words = ("Too few training, validation or test nodes", "class 3 (2 node(s))", "protocol.small_classes=drop")
    complaint(command(*run), *words)
    assert not (tmp_path / "runs").exists()
    drop = ["--set", "protocol.small_classes=drop"]
    protocol = command(*run, *drop, "--json").json["protocol"]
    assert protocol["small_classes"] == "drop"
    assert protocol["dropped_classes"] == [3]
    assert sorted(itertools.chain(*protocol["classes"])) == [0, 1, 2]
    write_graph(tmp_path / "mine.npz", y=np.arange(40) // 2)
    complaint(command(*run, *drop), "No class is left", "a training, a validation and a test node")


# ---------------------------------------------------------------------- what is no plain file


def test_a_pipe_a_device_or_a_folder_is_no_graph_and_is_not_waited_for(command: Command, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.npz")
    (tmp_path / "folder.npz").mkdir()
    for name in ("pipe.npz", "folder.npz", "/dev/zero"):
        complaint(command("data", name if name.startswith("/") else tmp_path / name), name)
    for name in ("pipe.npz", "folder.npz", "/dev/zero"):
        complaint(command("run", "--config", name), name, "cannot be read")
