"""What needs no file: built-in graphs and structural features."""

from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from ipal.data.datasets import Dataset, load
from ipal.data.datasets.builtin import structural_features
from ipal.errors import ConfigError
from tests.data.support import dense
from tests.support import write_graph

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


@pytest.mark.parametrize("threads", [1, 2])
def test_digits_are_the_same_graph_with_any_number_of_threads(threads: int) -> None:
    """A bench reads the graph in one process and runs in others: a tie decided otherwise would be another graph."""
    with threadpool_limits(threads, user_api="blas"):
        assert {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"} == {threads}
        found = load("digits").hash
    assert found == "6b52022a297425f2d302ebfa14b0bbd385b88035d9ce3b41a87f2d049e1cbb22"


def test_the_size_and_homophily_of_a_synthetic_graph_are_as_asked() -> None:
    dataset = load("synthetic:nodes=3000, classes=7,features=9,degree=12,homophily=0.3")
    assert (dataset.graph.num_nodes, dataset.graph.num_features, dataset.num_classes) == (3000, 9, 7)
    source, target = dataset.graph.edges
    assert len(source) / 3000 == pytest.approx(12, rel=0.15)
    # Edges that may end anywhere also stay inside now and then: once in 7 classes.
    assert np.mean(dataset.y[source] == dataset.y[target]) == pytest.approx(0.3 + 0.7 / 7, abs=0.04)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("synthetic:nods=5", "Did you mean 'nodes'"),
        ("synthetic:nodes", "NAME=VALUE"),
        ("synthetic:nodes=0", "'nodes' cannot be '0'"),
        ("synthetic:homophily=2", "'homophily'"),
    ],
)
def test_a_wrong_size_is_named(name: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(name)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("synthetic", "310ee0c69d40ef515b977ebdd265bd49c60509149db96f70be50d15ab1e8d5d4"),
        (
            "synthetic:nodes=3000,classes=7,features=9,degree=12,homophily=0.3,seed=3",
            "40e51c329bc938daa0a96d2966b67cd6208c5400005823a95a7e042fdfbdb565",
        ),
        ("reddit-shaped:nodes=2330", "e10edc42b30d9ffc01a02bb5374fd03f7a41753cf6b9062b1df72dc8bcefc415"),
    ],
)
def test_synthetic_graphs_stay_what_they_were(name: str, known: str) -> None:
    """Stored runs name these hashes."""
    assert load(name).hash == known


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


def test_structural_features_come_from_the_graph_made_undirected(tmp_path: Path) -> None:
    path = write_graph(tmp_path / "mine.npz", x=None)
    directed, undirected = (load(str(path), undirected=way) for way in (False, True))
    assert np.array_equal(dense(directed.graph), dense(undirected.graph))
    assert directed.graph.edges.shape[1] < undirected.graph.edges.shape[1]
