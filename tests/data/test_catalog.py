"""The catalog: what is known, where it is looked for, how it is fetched."""

import sys
import types
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from ipal.data.csr import Neighbours
from ipal.data.datasets import catalog, edge_homophily, load
from ipal.errors import DataError
from tests.data.support import COUNTS, EDGES, UNDIRECTED, Y, dense, pairs

STOCK = {name: entry for name, entry in catalog.CATALOG.items() if entry.download}
REWRITTEN = [name for name, entry in STOCK.items() if entry.path.startswith("graphs/")]
MADE_BY_STOCK = Data(x=torch.tensor(COUNTS), edge_index=torch.tensor(EDGES), y=torch.tensor(Y))


def stand_in(monkeypatch: pytest.MonkeyPatch, act: Callable[..., object]) -> None:
    """Put `act` in place of every class that downloads, so that no test goes to the network."""
    import torch_geometric.datasets as stock

    def fake(name: str) -> Callable[..., object]:
        return lambda *arguments, **named: act(name, *arguments, *named.values())

    for name in {entry.download.partition(":")[0] for entry in STOCK.values()} - {"OGB"}:
        monkeypatch.setattr(stock, name, fake(name))
    ogb = types.SimpleNamespace(PygNodePropPredDataset=fake("PygNodePropPredDataset"))
    monkeypatch.setitem(sys.modules, "ogb", types.ModuleType("ogb"))
    monkeypatch.setitem(sys.modules, "ogb.nodeproppred", ogb)


@pytest.mark.parametrize("x", [MADE_BY_STOCK.x, MADE_BY_STOCK.x.to_sparse_csr()], ids=["dense", "sparse"])
@pytest.mark.parametrize("name", ["wiki", "citeseer"])
def test_what_a_stock_class_made_is_read_as_a_plain_file(
    name: str, x: torch.Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch, lambda *_: [Data(x=x, edge_index=MADE_BY_STOCK.edge_index, y=MADE_BY_STOCK.y)])
    catalog.download(name, tmp_path)
    found = load(name, tmp_path)
    assert np.array_equal(dense(found.graph), COUNTS)
    assert pairs(found.graph.edges) == UNDIRECTED
    # Node 2 has no features.
    assert found.y.tolist() == ([0, 0, -1, 1, 2, 2] if name == "citeseer" else Y.tolist())
    assert ("1 of 6 nodes have no label" in found.remark) == (name == "citeseer")


@pytest.mark.parametrize("name", [name for name in STOCK if name not in ("arxiv", *REWRITTEN)])
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


def test_a_package_that_a_stock_class_needs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ogb.nodeproppred", None)
    with pytest.raises(DataError, match=r"pip install 'ipal\[ogb\]'"):
        catalog.download("arxiv", tmp_path)

    def fail(*_: object) -> None:
        raise ModuleNotFoundError("No module named 'pandas'", name="pandas")

    stand_in(monkeypatch, fail)
    with pytest.raises(DataError, match=r"needs pandas: pip install 'ipal\[pandas\]'"):
        catalog.download("wiki", tmp_path)


@pytest.mark.parametrize(
    ("name", "words"), [("chameleon", "bring its file to .*graphs/chameleon.npz"), ("digits", "made in memory")]
)
def test_a_graph_that_nobody_serves_says_so(name: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=words):
        catalog.download(name, tmp_path)


@pytest.mark.parametrize("name", ["cs", "arxiv", "cora", "chameleon"])
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


def test_edge_homophily_by_hand() -> None:
    """Of three edges between nodes with a class one joins equals; the edge to a node without one does not count."""
    rows = Neighbours.of_edges(np.array([[0, 1, 2, 0], [1, 2, 0, 3]]), 4)
    assert edge_homophily(rows, np.array([0, 0, 1, -1])) == pytest.approx(1 / 3)
    assert edge_homophily(rows, np.array([0, -1, -1, -1])) is None
