"""The comparison methods' equations against numbers worked by hand, naive loops and finite differences."""

import itertools
import math

import numpy as np
import pytest
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.autograd import gradcheck

from ipal.backend.operators import Operators
from ipal.backend.runtime import Runtime
from ipal.config import EncoderConfig
from ipal.data.graph import Graph, checked_graph
from ipal.errors import DataError, NonFiniteError
from ipal.learners import twp
from ipal.learners.anchored import merged_pulls, quadratic_pull
from ipal.learners.efc import drifted_means, feature_consolidation, feature_matrix
from ipal.learners.ergnn import replay_weights, strangers_nearby
from ipal.learners.ewc import elastic_penalty, likelihood_gradient
from ipal.learners.gem import dual_solution, projected_gradient
from ipal.learners.lwf import output_distillation
from ipal.learners.mas import length_gradient, running_mean
from ipal.learners.polo import corrected_prototypes, density_prototype, pseudo_features
from ipal.learners.pr import replay_cross_entropy
from ipal.learners.slda import discriminant
from ipal.learners.trained import balanced_cross_entropy
from ipal.learners.training_free import propagated
from ipal.learners.twp import attention_length, gradient_length
from ipal.nn.encoders import GCN
from ipal.nn.head import Head
from tests.nn.support import double_operators

HERE = Runtime.of()

CPU = torch.device("cpu")
LN3 = math.log(3)

# Everything here is called many times on tiny tensors: a deadline would measure the machine, not the code.
quick = settings(deadline=None, max_examples=50)


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Reproducible float64 numbers that want a gradient."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()


def close(got: Tensor, expected: object) -> None:
    torch.testing.assert_close(got, torch.as_tensor(expected, dtype=got.dtype), rtol=1e-5, atol=1e-6)


def graph(x: np.ndarray | sp.csr_array, edges: list[list[int]], *, undirected: bool = True) -> Graph:
    return checked_graph(x, np.array(edges, dtype=np.int64), undirected=undirected)


# ------------------------------------------------------------------ cross-entropy


def test_balanced_cross_entropy_by_hand() -> None:
    # Outputs (0, ln 3) are probabilities 1/4 and 3/4; the third class is impossible everywhere, and of no node.
    logits = torch.tensor([[0.0, LN3, -torch.inf], [LN3, 0.0, -torch.inf], [0.0, LN3, -torch.inf]])
    # Two nodes of class 0, with -ln 1/4 and -ln 3/4, count as much together as the one of class 1, with -ln 3/4.
    expected = ((-math.log(1 / 4) - math.log(3 / 4)) / 2 - math.log(3 / 4)) / 2
    close(balanced_cross_entropy(logits, torch.tensor([0, 0, 1])), expected)


def test_balanced_cross_entropy_is_the_mean_over_classes_of_their_means() -> None:
    logits, labels = normal(12, 5), torch.arange(12) ** 2 % 4  # classes 0 and 1 alone are there
    means = [F.cross_entropy(logits[labels == label], labels[labels == label]) for label in labels.unique()]
    close(balanced_cross_entropy(logits, labels), torch.stack(means).mean())


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


def test_elastic_penalty_has_the_right_gradient() -> None:
    fisher, anchor = {"a": normal(3, seed=1).detach().square()}, {"a": normal(3, seed=2).detach()}
    assert gradcheck(lambda theta: elastic_penalty({"a": theta}, fisher, anchor), normal(3))


def test_merged_pulls_by_hand() -> None:
    importance, anchor = {"a": torch.tensor([1.0, 0.0, 0.0])}, {"a": torch.tensor([0.0, 7.0, 7.0])}
    more = {"a": torch.tensor([3.0, 2.0, 0.0]), "new": torch.tensor([1.0])}
    theta = {"a": torch.tensor([4.0, 5.0, 6.0]), "new": torch.tensor([9.0])}
    # (1 * 0 + 3 * 4) / 4 = 3; the second was of no importance before, the third of none ever: where it is now, so is a
    # parameter that was not there before.
    merged = merged_pulls(importance, anchor, more, theta)
    assert {name: value.tolist() for name, value in merged.items()} == {"a": [3.0, 5.0, 6.0], "new": [9.0]}


