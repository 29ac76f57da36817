"""Graphs in tables of nodes and edges: what is read, and what is refused with a sentence."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ipal
from ipal.data.datasets import load, tables
from ipal.data.labels import labelled
from ipal.errors import CapacityError, DataError, IgnoredInput
from tests.support import write_graph

NODES = """id,label,age,country,member
anna,bot,20,DE,1
ben,human,31.5,FR,0
carl,,40,DE,0
dora,shop,2e1,US,1
"""
EDGES = "source,target,weight,when\nanna,ben,1,monday\nben,carl,0.5,friday\ndora,anna,2,sunday\n"


def put(folder: Path, nodes: str = NODES, edges: str = EDGES) -> str:
    (folder / "nodes.csv").write_text(nodes)
    (folder / "edges.csv").write_text(edges)
    return f"{folder}/"


def refusal(folder: Path, nodes: str = NODES, edges: str = EDGES) -> str:
    with pytest.raises(DataError) as found:
        load(put(folder, nodes, edges))
    assert str(found.value).count(". ") == 0, "one sentence"
    return str(found.value)


def test_two_tables_are_a_graph(tmp_path: Path) -> None:
    dataset = load(put(tmp_path))
    assert dataset.graph.columns == ("age", "country=DE", "country=FR", "country=US", "member")
    assert dataset.graph.x.tolist() == [[20, 1, 0, 0, 1], [31.5, 0, 1, 0, 0], [40, 1, 0, 0, 0], [20, 0, 0, 1, 1]]
    assert dataset.y.tolist() == ["bot", "human", "", "shop"]
    assert dataset.ids is not None
    assert dataset.ids.tolist() == ["anna", "ben", "carl", "dora"]
    assert sorted(zip(*dataset.graph.edges.tolist(), strict=True)) == [(0, 1), (0, 3), (1, 0), (1, 2), (2, 1), (3, 0)]
    assert dataset.graph.edge_weight is not None
    assert sorted(dataset.graph.edge_weight.tolist()) == [0.5, 0.5, 1, 1, 2, 2]
    assert dataset.num_classes == 3
    assert "1 of 4 nodes have no label" in dataset.remark
    assert load(str(tmp_path), undirected=False).graph.num_edges == 3


def test_the_same_graph_by_the_names_of_both_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = load(put(tmp_path))
    monkeypatch.chdir(tmp_path)
    named = load("nodes.csv, edges.csv")
    assert named.hash == whole.hash
    assert load(named.name).name == named.name == f"{tmp_path}/nodes.csv,{tmp_path}/edges.csv"
    monkeypatch.chdir(tmp_path.parent)
    assert load(tmp_path.name).hash == whole.hash
    assert load(f"{named.name},digits").graph.num_nodes == 4 + 1797


@pytest.mark.parametrize("separator", [";", "\t"])
def test_separators_marks_and_quotes(tmp_path: Path, separator: str) -> None:
    expected = load(put(tmp_path)).hash
    nodes = "\ufeff" + NODES.replace(",", separator).replace("anna", '"anna"').replace("\n", "\r\n")
    assert load(put(tmp_path, nodes, EDGES.replace(",", separator))).hash == expected


def test_numbers_with_a_comma_between_semicolons(tmp_path: Path) -> None:
    """Separators in quoted names do not count; a line between digits, which Python reads over, makes a text."""
    nodes = 'id;label;"a, b, c, d";flat\n1;u;2,5;1_0\n2;v;NA;2_1\n'
    with pytest.raises(DataError, match=r"column a, b, c, d of nodes\.csv has no value in row 2"):
        load(put(tmp_path, nodes, "source;target\n1;2\n"))
    dataset = load(put(tmp_path, nodes.replace("NA", "3,5"), "source;target\n1;2\n"))
    assert dataset.graph.columns == ("a, b, c, d", "flat=1_0", "flat=2_1")
    assert dataset.graph.x[:, 0].tolist() == [2.5, 3.5]
    dataset = load(put(tmp_path, "id;label;x\n1;a;1,5\n2;b;2\n", "source;target;weight\n1;2;0,5\n"))
    assert dataset.graph.x.tolist() == [[1.5], [2]]
    assert dataset.graph.edge_weight is not None
    assert dataset.graph.edge_weight.tolist() == [0.5, 0.5]


def test_numbers_as_ids_and_labels_stay_numbers(tmp_path: Path) -> None:
    dataset = load(put(tmp_path, "id,class,x\n7,0,1\n12,5,2\n9,,3\n", "src,dst\n7,12\n9,7\n"))
    assert dataset.y.tolist() == [0, 5, -1]
    assert labelled(dataset.y).tolist() == [True, True, False]
    assert dataset.ids is not None
    assert dataset.ids.tolist() == [7, 12, 9]
    assert load(put(tmp_path, "id,class,x\n007,0,1\n7,5,2\n", "src,dst\n7,007\n")).ids.tolist() == ["007", "7"]  # type: ignore[union-attr]
    assert load(put(tmp_path, "id,class,x\n0,0,1\n1,5,2\n", "src,dst\n1,0\n")).ids is None


def test_time_domain_and_split_are_facts_not_features(tmp_path: Path) -> None:
    dataset = load(put(tmp_path, "ID,Label,Time,SPLIT,x\na,u,3,0,1\nb,v,4,2,1\n", "Source,TARGET\na,b\n"))
    assert dataset.graph.columns == ("x",)
    assert dataset.facts["time"].tolist() == [3, 4]
    assert dataset.facts["split"].tolist() == [0, 2]


@pytest.mark.parametrize("word", ["", "NaN", "None", "n/a", "<NA>", "?", " - ", "-1", "-1.0"])
@pytest.mark.parametrize("labels", [["bot", "shop"], ["0.0", "5"]], ids=str)
def test_what_says_that_there_is_no_label_is_no_class(tmp_path: Path, word: str, labels: list[str]) -> None:
    """The same from a table in a file, a table in memory, an array of strings, and an .npz file."""
    y = [labels[0], word, labels[1], word]
    rows = "".join(f"{node},{label},{node}\n" for node, label in enumerate(y))
    write_graph(tmp_path / "a.npz", y=np.array(y), x=np.ones((4, 1)), edge_index=np.array([[0], [1]]))
    ends = {"source": [0], "target": [1]}
    found = [
        load(put(tmp_path, f"id,label,size\n{rows}", "source,target\n0,1\n")).y,
        ipal.graph_from({"id": range(4), "label": y, "size": range(4)}, ends).y,
        ipal.graph_from({"x": np.ones((4, 1)), "edge_index": [[0], [1]], "y": y}).y,
        load(f"{tmp_path}/a.npz").y,
    ]
    assert all(labelled(one).tolist() == [True, False, True, False] for one in found)
    expected = [0, 5] if labels[0].startswith("0") else labels
    assert all(one[[0, 2]].tolist() == expected for one in found)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["0", "0.0", "1", "1.0", "1."], [0, 0, 1, 1, 1]),
        (["0.000000000000000000e+00", "1e+00", "+2", "-0", "2"], [0, 1, 2, 0, 2]),
        (["1", "1.0", "X", "2.50", "-2"], ["1", "1", "X", "2.50", "-2"]),
        (["01", "1", "1.0", "1E5", "2"], ["01", "1", "1", "1E5", "2"]),
        (["True", "FALSE", "true", "false", ""], [1, 0, 1, 0, -1]),
        (["true", "maybe", "True", "true", ""], ["true", "maybe", "True", "true", ""]),
        (["12345678901234567890", "1", "2", "3", "4"], ["12345678901234567890", "1", "2", "3", "4"]),
    ],
)
def test_a_label_is_one_however_it_is_written(tmp_path: Path, given: list[str], expected: list[Any]) -> None:
    rows = "".join(f"{node},{label},{node}\n" for node, label in enumerate(given))
    assert load(put(tmp_path, f"id,label,size\n{rows}", "source,target\n0,1\n")).y.tolist() == expected
    assert ipal.graph_from({"x": np.ones((5, 1)), "edge_index": [[0], [1]], "y": given}).y.tolist() == expected


def test_a_second_label_is_a_feature_only_where_it_is_named_as_one() -> None:
    nodes = {"id": [1, 2, 3], "kind": ["a", "b", "c"], "class": [0, 1, 0], "time": [5, 6, 7], "size": [1.0, 2, 3]}
    edges = {"source": [1, 2], "target": [2, 3]}
    with pytest.raises(
        DataError, match=r"Two columns of the table of nodes may be its label, kind and class.*features="
    ):
        ipal.graph_from(nodes, edges, label="kind")
    chosen = ipal.graph_from(nodes, edges, label="kind", features=["size"])
    assert (chosen.columns, chosen.y.tolist()) == (("size",), ["a", "b", "c"])
    both = ipal.graph_from(nodes, edges, label="kind", features=["size", "class"])
    assert both.columns == ("class", "size")
    with pytest.raises(DataError, match="may be its id, account and id"):
        ipal.graph_from({**nodes, "account": [7, 8, 9]}, {"source": [7], "target": [8]}, id="account", label="kind")
    ends = {"id": [1, 2], "y": [2, 3]}
    assert ipal.graph_from(
        {"id": [1, 2, 3], "y": [0, 1, 0], "size": [1, 2, 3]}, ends, source="id", target="y"
    ).edge_index.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]], "names of one table do not touch those of the other"


BLANK = ["\n", "\r\n", "  \n"]


@pytest.mark.parametrize("blank", BLANK, ids=repr)
@pytest.mark.parametrize("width", [3, 11_000])
def test_blank_lines_end_nothing(tmp_path: Path, blank: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the names, between rows, and more of them than are read at once."""
    extra = width - 2
    names = ",".join(["id", "label", *(f"x{number}" for number in range(extra))])
    rows = [f"{row},{row % 2}{f',{row}' * extra}\n" for row in range(20)]
    pause = blank * (7000 if width == 3 else 2)
    text = f"{blank}{names}\n{blank}{''.join(rows[:7])}{pause}{''.join(rows[7:])}{blank}"
    dataset = load(put(tmp_path, text, f"source,target{blank}{blank}0,1\n{blank}19,18\n"))
    assert dataset.graph.x[:, 0].tolist() == list(range(20))
    assert dataset.graph.num_features == extra
    assert dataset.graph.num_edges == 4


