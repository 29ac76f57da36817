"""Explanations: they add up to the margin, and what they name is what decides."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch_geometric.data import Data

import ipal
from ipal.closed_form.method import Analytic
from ipal.config import EncoderConfig
from ipal.data.datasets import Dataset
from ipal.data.graph import Graph
from ipal.data.neighbourhood import neighbourhood
from ipal.data.streams import TaskStream
from ipal.errors import CapacityError, ConfigError, DataError, IpalError, NonFiniteError
from ipal.estimator.explain import Explanation, explain
from ipal.methods.bare import Bare
from ipal.methods.base import Method
from ipal.methods.ipal import IPAL
from ipal.methods.ncm import NCM
from ipal.methods.slda import SLDA
from ipal.system import free_memory
from tests.learning import learned


def path() -> Data:
    """0 - 1 - 2 - 3; features a and b."""
    x = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 3.0], [0.0, 1.0]])
    edges = torch.tensor([[0, 1, 2, 1, 2, 3], [1, 2, 3, 0, 1, 2]])
    return Data(x=x, edge_index=edges, y=torch.tensor([0, 0, 1, 1]))


def test_an_explanation_by_hand() -> None:
    """A step over a path, whose ends have degree two with their loop, and the others three; a quarter comes back."""
    learner = ipal.NCM(steps=1, restart=0.25).partial_fit(path())
    a, b, c = 1 / 2, 6**-0.5, 1 / 3
    hop = 0.75 * np.array([[a, b, 0, 0], [b, c, c, 0], [0, c, c, b], [0, 0, b, a]]) + 0.25 * np.eye(4)
    x = (path().x > 0).numpy().astype(np.float32)  # of one feature a node: unit rows
    means = np.stack([(hop @ x)[:2].mean(axis=0), (hop @ x)[2:].mean(axis=0)])
    found = ipal.explain(learner, path(), 1)
    assert (found.node, found.predicted, found.against) == (1, 0, 1)
    assert found.nodes.tolist() == [0, 1, 2]
    assert found.distance.tolist() == [1, 0, 1]
    directions = means / np.linalg.norm(means, axis=1, keepdims=True)
    expected = hop[1, :3, None] * x[:3] * (directions[0] - directions[1])
    np.testing.assert_allclose(found.evidence.toarray(), expected, rtol=1e-5)
    np.testing.assert_allclose(found.by_node, expected.sum(axis=1), rtol=1e-5)
    np.testing.assert_allclose(found.by_feature, expected.sum(axis=0), rtol=1e-5)
    np.testing.assert_allclose(found.by_hop, [expected[1].sum(), expected[[0, 2]].sum()], rtol=1e-5)
    assert found.rest == pytest.approx(0, abs=1e-5)
    ordered = sorted(np.argwhere(expected).tolist(), key=lambda at: -abs(expected[tuple(at)]))
    assert [list(piece[:2]) for piece in found.strongest(9)] == ordered


EXACT = [
    (NCM, {}),
    (Analytic, {"width": 80, "restart": 0.2}),  # the features as they are
    (Analytic, {"width": 128, "restart": (0.05, 0.4)}),
    (Analytic, {"width": 16, "restart": 0.2}),  # projected
]


@pytest.mark.parametrize(("method", "settings"), EXACT)
def test_contributions_add_up_to_the_margin(method, settings, tiny: Dataset, tiny_stream: TaskStream) -> None:
    model = learned(method, tiny_stream, 3, **settings)
    scores = model.predict_graph(tiny.graph).scores.double().numpy()
    for node in (3, 100):
        found = explain(model, tiny.graph, node)
        best, second = np.argsort(-scores[node])[:2]
        assert [found.predicted, found.against] == [model.labels[best], model.labels[second]]
        assert found.margin == pytest.approx(scores[node, best] - scores[node, second], abs=1e-5)
        assert found.rest == pytest.approx(0, abs=1e-5 * abs(scores[node]).max())
        assert found.by_hop.sum() == pytest.approx(found.margin, abs=1e-5 * abs(scores[node]).max())


def without(graph: Graph, nodes: list[int], features: list[int] | slice) -> Graph:
    x = graph.x.copy()
    x[nodes, features] = 0
    return Graph(x, graph.neighbours)


@pytest.mark.parametrize("method", [NCM, SLDA])
def test_without_a_node_the_margin_is_less_by_it(method, tiny: Dataset, tiny_stream: TaskStream) -> None:
    """Without one feature alone, the others of its node would be longer."""
    model = learned(method, tiny_stream, 3, steps=2)
    found = explain(model, tiny.graph, 7)
    pair = [model.labels.index(label) for label in (found.predicted, found.against)]
    for place in np.argsort(-abs(found.by_node))[:5]:
        scores = model.forward(without(tiny.graph, [int(found.nodes[place])], slice(None))).scores.numpy()[7, pair]
        assert scores[0] - scores[1] == pytest.approx(found.margin - found.by_node[place], rel=1e-3)


def test_without_a_neighbour_the_closed_form_prefers_what_it_then_should(
    tiny: Dataset, tiny_stream: TaskStream
) -> None:
    """Exact for linear columns, up to the node's own length, which is the same for all classes."""
    model = learned(Analytic, tiny_stream, 3, steps=2, width=32)
    memory, solved = model.state.memory, model.method.solved(model.state.memory)
    assert memory.map.parts[0].columns.linear == 16
    solved.weights[16:] = 0
    first = explain(model, tiny.graph, 7)
    third = next(label for label in model.labels if label not in (first.predicted, first.against))
    other = explain(model, tiny.graph, 7, against=third)
    best, second, last = (model.labels.index(label) for label in (first.predicted, first.against, third))
    for place in range(3):
        gone = int(first.nodes[place])
        scores = model.forward(without(tiny.graph, [gone], slice(None))).scores.numpy()[7]
        expected = (first.margin - first.by_node[place]) / (other.margin - other.by_node[place])
        assert (scores[best] - scores[second]) / (scores[best] - scores[last]) == pytest.approx(expected, rel=1e-3)