@quick
@given(st.integers(0, 1000), st.integers(2, 4))
def test_merged_pulls_pull_as_all_of_them_together(seed: int, tasks: int) -> None:
    random = np.random.default_rng(seed)
    importances = [torch.from_numpy(random.exponential(size=4) * (random.random(4) < 0.7)) for _ in range(tasks)]
    anchors = [torch.from_numpy(random.normal(size=4)) for _ in range(tasks)]
    importance, anchor = {}, {}
    for more, here in zip(importances, anchors, strict=True):
        anchor = merged_pulls(importance, anchor, {"a": more}, {"a": here})
        importance = {"a": more + importance.get("a", 0)}
    theta = torch.from_numpy(random.normal(size=4)).requires_grad_()
    one = torch.autograd.grad(quadratic_pull({"a": theta}, importance, anchor), theta)[0]
    apart = sum(quadratic_pull({"a": theta}, {"a": i}, {"a": a}) for i, a in zip(importances, anchors, strict=True))
    torch.testing.assert_close(one, torch.autograd.grad(apart, theta)[0])


def test_likelihood_gradient_by_hand() -> None:
    # Probabilities 1/4 and 3/4: of class 1, then of class 0.
    logits = torch.tensor([[0.0, LN3], [0.0, LN3]])
    close(likelihood_gradient(logits, torch.tensor([1, 0])), [[-1 / 4, 1 / 4], [3 / 4, -3 / 4]])


def test_likelihood_gradient_is_autograds() -> None:
    logits, labels = normal(5, 3), torch.tensor([0, 1, 2, 1, 0])
    likelihood = logits.log_softmax(dim=1)[torch.arange(5), labels].sum()
    torch.testing.assert_close(likelihood_gradient(logits, labels), torch.autograd.grad(likelihood, logits)[0])


def test_length_gradient_by_hand() -> None:
    close(length_gradient(torch.tensor([[3.0, -4.0]])), [[6.0, -8.0]])


def test_length_gradient_is_autograds() -> None:
    logits = normal(5, 3)
    torch.testing.assert_close(
        length_gradient(logits), torch.autograd.grad(torch.linalg.vector_norm(logits, dim=1).square().sum(), logits)[0]
    )


def test_running_mean_by_hand() -> None:
    # Three nodes before with a mean of 2, one node now with 6: (3 * 2 + 6) / 4. A new parameter was 0 for the three.
    new = {"a": torch.tensor([6.0]), "new": torch.tensor([8.0])}
    mean = running_mean({"a": torch.tensor([2.0])}, 3, new, 1)
    assert {name: value.item() for name, value in mean.items()} == {"a": 3.0, "new": 2.0}


def test_running_mean_of_the_first_task_is_its_own() -> None:
    assert running_mean({}, 0, {"a": torch.tensor([6.0])}, 5)["a"].item() == 6.0


# ------------------------------------------------------------------ LwF: distillation of outputs


def test_output_distillation_by_hand() -> None:
    T = 2.0
    before = torch.tensor([[0.0, 0.0], [2 * LN3, 0.0]])  # softened: (1/2, 1/2) and (3/4, 1/4)
    now = torch.tensor([[0.0, 2 * LN3], [2 * LN3, 0.0]])  # softened: (1/4, 3/4) and (3/4, 1/4)
    node_0 = -(0.5 * math.log(0.25) + 0.5 * math.log(0.75))
    node_1 = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))  # nothing changed: what is left is the entropy
    close(output_distillation(now, before, T), 4 * (node_0 + node_1) / 2)  # T^2 = 4


def test_output_distillation_is_the_papers_with_powers_of_probabilities() -> None:
    now, before, T = normal(4, 3).detach(), normal(4, 3, seed=1).detach(), 3.0
    y, y_hat = (o.softmax(dim=1) ** (1 / T) for o in (before, now))
    y, y_hat = y / y.sum(dim=1, keepdim=True), y_hat / y_hat.sum(dim=1, keepdim=True)
    close(output_distillation(now, before, T), -9 * (y * y_hat.log()).sum(dim=1).mean())


def test_the_gradient_of_the_output_distillation_does_not_fade_with_the_temperature() -> None:
    # For large T it tends to (o_t - o_t-1) / (classes x nodes), both without their mean, whatever T is.
    now, before = normal(2, 3), normal(2, 3, seed=1).detach()
    wanted = (now - before).detach()
    wanted = (wanted - wanted.mean(dim=1, keepdim=True)) / 6
    for T in (1e3, 1e4):
        (gradient,) = torch.autograd.grad(output_distillation(now, before, T), now)
        torch.testing.assert_close(gradient, wanted, rtol=0.02, atol=1e-3)


