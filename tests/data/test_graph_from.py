"""`ipal.graph_from`: a graph from what people have, the same whatever it was, or a sentence."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch

import ipal
from ipal import DataError, graph_from
from ipal.estimator.convert.pyg import graph_of, task_of
from tests.data.test_tables import put

X = np.array([[20.0, 1], [31.5, 0], [40, 0], [20, 1]], dtype=np.float32)
LABELS = ["bot", "human", None, "shop"]
IDS = ["anna", "ben", "carl", "dora"]
ENDS = [("anna", "ben", 1.0), ("ben", "carl", 0.5), ("dora", "anna", 2.0)]


def drawn(kind: type = nx.Graph) -> Any:
    graph = kind()
    for name, label, (age, member) in zip(IDS, LABELS, X.tolist(), strict=True):
        graph.add_node(name, label=label, age=age, member=bool(member))
    graph.add_weighted_edges_from(ENDS)
    return graph


def columns() -> tuple[dict[str, Any], dict[str, Any]]:
    nodes = {"id": IDS, "label": LABELS, "age": X[:, 0], "member": X[:, 1]}
    source, target, weight = zip(*ENDS, strict=True)
    return nodes, {"source": source, "target": target, "weight": weight}


def frames() -> Any:
    pandas = pytest.importorskip("pandas")
    return tuple(pandas.DataFrame(table) for table in columns())


# ---------------------------------------------------------------------- directions

ONE_WAY = np.array([[0, 1, 3], [1, 2, 0]])
WEIGHTS = np.array([1, 0.5, 2], dtype=np.float32)


def routes(folder: Path, weighted: bool) -> dict[str, Any]:
    """The same arrays, in everything that holds them."""
    from torch_geometric.data import Data

    weights = WEIGHTS if weighted else np.ones(3, dtype=np.float32)
    arrays = {"x": X, "edge_index": ONE_WAY, "y": np.array([0, 1, -1, 2])}
    arrays |= {"edge_weight": weights} if weighted else {}
    np.savez(folder / "mine.npz", **arrays)
    nodes = {"id": range(4), "label": [0, 1, None, 2], "a": X[:, 0], "b": X[:, 1]}
    edges = {"source": ONE_WAY[0], "target": ONE_WAY[1]} | ({"weight": weights} if weighted else {})
    for name, table in (("nodes", nodes), ("edges", edges)):
        rows = zip(*table.values(), strict=True)
        lines = [",".join("" if cell is None else str(cell) for cell in row) for row in rows]
        (folder / f"{name}.csv").write_text("\n".join([",".join(table), *lines]))
    drawn = nx.DiGraph()
    for number, (label, a, b) in enumerate(zip([0, 1, None, 2], *X.T.tolist(), strict=True)):
        drawn.add_node(number, label=label, a=a, b=b)
    drawn.add_weighted_edges_from(zip(*ONE_WAY.tolist(), weights.tolist(), strict=True))
    tensors = {name: torch.from_numpy(values) for name, values in arrays.items()}
    return {
        "dict": (arrays,),
        "dict of tensors": (tensors,),
        "npz": (folder / "mine.npz",),
        "tables": (folder / "nodes.csv", folder / "edges.csv"),
        "columns": (nodes, edges),
        "networkx": (drawn,),
        "Data": (Data(**tensors, train_mask=torch.tensor([True, True, False, True])),),
    }  # fmt: skip


@pytest.mark.parametrize("weighted", [True, False], ids=["weighted", "plain"])
@pytest.mark.parametrize("directed", [True, False], ids=["directed", "default"])
def test_edges_run_both_ways_on_every_route_unless_said(tmp_path: Path, directed: bool, weighted: bool) -> None:
    forward = dict(zip(map(tuple, ONE_WAY.T.tolist()), WEIGHTS.tolist(), strict=True))
    expected = forward if directed else forward | {(b, a): weight for (a, b), weight in forward.items()}
    said = {"directed": True} if directed else {}
    for route, given in routes(tmp_path, weighted).items():
        task = task_of(graph_from(*given, **said))
        edges = list(map(tuple, task.graph.edges.T.tolist()))
        assert sorted(edges) == sorted(expected), route
        assert (task.graph.neighbours.weights is not None) == weighted, route
        if weighted:
            assert dict(zip(edges, task.graph.edge_weight.tolist(), strict=True)) == expected, route
        assert task.nodes.tolist() == [0, 1, 3], route
        assert task.labels.tolist() == [0, 1, 2], route


def test_a_data_with_both_directions_is_passed_on() -> None:
    from torch_geometric.data import Data

    ends = torch.from_numpy(np.hstack([ONE_WAY, ONE_WAY[::-1]]))
    data = Data(x=torch.from_numpy(X), edge_index=ends, edge_weight=torch.from_numpy(np.tile(WEIGHTS, 2)))
    assert graph_from(data) is data
    data.edge_weight[0] += 1  # one direction weighs more than the other: their mean counts
    assert graph_from(data).edge_weight.max() == 2
    assert graph_of(graph_from(data)).symmetric
    with pytest.raises(ipal.ConfigError, match="directed is True"):
        graph_from(data, directed="yes")


def test_files_by_their_paths(tmp_path: Path) -> None:
    folder = put(tmp_path)
    by_folder = graph_from(folder)
    by_pair = graph_from(tmp_path / "nodes.csv", tmp_path / "edges.csv")
    by_name = graph_from(f"{tmp_path}/nodes.csv,{tmp_path}/edges.csv")
    for one in (by_pair, by_name):
        assert np.array_equal(one.x, by_folder.x)
        assert one.columns == by_folder.columns
    assert repr(by_pair) == "GraphData(4 nodes, 6 edges, weighted, 5 features, 3 classes, 3 labels to learn)"


def test_a_learner_takes_it_and_names_come_back() -> None:
    data = graph_from(*columns())
    model = ipal.NCM().partial_fit(data)
    assert model.classes_.tolist() == ["bot", "human", "shop"]
    assert model.predict(data)[data.nodes(["anna"])].tolist() == ["bot"]
    some = ipal.NCM().partial_fit(replace(data, train_mask=data.y == "bot"))
    assert some.classes_.tolist() == ["bot"]


def test_words_for_no_label_are_neither_learned_nor_scored() -> None:
    from torch_geometric.data import Data

    mine = graph_from(*columns())
    model = ipal.NCM().partial_fit(mine)
    assert model.score(mine) == (model.predict(mine) == mine.y)[mine.train_mask].mean()
    for word in ("", "nan", "None", "?"):
        data = Data(x=X, edge_index=mine.edge_index, y=["bot", word, "human", "shop"])
        with pytest.raises(DataError, match=r"some say that there is none, set data\.train_mask"):
            ipal.NCM().partial_fit(data)
        assert model.score(data) == (model.predict(data) == data.y)[[0, 2, 3]].mean()


def test_columns_by_other_names_and_chosen_features() -> None:
    nodes, edges = columns()
    renamed = {"account" if name == "id" else name: values for name, values in nodes.items()} | {"note": list("wxyz")}
    ends = {"payer": edges["source"], "payee": edges["target"], "amount": edges["weight"]}
    data = graph_from(
        renamed, ends, id="account", source="payer", target="payee", weight="amount", features=["member", "age"]
    )
    assert data.columns == ("age", "member")
    assert np.array_equal(data.edge_weight, graph_from(nodes, edges).edge_weight)
    with pytest.raises(DataError, match="no column colour for features"):
        graph_from(nodes, edges, features=["colour"])
    with pytest.raises(DataError, match="no column person in the table of nodes: it has id, label"):
        graph_from(nodes, edges, id="person")


def test_what_pandas_has(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    nodes, edges = frames()
    nodes = nodes.set_index("id")
    nodes["kind"] = pandas.Categorical(["b", "b", "b", "a"], categories=["a", "b", "c"])
    nodes["count"] = pandas.array([1, 2, 3, 4], dtype="Int64")
    nodes["word"] = pandas.array(["u", "v", "u", "v"], dtype="string")
    data = graph_from(nodes, edges)
    assert data.columns == ("age", "member", "kind=a", "kind=b", "count", "word=u", "word=v")
    assert data.x[3].tolist() == [20, 1, 1, 0, 4, 0, 1]
    nodes.loc["ben", "count"] = pandas.NA
    with pytest.raises(DataError, match="column count of the table of nodes has no value in row 2"):
        graph_from(nodes, edges)
    with pytest.raises(DataError, match="column when of the table of nodes holds values of the type"):
        graph_from(nodes.drop(columns="count").assign(when=pandas.Timestamp("2020-01-01")), edges)
    with pytest.raises(DataError, match="two columns called id: give each a name of its own"):
        graph_from(nodes.assign(id=list("wxyz")), edges)
    assert graph_from(*frames()).nodes(["dora", "ben"]).tolist() == [3, 1]


def test_networkx_vectors_missing_attributes_and_directions() -> None:
    graph = nx.DiGraph([(0, 1), (1, 2)])
    for node in graph:
        graph.nodes[node].update(x=[node, 1.0], y=node)
    data = graph_from(graph, directed=True)
    assert data.x.tolist() == [[0, 1], [1, 1], [2, 1]]
    assert data.edge_index.tolist() == [[0, 1], [1, 2]]
    assert data.y.tolist() == [0, 1, 2]
    assert data.edge_weight is None
    graph.edges[0, 1]["weight"] = 3
    assert graph_from(graph, directed=True).edge_weight.tolist() == [3, 1]
    del graph.nodes[1]["x"]
    with pytest.raises(DataError, match="column x of the networkx graph"):
        graph_from(graph)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (lambda: graph_from(3), "cannot be made of a int: pass a Data"),
        (lambda: graph_from({"x": X}), "cannot be made of a dict"),
        (lambda: graph_from({"x": X, "edge_index": [[0], [1]], "colour": 1}), "no part 'colour'"),
        (lambda: graph_from({"edge_index": [[0], [1]]}), "how many nodes"),
        (lambda: graph_from({"x": X[0], "edge_index": [[0], [1]]}), r"one row per node; this one has the shape \(2,\)"),
        (lambda: graph_from({"id": [1, 2], "a": [1]}, columns()[1]), "different lengths"),
        (lambda: graph_from({"id": [1, 2], "a": [1, "x"]}, columns()[1]), "type int and str"),
        (lambda: graph_from("nowhere/"), "does not exist"),
        (lambda: graph_from(graph_from(*columns())).nodes(["nobody"]), "names the node 'nobody'"),
    ],
)
def test_what_cannot_be_read_is_a_sentence(given: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        given()