APPNP = EncoderConfig(kind="appnp", layers=1, hidden=12, width=12, steps=4, restart=(0.1, 0.5))


@pytest.mark.parametrize(
    ("method", "settings"), [(Analytic, {}), (NCM, {}), (IPAL, {}), (IPAL, {"encoder": APPNP}), (Bare, {})]
)
def test_deleting_what_is_named_changes_classes_more_often_than_chance(
    method: type[Method], settings: dict[str, Any], tiny: Dataset, tiny_stream: TaskStream
) -> None:
    model = learned(method, tiny_stream, 3, epochs=20, **settings)
    random = np.random.default_rng(0)
    named = drawn = 0
    for node in range(0, 240, 12):
        found = explain(model, tiny.graph, node)
        pieces = found.evidence.tocoo()
        most = np.argsort(-pieces.data, kind="stable")[: max(1, round(0.1 * pieces.nnz))]
        nodes, features = found.nodes[pieces.row[most]], pieces.col[most]
        chosen = random.choice(pieces.nnz, len(nodes), replace=False)
        named += model.predict_graph(without(tiny.graph, nodes, features)).labels[node] != found.predicted
        left = without(tiny.graph, found.nodes[pieces.row[chosen]], pieces.col[chosen])
        drawn += model.predict_graph(left).labels[node] != found.predicted
    assert named >= max(4, 3 * drawn), (named, drawn)


def test_the_neighbourhood_explains_as_the_whole_graph(tiny: Dataset, tiny_stream: TaskStream) -> None:
    model = learned(NCM, tiny_stream, 3)
    part = neighbourhood(tiny.graph, [31], model.reach)
    whole, near = explain(model, tiny.graph, 31), explain(model, part.graph, int(part.nodes[0]))
    assert part.origin[near.nodes].tolist() == whole.nodes.tolist()
    np.testing.assert_allclose(near.evidence.toarray(), whole.evidence.toarray(), atol=1e-6)


def test_sparse_features_are_explained_as_dense_ones(tiny: Dataset, tiny_stream: TaskStream) -> None:
    model = learned(Analytic, tiny_stream, 3, steps=1, width=40)
    sparse = Graph(sp.csr_array(tiny.graph.x), tiny.graph.edges)
    dense, thin = (explain(model, graph, 5) for graph in (tiny.graph, sparse))
    np.testing.assert_allclose(thin.evidence.toarray(), dense.evidence.toarray(), atol=1e-6)


def test_edges_that_run_one_way_carry_evidence_one_way() -> None:
    model = ipal.NCM(steps=2).partial_fit(path()).model_
    graph = Graph(path().x.numpy(), path().edge_index[:, :3].numpy())
    assert explain(model, graph, 1).nodes.tolist() == [0, 1]
    assert explain(model, graph, 3).distance.tolist() == [2, 1, 0]


def test_one_class_is_explained_by_its_score() -> None:
    data = path()
    data.train_mask = data.y == 0
    found = ipal.explain(ipal.NCM(steps=1).partial_fit(data), data, 0)
    assert (found.predicted, found.against) == (0, None)
    assert found.margin == pytest.approx(found.scores[0])
    assert found.rest == pytest.approx(0, abs=1e-6)


def test_a_node_without_any_feature_has_no_evidence() -> None:
    learner = ipal.Analytic(steps=1, width=16).partial_fit(path())
    alone = Data(x=torch.zeros(2, 2), edge_index=torch.tensor([[0], [1]]))
    found = ipal.explain(learner, alone, 0)
    assert found.evidence.nnz == 0
    assert found.strongest(3) == []
    assert found.margin == found.rest == 0


