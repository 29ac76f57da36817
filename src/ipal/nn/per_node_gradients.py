"""How much each parameter matters to single nodes: exact gradients of every node's own outputs.

Where layers read a node alone, its gradient is an outer product, and the size of that is the product of sizes. Of two
graph convolutions closed sums over the node's neighbours give it. Of other encoders autograd does, one node after the
other, each with the part of the graph that it depends on.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from ipal.backend.batches import Fanout, around
from ipal.backend.operators import of_rows, operators, picked, propagated_rows
from ipal.backend.runtime import Runtime
from ipal.backend.sparse import bags
from ipal.data.graph import Graph
from ipal.data.task import Task
from ipal.nn.encoders import APPNP, GCN, Encoder
from ipal.nn.network import Network

Size = Callable[[Tensor], Tensor]
"""What is averaged over nodes: the square of a gradient, or its absolute value."""

CHUNK = 2**23
"""Neighbours and units of some nodes, or columns of all nodes, that are computed together."""
AT_ONCE = 2**18
"""Numbers of gradients that are computed together; so few stay in the cache of a CPU."""
COLUMNS = 256
"""Columns of features that are taken at a time."""


@torch.no_grad()
def network_importance(
    network: Network, task: Task, output_gradient: Tensor, size: Size, runtime: Runtime
) -> dict[str, Tensor]:
    r"""Mean over training nodes of the size of each node's own gradient, for every parameter of encoder and head.

    .. math:: \frac{1}{n} \sum_x \big| \nabla_\theta s(x) \big|^p, \quad p = 1, 2

    `output_gradient` (training nodes x classes) is the derivative of each node's scalar s with respect to its own
    outputs. With p = 2 and s the log-likelihood this is the empirical Fisher information of EWC; with p = 1 and s the
    squared length of the output the importance of MAS.
    """
    head, encoder = network.classifier, network.encoder
    f = encoder(operators(task, runtime, encoder.needs))
    total = {}
    for index, g in enumerate(torch.split(output_gradient, [len(block) for block in head.weights], dim=1)):
        total[f"head.weights.{index}"], total[f"head.biases.{index}"] = size(g).T @ size(f), size(g).sum(dim=0)
    g, layer = output_gradient @ head.weight, type(encoder).layer  # a subclass may compute something else
    if isinstance(encoder, APPNP) and layer is APPNP.layer:
        rows = picked(encoder.rows.of(task.graph, runtime), torch.from_numpy(task.nodes), g.device)
        found = _of_single_rows(encoder, rows, g, size)
    elif isinstance(encoder, GCN) and layer is GCN.layer and encoder.num_layers == 2:
        found = _of_two_convolutions(encoder, task, g, size, runtime)
    else:
        found = _node_by_node(encoder, task, g, size, runtime)
    total |= {f"encoder.{name}": value for name, value in found.items()}
    return {name: total[name] / len(f) for name, _ in network.named_parameters()}


@torch.enable_grad()
def _activated(encoder: Encoder, number: int, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """What a layer hands on, and its derivative with respect to what it has computed."""
    hidden = hidden.detach().requires_grad_()
    after = encoder.activated(hidden * 1, encoder.layers()[number], is_last=number == encoder.num_layers - 1)
    (slope,) = torch.autograd.grad(after.sum(), hidden)
    return after.detach(), slope


def _of_single_rows(encoder: Encoder, rows: Tensor, g: Tensor, size: Size) -> dict[str, Tensor]:
    """Where layers are products of a node's own row."""
    hidden, inputs, computed, total = rows, list[Tensor](), list[Tensor](), dict[str, Tensor]()
    with torch.enable_grad():
        for number, p in enumerate(encoder.layers()):
            inputs.append(hidden.detach())
            computed.append(hidden @ p["weights"] + p["biases"])
            hidden = encoder.activated(computed[-1] * 1, p, is_last=number == encoder.num_layers - 1)
    for number, own in enumerate(torch.autograd.grad(hidden, computed, g)):
        total |= {f"weights.{number}": size(inputs[number]).T @ size(own), f"biases.{number}": size(own).sum(dim=0)}
    return total