def test_a_column_without_a_name_is_not_used(tmp_path: Path) -> None:
    nodes = "\n".join(f"{place},{line}" if place else f",{line}" for place, line in enumerate(NODES.splitlines()))
    with pytest.warns(IgnoredInput, match="without a name"):
        assert load(put(tmp_path, nodes)).graph.columns[0] == "age"


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        (NODES.replace("id,", "name,"), ["no column id in nodes.csv", "it has name, label, age", "rename"]),
        (NODES.replace("carl,", "anna,"), ["Rows 1 and 3 of nodes.csv are both 'anna'"]),
        (NODES.replace("carl,", ","), ["Row 3 of nodes.csv has no id"]),
        (NODES.replace(",40,", ",,"), ["column age of nodes.csv has no value in row 3", "mean"]),
        (NODES.replace("FR", ""), ["column country of nodes.csv has no value in row 2", "unknown"]),
        (NODES.replace(",40,", ",inf,"), ["infinite"]),
        (NODES.replace(",40,", ",4,0,"), ["Row 3 of nodes.csv has 6 cells", "5 columns"]),
        (NODES.replace("age", "country"), ["two columns called country"]),
        (NODES.replace("age", "a=b"), ["column a=b of nodes.csv has a '='", "rename"]),
        (
            NODES.replace("bot", "-2").replace("human", "0").replace("shop", "1"),
            ["A label is -2"],
        ),
        (
            NODES.replace("bot", "0.5").replace("human", "0").replace("shop", "1"),
            ["A label is 0.5"],
        ),
        (NODES.replace("bot", "").replace("human", "").replace("shop", ""), ["No node", "has a label"]),
        (NODES.replace("age", "time").replace("31.5", "x"), ["'time' must be 4 whole numbers"]),
        (NODES.replace("age", "Time"), ["'time' must be 4 whole numbers"]),
        ("id,label\n", ["nodes.csv has no rows"]),
        (NODES.replace("ben", '"ben'), ["nodes.csv is no sound CSV file"]),
        (NODES.replace("ben", "b" * 200_000), ["nodes.csv is no sound CSV file"]),
        (NODES.replace("ben", "b" * 2000), ["2000 letters"]),
        (NODES.replace("ben", "b\0n"), ["zero byte"]),
    ],
    ids=lambda value: None if isinstance(value, list) else "",
)
def test_a_table_of_nodes_that_cannot_be_read_is_a_sentence(tmp_path: Path, nodes: str, words: list[str]) -> None:
    sentence = refusal(tmp_path, nodes)
    assert all(word in sentence for word in words), sentence