def test_output_distillation_has_the_right_gradient_and_none_where_nothing_changed() -> None:
    before = normal(4, 3, seed=1).detach()
    assert gradcheck(lambda now: output_distillation(now, before, 2.0), normal(4, 3))
    same = before.clone().requires_grad_()
    output_distillation(same, before, 2.0).backward()
    assert same.grad.abs().max() < 1e-15


# ------------------------------------------------------------------ GEM: the nearest gradient that harms nobody


def dual(G: list[list[float]], g: list[float], margin: float = 0.0) -> list[float]:
    rows = np.array(G)
    return dual_solution(rows @ rows.T, rows @ np.array(g), margin).tolist()


def test_dual_solution_by_hand() -> None:
    # One memory: min 1/2 * 4 v^2 - 2 v, at 2 / 4; a margin above that is taken, one below changes nothing.
    assert dual([[2.0, 0.0]], [-1.0, 3.0]) == pytest.approx([0.5])
    assert dual([[2.0, 0.0]], [-1.0, 3.0], margin=0.2) == pytest.approx([0.5])
    assert dual([[2.0, 0.0]], [-1.0, 3.0], margin=1.0) == pytest.approx([1.0])
    # Two memories at a right angle: only the first objects.
    assert dual([[1.0, 0.0], [0.0, 1.0]], [-1.0, 2.0]) == pytest.approx([1.0, 0.0])
    # Both object. K = (1 1; 1 2), q = (-1, -4): without bounds v = -K^-1 q = (-2, 3), so the first is 0, and the second
    # 4 / 2: solving for all that object and cutting off at 0 afterwards would give (0, 3).
    assert dual([[1.0, 0.0], [1.0, 1.0]], [-1.0, -3.0]) == pytest.approx([0.0, 2.0])


def test_projected_gradient_by_hand() -> None:
    # As above: (-1, 3) + 0.5 (2, 0), and (-1, -3) + 2 (1, 1), which is at right angles to the second memory and goes
    # along with the first.
    one, two = torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    close(projected_gradient(torch.tensor([-1.0, 3.0]), one, 0.0), [0.0, 3.0])
    close(projected_gradient(torch.tensor([-1.0, 3.0]), one, 1.0), [1.0, 3.0])
    close(projected_gradient(torch.tensor([-1.0, -3.0]), two, 0.0), [1.0, -1.0])


def test_projected_gradient_is_left_alone_where_nobody_objects() -> None:
    g = torch.tensor([1.0, -3.0])
    assert projected_gradient(g, torch.tensor([[2.0, 0.0], [0.0, -1.0]]), 0.5) is g
    assert projected_gradient(g, torch.zeros(2, 2), 0.5) is g


@quick
@given(st.integers(1, 6), st.integers(1, 8), st.sampled_from([0.0, 0.5]), st.integers(0, 10_000))
def test_dual_solution_satisfies_the_conditions_of_an_optimum(k: int, size: int, margin: float, seed: int) -> None:
    # More memories than parameters too, where many solutions give the same gradient.
    random = np.random.default_rng(seed)
    G, g = random.normal(size=(k, size)), random.normal(size=size)
    v = dual_solution(G @ G.T, G @ g, margin)
    slope = G @ G.T @ v + G @ g
    assert (v >= margin).all()
    assert (slope >= -1e-7).all()  # no share would be better larger ...
    np.testing.assert_allclose(slope * (v - margin), 0, atol=1e-6)  # ... and none smaller, that may be


