"""Equations of losses and penalties (PR, EWC, MAS, LwF, TWP): by hand, naive loops and finite differences."""

import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.autograd import gradcheck

from ipal.backend.operators import Operators
from ipal.config import EncoderConfig
from ipal.data.graph import Graph
from ipal.methods.classifier import balanced_cross_entropy
from ipal.methods.ewc import elastic_penalty, likelihood_gradient
from ipal.methods.lwf import output_distillation
from ipal.methods.mas import length_gradient, running_mean
from ipal.methods.pr import replay_cross_entropy
from ipal.methods.shared import attention as attention_module
from ipal.methods.shared.anchored import merged_pulls, quadratic_pull
from ipal.methods.shared.attention import attention, attention_gradient, attention_length_gradient
from ipal.methods.twp import gradient_length
from ipal.nn.compute import GraphCompute
from ipal.nn.encoders import GCN
from ipal.nn.head import Head
from ipal.nn.network import Network
from tests.methods.equations_support import HERE, close, graph
from tests.nn.support import double_operators
from tests.numbers import normal

LN3 = math.log(3)


# ------------------------------------------------------------------ cross-entropy


def test_balanced_cross_entropy_by_hand() -> None:
    # Outputs (0, ln 3) are probabilities 1/4 and 3/4; the third class is impossible everywhere, and of no node.
    logits = torch.tensor([[0.0, LN3, -torch.inf], [LN3, 0.0, -torch.inf], [0.0, LN3, -torch.inf]])
    # Two nodes of class 0, with -ln 1/4 and -ln 3/4, count as much together as the one of class 1, with -ln 3/4.
    expected = ((-math.log(1 / 4) - math.log(3 / 4)) / 2 - math.log(3 / 4)) / 2
    close(balanced_cross_entropy(logits, torch.tensor([0, 0, 1])), expected)


def test_replay_cross_entropy_by_hand() -> None:
    # Probabilities (1/4, 3/4) and (1/2, 1/2) of samples that are of class 0 and 1: a plain mean.
    logits = torch.tensor([[0.0, LN3], [7.0, 7.0]])
    close(replay_cross_entropy(logits, torch.tensor([0, 1])), (math.log(4) + math.log(2)) / 2)


# ------------------------------------------------------------------ EWC and MAS: pulls


THETA = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([5.0])}
ANCHOR = {"a": torch.tensor([0.0, 4.0])}
IMPORTANCE = {"a": torch.tensor([2.0, 3.0])}


def test_quadratic_pull_by_hand() -> None:
    # 2 (1 - 0)^2 + 3 (2 - 4)^2; the parameter b is new, and free.
    close(quadratic_pull(THETA, IMPORTANCE, ANCHOR), 14.0)


def test_elastic_penalty_by_hand() -> None:
    # Half of the above.
    close(elastic_penalty(THETA, IMPORTANCE, ANCHOR), 7.0)


def test_merged_pulls_by_hand() -> None:
    importance, anchor = {"a": torch.tensor([1.0, 0.0, 0.0])}, {"a": torch.tensor([0.0, 7.0, 7.0])}
    more = {"a": torch.tensor([3.0, 2.0, 0.0]), "new": torch.tensor([1.0])}
    theta = {"a": torch.tensor([4.0, 5.0, 6.0]), "new": torch.tensor([9.0])}
    # (1 * 0 + 3 * 4) / 4 = 3; the second was of no importance before, the third of none ever: where it is now, so is a
    # parameter that was not there before.
    merged = merged_pulls(importance, anchor, more, theta)
    assert {name: value.tolist() for name, value in merged.items()} == {"a": [3.0, 5.0, 6.0], "new": [9.0]}


def test_likelihood_gradient_by_hand() -> None:
    # Probabilities 1/4 and 3/4: of class 1, then of class 0.
    logits = torch.tensor([[0.0, LN3], [0.0, LN3]])
    close(likelihood_gradient(logits, torch.tensor([1, 0])), [[-1 / 4, 1 / 4], [3 / 4, -3 / 4]])


def test_length_gradient_by_hand() -> None:
    close(length_gradient(torch.tensor([[3.0, -4.0]])), [[6.0, -8.0]])


def test_running_mean_by_hand() -> None:
    # Three nodes before with a mean of 2, one node now with 6: (3 * 2 + 6) / 4. A new parameter was 0 for the three.
    new = {"a": torch.tensor([6.0]), "new": torch.tensor([8.0])}
    mean = running_mean({"a": torch.tensor([2.0])}, 3, new, 1)
    assert {name: value.item() for name, value in mean.items()} == {"a": 3.0, "new": 2.0}


# ------------------------------------------------------------------ LwF: distillation of outputs


def test_output_distillation_by_hand() -> None:
    T = 2.0
    before = torch.tensor([[0.0, 0.0], [2 * LN3, 0.0]])  # softened: (1/2, 1/2) and (3/4, 1/4)
    now = torch.tensor([[0.0, 2 * LN3], [2 * LN3, 0.0]])  # softened: (1/4, 3/4) and (3/4, 1/4)
    node_0 = -(0.5 * math.log(0.25) + 0.5 * math.log(0.75))
    node_1 = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))  # nothing changed: what is left is the entropy
    close(output_distillation(now, before, T), 4 * (node_0 + node_1) / 2)  # T^2 = 4