@pytest.mark.parametrize(
    ("edges", "words"),
    [
        (EDGES.replace("source", "begin"), ["no column source in edges.csv", "it has begin, target, weight, when"]),
        (EDGES.replace("carl", "nobody"), ["Row 2 of edges.csv names the target 'nobody'", "not in nodes.csv"]),
        (EDGES.replace("0.5", "-0.5"), ["Edge 2 of 3 has the weight -0.5", "positive"]),
        (EDGES.replace("0.5", "much"), ["edge_weight must hold real numbers"]),
    ],
    ids=lambda value: None if isinstance(value, list) else "",
)
def test_a_table_of_edges_that_cannot_be_read_is_a_sentence(tmp_path: Path, edges: str, words: list[str]) -> None:
    sentence = refusal(tmp_path, edges=edges)
    assert all(word in sentence for word in words), sentence


def test_no_text_and_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path)
    with monkeypatch.context() as short:
        short.setattr(tables.free_memory, "available", lambda: 100)
        with pytest.raises(CapacityError, match=r"nodes\.csv takes"):
            load(str(tmp_path))
    (tmp_path / "nodes.csv").write_bytes(b"id,label\n\xff\xfe,1\n")
    with pytest.raises(DataError, match="UTF-8"):
        load(str(tmp_path))