@quick
@given(st.integers(1, 4), st.integers(2, 8), st.integers(0, 10_000))
def test_projected_gradient_is_the_nearest_that_disagrees_with_none(k: int, size: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    G, g = torch.from_numpy(random.normal(size=(k, size))), torch.from_numpy(random.normal(size=size))
    turned = projected_gradient(g, G, 0.0)
    assert (G @ turned).min() >= -1e-8
    # Among the projections on every set of memories taken as equalities, the nearest that is allowed.
    allowed = []
    for number in range(k + 1):
        for chosen in itertools.combinations(range(k), number):
            rows = G[list(chosen)]
            candidate = g - torch.linalg.pinv(rows) @ (rows @ g) if chosen else g
            if (G @ candidate).min() >= -1e-8:
                allowed.append((candidate - g).norm().item())
    assert (turned - g).norm().item() == pytest.approx(min(allowed), abs=1e-6)


@pytest.mark.parametrize("twist", ["the same twice", "opposite", "nearly the same", "tiny and huge"])
def test_projected_gradient_is_sound_in_single_precision_where_memories_depend_on_each_other(twist: str) -> None:
    # As in training: many parameters, float32. Two tasks' gradients may well be (nearly) the same line.
    generator = torch.Generator().manual_seed(3)
    first, g = torch.randn(2000, generator=generator), torch.randn(2000, generator=generator)
    second = {
        "the same twice": first.clone(),
        "opposite": -first,
        "nearly the same": first + 1e-4 * torch.randn(2000, generator=generator),
        "tiny and huge": 1e-4 * torch.randn(2000, generator=generator),
    }[twist]
    G = torch.stack([first, second, torch.randn(2000, generator=generator)])
    G = torch.where((G @ g)[:, None] > 0, -G, G) if twist != "opposite" else G
    turned = projected_gradient(g, G, 0.0)
    cosines = (G.double() @ turned.double()) / (G.double().norm(dim=1) * g.double().norm())
    assert cosines.min() > -1e-4
    assert turned.norm() <= g.norm() * 1.001  # a projection on a cone is never longer


# ------------------------------------------------------------------ TWP: attention, and a second derivative


def test_attention_length_by_hand() -> None:
    # Node 0 sees rows 0 and 1, node 1 sees row 1 alone. tanh of the rows: 1/2 and 0.
    h, h_neighbour = torch.tensor([[2 * LN3], [5.0]]), torch.tensor([[math.atanh(0.5)], [0.0]])
    # Scores ln 3 and 0 for node 0: attention 3/4 and 1/4. A single neighbour gets all of it.
    expected = (9 / 16 + 1 / 16) + 1
    close(attention_length(h, h_neighbour, torch.tensor([0, 1, 1]), torch.tensor([0, 2, 3])), expected)


def test_attention_length_has_the_right_gradient() -> None:
    neighbours, starts = torch.tensor([0, 1, 2, 1, 3, 0, 2, 3]), torch.tensor([0, 3, 5, 6, 8])
    assert gradcheck(
        lambda h, other: attention_length(h, other, neighbours, starts), (normal(4, 3), normal(4, 3, seed=1))
    )


def test_attention_length_does_not_overflow() -> None:
    h = torch.tensor([[300.0], [-300.0]])
    length = attention_length(h, h, torch.tensor([0, 1, 0, 1]), torch.tensor([0, 2, 4]))
    close(length, 2.0)


@pytest.mark.parametrize("chunk", [1, 7, 2**24])
def test_attention_length_over_chunks_of_nodes_has_the_gradient_of_the_whole(chunk: int, monkeypatch) -> None:
    monkeypatch.setattr(twp, "CHUNK", chunk)
    # Directed, a node without edges among them. By full matrices: softmax over the places of neighbours and oneself.
    random = np.random.default_rng(0)
    some = graph(np.ones((9, 1), dtype=np.float32), random.integers(0, 8, (2, 14)).tolist(), undirected=False)
    h = normal(9, 3)
    mask = torch.from_numpy(some.normalised.toarray() > 0)
    attention = (h @ h.tanh().T).masked_fill(~mask, -torch.inf).softmax(dim=1)
    expected = torch.autograd.grad(attention.square().sum(dim=1).mean(), h)[0]
    torch.testing.assert_close(twp._attention_gradient(h.detach(), some, HERE), expected)


def test_gradient_length_by_hand() -> None:
    close(gradient_length([torch.tensor([[1.0, -2.0]]), torch.tensor([3.0, 0.0])]), 6.0)


def small_network(some: Graph, layers: int) -> tuple[nn.ModuleDict, Operators]:
    """A network and a graph in float64, two blocks in the head."""
    generator = torch.Generator().manual_seed(0)
    encoder = GCN(some.num_features, EncoderConfig(layers=layers, hidden=4, width=3), generator)
    head = Head(3)
    for _ in range(2):
        head.grow(2, generator)
    made = double_operators(some, [4, 1, 2, 0], keep_sparse=isinstance(some.x, sp.csr_array))
    return nn.ModuleDict({"encoder": encoder, "head": head}).double(), made


@pytest.mark.parametrize("layers", [2, 3])
@pytest.mark.parametrize("form", ["dense", "sparse"])
def test_gradient_length_has_the_right_second_derivative_through_the_network(layers: int, form: str) -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(6, 5)).astype(np.float32)
    some = graph(x if form == "dense" else sp.csr_array(x), random.integers(0, 6, (2, 8)).tolist())
    network, made = small_network(some, layers)
    parameters, labels = list(network.parameters()), torch.tensor([0, 1, 2, 0])

    def length() -> Tensor:
        loss = balanced_cross_entropy(network["head"](network["encoder"](made)), labels)
        return gradient_length(list(torch.autograd.grad(loss, parameters, create_graph=True)))

    # Finite differences change the parameters in place, so the network sees them without being handed them.
    assert gradcheck(lambda *_: length(), tuple(parameters))
    assert all(part.any() for part in torch.autograd.grad(length(), parameters))


