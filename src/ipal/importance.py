"""How much each parameter of an encoder matters to single nodes: exact per-node gradients, many nodes at a time.

A gradient of one node's output reaches the weights only through that node's neighbourhood. So the backward pass
is done on rows (anchor, node): one for every node in the anchor's neighbourhood, where "anchor" is the node whose
output is differentiated. One anchor's gradient of a weight matrix is then a sum of outer products over its rows,
and never mixes with another's. Anchors are taken in chunks, so that memory stays bounded.
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ipal.encoder import GCN
from ipal.engine import SparseMatrix, operators
from ipal.head import Head
from ipal.streams import Task

Array = NDArray[Any]
Size = Callable[[Tensor], Tensor]
"""What is averaged over nodes: the square of a gradient, or its absolute value."""

# Numbers that one chunk's largest array may hold.
CHUNK = 2**23


def network_importance(network: nn.ModuleDict, task: Task, output_gradient: Tensor, size: Size) -> dict[str, Tensor]:
    r"""Mean over training nodes of the size of each node's own gradient, for every parameter of encoder and head.

    .. math:: \frac{1}{n} \sum_x \big| \nabla_\theta s(x) \big|^p, \quad p = 1, 2

    `output_gradient` (training nodes x classes) is the derivative of each node's scalar s with respect to its own
    outputs. With p = 2 and s the log-likelihood this is the empirical Fisher information of EWC; with p = 1 and s the
    squared length of the output the importance of MAS.
    """
    head = cast(Head, network["head"])
    f = network["encoder"](operators(task, output_gradient.device))
    importance = {}
    ends = np.cumsum([len(block) for block in head.weights])
    for index, (block, end) in enumerate(zip(head.weights, ends, strict=True)):
        g = output_gradient[:, end - len(block) : end]
        importance[f"head.weights.{index}"] = size(g).T @ size(f) / len(f)
        importance[f"head.biases.{index}"] = size(g).mean(dim=0)
    encoder = encoder_importance(cast(GCN, network["encoder"]), task, output_gradient @ head.weight, size)
    named = {f"encoder.{name}": value for name, value in encoder.items()} | importance
    return {name: named[name] for name, _ in network.named_parameters()}


def encoder_importance(encoder: GCN, task: Task, g: Tensor, size: Size) -> dict[str, Tensor]:
    r"""Mean over a task's training nodes of the size of each node's own gradient, for every encoder parameter.

    `g` (training nodes x width) is the derivative of each node's scalar with respect to its embedding.
    """
    # The bookkeeping of rows is SciPy's, so all of it happens on the processor.
    device = g.device
    encoder, g = copy.deepcopy(encoder).cpu(), g.cpu()
    inputs, active = _layer_inputs(encoder, task)
    total = {name: torch.zeros_like(p) for name, p in encoder.named_parameters()}
    if encoder.last_relu:
        g = g * (torch.from_numpy(inputs[-1][task.nodes]) @ encoder.weights[-1] + encoder.biases[-1] > 0)
    for anchors in _chunks(task, inputs, encoder):
        # Rows begin as the anchors themselves, and widen by one step of the graph with every layer.
        owner, node = np.arange(len(anchors)), task.nodes[anchors]
        delta = g[torch.from_numpy(anchors)]
        for layer in reversed(range(len(encoder.weights))):
            total[f"weights.{layer}"] += _summed_size(inputs[layer], owner, node, delta, size)
            total[f"biases.{layer}"] += size(_by_owner(owner, len(anchors)).matmul(delta)).sum(dim=0)
            if layer:
                owner, node, spread = _widened(task.graph.normalised, owner, node)
                delta = spread.matmul(delta @ encoder.weights[layer].T) * active[layer - 1][torch.from_numpy(node)]
    return {name: (value / len(task.nodes)).to(device) for name, value in total.items()}


def _layer_inputs(encoder: GCN, task: Task) -> tuple[list[sp.csr_array | Array], list[Tensor]]:
    """What each layer multiplies with its weights, for every node, and where the ReLU after it lets pass."""
    a = task.graph.normalised
    inputs, active = [a @ task.graph.x], []
    for weight, bias in zip(list(encoder.weights)[:-1], list(encoder.biases)[:-1], strict=True):
        hidden = torch.from_numpy(inputs[-1] @ weight.detach().numpy()) + bias.detach()
        active.append(hidden > 0)
        inputs.append(a @ hidden.relu().numpy())
    return inputs, active


def _chunks(task: Task, inputs: list[Any], encoder: GCN) -> Iterator[Array]:
    """Places of training nodes, cut so that the first layer's per-node gradients of a chunk stay small."""
    x = inputs[0]
    if isinstance(x, sp.csr_array):
        reach, support = (task.graph.normalised != 0).astype(np.int64), np.diff(x.indptr).astype(np.int64)
        for _ in range(len(encoder.weights) - 1):
            support = np.minimum(reach @ support, x.shape[1])
        support = support[task.nodes]
    else:
        support = np.full(len(task.nodes), x.shape[1])
    numbers = np.cumsum(support * encoder.weights[0].shape[1])
    cut = np.flatnonzero(np.diff(numbers // CHUNK)) + 1
    return iter(np.split(np.arange(len(task.nodes)), cut))


def _summed_size(x: sp.csr_array | Array, owner: Array, node: Array, delta: Tensor, size: Size) -> Tensor:
    """Sum over owners of the size of their gradient, the sum over an owner's rows of x[node]^T delta."""
    num_inputs = x.shape[1]
    if len(np.unique(owner)) == len(owner):  # one row each: the size of an outer product is the product of sizes
        rows = x[node]
        dense = torch.from_numpy(rows.toarray() if isinstance(rows, sp.csr_array) else rows)
        return size(dense).T @ size(delta)
    rows = sp.csr_array(x[node])
    # (owner, input) x row: each line gathers the rows that reach one input of one owner's gradient.
    shifted = rows.indices.astype(np.int64) + np.repeat(owner * num_inputs, np.diff(rows.indptr))
    used, line = _numbered(shifted, int(owner[-1] + 1) * num_inputs)
    row = np.repeat(np.arange(len(node)), np.diff(rows.indptr))
    gather = sp.csr_array((rows.data, (line, row)), shape=(len(used), len(node)))
    gradients = SparseMatrix.of(gather, delta.device).matmul(delta)
    ones = np.ones(len(used), dtype=np.float32)
    collect = sp.csr_array((ones, (used % num_inputs, np.arange(len(used)))), shape=(num_inputs, len(used)))
    return SparseMatrix.of(collect, delta.device).matmul(size(gradients))


def _numbered(keys: Array, limit: int) -> tuple[Array, Array]:
    """The different keys, ascending, and the place of each key among them: without a sort where marks are few."""
    if limit > CHUNK:
        return np.unique(keys, return_inverse=True)
    present = np.zeros(limit, dtype=bool)
    present[keys] = True
    place = np.cumsum(present) - 1
    return np.flatnonzero(present), place[keys]


def _by_owner(owner: Array, number: int) -> SparseMatrix:
    ones = np.ones(len(owner), dtype=np.float32)
    return SparseMatrix.of(
        sp.csr_array((ones, (owner, np.arange(len(owner)))), shape=(number, len(owner))), torch.device("cpu")
    )


def _widened(a: sp.csr_array, owner: Array, node: Array) -> tuple[Array, Array, SparseMatrix]:
    """Rows one step further: every (owner, neighbour), and the matrix that carries gradients there."""
    reach = a[node]  # row x neighbour, the share of each neighbour in the row's sum
    row = np.repeat(np.arange(len(node)), np.diff(reach.indptr))
    key = owner[row] * a.shape[0] + reach.indices
    used, line = _numbered(key, int(owner[-1] + 1) * a.shape[0])
    spread = sp.csr_array((reach.data, (line, row)), shape=(len(used), len(node)))
    return used // a.shape[0], used % a.shape[0], SparseMatrix.of(spread, torch.device("cpu"))
