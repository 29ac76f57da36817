"""What needs no file: built-in graphs and structural features."""

from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from ipal.data.datasets import Dataset, load
from ipal.data.datasets.builtin import structural_features, synthetic
from ipal.errors import ConfigError, IpalError
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


@pytest.mark.parametrize("size", ["nodes=1,classes=1", "nodes=3,classes=5", "nodes=2,degree=50"])
def test_a_very_small_synthetic_graph_is_a_graph(size: str) -> None:
    dataset = load(f"synthetic:{size}")
    assert dataset.graph.num_nodes == len(dataset.y)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("synthetic:nods=5", "Did you mean 'nodes'"),
        ("synthetic:nodes", "NAME=VALUE"),
        ("synthetic:nodes=many", "'nodes' cannot be 'many'"),
        ("synthetic:nodes=0", "'nodes' cannot be '0'"),
        ("synthetic:homophily=2", "'homophily'"),
        ("synthetic:degree=inf", "'degree'"),
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
    ],
)
def test_synthetic_graphs_stay_what_they_were(name: str, known: str) -> None:
    """Stored runs name these hashes."""
    assert load(name).hash == known


def test_edges_of_a_class_stay_inside_its_communities() -> None:
    raw = synthetic(nodes=4000, classes=4, degree=10, homophily=0.8, communities=5, closeness=0.9)
    community = np.concatenate([np.arange(n) * 5 // n for n in np.bincount(raw.y)]) + 5 * raw.y
    source, target = raw.edges
    same_class, same_community = raw.y[source] == raw.y[target], community[source] == community[target]
    # Of those that may end anywhere, a quarter stay in the class; of the others nine in ten stay in the community, and
    # a fifth of the rest.
    assert same_class.mean() == pytest.approx(0.8 + 0.2 / 4, abs=0.03)
    assert same_community.mean() == pytest.approx(0.8 * (0.9 + 0.1 / 5) + 0.2 / 20, abs=0.03)
    assert raw.x is not None
    centres = [raw.x[community == c].mean(axis=0) for c in range(20)]
    inside, across = (np.linalg.norm(centres[0] - centres[other]) for other in (1, 5))
    assert 0.5 < inside < across, "communities differ, classes differ more"


def test_strays_carry_another_label_and_nothing_else_changes() -> None:
    plain, with_strays = (synthetic(nodes=5000, strays=share) for share in (0.0, 0.2))
    assert np.array_equal(plain.edges, with_strays.edges)
    assert plain.x is not None
    assert np.array_equal(plain.x, with_strays.x)
    # Of those moved, one in ten comes to its own class again.
    assert np.mean(plain.y != with_strays.y) == pytest.approx(0.2 * 0.9, abs=0.02)


def test_a_shuffled_graph_is_the_same_graph_in_another_order() -> None:
    sorted_one, shuffled = (load(f"synthetic:nodes=500,shuffled={flag}") for flag in (0, 1))
    assert (np.diff(sorted_one.y) >= 0).all()
    assert not (np.diff(shuffled.y) >= 0).all()
    degrees, labels = [np.sort(np.diff(one.graph.indptr)) for one in (sorted_one, shuffled)], (sorted_one.y, shuffled.y)
    assert np.array_equal(*degrees)
    assert np.array_equal(*map(np.bincount, labels))
    inside = [np.mean(one.y[one.graph.edges[0]] == one.y[one.graph.edges[1]]) for one in (sorted_one, shuffled)]
    assert inside[0] == inside[1]


def test_a_small_part_of_reddits_shape() -> None:
    dataset = load("reddit-shaped:nodes=2330")
    assert (dataset.graph.num_nodes, dataset.graph.num_features, dataset.num_classes) == (2330, 602, 41)
    assert dataset.split is not None
    assert sum(dataset.split) == 41
    assert "not Reddit" in dataset.remark
    assert dataset.hash != load("reddit-shaped:nodes=2330,seed=1").hash


@pytest.mark.parametrize("name", ["reddit-shaped:scale=0", "digits:scale=2"])
def test_a_wrong_part_is_refused(name: str) -> None:
    with pytest.raises(IpalError):
        load(name)


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