# ------------------------------------------------------------------ ER-GNN: choice and weights


def test_strangers_nearby_by_hand() -> None:
    # On a line at 0, 1 and 3; the first is of another class than the rest. Distances 1, 3 and 2 between them, and the
    # mean over all 9 pairs, each node with itself among them, is 2 (1 + 3 + 2) / 9 = 4/3.
    f, labels = torch.tensor([[0.0], [1.0], [3.0]]), torch.tensor([0, 1, 1])
    assert strangers_nearby(f, labels, 0.7).tolist() == [0, 0, 0]  # nearer than 0.93: none
    assert strangers_nearby(f, labels, 1.0).tolist() == [1, 1, 0]  # nearer than 1.33: 0 and 1
    assert strangers_nearby(f, labels, 2.0).tolist() == [1, 1, 0]  # nearer than 2.67: also 1 and 3, of one class
    assert strangers_nearby(f, labels, 2.5).tolist() == [2, 1, 1]  # nearer than 3.33: all
    # At 0 and 2 the mean over 4 pairs is 1, and a distance of exactly two means is not within two.
    assert strangers_nearby(torch.tensor([[0.0], [2.0]]), torch.tensor([0, 1]), 2.0).tolist() == [0, 0]


def test_strangers_nearby_do_not_depend_on_the_scale_nor_on_the_chunks() -> None:
    generator = torch.Generator().manual_seed(0)
    f, labels = torch.randn(2500, 3, generator=generator), torch.randint(0, 3, (2500,), generator=generator)
    counts = strangers_nearby(f, labels, 0.5)  # more than one chunk
    distances = torch.cdist(f, f, compute_mode="donot_use_mm_for_euclid_dist")
    naive = ((distances < 0.5 * distances.mean()) & (labels[:, None] != labels[None])).sum(dim=1)
    # Pairs right at the border may fall on either side, as sums are rounded.
    assert (counts - naive).abs().max() <= 1
    assert (counts == naive).float().mean() > 0.99
    assert (strangers_nearby(1024 * f, labels, 0.5) == counts).float().mean() > 0.99


def test_replay_weights_by_hand() -> None:
    # 30 nodes now and 10 kept: beta = 10 / 40 for the current ones, the rest for the kept.
    assert replay_weights(30, 10) == (0.25, 0.75)


# ------------------------------------------------------------------ POLO: prototypes, correction, augmentation


def test_density_prototype_by_hand() -> None:
    f = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 2.0]])
    # Directions (1, 0) twice and (0, 1), at a distance of sqrt(2). Mean distances to the others: half of it for the
    # first two, all of it for the last. With z = exp(10 sqrt(2) / 2) the weights are 1, 1 and z, over 2 + z.
    z = math.exp(5 * math.sqrt(2))
    mu = (1 + 3) / (2 + z), 2 * z / (2 + z)
    first = ((1 - mu[0]) ** 2 + (3 - mu[0]) ** 2 + z * mu[0] ** 2) / (2 + z)
    second = (2 * mu[1] ** 2 + z * (2 - mu[1]) ** 2) / (2 + z)
    mean, radius = density_prototype(f)
    close(mean, mu)
    close(radius, math.sqrt((first + second) / 2))


def test_density_prototype_of_one_node_is_the_node() -> None:
    mean, radius = density_prototype(torch.tensor([[1.0, 2.0]]))
    assert mean.tolist() == [1.0, 2.0]
    assert radius.item() == 0.0