def test_the_gradient_of_the_output_distillation_does_not_fade_with_the_temperature() -> None:
    # For large T it tends to (o_t - o_t-1) / (classes x nodes), both without their mean, whatever T is.
    now, before = normal(2, 3), normal(2, 3, seed=1).detach()
    wanted = (now - before).detach()
    wanted = (wanted - wanted.mean(dim=1, keepdim=True)) / 6
    for T in (1e3, 1e4):
        (gradient,) = torch.autograd.grad(output_distillation(now, before, T), now)
        torch.testing.assert_close(gradient, wanted, rtol=0.02, atol=1e-3)


# ------------------------------------------------------------------ TWP: attention, and a second derivative


def test_attention_by_hand() -> None:
    # Node 0 sees rows 0 and 1, node 1 sees row 1 alone. tanh of the rows: 1/2 and 0.
    h, h_neighbour = torch.tensor([[2 * LN3], [5.0]]), torch.tensor([[math.atanh(0.5)], [0.0]])
    places, starts = torch.tensor([0, 1, 1]), torch.tensor([0, 2, 3])
    # Scores ln 3 and 0 for node 0: attention 3/4 and 1/4. A single neighbour gets all of it.
    close(attention(h, h_neighbour, places, starts, None), [3 / 4, 1 / 4, 1])
    # With weights 1/3 and 1 for node 0.
    close(attention(h, h_neighbour, places, starts, torch.tensor([1 / 3, 1.0, 7.0])), [1 / 2, 1 / 2, 1])


def test_attention_does_not_overflow() -> None:
    h = torch.tensor([[300.0], [-300.0]])
    a = attention(h, h, torch.tensor([0, 1, 0, 1]), torch.tensor([0, 2, 4]), None)
    close(a, [1.0, 0.0, 0.0, 1.0])


def test_attention_length_gradient_by_hand() -> None:
    # Attention 3/4 and 1/4 of squared length 5/8; of a single neighbour it is one, whatever the score.
    expected = [2 * 3 / 4 * (3 / 4 - 5 / 8), 2 * 1 / 4 * (1 / 4 - 5 / 8), 0]
    close(attention_length_gradient(torch.tensor([3 / 4, 1 / 4, 1.0]), torch.tensor([0, 2, 3])), expected)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("chunk", [1, 7, 2**24])
def test_the_gradient_of_the_attention_length_over_chunks_of_edges_is_autograds(
    chunk: int, weighted: bool, monkeypatch
) -> None:
    monkeypatch.setattr(attention_module, "CHUNK", chunk)
    # Directed, a node without edges among them. By full matrices: softmax over the places of neighbours and oneself.
    random = np.random.default_rng(0)
    some = graph(np.ones((9, 1), dtype=np.float32), random.integers(0, 8, (2, 14)).tolist(), undirected=False)
    if weighted:
        weights = random.uniform(0.1, 3, some.num_edges).astype(np.float32)
        some = Graph(some.x, replace(some.neighbours, weights=weights))
    h = normal(9, 3)
    # Of places without an edge the logarithm is minus infinity.
    attention = (h @ h.tanh().T + torch.from_numpy(some.with_loops.toarray()).double().log()).softmax(dim=1)
    expected = torch.autograd.grad(attention.square().sum(dim=1).mean(), h)[0]
    got = attention_gradient(h.detach(), some, GraphCompute(HERE).propagation(some))
    torch.testing.assert_close(got, expected)


def test_gradient_length_by_hand() -> None:
    close(gradient_length([torch.tensor([[1.0, -2.0]]), torch.tensor([3.0, 0.0])]), 6.0)


def small_network(some: Graph, layers: int) -> tuple[Network, Operators]:
    """A network and a graph in float64, two blocks in the head."""
    generator = torch.Generator().manual_seed(0)
    encoder = GCN(some.num_features, EncoderConfig(layers=layers, hidden=4, width=3), generator)
    head = Head(3)
    for _ in range(2):
        head.grow(2, generator)
    made = double_operators(some, [4, 1, 2, 0], keep_sparse=isinstance(some.x, sp.csr_array))
    return Network(encoder, head).double(), made


@pytest.mark.parametrize("layers", [2, 3])
@pytest.mark.parametrize("form", ["dense", "sparse"])
def test_gradient_length_has_the_right_second_derivative_through_the_network(layers: int, form: str) -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(6, 5)).astype(np.float32)
    some = graph(x if form == "dense" else sp.csr_array(x), random.integers(0, 6, (2, 8)).tolist())
    network, made = small_network(some, layers)
    parameters, labels = list(network.parameters()), torch.tensor([0, 1, 2, 0])

    def length() -> Tensor:
        loss = balanced_cross_entropy(network(made), labels)
        return gradient_length(list(torch.autograd.grad(loss, parameters, create_graph=True)))

    # Finite differences change the parameters in place, so the network sees them without being handed them.
    assert gradcheck(lambda *_: length(), tuple(parameters))
    assert all(part.any() for part in torch.autograd.grad(length(), parameters))
