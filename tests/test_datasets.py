"""Graphs: every raw format, the graphs that need no file, the real ones, and how they are fetched."""

import gzip
import os
import sys
import types
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray

from ipal.datasets import Dataset, catalog, load
from ipal.datasets.builtin import Synthetic, parse_synthetic
from ipal.datasets.features import structural_features
from ipal.errors import ConfigError, DataError
from ipal.graph import Graph, checked_graph
from tests.conftest import write_graph

# Six nodes: an edge both ways, a self-loop, edges one way, and node 5 alone.
EDGES = np.array([[0, 1, 1, 2, 2, 3], [1, 0, 2, 2, 3, 4]])
UNDIRECTED = {(0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2), (3, 4), (4, 3)}
DIRECTED = {(0, 1), (1, 0), (1, 2), (2, 3), (3, 4)}
Y = np.array([0, 0, 1, 1, 2, 2])
COUNTS = np.array(
    [[2, 0, 0, 1], [0, 3, 0, 0], [0, 0, 0, 0], [1, 1, 0, 0], [0, 0, 5, 0], [0, 0, 0, 7]], dtype=np.float32
)


def pairs(edges: NDArray[np.int64]) -> set[tuple[int, int]]:
    found = list(map(tuple, edges.T.tolist()))
    assert len(found) == len(set(found)), "an edge is there twice"
    return set(found)


def dense(graph: Graph) -> NDArray[np.float32]:
    return graph.x.toarray() if isinstance(graph.x, sp.csr_array) else graph.x


def sparse_parts(prefix: str, matrix: sp.csr_array, values: str = "data") -> dict[str, NDArray[Any]]:
    return {
        f"{prefix}_{values}": matrix.data,
        f"{prefix}_indices": matrix.indices,
        f"{prefix}_indptr": matrix.indptr,
        f"{prefix}_shape": np.array(matrix.shape),
    }


def adjacency(edges: NDArray[np.int64] = EDGES, n: int = 6) -> sp.csr_array:
    return sp.csr_array((np.ones(edges.shape[1], dtype=np.float32), (edges[0], edges[1])), shape=(n, n))


def put_benchmark(root: Path, name: str = "cs", **changes: object) -> Path:
    """A file in the format of Coauthor, Amazon and CitationFull, where `name` is looked for."""
    path = root / catalog.CATALOG[name].path
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = {
        **sparse_parts("adj", adjacency()),
        **sparse_parts("attr", sp.csr_array(COUNTS)),
        "labels": Y,
        **changes,
    }
    np.savez(path, **{name: value for name, value in arrays.items() if value is not None})
    return path


def put_ogb(root: Path, **changes: str) -> Path:
    """The raw folder of an OGB node data set: gzipped tables without header."""
    folder = root / catalog.CATALOG["arxiv"].path
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        "edge": "".join(f"{a},{b}\n" for a, b in EDGES.T),
        "node-feat": "".join(",".join(f"{value:.6f}" for value in row) + "\n" for row in COUNTS / 8),
        "node-label": "".join(f"{label}\n" for label in Y),
        **{name.replace("_", "-"): text for name, text in changes.items()},
    }
    for name, text in texts.items():
        with gzip.open(folder / f"{name}.csv.gz", "wt") as file:
            file.write(text)
    return folder


def put_reddit(root: Path, **changes: object) -> Path:
    """The two raw files of PyTorch Geometric's Reddit: arrays, and the adjacency as scipy saves a COO matrix."""
    folder = root / catalog.CATALOG["reddit"].path
    folder.mkdir(parents=True, exist_ok=True)
    labels = np.array([0, 40, 1, 1, 2, 2])
    data: dict[str, Any] = {"feature": COUNTS.astype(np.float64), "label": labels, "node_types": np.ones(6, dtype=int)}
    coo = {"row": EDGES[0].astype(np.int32), "col": EDGES[1].astype(np.int32)}
    data |= {name: value for name, value in changes.items() if name in data}
    coo |= {name: value for name, value in changes.items() if name in coo}  # type: ignore[misc]
    np.savez(folder / "reddit_data.npz", **data)
    shape = {"data": np.ones(len(coo["row"])), "format": np.array(b"coo"), "shape": np.array([6, 6])}
    np.savez(folder / "reddit_graph.npz", **coo, **shape)
    return folder