def test_density_prototype_of_nodes_in_one_direction_is_their_mean() -> None:
    # However many: no node is further from the others than another.
    along = torch.arange(1, 101, dtype=torch.float64)[:, None]
    mean, radius = density_prototype(along * torch.tensor([[0.6, 0.8]], dtype=torch.float64))
    close(mean, [50.5 * 0.6, 50.5 * 0.8])
    close(radius, math.sqrt((100**2 - 1) / 12 / 2))


def test_corrected_prototypes_by_hand() -> None:
    mu = torch.tensor([[2.0, 0.0], [0.0, 3.0]])
    f_before = torch.tensor([[1.0, 0.0], [0.0, 5.0]])
    f = f_before + torch.tensor([[1.0, 1.0], [-2.0, 0.0]])
    # Each prototype has the direction of one node, and a squared distance of 2 to the other's: weights 1 and exp(-20).
    near, far = 1 / (1 + math.exp(-20)), math.exp(-20) / (1 + math.exp(-20))
    delta = [[near - 2 * far, near], [far - 2 * near, far]]
    # Each is the only neighbour of the other, with all the weight there is, however far they are.
    expected = [
        [2 + 0.5 * (delta[0][0] + 0.1 * delta[1][0]), 0.5 * (delta[0][1] + 0.1 * delta[1][1])],
        [0.5 * (delta[1][0] + 0.1 * delta[0][0]), 3 + 0.5 * (delta[1][1] + 0.1 * delta[0][1])],
    ]
    close(corrected_prototypes(mu, f, f_before, 0.5), expected)


def test_corrected_prototypes_follow_ten_neighbours_by_nearness() -> None:
    mu, f_before, f = normal(14, 3).detach(), normal(20, 3, seed=1).detach(), normal(20, 3, seed=2).detach()
    unit_mu, unit_f = F.normalize(mu), F.normalize(f_before)
    delta = []
    for row in unit_mu:
        w = torch.exp(-10 * (unit_f - row).square().sum(dim=1))
        delta.append((w / w.sum()) @ (f - f_before))
    for c, row in enumerate(unit_mu):
        distance = (unit_mu - row).norm(dim=1)
        ten = [k for k in distance.argsort().tolist() if k != c][:10]
        W = torch.exp(-20 * distance[ten])
        neighbours = sum(share * delta[k] for share, k in zip(W / W.sum(), ten, strict=True))
        close(corrected_prototypes(mu, f, f_before, 1.0)[c], mu[c] + delta[c] + 0.1 * neighbours)


def test_corrected_prototypes_without_neighbours_follow_the_nodes_alone() -> None:
    mu, f_before = torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    drift = torch.tensor([[1.0, 1.0], [3.0, 0.0]])
    close(corrected_prototypes(mu, f_before + drift, f_before, 1.0), [[4.0, 0.5]])


def test_pseudo_features_by_hand() -> None:
    mu, radius = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0.5, 1.0])
    f = torch.tensor([[3.0, 1.0], [-1.0, -1.0]])
    # Node 0 is the nearest to both prototypes, and nearest to prototype 0: confirmed for that one alone.
    # Class 0: e = 2 * 0.5 * (3, 4), d = (2, 1), cosine (6 + 4) / (5 sqrt(5)): towards the node, so it is shortened.
    # Class 1: e = 2 * 1 * (1, 0), d = (3, 0), cosine 1; but not confirmed, so it is not.
    noise = torch.tensor([[3.0, 4.0], [1.0, 0.0]])
    shorter = 1 - 2 / math.sqrt(5)
    close(pseudo_features(mu, radius, f, noise), [[1 + 3 * shorter, 4 * shorter], [2.0, 1.0]])
    # The other way it goes away from the node, and is left alone.
    close(pseudo_features(mu, radius, f, -noise), [[1 - 3.0, -4.0], [-2.0, 1.0]])


# ------------------------------------------------------------------ EFC: the metric of features


def test_feature_matrix_by_hand() -> None:
    W = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    p = torch.tensor([[0.25, 0.75], [0.5, 0.5]])
    # With two classes diag(p) - p p^T is p_0 p_1 (1 -1; -1 1): 3/16 and 4/16, in the mean 7/32.
    close(feature_matrix(W, p), [[7 / 32, -14 / 32], [-14 / 32, 28 / 32]])