def test_one_table_alone_or_none_is_a_sentence(tmp_path: Path) -> None:
    put(tmp_path)
    with pytest.raises(DataError, match=r"one table, and a graph is two.*nodes\.csv,edges\.csv"):
        load(f"{tmp_path}/nodes.csv")
    with pytest.raises(DataError, match=r"graph file .*links\.csv does not exist"):
        load(f"{tmp_path}/nodes.csv,{tmp_path}/links.csv")
    with pytest.raises(DataError, match=r"no column id in edges\.csv: it has source, target"):
        load(f"{tmp_path}/edges.csv,{tmp_path}/nodes.csv")
    (tmp_path / "nodes.csv").unlink()
    with pytest.raises(DataError, match=r"holds no graph: put nodes\.csv and edges\.csv there"):
        load(str(tmp_path))


# ---------------------------------------------------------------------- Parquet


def put_parquet(folder: Path, **changes: Any) -> str:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    nodes = {
        "id": [17, 4, 2**60 + 1],
        "label": ["u", None, "v"],
        "age": [1, 2, 3],
        "vector": [[0.5, 1.5], [2.0, 3.0], [4.0, 5.0]],
        "kind": arrow.array(["x", "y", "x"]).dictionary_encode(),
        "member": [True, False, True],
    }
    nodes |= changes
    parquet.write_table(arrow.table(nodes), folder / "nodes.parquet")
    parquet.write_table(arrow.table({"source": [17, 4], "target": [4, 2**60 + 1]}), folder / "edges.parquet")
    return str(folder)


def test_parquet_is_read(tmp_path: Path) -> None:
    dataset = load(put_parquet(tmp_path))
    assert dataset.graph.columns == ("age", "vector[0]", "vector[1]", "kind=x", "kind=y", "member")
    assert dataset.graph.x.tolist() == [[1, 0.5, 1.5, 1, 0, 1], [2, 2, 3, 0, 1, 0], [3, 4, 5, 1, 0, 1]]
    assert dataset.y.tolist() == ["u", "", "v"]
    assert dataset.ids is not None
    assert dataset.ids.tolist() == ["17", "4", str(2**60 + 1)] or dataset.ids.tolist() == [17, 4, 2**60 + 1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"vector": [[0.5, 1.5], [2.0], [4.0, 5.0]]}, "column vector.*different lengths"),
        ({"age": [b"1", b"2", b"3"]}, "column age.*bytes"),
        ({"when": np.array([1, 2, 3], dtype="M8[ns]")}, "column when.*datetime64"),
    ],
)
def test_a_parquet_table_that_cannot_be_read_is_a_sentence(tmp_path: Path, changes: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        load(put_parquet(tmp_path, **changes))


def test_a_damaged_parquet_file_is_a_sentence(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "nodes.parquet").write_bytes(b"PAR1 not at all PAR1")
    (tmp_path / "edges.csv").write_text(EDGES)
    with pytest.raises(DataError, match=r"nodes\.parquet is damaged or no Parquet file"):
        load(str(tmp_path))
