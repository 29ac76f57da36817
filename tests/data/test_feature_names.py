"""Features are known by their names: a later table may have other categories, or another order."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import ipal
from ipal import DataError, graph_from
from ipal.audit import audit
from ipal.data.feature_names import arranged, kept_names
from ipal.data.graph import checked_graph
from ipal.errors import IgnoredInput

NAMES = ("age", "country=DE", "country=FR")
X = np.array([[1, 1, 0], [2, 0, 1], [3, 1, 0]], dtype=np.float32)
EDGES = np.array([[0, 1], [1, 2]])


def named(x: np.ndarray, names: tuple[str, ...]):  # type: ignore[no-untyped-def]
    return checked_graph(x.astype(np.float32), EDGES, undirected=True, columns=names)


def test_columns_are_put_in_order_and_missing_categories_are_zero() -> None:
    graph = named(X, NAMES)
    assert arranged(graph, kept_names(NAMES)) is graph
    assert arranged(graph, ()) is graph
    nameless = named(X, ())
    assert arranged(nameless, kept_names(NAMES)) is nameless
    wanted = kept_names(["country=FR", "country=US", "age", "country=DE"])
    found = arranged(graph, wanted)
    assert found.x.tolist() == [[0, 0, 1, 1], [1, 0, 2, 0], [0, 0, 3, 1]]
    assert found.x.dtype == np.float32
    assert found.columns == ("country=FR", wanted[1], "age", "country=DE"), "in the words of the graph that was given"
    assert arranged(found, wanted) is found
    assert found.num_edges == graph.num_edges


def test_what_is_new_is_not_used_and_what_is_missing_is_refused() -> None:
    with pytest.warns(IgnoredInput, match="country=DE, which the model has not learned from"):
        found = arranged(named(X, NAMES), kept_names(["age", "country=FR"]))
    assert found.x.tolist() == [[1, 0], [2, 1], [3, 0]]
    for more, lacking in (("size", "size of numbers"), ("kind=a", "kind of text"), ("age=old", "age of text")):
        with pytest.raises(DataError, match=f"no column {lacking}, which the model has learned"):
            arranged(named(X, NAMES), kept_names([*NAMES, more]))


@pytest.mark.parametrize("made", [ipal.NCM, partial(ipal.Analytic, width=64), ipal.SLDA])
def test_a_model_reads_next_months_table(made: Callable[[], ipal.Learner], tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    size = np.repeat([0.0, 4.0, 8.0], 20) + random.normal(size=60)
    country = random.choice(["DE", "FR", "US"], 60)
    nodes = {"id": np.arange(60), "label": np.repeat(["a", "b", "c"], 20), "size": size, "country": country}
    edges = {"source": np.arange(59), "target": np.arange(1, 60)}
    model = made().partial_fit(graph_from(nodes, edges))
    model.save(tmp_path / "model.safetensors")
    model = ipal.load(tmp_path / "model.safetensors")
    assert model.model_.columns == kept_names(["size", "country=DE", "country=FR", "country=US"])

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


# ---------------------------------------------------------------------- what a model keeps of texts


def accounts(texts: list[str]) -> ipal.GraphData:
    n = len(texts)
    nodes = {"id": np.arange(n), "label": ["u", "v"] * (n // 2), "amount": np.arange(n) % 7, "who": texts}
    return graph_from(nodes, {"source": np.arange(n - 1), "target": np.arange(1, n)})


@pytest.mark.parametrize("made", [ipal.NCM, partial(ipal.Analytic, width=64)])
def test_the_texts_of_a_column_are_not_in_a_model(made: Callable[[], ipal.Learner], tmp_path: Path) -> None:
    data = accounts(["anna@example.org", "ben@example.org"] * 20)
    model = made().partial_fit(data)
    model.save(tmp_path / "model.safetensors")
    kept = (tmp_path / "model.safetensors").read_bytes()
    assert b"example.org" not in kept
    assert b"amount" in kept
    assert b"who=#" in kept
    assert np.array_equal(ipal.load(tmp_path / "model.safetensors").predict(data), model.predict(data))


def test_a_column_of_many_texts_is_not_learned_from_but_predicted_with() -> None:
    many = accounts([f"p{number % 21}@example.org" for number in range(42)])
    with pytest.raises(DataError, match=r"The column who has 21 different texts.*at most 20.*leave the column out"):
        ipal.NCM().partial_fit(many)
    model = ipal.NCM().partial_fit(accounts([f"p{number % 20}@example.org" for number in range(40)]))
    with pytest.warns(IgnoredInput, match="who=p20@example.org, which the model has not learned from"):
        assert len(model.predict(many)) == 42


def test_an_audit_says_which_text_is_kept() -> None:
    found = audit(ipal.NCM().partial_fit(accounts(["anna", "ben"] * 20)))
    assert found["text"] == {
        "class_labels": ["u", "v"],
        "feature_names": ["amount", "who"],
        "hashed_categories": 2,
    }
    said = found["remarks"][0]
    assert said.startswith("Kept in clear text: class labels (u, v), feature names (amount, who). Hashed: 2 categories")
    bare = audit(ipal.NCM().partial_fit(graph_from({"x": X, "edge_index": EDGES, "y": [0, 1, 0]})))
    assert bare["remarks"][0] == "Kept in clear text: nothing."