def test_feature_matrix_is_the_mean_of_the_nodes_matrices() -> None:
    W, p = normal(4, 3).detach(), normal(6, 4, seed=1).detach().softmax(dim=1)
    each = [W.T @ (torch.diag(row) - torch.outer(row, row)) @ W for row in p]
    torch.testing.assert_close(feature_matrix(W, p), torch.stack(each).mean(dim=0))


def test_feature_matrix_is_the_fisher_information_of_features() -> None:
    # Where it is from: the expectation over labels of the outer product of the log-likelihood's gradient.
    W, f = normal(4, 3).detach(), normal(6, 3, seed=1)
    logits = f @ W.T
    p = logits.softmax(dim=1).detach()
    fisher = torch.zeros(3, 3, dtype=torch.float64)
    for label in range(4):
        gradients = torch.autograd.grad(logits.log_softmax(dim=1)[:, label].sum(), f, retain_graph=True)[0]
        fisher += (p[:, label, None] * gradients).T @ gradients / 6
    torch.testing.assert_close(feature_matrix(W, p), fisher)


def test_feature_consolidation_by_hand() -> None:
    f_before = torch.tensor([[1.0, 1.0], [2.0, 2.0]])
    f = f_before + torch.tensor([[1.0, 2.0], [0.0, 1.0]])
    M = torch.tensor([[2.0, 0.5], [0.5, 3.0]])
    # 2 * 1 + 2 * 0.5 * 2 + 3 * 4 = 16 and 3; mean over nodes.
    close(feature_consolidation(f, f_before, M), (16 + 3) / 2)


def test_feature_consolidation_has_the_right_gradient() -> None:
    M = normal(3, 3, seed=2).detach()
    assert gradcheck(lambda f, g: feature_consolidation(f, g, M @ M.T), (normal(4, 3), normal(4, 3, seed=1)))


def test_drifted_means_by_hand() -> None:
    mu, f_before = torch.tensor([[0.0], [3.0]]), torch.tensor([[1.0], [9.0]])
    f = f_before + torch.tensor([[3.0], [-1.0]])
    # Squared distances in the metric E = 2: 2 and 162 from the first mean, 8 and 72 from the second. Scaled over all
    # four, the nearest is 1 and the furthest 0: (162 - d) / 160.
    s = [[1.0, 0.0], [154 / 160, 90 / 160]]
    w = [[math.exp(2 * x) / sum(math.exp(2 * y) for y in row) for x in row] for row in s]  # 1 / (2 * 0.5^2) = 2
    expected = [[0 + 3 * w[0][0] - w[0][1]], [3 + 3 * w[1][0] - w[1][1]]]
    close(drifted_means(mu, f, f_before, torch.tensor([[2.0]]), 0.5), expected)


def test_drifted_means_add_up_the_distances_of_all_dimensions_by_hand() -> None:
    mu, f_before = torch.tensor([[0.0, 1.0], [1.0, 3.0]]), torch.tensor([[1.0, 3.0], [2.0, 0.0], [0.0, 1.0]])
    f = f_before + torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 2.0]])
    E = torch.tensor([[2.0, 1.0], [1.0, 3.0]])
    # Apart from the first mean by (1, 2), (2, -1) and nothing: 2 + 4 + 12 = 18, 8 - 4 + 3 = 7 and 0 in the metric.
    # From the second by nothing, (1, -3) and (-1, -2): 0, 2 - 6 + 27 = 23 and 2 + 4 + 12 = 18.
    s = [[5 / 23, 16 / 23, 1.0], [1.0, 0.0, 5 / 23]]
    w = [[math.exp(2 * x) / sum(math.exp(2 * y) for y in row) for x in row] for row in s]
    expected = [[x + v[0] + 2 * v[2], y + v[1] + 2 * v[2]] for (x, y), v in zip(mu.tolist(), w, strict=True)]
    close(drifted_means(mu, f, f_before, E, 0.5), expected)
    close(drifted_means(mu, f, f_before, 1e-3 * E, 0.5), expected)  # the unit of distances does not matter


def test_drifted_means_stay_where_nothing_drifts_and_where_all_is_equally_near() -> None:
    mu, f = normal(3, 4).detach(), normal(5, 4, seed=1).detach()
    E = torch.eye(4, dtype=torch.float64)
    assert torch.equal(drifted_means(mu, f, f, E, 0.2), mu)
    # A metric that sees nothing: every node weighs the same.
    torch.testing.assert_close(drifted_means(mu, f + 1, f, 0 * E, 0.2), mu + 1)


