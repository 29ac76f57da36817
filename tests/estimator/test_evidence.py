"""Scores of single nodes are the model's own, and are divided among features as gradients say."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from ipal.closed_form.method import Analytic
from ipal.config import EncoderConfig
from ipal.data.csr import Neighbours
from ipal.data.datasets import Dataset
from ipal.data.graph import Graph
from ipal.data.streams import TaskStream
from ipal.estimator.evidence import FixedDivisors, NodeEvidence, contribution
from ipal.estimator.model import Model
from ipal.estimator.registry import METHODS
from ipal.methods.bare import Bare
from ipal.nn.encoders import ENCODERS
from ipal.nn.losses import unit
from tests.learning import CPU, learned
from tests.nn.support import double_operators


def one_way(tiny: Dataset) -> Graph:
    """Edges that run one way and have weights."""
    edges = tiny.graph.edges[:, ::3]
    weights = np.random.default_rng(0).uniform(0.5, 2, edges.shape[1]).astype(np.float32)
    return Graph(tiny.graph.x, Neighbours.of_edges(edges, tiny.graph.num_nodes, weights=weights))


def check(model: Model, graph: Graph) -> None:
    """Scores of some nodes from rows, against those of the model."""
    scores = model.forward(graph).scores.detach().double().numpy()
    for node in (0, 57, 113):
        (found,) = model.forward(graph, compute=NodeEvidence(graph, node, CPU)).scores
        np.testing.assert_allclose(found.detach().numpy(), scores[node], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_rows_give_the_scores_of_every_method(method: str, tiny: Dataset, tiny_stream: TaskStream) -> None:
    model = learned(METHODS[method], tiny_stream, 2, epochs=2)
    check(model, tiny.graph)
    check(model, one_way(tiny))


@pytest.mark.parametrize("kind", sorted(ENCODERS))
def test_rows_give_the_scores_of_every_encoder(kind: str, tiny: Dataset, tiny_stream: TaskStream) -> None:
    encoder = EncoderConfig(kind=kind, hidden=16, width=8, heads=2)
    check(learned(Bare, tiny_stream, 2, epochs=2, encoder=encoder), one_way(tiny))


@pytest.mark.parametrize("restart", [0.2, (0.05, 0.4)])
@pytest.mark.parametrize("width", [16, 80])  # of 16 features: projected, or as they are
def test_rows_give_the_scores_of_every_feature_map(width, restart, tiny: Dataset, tiny_stream: TaskStream) -> None:
    model = learned(Analytic, tiny_stream, 2, width=width, restart=restart)
    check(model, tiny.graph)
    check(model, Graph(sp.csr_array(tiny.graph.x), tiny.graph.edges))


@pytest.mark.parametrize("kind", ["gcn", "sage"])
def test_shares_are_values_times_gradients(kind: str, tiny: Dataset, tiny_stream: TaskStream) -> None:
    encoder = EncoderConfig(kind=kind, hidden=16, width=8)
    model = learned(Bare, tiny_stream, 2, epochs=2, encoder=encoder)
    graph, network = one_way(tiny), model.network
    assert network is not None
    network.double()
    made = double_operators(graph, needs=network.encoder.needs, keep_sparse=True)
    x = torch.tensor(graph.x, dtype=torch.float64, requires_grad=True)
    object.__setattr__(made.features, "x", x)
    score = network(made)[57, 1]
    expected = (x * torch.autograd.grad(score, x)[0]).detach().numpy()
    rows = NodeEvidence(graph, 57, CPU)
    found = rows.shares(model.forward(graph, compute=rows).scores[0, 1])
    np.testing.assert_allclose(found.toarray(), expected, atol=1e-9)


def test_contribution_by_hand() -> None:
    assert contribution(np.array([2.0, -1.0, 3.0]), np.array([0.5, 4.0, 0.0])).tolist() == [1, -4, 0]


def test_shares_by_hand() -> None:
    """Node 0 reads half of itself and of node 1; then ReLU, of which one column is negative."""
    rows = NodeEvidence(Graph(np.array([[1, 2], [3, 0]], dtype=np.float32), np.zeros((2, 0), dtype=np.int64)), 0, CPU)
    weight = torch.tensor([[1.0, -1.0], [2.0, -3.0]])
    z = rows.features(weight) @ weight
    score = (z.mean(dim=0).relu() @ torch.tensor([[2.0], [5.0]]))[0]
    assert score.item() == pytest.approx(2 * (0.5 * (1 + 3) + 0.5 * 2 * 2))
    np.testing.assert_allclose(rows.shares(score).toarray(), [[1, 4], [3, 0]], atol=1e-6)


def test_mixtures_by_hand() -> None:
    """A step over one edge with a loop at both ends, half of which comes back: three quarters of node 0, one of node 1.

    Rows have lengths 5 and 2, and are divided by them; the mixture's own length is held fixed, too.
    """
    graph = Graph(np.array([[3, 4], [2, 0]], dtype=np.float32), np.array([[0, 1], [1, 0]]))
    rows = NodeEvidence(graph, 0, CPU)
    score = rows.products(graph, torch.tensor([[1.0, 2.0]]), steps=1, restart=0.5)[0, 0]
    np.testing.assert_allclose(rows.shares(score).toarray(), [[0.75 * 0.6, 0.75 * 0.8 * 2], [0.25, 0]], atol=1e-6)
    assert rows.lengths(graph, 1, 0.5).item() == pytest.approx(np.hypot(0.75 * 0.6 + 0.25, 0.75 * 0.8))


def test_lengths_and_deviations_are_held_fixed() -> None:
    """A unit row times weights: through its length, all features of a row would cancel one another."""
    x = torch.tensor([[3.0, 4.0]], requires_grad=True)
    with FixedDivisors():
        found, normed = unit(x), torch.nn.functional.layer_norm(x, (2,), torch.ones(2), torch.zeros(2), eps=0)
    (by_length,) = torch.autograd.grad(found @ torch.tensor([1.0, 2.0]), x)
    torch.testing.assert_close(x * by_length, torch.tensor([[0.6, 1.6]]))
    (by_deviation,) = torch.autograd.grad(normed[0, 0], x)
    torch.testing.assert_close(by_deviation, torch.tensor([[1.0, -1.0]]))  # (x - mean) / deviation, which is 1/2
