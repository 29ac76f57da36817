"""Per-node gradients of the layer before the last: by hand, by loops over nodes, and against autograd."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor

from ipal.backend.sparse import SparseMatrix
from ipal.nn import per_node_gradients
from ipal.nn.per_node_gradients import network_importance
from ipal.nn.slope_patterns import Patterns, non_negative_importance, weight_importance
from tests.nn.test_per_node_gradients import (
    FEATURES,
    HERE,
    assert_same,
    dense_features,
    network_of,
    node_by_node,
    some_gradient,
    some_task,
)

SIZES = pytest.mark.parametrize("size", [torch.square, torch.abs], ids=["square", "abs"])


def shares_of(values: Tensor) -> SparseMatrix:
    return SparseMatrix.of(sp.csr_array(values.numpy()), torch.device("cpu"))


def test_weight_importance_by_hand() -> None:
    # One anchor of three neighbours, with shares 1/2, 1/4 and 1/4 and inputs 2, 4 and -8: A p = 1 + 1 - 2 = 0.
    # Unit 0 passes all of them; unit 1 none; unit 2 the first two, 0 + 2 = 2; unit 3 the last alone, -2.
    a, p = shares_of(torch.tensor([[0.5, 0.25, 0.25]])), torch.tensor([[2.0], [4.0], [-8.0]])
    slopes = torch.tensor([[True, False, True, False], [True, False, True, False], [True, False, False, True]])
    u = torch.tensor([[7.0, 7.0, 3.0, -5.0]])
    squares = weight_importance(Patterns.of(a, slopes, u.square()), p, torch.square, 100)
    assert squares.flatten().tolist() == [0, 0, (3 * 2) ** 2, (-5 * -2) ** 2]
    sizes = weight_importance(Patterns.of(a, slopes, u.abs()), p, torch.abs, 100)
    assert sizes.flatten().tolist() == [0, 0, 3 * 2, 5 * 2]


def test_non_negative_importance_by_hand() -> None:
    # Two anchors, the second with a share of the first node alone. Unit 0 passes both nodes, unit 1 the second.
    a_transposed = shares_of(torch.tensor([[0.5, 1.0], [0.5, 0.0]]))
    slopes, u = torch.tensor([[True, False], [True, True]]), torch.tensor([[-2.0, 4.0], [3.0, 1.0]])
    found = non_negative_importance(a_transposed, slopes, u)
    assert found.tolist() == [[0.5 * 2 + 1 * 3, 0], [0.5 * 2, 0.5 * 4]]


@pytest.fixture
def parts() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Shares, slopes, inputs and u: units that all nodes pass, that none passes, and mixed ones; an anchor alone."""
    generator = torch.Generator().manual_seed(0)
    a = torch.rand(9, 12, generator=generator) * (torch.rand(9, 12, generator=generator) < 0.4)
    a[:, 0] = 0.5
    a[3, 1:] = 0
    slopes = torch.rand(12, 7, generator=generator) < torch.tensor([1.1, -0.1, 0.9, 0.5, 0.1, 0.5, 0.9])
    return a, slopes, torch.randn(12, 5, generator=generator), torch.randn(9, 7, generator=generator)


@SIZES
@pytest.mark.parametrize("room", [1, 12, 10_000])
def test_weight_importance_is_the_sum_over_anchors(parts, size, room: int) -> None:
    a, slopes, p, u = parts
    expected = sum(size(torch.einsum("k,j,jk,jf->kf", u[i], a[i], slopes.float(), p)) for i in range(len(a)))
    found = weight_importance(Patterns.of(shares_of(a), slopes, size(u)), p, size, room)
    torch.testing.assert_close(found, expected)


def test_non_negative_importance_is_the_sum_over_anchors(parts) -> None:
    a, slopes, p, u = parts
    p = p.abs()
    expected = sum(torch.einsum("k,j,jk,jf->fk", u[i], a[i], slopes.float(), p).abs() for i in range(len(a)))
    torch.testing.assert_close(p.T @ non_negative_importance(shares_of(a.T.contiguous()), slopes, u), expected)


@SIZES
@pytest.mark.parametrize("undirected", [True, False])
@pytest.mark.parametrize("chunk", [1, 2**23])
@pytest.mark.parametrize("layers", [2, 3])
@pytest.mark.parametrize("form", [*FEATURES, "negative sparse"])
def test_it_is_autograds_node_by_node(form: str, layers: int, chunk: int, undirected: bool, size, monkeypatch) -> None:
    monkeypatch.setattr(per_node_gradients, "CHUNK", chunk)
    monkeypatch.setattr(per_node_gradients, "_agree", lambda *_: True)
    if layers == 2:
        monkeypatch.setattr(per_node_gradients, "_by_rows", None)  # not used
    x = FEATURES["sparse"] * np.float32(-1) if form == "negative sparse" else FEATURES[form]
    task = some_task(x, undirected=undirected)
    network, gradient = network_of(task, layers), some_gradient(task)
    found = network_importance(network, task, gradient, size, HERE)
    assert_same(found, node_by_node(network, task, gradient, size))
    again = network_importance(network, task, gradient, size, HERE)
    assert all(torch.equal(again[name], value) for name, value in found.items())


@pytest.mark.parametrize("agree", [True, False])
def test_rows_of_single_anchors_are_taken_where_slopes_do_not_agree(agree: bool, monkeypatch) -> None:
    task = some_task(dense_features(), edges=200)
    network, gradient = network_of(task), some_gradient(task)
    with torch.no_grad():
        network.encoder.biases[0].add_(100.0 if agree else 0.0)
    used = []
    by_rows = per_node_gradients._by_rows
    monkeypatch.setattr(per_node_gradients, "_by_rows", lambda *all_of: used.append(1) or by_rows(*all_of))
    assert_same(
        network_importance(network, task, gradient, torch.square, HERE),
        node_by_node(network, task, gradient, torch.square),
    )
    assert bool(used) is not agree
