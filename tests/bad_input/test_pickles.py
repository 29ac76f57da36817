"""Nothing is unpickled, whatever file it hides in."""

import contextlib
import io
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ipal
from ipal import DataError, StoreError
from ipal.data.datasets import load
from tests.bad_input.support import E, X, Y, refused
from tests.support import Command, complaint, write_graph


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