@pytest.mark.parametrize("size", [1e-38, 1e20])
def test_the_closed_form_is_explained_whatever_the_scale(size: float, tiny: Dataset, tiny_stream: TaskStream) -> None:
    model = learned(Analytic, tiny_stream, 2, steps=1, width=40)
    usual = explain(model, tiny.graph, 5)
    scaled = explain(model, Graph((tiny.graph.x * size).astype(np.float32), tiny.graph.neighbours), 5)
    np.testing.assert_allclose(scaled.by_hop, usual.by_hop, atol=1e-4)


def test_scores_that_are_no_numbers_are_not_explained(tiny: Dataset, tiny_stream: TaskStream) -> None:
    model = learned(Bare, tiny_stream, 2, epochs=1)
    with pytest.raises(NonFiniteError, match="the scores of node 5 cannot be computed"):
        explain(model, Graph(np.full_like(tiny.graph.x, 3e38), tiny.graph.neighbours), 5)


def test_what_does_not_fit_into_memory_is_refused_before(
    tiny: Dataset, tiny_stream: TaskStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = learned(NCM, tiny_stream, 2)
    monkeypatch.setattr(free_memory, "available", lambda: 10_000)
    with pytest.raises(CapacityError, match="explain one with fewer neighbours"):
        explain(model, tiny.graph, 5)


def test_plain_data_hold_the_strongest_with_names(tiny: Dataset, tiny_stream: TaskStream) -> None:
    found = explain(learned(NCM, tiny_stream, 2), tiny.graph, 9)
    plain = replace(found, columns=tuple(f"f{number}" for number in range(16))).as_plain_data(top=3)
    assert [len(plain[name]) for name in ("by_node", "by_feature", "evidence")] == [3, 3, 3]
    strongest = abs(found.by_feature).argmax()
    assert plain["by_feature"][0] == {"feature": f"f{strongest}", "contribution": found.by_feature[strongest]}
    assert plain["evidence"][0]["contribution"] == max(found.evidence.data, key=abs)


def test_what_cannot_be_explained_gets_a_sentence(tiny: Dataset, tiny_stream: TaskStream) -> None:
    model = learned(NCM, tiny_stream, 2)
    sentences: list[tuple[type[IpalError], str, object, object]] = [
        (DataError, "There is no node 240: the nodes are 0 to 239", 240, None),
        (DataError, "There is no node -1", -1, None),
        (DataError, "whole number", 1.5, None),
        (DataError, "Class 77 was never learned; known are", 0, 77),
    ]
    for kind, words, node, against in sentences:
        with pytest.raises(kind, match=words):
            explain(model, tiny.graph, node, against=against)
    predicted: Explanation = explain(model, tiny.graph, 0)
    with pytest.raises(DataError, match=r"is predicted as class .* itself"):
        explain(model, tiny.graph, 0, against=predicted.predicted)
    with pytest.raises(ConfigError, match="call partial_fit first"):
        ipal.explain(ipal.NCM(), path(), 0)


def test_a_method_that_computes_in_its_own_way_says_so(tiny: Dataset, tiny_stream: TaskStream) -> None:
    class Own(NCM):
        name = "own"

        def forward(self, memory: Any, graph: Graph, compute: Any, nodes: Any = None) -> torch.Tensor:
            return torch.from_numpy(compute.propagated(graph, 1, 0.5) @ memory.mean.T.numpy())[nodes]

    with pytest.raises(ConfigError, match="its predictions use `propagated`"):
        explain(learned(Own, tiny_stream, 1), tiny.graph, 0)


def test_a_node_goes_by_its_id_where_the_graph_has_ids() -> None:
    columns = {"id": ["anna", "ben", "carl", "dora"], "label": [0, 0, 1, 1], "a": [1, 2, 0, 0], "b": [0, 0, 3, 1]}
    data = ipal.graph_from(columns, {"source": ["anna", "ben", "carl"], "target": ["ben", "carl", "dora"]})
    learner = ipal.NCM(steps=1).partial_fit(data)
    found, expected = ipal.explain(learner, data, "ben"), ipal.explain(learner, replace(data, ids=None), 1)
    assert found.node == 1
    assert np.array_equal(found.evidence.toarray(), expected.evidence.toarray())
    assert str(found).startswith("Node ben: class 0 rather than class 1")
    assert str(expected).startswith("Node 1: class 0")
    plain = found.as_plain_data()
    assert plain["node"] == "ben"
    assert {row["node"] for row in plain["by_node"]} <= {"anna", "ben", "carl"}
    with pytest.raises(DataError, match="names the node '1', and the nodes are anna"):
        ipal.explain(learner, data, 1)
