"""Several graphs side by side, and whole graphs one after the other."""

from typing import Any

import numpy as np
import pytest

from ipal.config import run_config
from ipal.data.dataset import Dataset
from ipal.data.datasets import load
from ipal.data.datasets.several import WIDTH, projected, side_by_side
from ipal.data.graph import Graph
from ipal.data.names import split_names
from ipal.data.streams import TRAIN
from ipal.errors import CapacityError
from ipal.runs.resolved import Resolver
from tests.support import Command, complaint

ONE = "synthetic:nodes=60,classes=3,features=8,signal=3,seed=1"
TWO = "synthetic:nodes=80,classes=4,features=20,signal=3,seed=2"
THREE = "synthetic:nodes=50,classes=2,features=5,signal=3,seed=3"


def small(y: list[int], edges: list[list[int]], width: int = 3, **facts: Any) -> Dataset:
    x = np.random.default_rng(len(y)).normal(size=(len(y), width)).astype(np.float32)
    graph = Graph(x, np.array(edges, dtype=np.int64).reshape(2, -1))
    return Dataset(f"g{len(y)}", graph, np.array(y), None, "none", "", False, **facts)


def stream_of(names: str, seed: int = 0, **stream: Any) -> Any:
    tree = {"dataset": names, "seed": seed, "protocol": {"stream": {"name": "graphs", **stream}}}
    return Resolver().resolve(run_config(tree)).stream


# ---------------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("cora-ml, dblp", ["cora-ml", "dblp"]),
        ("synthetic:nodes=5, classes=3", ["synthetic:nodes=5, classes=3"]),
        (f"{ONE},digits,{TWO}", [ONE, "digits", TWO]),
        ("digits,a/b.npz", ["digits", "a/b.npz"]),
    ],
)
def test_names_are_separated_by_commas(text: str, names: list[str]) -> None:
    assert split_names(text) == names


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("digits,digit", "Unknown dataset 'digit'. Did you mean 'digits'?"),
        ("digits,nowhere.npz", "nowhere.npz does not exist"),
    ],
)
def test_wrong_names_get_a_sentence(command: Command, text: str, words: str) -> None:
    complaint(command("run", "--dataset", text, "--method", "ncm"), words)


# ---------------------------------------------------------------------- side by side


def test_two_graphs_by_hand() -> None:
    """Labels 5 and 9 become 0 and 1, those of the second graph 2 and 3; its nodes are 3 and 4."""
    first = small([5, 9, 5], [[0, 1], [1, 2]], facts={"split": np.array([0, 2, 1])})
    second = small([0, 2], [[1], [0]], width=7, facts={"time": np.array([1, 2]), "split": np.array([0, 0])})
    both = side_by_side([first, second])
    assert both.y.tolist() == [0, 1, 0, 2, 3]
    assert both.graph.edges.tolist() == [[0, 1, 4], [1, 2, 3]]
    assert both.facts["domain"].tolist() == [0, 0, 0, 1, 1]
    assert both.split == (2, 2)
    assert both.name == "g3,g2"
    assert "time" not in both.facts, "not known of the first graph"
    assert both.facts["split"].tolist() == [0, 2, 1, 0, 0]
    assert "g3: classes 0 to 1" in both.preprocessing
    assert "g2: classes 2 to 3" in both.preprocessing
    assert not both.graph.symmetric


@pytest.mark.parametrize("names", [[ONE, TWO, THREE], [TWO, THREE, ONE]])
def test_the_same_graph_has_the_same_features_in_any_company_and_order(names: list[str]) -> None:
    alone = side_by_side([load(ONE)]).graph.x
    union = load(",".join(names))
    np.testing.assert_array_equal(union.graph.x[union.facts["domain"] == names.index(ONE)], alone)
    assert union.graph.x.dtype == np.float32
    assert union.graph.num_features == WIDTH


