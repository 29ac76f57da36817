"""Graphs as folders of mapped arrays: the same graph as before, and a sentence for whatever is wrong."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from ipal.data.dataset import content_hash
from ipal.data.datasets import catalog, convert, folders, load, look
from ipal.data.graph import Graph
from ipal.errors import DataError, StoreError
from tests.data.support import dense
from tests.support import Command, sparse_parts, write_graph

SIZE = "synthetic:nodes=60,classes=3,features=4"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    convert(SIZE, tmp_path / "mine.graph")
    return tmp_path / "mine.graph"


def sparse_graph(tmp_path: Path) -> str:
    dense_x = np.random.default_rng(0).random((40, 5)) * (np.random.default_rng(1).random((40, 5)) < 0.4)
    parts = sparse_parts("x", sp.csr_array(dense_x.astype(np.float32)), "values")
    return str(write_graph(tmp_path / "sparse.npz", x=None, **parts))


@pytest.mark.parametrize("undirected", [True, False])
@pytest.mark.parametrize("form", ["dense", "sparse"])
def test_a_folder_holds_the_same_graph(form: str, undirected: bool, tmp_path: Path) -> None:
    name = SIZE if form == "dense" else sparse_graph(tmp_path)
    before = load(name, undirected=undirected)
    convert(name, tmp_path / "it.graph", undirected=undirected)
    after = load(str(tmp_path / "it.graph"), undirected=undirected)
    assert after.hash == before.hash == content_hash(after.graph, after.y)
    assert np.array_equal(dense(after.graph), dense(before.graph))
    assert np.array_equal(after.graph.edges, before.graph.edges)
    assert np.array_equal(after.y, before.y)
    assert after.graph.symmetric == undirected
    if not undirected:
        with pytest.raises(DataError, match="run one way"):
            load(str(tmp_path / "it.graph"))
    assert (after.split, after.preprocessing, after.remark) == (before.split, before.preprocessing, before.remark)
    assert after.name == str(tmp_path / "it.graph")


def test_arrays_are_mapped_and_not_read(folder: Path) -> None:
    graph = load(str(folder)).graph
    assert all(isinstance(part, np.memmap) for part in (graph.x, graph.neighbours.indices, graph.neighbours.indptr))
    part = graph.induced(np.arange(0, 60, 2))
    assert part.num_nodes == 30
    assert np.array_equal(part.x, load(SIZE).graph.x[::2])


def test_a_folder_in_the_data_root_is_known_by_its_name(tmp_path: Path) -> None:
    convert(SIZE, tmp_path / "graphs" / "mine.graph")
    assert load("mine", tmp_path).graph.num_nodes == 60
    assert "mine" in catalog.graph_files(tmp_path)
    assert look("mine", tmp_path)["nodes"] == 60


def test_a_folder_that_is_there_is_not_written_over(folder: Path) -> None:
    with pytest.raises(StoreError, match="exists already"):
        convert(SIZE, folder)


# ---------------------------------------------------------------------- what is wrong

Break = Callable[[Path], Any]


def change(name: str, **changes: Any) -> Break:
    """Save an array again with some entries replaced (by position), or as something else (`be`)."""

    def broken(folder: Path) -> None:
        array = np.load(folder / f"{name}.npy").copy()
        if "be" in changes:
            array = changes["be"](array)
        else:
            array[changes["at"]] = changes["value"]
        np.save(folder / f"{name}.npy", array)

    return broken


def meta(**changes: object) -> Break:
    def broken(folder: Path) -> None:
        found = json.loads((folder / "meta.json").read_text())
        (folder / "meta.json").write_text(json.dumps({**found, **changes}))

    return broken


def cut(folder: Path) -> None:
    whole = (folder / "indices.npy").read_bytes()
    (folder / "indices.npy").write_bytes(whole[: len(whole) // 2])


METAS = ["[" * 10**5, '{"version": ' + "9" * 10_000 + "}", "null", "NaN"]
PLAIN = b"{'descr': '<i8', 'fortran_order': False, 'shape': "
HEADERS = [
    b"{'descr': \"'''",
    b"(" * 3000,
    b"__import__('os').getcwd()",
    PLAIN + b"(-60,), }",
    PLAIN + b"(1000000000000000000,), }",
    PLAIN + b"(" + b"9" * 400 + b",), }",
    PLAIN.replace(b"<i8", b"|O") + b"(60,), }",
]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        pytest.param(lambda folder: (folder / "indptr.npy").unlink(), "indptr.npy is missing", id="an array missing"),
        pytest.param(meta(version=2), "damaged, or of another format", id="a later version"),
        pytest.param(cut, "cut short", id="a file cut short"),
        pytest.param(change("indptr", at=3, value=10**6), "does not fit", id="row starts that fall"),
        pytest.param(change("indices", at=5, value=60), "does not fit", id="a neighbour too far"),
        pytest.param(change("indices", be=lambda a: a[::-1].copy()), "does not fit", id="neighbours out of order"),
        pytest.param(change("y", be=lambda a: a[:, None]), "does not fit", id="labels in a table"),
        pytest.param(change("y", at=0, value=-2), "was changed after it was written", id="negative labels"),
        *(pytest.param(text, r"meta\.json is damaged", id=f"meta {text[:9]}") for text in METAS),
        *(pytest.param(header, r"y\.npy is missing, damaged or cut short", id=str(header[:20])) for header in HEADERS),
    ],
)
def test_a_damaged_folder_is_refused_with_one_sentence(damage: Break | str | bytes, words: str, folder: Path) -> None:
    if isinstance(damage, str):
        (folder / "meta.json").write_text(damage)
    elif isinstance(damage, bytes):
        size = len(damage).to_bytes(4, "little")
        (folder / "y.npy").write_bytes(b"\x93NUMPY\x02\x00" + size + damage)
    else:
        damage(folder)
    with pytest.raises(DataError, match=words):
        load(str(folder))


# ---------------------------------------------------------------------- content that no longer fits its hash


def count_hashes(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """A list that grows whenever a folder's content is read through."""
    read: list[Any] = []
    monkeypatch.setattr(folders, "content_hash", lambda graph, *more: read.append(graph) or content_hash(graph, *more))
    return read


