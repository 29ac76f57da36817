"""Every raw format is read, and refused where its parts do not fit."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray

from ipal.data.datasets import load
from ipal.errors import DataError
from tests.data.support import (
    COUNTS,
    EDGES,
    UNDIRECTED,
    Y,
    dense,
    pairs,
    put_benchmark,
    put_ogb,
    put_reddit,
)
from tests.support import sparse_parts


def test_the_gnn_benchmark_format_is_read_with_features_made_zero_and_one(tmp_path: Path) -> None:
    put_benchmark(tmp_path)
    dataset = load("cs", tmp_path)
    assert isinstance(dataset.graph.x, sp.csr_array), "bag-of-words features stay sparse"
    assert np.array_equal(dense(dataset.graph), (COUNTS > 0).astype(np.float32))
    assert pairs(dataset.graph.edges) == UNDIRECTED
    assert dataset.y.tolist() == Y.tolist()
    assert dataset.split == (5, 2, 2, 2, 2, 2)
    assert "0/1" in dataset.preprocessing


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_features_that_are_no_numbers_are_not_made_zero_or_one(tmp_path: Path, value: float) -> None:
    counts = sp.csr_array(COUNTS).data.copy()
    counts[1] = value
    put_benchmark(tmp_path, attr_data=counts)
    with pytest.raises(DataError, match="NaN or infinite"):
        load("cs", tmp_path)


def test_names_pickled_into_the_stock_files_are_left_alone(tmp_path: Path) -> None:
    """The files that the stock classes download also hold names of nodes and words as pickled objects.

    (dmlc/dgl issue 1077: reading *all* arrays of Coauthor CS needs pickle.) The graph itself does not need them.
    """
    names = np.array(["a", "bc", None, 1, 2, 3], dtype=object)
    put_benchmark(tmp_path, node_names=names, attr_names=names, idx_to_node=np.array({0: "a"}, dtype=object))
    assert load("cs", tmp_path).graph.num_nodes == 6


def test_the_raw_tables_of_ogb_are_read(tmp_path: Path) -> None:
    put_ogb(tmp_path)
    dataset = load("arxiv", tmp_path)
    assert np.allclose(dense(dataset.graph), COUNTS / 8)
    assert dataset.graph.x.dtype == np.float32
    assert pairs(dataset.graph.edges) == UNDIRECTED
    assert dataset.y.tolist() == Y.tolist()
    assert dataset.split == (20, 5, 5, 5, 5)


@pytest.mark.parametrize(
    ("table", "text"),
    [("edge", "0,1,2\n3,4,5\n"), ("edge", "0,x\n"), ("node_label", "0.5\n"), ("node_feat", "1,2\n3\n")],
)
def test_an_ogb_table_that_is_none_is_refused_by_name(tmp_path: Path, table: str, text: str) -> None:
    put_ogb(tmp_path, **{table: text})
    with pytest.raises(DataError, match=table.replace("_", "-")):
        load("arxiv", tmp_path)


def test_an_ogb_table_that_is_cut_short_is_refused_by_name(tmp_path: Path) -> None:
    path = put_ogb(tmp_path) / "edge.csv.gz"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match=r"edge\.csv\.gz is damaged"):
        load("arxiv", tmp_path)
    path.write_text("0,1\n")
    with pytest.raises(DataError, match=r"edge\.csv\.gz is damaged"):
        load("arxiv", tmp_path)


def test_the_two_files_of_reddit_are_read_and_the_41st_class_is_dropped(tmp_path: Path) -> None:
    put_reddit(tmp_path)
    dataset = load("reddit", tmp_path)
    # Node 1 was of the 41st class: 0 stays, 2 to 5 become 1 to 4, and its edges are gone.
    assert dataset.y.tolist() == [0, 1, 1, 2, 2]
    assert pairs(dataset.graph.edges) == {(1, 2), (2, 1), (2, 3), (3, 2)}
    assert np.array_equal(dense(dataset.graph), COUNTS[[0, 2, 3, 4, 5]])
    assert dataset.graph.x.dtype == np.float32
    assert "41st class dropped" in dataset.preprocessing


@pytest.mark.parametrize("wrong", [6, -1])
def test_an_edge_of_reddit_that_points_outside_is_refused(tmp_path: Path, wrong: int) -> None:
    put_reddit(tmp_path, row=np.array([0, 1, 2, wrong]), col=np.array([1, 2, 3, 4]))
    with pytest.raises(DataError, match=f"node {wrong}"):
        load("reddit", tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"label": np.arange(5)},
        {"row": np.arange(4), "col": np.arange(5)},
        {"feature": np.full((6, 2), np.nan)},
    ],
    ids=lambda changes: "+".join(changes),
)
def test_reddit_files_whose_parts_do_not_fit_are_refused(tmp_path: Path, changes: dict[str, object]) -> None:
    put_reddit(tmp_path, **changes)
    with pytest.raises(DataError):
        load("reddit", tmp_path)


def test_a_plain_file_with_dense_features_is_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", edge_index=EDGES, y=Y, x=COUNTS.astype(np.float64))
    dataset = load(str(tmp_path / "mine.npz"))
    assert np.array_equal(dense(dataset.graph), COUNTS)
    assert dataset.graph.x.dtype == np.float32
    assert pairs(dataset.graph.edges) == UNDIRECTED
    assert dataset.split is None
    assert dataset.remark == ""


GOOD = sp.csr_array(COUNTS)


@pytest.mark.parametrize(
    ("part", "wrong"),
    [
        pytest.param("values", GOOD.data[:-1], id="too few values"),
        pytest.param("indices", GOOD.indices + 1, id="a column too far"),
        pytest.param("indptr", GOOD.indptr[:-1], id="a row too few"),
        pytest.param("shape", np.array([6, 2]), id="too narrow"),
    ],
)
def test_sparse_features_whose_parts_do_not_fit_are_refused(part: str, wrong: NDArray[Any], tmp_path: Path) -> None:
    parts = sparse_parts("x", GOOD, "values") | {f"x_{part}": wrong}
    np.savez(tmp_path / "mine.npz", edge_index=EDGES, y=Y, **parts)
    with pytest.raises(DataError, match="parts do not fit together"):
        load(str(tmp_path / "mine.npz"))


@pytest.mark.parametrize("part", ["values", "indices", "indptr", "shape"])
def test_sparse_features_that_lack_a_part_are_refused_and_not_replaced(part: str, tmp_path: Path) -> None:
    # Structural features in place of features that were meant would give numbers on another graph.
    parts = sparse_parts("x", GOOD, "values")
    del parts[f"x_{part}"]
    np.savez(tmp_path / "mine.npz", edge_index=EDGES, y=Y, **parts)
    with pytest.raises(DataError, match=f"x_{part}"):
        load(str(tmp_path / "mine.npz"))