def test_projected_by_hand() -> None:
    """Unit rows give the rows of the matrix, over the root of the width; 2 e1 - e2 gives twice one less the other."""
    x = np.array([[1, 0], [0, 1], [2, -1]], dtype=np.float32)
    one, two, both = projected(x, 5)
    drawn = np.random.default_rng(5).standard_normal((2, WIDTH))
    np.testing.assert_allclose(one, drawn[0] / 512**0.5, rtol=1e-6)
    np.testing.assert_allclose(both, 2 * one - two, rtol=1e-4, atol=1e-6)


def test_too_many_nodes_for_the_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ipal.system.free_memory.available", lambda: 1000)
    with pytest.raises(
        CapacityError, match=r"The table of their features takes about .*: name fewer or smaller graphs"
    ):
        side_by_side([small([0, 1], []), small([0, 1, 1], [])])


# ---------------------------------------------------------------------- as a dataset like others


def test_a_run_on_several_graphs_is_listed_shown_and_finished(command: Command) -> None:
    stream = "protocol.stream={name: graphs, first: 1}"
    run = ("run", "--dataset", f"{ONE},{TWO}", "--method", "ncm", "--set", stream)
    result = command(*run, "--json").json
    assert result["dataset"] == f"{ONE},{TWO}"
    assert result["protocol"]["stream"] == {"name": "graphs", "first": 1}
    assert result["protocol"]["split"] == [4, 3]
    assert result["protocol"]["classes"] == [[3, 4, 5, 6], [0, 1, 2]]
    assert result["average_performance"] > 80
    assert "classes 3 to 6" in result["data"]["preprocessing"]
    (row,) = command("list", "runs", "--json").json
    assert row["run"].startswith("synthetic+synthetic-ncm-seed0-")
    assert command("show", "latest", "--json").json["accuracy_matrix"] == result["accuracy_matrix"]
    assert "finished already" in command(*run).err
    assert command("resume", "latest", "--json").json["accuracy_matrix"] == result["accuracy_matrix"]


# ---------------------------------------------------------------------- the stream


@pytest.mark.parametrize("first", [0, 2])
def test_every_task_is_a_graph_and_the_order_goes_round(first: int) -> None:
    stream, union = stream_of(f"{ONE},{TWO},{THREE}", first=first), load(f"{ONE},{TWO},{THREE}")
    classes = [[0, 1, 2], [3, 4, 5, 6], [7, 8]]
    assert stream.classes == classes[first:] + classes[:first]
    for index in range(3):
        task = stream.task(index)
        np.testing.assert_array_equal(task.origin, np.flatnonzero(union.facts["domain"] == (index + first) % 3))
        assert len(task.nodes) == ((stream.task_of == index) & (stream.part == TRAIN)).sum()
    assert [split.classes for split in stream.test_splits(2)] == [None] * 3, "nobody says which graph a node is of"


@pytest.mark.parametrize("seed", [0, 1, 5])
def test_seeds_make_all_rotations(seed: int) -> None:
    stream = stream_of(f"{ONE},{TWO},{THREE}", seed=seed, first="seed")
    same = stream_of(f"{ONE},{TWO},{THREE}", seed=seed, first=seed % 3)
    assert (stream.classes, stream.split_hash) == (same.classes, same.split_hash)


@pytest.mark.parametrize(
    ("dataset", "stream", "words"),
    [
        ("digits", "graphs", ["this dataset is one", "name more with commas", "an array 'domain'"]),
        (f"{ONE},{TWO}", "{name: graphs, first: -1}", ["protocol.stream.first"]),
        (f"{ONE},{TWO}", "{name: graphs, first: last}", ["protocol.stream.first", "'seed'"]),
    ],
)
def test_a_sequence_that_there_is_not_gets_a_sentence(
    command: Command, dataset: str, stream: str, words: list[str]
) -> None:
    complaint(command("run", "--dataset", dataset, "--method", "ncm", "--set", f"protocol.stream={stream}"), *words)