# ---------------------------------------------------------------------- readers


def test_the_gnn_benchmark_format_is_read_with_features_made_zero_and_one(tmp_path: Path) -> None:
    put_benchmark(tmp_path)
    dataset = load("cs", tmp_path)
    assert isinstance(dataset.graph.x, sp.csr_array), "bag-of-words features stay sparse"
    assert np.array_equal(dense(dataset.graph), (COUNTS > 0).astype(np.float32))
    assert pairs(dataset.graph.edges) == UNDIRECTED
    assert dataset.y.tolist() == Y.tolist()
    assert dataset.split == (5, 2, 2, 2, 2, 2)
    assert "0/1" in dataset.preprocessing
    assert not dataset.beyond_task


def test_stored_zeros_in_the_gnn_benchmark_format_are_no_words(tmp_path: Path) -> None:
    x = sp.csr_array(COUNTS)
    x.data[0] = 0
    put_benchmark(tmp_path, attr_data=x.data)
    graph = load("cs", tmp_path).graph
    assert dense(graph)[0, 0] == 0
    assert graph.x.nnz == np.count_nonzero(COUNTS) - 1


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_features_that_are_no_numbers_are_not_made_zero_or_one(tmp_path: Path, value: float) -> None:
    counts = sp.csr_array(COUNTS).data.copy()
    counts[1] = value
    put_benchmark(tmp_path, attr_data=counts)
    with pytest.raises(DataError, match="NaN or infinite"):
        load("cs", tmp_path)


def test_a_word_stored_twice_in_the_gnn_benchmark_format_is_still_one(tmp_path: Path) -> None:
    # PyTorch Geometric adds up repeated entries and then makes them 0/1.
    put_benchmark(
        tmp_path,
        attr_data=np.ones(3, dtype=np.float32),
        attr_indices=np.array([1, 1, 0]),
        attr_indptr=np.array([0, 2, 3, 3, 3, 3, 3]),
    )
    assert dense(load("cs", tmp_path).graph).max() == 1


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


def test_an_ogb_graph_with_one_feature_is_read(tmp_path: Path) -> None:
    put_ogb(tmp_path, node_feat="1\n2\n3\n4\n5\n6\n")
    assert dense(load("arxiv", tmp_path).graph).ravel().tolist() == [1, 2, 3, 4, 5, 6]


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


def test_an_empty_ogb_table_is_refused_without_a_warning(tmp_path: Path) -> None:
    put_ogb(tmp_path, node_label="")
    with pytest.raises(DataError):
        load("arxiv", tmp_path)


def test_a_missing_ogb_table_says_how_to_get_the_data(tmp_path: Path) -> None:
    (put_ogb(tmp_path) / "edge.csv.gz").unlink()
    with pytest.raises(DataError, match="ipal data --download arxiv"):
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
        {"label": np.array(3)},
        {"row": np.arange(4), "col": np.arange(5)},
        {"row": np.array([0.5, 1.0]), "col": np.array([1.0, 2.0])},
        {"feature": np.array(3.0)},
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
    assert not dataset.beyond_task


def test_a_plain_file_with_sparse_features_is_read_and_they_stay_sparse(tmp_path: Path) -> None:
    parts = sparse_parts("x", sp.csr_array(COUNTS), "values")
    np.savez(tmp_path / "mine.npz", edge_index=EDGES, y=Y, **parts)
    graph = load(str(tmp_path / "mine.npz")).graph
    assert isinstance(graph.x, sp.csr_array)
    assert graph.x.dtype == np.float32
    assert np.array_equal(dense(graph), COUNTS)


def test_a_plain_file_may_hold_more_than_is_needed(tmp_path: Path) -> None:
    path = write_graph(tmp_path / "mine.npz", time=np.arange(40), remarks=np.array(["a", "b"]))
    assert load(str(path)).graph.num_nodes == 40


