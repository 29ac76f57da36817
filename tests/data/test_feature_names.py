"""Features are known by their names: a later table may have other categories, or another order."""

from pathlib import Path

import numpy as np
import pytest

import ipal
from ipal import DataError, graph_from
from ipal.data.feature_names import arranged
from ipal.data.graph import checked_graph
from ipal.errors import IgnoredInput

NAMES = ("age", "country=DE", "country=FR")
X = np.array([[1, 1, 0], [2, 0, 1], [3, 1, 0]], dtype=np.float32)
EDGES = np.array([[0, 1], [1, 2]])


def named(x: np.ndarray, names: tuple[str, ...]):  # type: ignore[no-untyped-def]
    return checked_graph(x.astype(np.float32), EDGES, undirected=True, columns=names)


def test_columns_are_put_in_order_and_missing_categories_are_zero() -> None:
    graph = named(X, NAMES)
    assert arranged(graph, NAMES) is graph
    assert arranged(graph, ()) is graph
    nameless = named(X, ())
    assert arranged(nameless, NAMES) is nameless
    found = arranged(graph, ("country=FR", "country=US", "age", "country=DE"))
    assert found.x.tolist() == [[0, 0, 1, 1], [1, 0, 2, 0], [0, 0, 3, 1]]
    assert found.x.dtype == np.float32
    assert found.columns == ("country=FR", "country=US", "age", "country=DE")
    assert found.num_edges == graph.num_edges


def test_what_is_new_is_not_used_and_what_is_missing_is_refused() -> None:
    with pytest.warns(IgnoredInput, match="country=DE, which the model has not learned from"):
        assert arranged(named(X, NAMES), ("age", "country=FR")).x.tolist() == [[1, 0], [2, 1], [3, 0]]
    for wanted, lacking in (((*NAMES, "size"), "size"), ((*NAMES, "kind=a"), "kind")):
        with pytest.raises(DataError, match=f"no column {lacking}, which the model has learned from"):
            arranged(named(X, NAMES), wanted)


@pytest.mark.parametrize("method", [ipal.NCM, ipal.Analytic, ipal.SLDA])
def test_a_model_reads_next_months_table(method: type[ipal.Learner], tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    size = np.repeat([0.0, 4.0, 8.0], 20) + random.normal(size=60)
    country = random.choice(["DE", "FR", "US"], 60)
    nodes = {"id": np.arange(60), "label": np.repeat(["a", "b", "c"], 20), "size": size, "country": country}
    edges = {"source": np.arange(59), "target": np.arange(1, 60)}
    model = method().partial_fit(graph_from(nodes, edges))
    model.save(tmp_path / "model.safetensors")
    model = ipal.load(tmp_path / "model.safetensors")
    assert model.model_.schema.columns == ("size", "country=DE", "country=FR", "country=US")

    here = country != "US"
    some = {"country": country[here], "size": size[here], "id": np.arange(60)[here]}
    kept = {"source": np.flatnonzero(here)[:-1], "target": np.flatnonzero(here)[1:]}
    found = graph_from(some, kept)
    assert found.columns == ("country=DE", "country=FR", "size")
    by_hand = np.zeros((here.sum(), 4), dtype=np.float32)
    by_hand[:, 0], by_hand[:, 1], by_hand[:, 2] = size[here], country[here] == "DE", country[here] == "FR"
    expected = graph_from({"x": by_hand, "edge_index": found.edge_index})
    assert np.array_equal(model.predict_proba(found), model.predict_proba(expected))
    later = {**some, "label": np.full(here.sum(), "d")}
    assert model.partial_fit(graph_from(later, kept)).classes_.tolist() == ["a", "b", "c", "d"]
    with pytest.raises(DataError, match="no column size"):
        model.predict(graph_from({"id": some["id"], "country": some["country"]}, kept))


def test_features_without_names_are_taken_in_their_order(tmp_path: Path) -> None:
    data = graph_from({"x": X, "edge_index": EDGES, "y": ["a", "b", "a"]})
    ipal.NCM().partial_fit(data).save(tmp_path / "model.safetensors")
    model = ipal.load(tmp_path / "model.safetensors")
    assert model.model_.schema.columns == ()
    assert np.array_equal(
        model.predict(data), model.predict(graph_from({"x": X, "edge_index": EDGES, "ids": [7, 8, 9]}))
    )