# ------------------------------------------------------------------ SLDA and NCM


def test_discriminant_by_hand() -> None:
    mean, covariance = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([[1.0, 0.0], [0.0, 3.0]])
    # The mean variance is 2: half of each, diag(0.5 + 1, 1.5 + 1).
    weights, offsets = discriminant(mean, covariance, 0.5)
    close(weights, [[1 / 1.5, 0.0], [0.0, 2 / 2.5]])
    close(offsets, [-0.5 / 1.5, -0.5 * 4 / 2.5])


def test_discriminant_is_the_one_of_the_inverse_and_leaves_its_inputs_alone() -> None:
    mean, root = normal(3, 4).detach(), normal(4, 4, seed=1).detach()
    covariance = root @ root.T
    kept = covariance.clone()
    weights, offsets = discriminant(mean, covariance, 0.1)
    assert torch.equal(covariance, kept)
    inverse = torch.linalg.inv(0.9 * kept + 0.1 * kept.trace() / 4 * torch.eye(4, dtype=torch.float64))
    torch.testing.assert_close(weights, mean @ inverse)
    # Differences of scores are those of squared Mahalanobis distances.
    x = normal(5, 4, seed=2).detach()
    apart = x[:, None] - mean[None]
    mahalanobis = -0.5 * torch.einsum("nci,ij,ncj->nc", apart, inverse, apart)
    scores = x @ weights.T + offsets
    torch.testing.assert_close(scores - scores[:, :1], mahalanobis - mahalanobis[:, :1])


def test_discriminant_without_any_variance_is_finite() -> None:
    weights, offsets = discriminant(torch.ones(2, 3), torch.zeros(3, 3), 0.01)
    assert weights.isfinite().all()
    assert offsets.isfinite().all()


def test_propagated_by_hand() -> None:
    # A path of three: degrees with loops 2, 3 and 2, so the ends keep 1/2, the middle 1/3, and edges carry 1 / sqrt(6).
    path = graph(np.array([[6.0], [0.0], [0.0]], dtype=np.float32), [[0, 1], [1, 2]])
    root = math.sqrt(6)
    np.testing.assert_allclose(propagated(path, 0, HERE), path.x)
    np.testing.assert_allclose(propagated(path, 1, HERE), [[3], [root], [0]], rtol=1e-6)
    # 3/2 + root/root, 3/root + root/3 = root/2 + root/3, root/root.
    np.testing.assert_allclose(propagated(path, 2, HERE), [[2.5], [5 * root / 6], [1]], rtol=1e-6)
    assert propagated(path, 2, HERE) is propagated(path, 2, HERE)


def test_propagated_sparse_features_stay_sparse() -> None:
    random = np.random.default_rng(0)
    x = (random.normal(size=(8, 30)) * (random.random((8, 30)) < 0.1)).astype(np.float32)
    edges = random.integers(0, 8, (2, 10)).tolist()
    thin = propagated(graph(sp.csr_array(x), edges, undirected=False), 2, HERE)
    assert isinstance(thin, sp.csr_array)
    np.testing.assert_allclose(
        thin.toarray(), propagated(graph(x, edges, undirected=False), 2, HERE), rtol=1e-5, atol=1e-7
    )


def test_gradients_that_are_no_numbers_or_have_no_length_are_left_alone() -> None:
    g = torch.tensor([-1.0, 1.0])
    assert projected_gradient(g, torch.tensor([[1.0, 0.0], [math.nan, 0.0]]), 0.5) is g
    # Their products are too small for single precision: what they point to is lost.
    assert projected_gradient(1e-15 * g, torch.tensor([[1e-25, 0.0]]), 0.5).tolist() == (1e-15 * g).tolist()


def test_a_covariance_without_an_inverse_is_answered_with_a_sentence() -> None:
    mean, covariance = torch.zeros(2, 2), torch.tensor([[1.0, 2.0], [2.0, 1.0]])
    with pytest.raises(DataError, match=r"slda\.shrinkage=0\.01"):
        discriminant(mean, covariance, 0.01)
    with pytest.raises(NonFiniteError, match="too large to be squared"):
        discriminant(mean, torch.full((2, 2), math.inf), 0.01)