def shuffled_labels(folder: Path) -> None:
    np.save(folder / "y.npy", np.load(folder / "y.npy")[::-1].copy())


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(change("x", at=(0, 0), value=5), id="a feature"),
        pytest.param(shuffled_labels, id="labels"),
        pytest.param(meta(hash="0" * 64), id="the hash"),
    ],
)
@pytest.mark.parametrize("first", [True, False], ids=["at the first use", "later"])
def test_content_that_was_changed_is_refused(damage: Break, first: bool, folder: Path) -> None:
    if not first:
        load(str(folder))
    damage(folder)
    for use in (load, lambda name: look(name, folder.parent)):
        with pytest.raises(DataError, match=r"was changed after it was written.*write the folder again"):
            use(str(folder))


@pytest.mark.parametrize("form", ["dense", "sparse"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_features_that_are_no_numbers_are_refused_though_the_hash_fits(
    form: str, value: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = load(SIZE if form == "dense" else sparse_graph(tmp_path))
    x = source.graph.x.copy()
    (x.data if form == "sparse" else x[3])[2] = value
    bad = Graph(x, source.graph.neighbours)
    with monkeypatch.context() as careless:
        careless.setattr("ipal.data.dataset.check_finite", lambda _: None)
        folders.write_folder(tmp_path / "bad.graph", replace(source, graph=bad))
    with pytest.raises(DataError, match=r"bad\.graph: The features hold NaN or infinite values"):
        load(str(tmp_path / "bad.graph"))


def test_a_folder_is_read_through_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / folders.VERIFIED).unlink()
    read = count_hashes(monkeypatch)
    for _ in range(3):
        assert len(load(str(folder)).hash) == 64
    assert len(read) == 1


@pytest.mark.parametrize("how", ["same size and time", "renamed into place"])
def test_a_record_of_other_files_is_not_believed(how: str, folder: Path) -> None:
    load(str(folder))
    before = (folder / "x.npy").stat()
    x = np.load(folder / "x.npy")[::-1].copy()
    if how == "renamed into place":
        np.save(folder.parent / "other.npy", x)
        os.replace(folder.parent / "other.npy", folder / "x.npy")
    else:
        np.save(folder / "x.npy", x)
    os.utime(folder / "x.npy", ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(DataError, match="was changed after it was written"):
        load(str(folder))


# ---------------------------------------------------------------------- the command


def test_a_graph_is_converted_and_learned_from(command: Command, tmp_path: Path) -> None:
    (row,) = command("data", "synthetic:nodes=200,classes=4", "--convert", "mine.graph", "--json").json
    assert row["nodes"] == 200
    assert row["hash"] == load("synthetic:nodes=200,classes=4").hash
    quick = ("--method", "analytic", "--set", "analytic.width=64")
    results = [
        command("run", "--dataset", name, *quick, "--threads", 1, "--json").json
        for name in ("mine.graph", "synthetic:nodes=200,classes=4")
    ]
    assert results[0]["accuracy_matrix"] == results[1]["accuracy_matrix"]
    assert results[0]["data"] == results[1]["data"]