def _of_two_convolutions(encoder: GCN, task: Task, g: Tensor, size: Size, runtime: Runtime) -> dict[str, Tensor]:
    r"""Sums for two graph convolutions.

    With u = g W^T the gradient of node i with respect to the first weight from input f to unit k is

    .. math:: u_{ik} T_{ikf}, \quad T_{ikf} = \sum_{j \in N(i)} a_{ij} s_{jk} p_{jf}

    where p are propagated features and s the slopes of the activation. Where the slopes of all neighbours are one, T
    is a row of A p, and where they are zero, nothing: only pairs (i, k) with other slopes are taken one by one.
    """
    whole, nodes = operators(task.graph, runtime), torch.from_numpy(task.nodes).to(g.device)
    a, (first, second) = whole.blocks[0].aggregation["symmetric"].matrix, encoder.layers()
    hidden, slope = _activated(encoder, 0, encoder.layer(whole.first, first))
    carried = a.matmul(hidden)[nodes]
    g = g * _activated(encoder, 1, carried @ second["weights"] + second["biases"])[1]
    u, reach = g @ second["weights"].T, a.picked(nodes)
    degree, bias, weight = reach.indptr.diff(), u * reach.matmul(slope), torch.zeros_like(first["weights"].T)
    x = task.graph.x.data if isinstance(task.graph.x, sp.csr_array) else task.graph.x
    positive = size is torch.abs and bool((a.values >= 0).all()) and bool((x >= 0).all())
    if positive:  # so is T, whose absolute values are then a product of matrices
        spread = (slope * reach.transposed().matmul(u.abs())).cpu().numpy()
        weight = torch.from_numpy(_dense((task.graph.normalised.T @ spread).T @ task.graph.x)).to(g.device)
    for some in () if positive else _cut(degree.double() * u.shape[1], CHUNK):
        own = reach.picked(some)
        off, on = (bags((slope == s).float(), own.indices, own.indptr) == degree[some, None] for s in (0, 1))
        unit, place = torch.nonzero(~(off | on).T).unbind(1)  # sorted by unit
        pairs = own.picked(place)
        of_unit = unit.repeat_interleave(pairs.indptr.diff(), output_size=len(pairs.indices))
        values, sizes = pairs.values * slope[pairs.indices, of_unit], size(u[some])
        rows = task.graph.normalised[task.nodes[some.cpu().numpy()]]
        for columns, p in _propagated(task.graph):
            ap, p = (torch.from_numpy(_dense(one)).to(g.device) for one in (rows @ p, p))
            weight[:, columns] += (sizes * on).T @ size(ap)
            cuts = [*range(0, len(unit), max(1, AT_ONCE // p.shape[1])), len(unit)]
            for (begin, end), (first, last) in zip(pairwise(cuts), pairwise(pairs.indptr[cuts].tolist()), strict=True):
                T = bags(p, pairs.indices[first:last], pairs.indptr[begin : end + 1] - first, values[first:last])
                units, starts = _groups(unit[begin:end])
                every = torch.arange(end - begin, dtype=torch.int32, device=g.device)
                weight[units, columns] += bags(size(T), every, starts, sizes[place[begin:end], unit[begin:end]])
    return {
        "weights.0": weight.T.contiguous(),
        "biases.0": size(bias).sum(dim=0),
        "weights.1": size(carried).T @ size(g),
        "biases.1": size(g).sum(dim=0),
    }


def _groups(ascending: Tensor) -> tuple[slice, Tensor]:
    """The numbers that there are, and where each of them begins, and the end."""
    low, high = int(ascending[0]), int(ascending[-1]) + 1
    numbers = torch.arange(low, high + 1, device=ascending.device)
    return slice(low, high), torch.searchsorted(ascending, numbers, out_int32=True)


def _propagated(graph: Graph) -> Iterator[tuple[slice, Any]]:
    """Propagated features, some columns at a time."""
    x = graph.x.tocsc() if isinstance(graph.x, sp.csr_array) else graph.x
    step = max(1, min(COLUMNS, CHUNK // graph.num_nodes))
    for begin in range(0, graph.num_features, step):
        yield slice(begin, begin + step), graph.normalised @ x[:, begin : begin + step]


def _dense(matrix: Any) -> np.ndarray:
    return np.ascontiguousarray(matrix.toarray() if sp.issparse(matrix) else matrix, dtype=np.float32)


def _cut(numbers: Tensor, room: int) -> Iterator[Tensor]:
    """Places in `numbers`, in parts that hold about `room` of them."""
    _, lengths = torch.unique((numbers.cumsum(dim=0) / room).long(), return_counts=True)
    yield from torch.split(torch.arange(len(numbers), device=numbers.device), lengths.tolist())


@torch.enable_grad()
def _node_by_node(encoder: Encoder, task: Task, g: Tensor, size: Size, runtime: Runtime) -> dict[str, Tensor]:
    named = dict(encoder.named_parameters())
    total = {name: torch.zeros_like(parameter) for name, parameter in named.items()}
    generator = torch.Generator(g.device)  # from which nothing is drawn
    fanouts: list[Fanout] = ["all"] * encoder.num_layers
    rows = propagated_rows(task.graph, runtime, encoder.needs)
    for node, gradient in zip(torch.from_numpy(task.nodes).to(g.device)[:, None], g, strict=True):
        if rows is None:
            seen = around(task.graph, node, fanouts, encoder.needs, generator)
        else:
            seen = of_rows(picked(rows, node, g.device))
        (f,) = encoder(seen)
        found = torch.autograd.grad(f @ gradient, list(named.values()), allow_unused=True, materialize_grads=True)
        for sums, part in zip(total.values(), found, strict=True):
            sums += size(part)
    return total