def test_a_file_in_the_data_root_is_known_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "graphs").mkdir()
    write_graph(tmp_path / "graphs" / "friends.npz")
    assert load("friends", tmp_path).graph.num_nodes == 40
    assert "friends" in catalog.all_names(tmp_path)


def test_a_path_may_start_at_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write_graph(tmp_path / "mine.npz")
    assert load("~/mine.npz").graph.num_nodes == 40


def test_edges_run_both_ways_unless_asked_otherwise(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", edge_index=EDGES, y=Y, x=COUNTS)
    assert pairs(load(str(tmp_path / "mine.npz"), undirected=True).graph.edges) == UNDIRECTED
    assert pairs(load(str(tmp_path / "mine.npz"), undirected=False).graph.edges) == DIRECTED


def test_self_loops_and_repeated_edges_are_removed() -> None:
    twice = np.concatenate([EDGES, EDGES, EDGES[:, ::-1]], axis=1)
    graph = checked_graph(COUNTS, twice, undirected=False)
    assert pairs(graph.edges) == DIRECTED
    assert (graph.edges[0] != graph.edges[1]).all()


def test_a_graph_without_edges_is_a_graph() -> None:
    graph = checked_graph(COUNTS, np.zeros((2, 0), dtype=np.int64), undirected=True)
    assert graph.edges.shape == (2, 0)
    assert np.allclose(graph.normalised.toarray(), np.eye(6))


def test_labels_stored_as_whole_floats_are_labels(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", edge_index=EDGES, y=Y.astype(np.float64), x=COUNTS)
    assert load(str(tmp_path / "mine.npz")).y.dtype == np.int64


GOOD = sp.csr_array(COUNTS)


@pytest.mark.parametrize(
    ("part", "wrong"),
    [
        pytest.param("values", GOOD.data[:-1], id="too few values"),
        pytest.param("values", np.array(1.0), id="one value, no list"),
        pytest.param("values", np.array(["a"] * GOOD.nnz), id="words for values"),
        pytest.param("indices", GOOD.indices + 1, id="a column too far"),
        pytest.param("indices", GOOD.indices - 1, id="a negative column"),
        pytest.param("indices", GOOD.indices + 0.5, id="half columns"),
        pytest.param("indptr", GOOD.indptr[:-1], id="a row too few"),
        pytest.param("indptr", GOOD.indptr[::-1], id="rows that run backwards"),
        pytest.param("indptr", GOOD.indptr + 1, id="rows that start late"),
        pytest.param("shape", np.array([6]), id="one dimension"),
        pytest.param("shape", np.array([6, 2]), id="too narrow"),
        pytest.param("shape", np.array([-6, 4]), id="negative"),
        pytest.param("shape", np.array(6), id="a number for a shape"),
        pytest.param("shape", np.array([np.inf, 4]), id="infinite"),
        pytest.param("shape", np.array("a"), id="a word for a shape"),
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


# ---------------------------------------------------------------------- content hash


def hash_of(path: Path, *, compressed: bool = False, **arrays: Any) -> str:
    (np.savez_compressed if compressed else np.savez)(path, **arrays)
    return load(str(path)).hash


def test_the_hash_follows_the_content_and_not_the_file(tmp_path: Path) -> None:
    base = {"edge_index": EDGES, "y": Y, "x": COUNTS}
    expected = hash_of(tmp_path / "a.npz", **base)
    shuffled = EDGES[:, [3, 1, 0, 5, 4, 2]]
    assert hash_of(tmp_path / "another name.npz", **base) == expected
    assert hash_of(tmp_path / "a.npz", compressed=True, **base) == expected
    assert hash_of(tmp_path / "a.npz", **base, extra=np.arange(3)) == expected
    assert hash_of(tmp_path / "a.npz", **{**base, "edge_index": shuffled}) == expected
    assert hash_of(tmp_path / "a.npz", **{**base, "edge_index": EDGES.astype(np.int32)}) == expected
    assert hash_of(tmp_path / "a.npz", **{**base, "x": COUNTS.astype(np.float64)}) == expected
    assert hash_of(tmp_path / "a.npz", **{**base, "x": np.asfortranarray(COUNTS)}) == expected
    assert hash_of(tmp_path / "a.npz", **{**base, "y": Y.astype(np.float32)}) == expected


def test_the_hash_changes_with_features_edges_and_labels(tmp_path: Path) -> None:
    base = {"edge_index": EDGES, "y": Y, "x": COUNTS}
    changed = COUNTS.copy()
    changed[0, 0] += 1e-6 * 8
    hashes = [
        hash_of(tmp_path / "a.npz", **base),
        hash_of(tmp_path / "a.npz", **{**base, "x": changed}),
        hash_of(tmp_path / "a.npz", **{**base, "x": COUNTS[:, ::-1]}),
        hash_of(tmp_path / "a.npz", **{**base, "edge_index": EDGES[:, :-1]}),
        hash_of(tmp_path / "a.npz", **{**base, "y": Y[::-1].copy()}),
    ]
    assert len(set(hashes)) == len(hashes)


def test_the_hash_of_sparse_features_does_not_depend_on_the_order_in_a_row(tmp_path: Path) -> None:
    sorted_parts = sp.csr_array(COUNTS)
    turned = sorted_parts.copy()
    # Row 0 holds two entries: the same row with its entries in the other order.
    turned.indices[[0, 1]], turned.data[[0, 1]] = turned.indices[[1, 0]], turned.data[[1, 0]]
    hashes = {
        hash_of(tmp_path / "a.npz", edge_index=EDGES, y=Y, **sparse_parts("x", matrix, "values"))
        for matrix in (sorted_parts, turned)
    }
    assert len(hashes) == 1


def test_directed_and_undirected_are_different_content(tmp_path: Path) -> None:
    path = write_graph(tmp_path / "a.npz")
    assert load(str(path), undirected=True).hash != load(str(path), undirected=False).hash


# ---------------------------------------------------------------------- built in


def test_digits_need_no_file(tmp_path: Path) -> None:
    dataset = load("digits", tmp_path / "nothing here")
    assert dataset.graph.num_nodes == 1797
    assert dataset.graph.num_features == 64
    assert dataset.num_classes == 10
    assert dataset.split == (4, 2, 2, 2)
    assert 0 <= dense(dataset.graph).min() <= dense(dataset.graph).max() <= 1
    degrees = np.bincount(dataset.graph.edges[1], minlength=1797)
    assert degrees.min() >= 8, "each image is joined to its eight nearest"
    assert "more than one task" in dataset.preprocessing
    assert dataset.hash == load("digits").hash


def test_the_size_of_a_synthetic_graph_is_as_asked() -> None:
    dataset = load("synthetic:nodes=3000,classes=7,features=9,degree=12")
    assert (dataset.graph.num_nodes, dataset.graph.num_features, dataset.num_classes) == (3000, 9, 7)
    assert dataset.graph.edges.shape[1] / 3000 == pytest.approx(12, rel=0.15)


@pytest.mark.parametrize("homophily", [0.0, 0.3, 0.6, 0.9])
def test_the_homophily_of_a_synthetic_graph_is_roughly_as_asked(homophily: float) -> None:
    dataset = load(f"synthetic:nodes=4000,classes=20,degree=10,homophily={homophily}")
    source, target = dataset.graph.edges
    inside = np.mean(dataset.y[source] == dataset.y[target])
    # Edges that may end anywhere also stay inside now and then: once in 20 classes.
    assert inside == pytest.approx(homophily + (1 - homophily) / 20, abs=0.04)


def test_a_synthetic_graph_is_the_same_every_time_and_another_with_another_seed() -> None:
    one, again, other = (load(f"synthetic:nodes=300,seed={seed}") for seed in (4, 4, 5))
    assert one.hash == again.hash
    assert one.hash != other.hash
    assert np.array_equal(dense(one.graph), dense(again.graph))


def test_more_signal_sets_the_classes_further_apart() -> None:
    def spread(signal: float) -> float:
        dataset = load(f"synthetic:nodes=600,classes=3,features=8,signal={signal}")
        centres = np.stack([dense(dataset.graph)[dataset.y == label].mean(axis=0) for label in range(3)])
        return float(np.linalg.norm(centres[0] - centres[1]))

    assert spread(0) < spread(1) < spread(4)


def test_degrees_of_a_synthetic_graph_are_uneven() -> None:
    degrees = np.bincount(load("synthetic:nodes=3000").graph.edges[0], minlength=3000)
    assert degrees.max() > 4 * degrees.mean()


@pytest.mark.parametrize("size", ["nodes=1,classes=1", "nodes=3,classes=5", "nodes=5,degree=0", "nodes=2,degree=50"])
def test_a_very_small_synthetic_graph_is_a_graph(size: str) -> None:
    dataset = load(f"synthetic:{size}")
    assert dataset.graph.num_nodes == len(dataset.y)


def test_the_size_of_a_synthetic_graph_is_parsed() -> None:
    assert parse_synthetic("synthetic") == Synthetic()
    assert parse_synthetic("synthetic:nodes=5, classes=2") == Synthetic(nodes=5, classes=2)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("synthetic:nods=5", "Did you mean 'nodes'"),
        ("synthetic:nodes", "NAME=VALUE"),
        ("synthetic:nodes=many", "'nodes' cannot be 'many'"),
        ("synthetic:nodes=0", "'nodes' cannot be '0'"),
        ("synthetic:homophily=2", "'homophily'"),
        ("synthetic:degree=nan", "'degree'"),
        ("synthetic:degree=inf", "'degree'"),
    ],
)
def test_a_wrong_size_is_named(name: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(name)
    assert words in str(caught.value)


# ---------------------------------------------------------------------- structural features


def test_structural_features_are_what_the_recipe_says(tiny: Dataset) -> None:
    """The recipe written out with dense matrices."""
    graph = tiny.graph
    n = graph.num_nodes
    a = np.eye(n)
    a[graph.edges[1], graph.edges[0]] = 1
    scale = 1 / np.sqrt(a.sum(axis=1))
    a = scale[:, None] * a * scale
    x = np.random.default_rng(0).normal(size=(n, 128))
    kept = []
    for _ in range(4):
        x = a @ x
        x = x / np.linalg.norm(x, axis=1, keepdims=True)
        kept.append(x)
    made = structural_features(graph)
    assert made.shape == (n, 384)
    assert made.dtype == np.float32
    assert np.allclose(made, np.concatenate(kept[1:], axis=1), atol=1e-5)


def test_structural_features_are_the_same_every_time_and_of_unit_length(tiny: Dataset) -> None:
    made = structural_features(tiny.graph)
    assert np.array_equal(made, structural_features(tiny.graph))
    for third in np.split(made, 3, axis=1):
        assert np.allclose(np.linalg.norm(third, axis=1), 1, atol=1e-5)


def test_a_graph_without_features_gets_structural_ones_and_its_record_says_so(tmp_path: Path) -> None:
    path = write_graph(tmp_path / "mine.npz", x=None)
    dataset = load(str(path))
    assert dataset.graph.x.shape == (40, 384)
    assert dataset.beyond_task
    assert "structural features" in dataset.preprocessing
    assert "later tasks' nodes included" in dataset.preprocessing
    assert dataset.hash == load(str(path)).hash


def test_structural_features_come_from_the_graph_made_undirected(tmp_path: Path) -> None:
    path = write_graph(tmp_path / "mine.npz", x=None)
    directed, undirected = (load(str(path), undirected=way) for way in (False, True))
    assert np.array_equal(dense(directed.graph), dense(undirected.graph))
    assert directed.graph.edges.shape[1] < undirected.graph.edges.shape[1]


# ---------------------------------------------------------------------- real graphs

REAL = {
    "cs": (18_333, 163_788, 6_805, 15),
    "physics": (34_493, 495_924, 8_415, 5),
    "computers": (13_752, 491_722, 767, 10),
    "photo": (7_650, 238_162, 745, 8),
    "dblp": (17_716, 105_734, 1_639, 4),
    "cora-ml": (2_995, 16_316, 2_879, 7),
    "corafull-proxy": (19_793, 126_842, 256, 70),
}


@pytest.mark.parametrize("name", REAL)
def test_a_real_graph_has_the_published_size(name: str, real_data: Path) -> None:
    if not (real_data / catalog.CATALOG[name].path).exists():
        pytest.skip(f"{name} is not here")
    dataset = load(name, real_data)
    graph = dataset.graph
    assert (graph.num_nodes, graph.edges.shape[1], graph.num_features, dataset.num_classes) == REAL[name]
    if dataset.split is not None:
        assert sum(dataset.split) == dataset.num_classes


def test_a_proxy_says_what_it_is_and_that_its_features_look_beyond_the_task(real_data: Path) -> None:
    dataset = load("corafull-proxy", real_data)
    assert dataset.beyond_task
    assert "not CoraFull-CL results" in dataset.remark


def test_cs_is_what_pytorch_geometric_reads(real_data: Path) -> None:
    from torch_geometric.io import read_npz

    theirs = read_npz(str(real_data / catalog.CATALOG["cs"].path))
    ours = load("cs", real_data)
    rows, columns = (part.numpy() for part in theirs.x.nonzero(as_tuple=True))
    values = theirs.x[rows, columns].numpy()
    assert isinstance(ours.graph.x, sp.csr_array)
    assert abs(ours.graph.x - sp.csr_array((values, (rows, columns)), shape=theirs.x.shape)).max() == 0
    n = ours.graph.num_nodes
    keys = [edges[0] * n + edges[1] for edges in (ours.graph.edges, theirs.edge_index.numpy())]
    assert np.array_equal(np.sort(keys[0]), np.sort(keys[1]))
    assert np.array_equal(ours.y, theirs.y.numpy())


# ---------------------------------------------------------------------- the catalog and downloads

STOCK = {name: entry for name, entry in catalog.CATALOG.items() if entry.download}
EXPECTED_CALLS = {
    "cs": ("Coauthor", ("pyg", "CS")),
    "physics": ("Coauthor", ("pyg", "Physics")),
    "computers": ("Amazon", ("pyg", "Computers")),
    "photo": ("Amazon", ("pyg", "Photo")),
    "corafull": ("CitationFull", ("pyg", "Cora")),
    "dblp": ("CitationFull", ("pyg", "DBLP")),
    "cora-ml": ("CitationFull", ("pyg", "Cora_ML")),
    "reddit": ("Reddit", ("pyg/Reddit",)),
    "arxiv": ("PygNodePropPredDataset", ("ogbn-arxiv", "pyg")),
}
Calls = list[tuple[str, tuple[str, ...]]]


def stand_in(monkeypatch: pytest.MonkeyPatch, act: Callable[..., object]) -> None:
    """Put `act` in place of every class that downloads, so that no test goes to the network."""
    import torch_geometric.datasets as stock

    def fake(name: str) -> Callable[..., object]:
        return lambda *arguments, **named: act(name, *arguments, *named.values())

    for name in ("Coauthor", "Amazon", "CitationFull", "Reddit"):
        monkeypatch.setattr(stock, name, fake(name))
    ogb = types.SimpleNamespace(PygNodePropPredDataset=fake("PygNodePropPredDataset"))
    monkeypatch.setitem(sys.modules, "ogb", types.ModuleType("ogb"))
    monkeypatch.setitem(sys.modules, "ogb.nodeproppred", ogb)


def test_every_graph_with_a_download_is_tested_here() -> None:
    assert set(EXPECTED_CALLS) == set(STOCK)


@pytest.mark.parametrize("name", STOCK)
def test_a_graph_is_fetched_with_its_stock_class(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Calls = []
    stand_in(monkeypatch, lambda stock, *arguments: calls.append((stock, arguments)))
    catalog.download(name, tmp_path)
    stock, arguments = EXPECTED_CALLS[name]
    there = tuple(str(tmp_path / part) if part.startswith("pyg") else part for part in arguments)
    assert calls == [(stock, there)]


@pytest.mark.parametrize("name", [name for name in STOCK if name != "arxiv"])
def test_the_stock_class_puts_the_file_where_it_is_looked_for(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch_geometric.data import InMemoryDataset

    paths: list[Path] = []
    # The real classes, with the fetching and processing taken out: what is left is where their files lie.
    monkeypatch.setattr(InMemoryDataset, "_download", lambda self: paths.extend(map(Path, self.raw_paths)))
    monkeypatch.setattr(InMemoryDataset, "_process", lambda self: None)
    monkeypatch.setattr(InMemoryDataset, "load", lambda self, path: None)
    catalog.download(name, tmp_path)
    wanted = tmp_path / catalog.CATALOG[name].path
    assert paths == [wanted] or {path.parent for path in paths} == {wanted}


@pytest.mark.parametrize(
    "failure",
    [OSError("no route to host"), RuntimeError("HTTP 404"), zipfile.BadZipFile("File is not a zip file")],
    ids=lambda failure: type(failure).__name__,
)
def test_a_failed_download_says_what_to_put_where(
    failure: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise failure

    stand_in(monkeypatch, fail)
    with pytest.raises(DataError) as caught:
        catalog.download("reddit", tmp_path)
    message = str(caught.value)
    assert str(failure) in message
    assert str(tmp_path / "pyg/Reddit/raw") in message
    assert "--data-root" in message


def test_a_missing_ogb_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ogb.nodeproppred", None)
    with pytest.raises(DataError, match=r"pip install 'ipal\[ogb\]'"):
        catalog.download("arxiv", tmp_path)


def test_a_graph_that_nobody_serves_says_where_to_bring_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="bring its file to") as caught:
        catalog.download("corafull-proxy", tmp_path)
    assert str(tmp_path / "graphs/corafull-proxy.npz") in str(caught.value)


@pytest.mark.parametrize("name", catalog.BUILT_IN)
def test_a_graph_that_is_built_in_needs_no_download_and_says_so(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        catalog.download(name, tmp_path)
    assert "Unknown dataset" not in str(caught.value)
    assert "no file" in str(caught.value) or "built in" in str(caught.value)


@pytest.mark.parametrize("name", catalog.CATALOG)
def test_a_known_graph_that_is_not_here_says_how_to_get_it(name: str, tmp_path: Path) -> None:
    entry = catalog.CATALOG[name]
    with pytest.raises(DataError) as caught:
        load(name, tmp_path)
    message = str(caught.value)
    assert str(tmp_path / entry.path) in message
    assert "--data-root" in message
    assert "IPAL_DATA" in message
    assert (f"ipal data --download {name}" in message) == bool(entry.download)
    facts = catalog.describe(name, tmp_path)
    assert facts["here"] is False
    assert facts["how_to_get"] == message


def test_the_data_root_is_the_one_given_or_named_or_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPAL_DATA", str(tmp_path / "named"))
    assert catalog.data_root(tmp_path / "given") == tmp_path / "given"
    assert catalog.data_root() == tmp_path / "named"
    monkeypatch.delenv("IPAL_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert catalog.data_root() == tmp_path / ".cache" / "ipal"


def test_loading_leaves_the_data_folder_as_it_was(tmp_path: Path) -> None:
    def files() -> Iterator[tuple[str, int]]:
        for folder, _, names in os.walk(tmp_path):
            yield from ((f"{folder}/{name}", os.stat(f"{folder}/{name}").st_mtime_ns) for name in names)

    put_benchmark(tmp_path)
    put_ogb(tmp_path)
    put_reddit(tmp_path)
    before = sorted(files())
    for name in ("cs", "arxiv", "reddit"):
        load(name, tmp_path)
    assert sorted(files()) == before
