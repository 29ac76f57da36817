"""How much each parameter of an encoder matters to single nodes: exact per-node gradients.

Of graph convolutions many nodes at a time; of other encoders one node after the other, each with the part of the graph
that it depends on.

A gradient of one node's output reaches the weights only through that node's neighbourhood. So the backward pass
is done on rows (anchor, node): one for every node in the anchor's neighbourhood, where "anchor" is the node whose
output is differentiated. One anchor's gradient of a weight matrix is then a sum of outer products over its rows,
and never mixes with another's. The last layer has one row an anchor: the size of an outer product is the product of
sizes. The layer before it often has a closed form (`slope_patterns`), and only the other layers are done by rows.
Anchors are taken in chunks, so that memory stays bounded. All of it happens on the network's device, every sum in a
fixed order.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import cast

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from ipal.backend.batches import Fanout, around, compact
from ipal.backend.operators import of_rows, operators, picked, propagated_rows
from ipal.backend.runtime import Runtime
from ipal.backend.sparse import SparseMatrix, SparsePair, bags, row_starts
from ipal.data.csr import check_entries
from ipal.data.graph import Graph
from ipal.data.task import Task
from ipal.nn.encoders import APPNP, GCN, Encoder
from ipal.nn.network import Network
from ipal.nn.slope_patterns import Patterns, Size, non_negative_importance, weight_importance
from ipal.nn.slopes import Slope, dense_importance

Input = Tensor | SparseMatrix
"""What a layer multiplies with its weights."""

# Numbers that the largest array of one chunk may hold; more on a GPU, which many small operations would keep waiting.
CHUNK = 2**23
GPU_CHUNK = 2**25
# Numbers that stay in the cache of a CPU from one operation to the next.
CACHED = 2**19
# Columns of a layer's inputs that are taken at a time where slopes agree.
COLUMNS = 256
# An entry of a sparse matrix takes as much as so many numbers, with all that is noted of it.
ENTRY = 8


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
    importance = {}
    ends = np.cumsum([len(block) for block in head.weights])
    for index, (block, end) in enumerate(zip(head.weights, ends, strict=True)):
        g = output_gradient[:, end - len(block) : end]
        importance[f"head.weights.{index}"] = size(g).T @ size(f) / len(f)
        importance[f"head.biases.{index}"] = size(g).mean(dim=0)
    found = encoder_importance(encoder, task, output_gradient @ head.weight, size, runtime)
    named = {f"encoder.{name}": value for name, value in found.items()} | importance
    return {name: named[name] for name, _ in network.named_parameters()}


def encoder_importance(encoder: Encoder, task: Task, g: Tensor, size: Size, runtime: Runtime) -> dict[str, Tensor]:
    """Mean over a task's training nodes of the size of each node's own gradient, for every encoder parameter.

    `g` (training nodes x width) is the derivative of each node's scalar with respect to its embedding.
    """
    if isinstance(encoder, GCN) and type(encoder).layer is GCN.layer:  # a subclass may compute something else
        return _of_convolutions(encoder, task, g, size, runtime)
    if isinstance(encoder, APPNP) and type(encoder).layer is APPNP.layer:
        x = picked(encoder.rows.of(task.graph, runtime), torch.from_numpy(task.nodes), g.device)
        return dense_importance(encoder, x, g, size)
    return _node_by_node(encoder, task, g, size, runtime)


@torch.enable_grad()
def _node_by_node(encoder: Encoder, task: Task, g: Tensor, size: Size, runtime: Runtime) -> dict[str, Tensor]:
    named = dict(encoder.named_parameters())
    total = [torch.zeros_like(parameter) for parameter in named.values()]
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
        for sums, part in zip(total, found, strict=True):
            sums += size(part)
    return {name: sums / len(g) for name, sums in zip(named, total, strict=True)}


@torch.no_grad()
def _of_convolutions(encoder: Encoder, task: Task, g: Tensor, size: Size, runtime: Runtime) -> dict[str, Tensor]:
    a, inputs, slopes = _layer_inputs(encoder, task, runtime)
    nodes, last = torch.from_numpy(task.nodes).to(g.device), encoder.num_layers - 1
    g = slopes[last].at(nodes, g)
    # One row for every anchor: the size of an outer product is the product of sizes.
    x = cast(Tensor, inputs[last])
    total = {f"weights.{last}": size(x[nodes]).T @ size(g), f"biases.{last}": size(g).sum(dim=0)}
    before = _before_last(a, inputs[last - 1], slopes[last - 1], nodes, g @ encoder.weights[last].T, size)
    if before is not None:
        total |= {f"weights.{last - 1}": before[0], f"biases.{last - 1}": before[1]}
    if len(total) < len(dict(encoder.named_parameters())):
        total = _by_rows(encoder, a, inputs, slopes, nodes, g, size) | total
    return {name: total[name] / len(nodes) for name, _ in encoder.named_parameters()}


def _before_last(
    a: SparseMatrix, x: Input, slope: Slope, nodes: Tensor, u: Tensor, size: Size
) -> tuple[Tensor, Tensor] | None:
    """Of the weights and biases of the layer before the last; None where rows of single anchors take less."""
    slopes = torch.ones(a.shape[0], u.shape[1], dtype=torch.bool, device=u.device)
    slopes = slopes if slope.values is None else slope.values
    ours = a.picked(nodes)
    bias = size(u * ours.matmul(slopes.to(u.dtype))).sum(dim=0)
    values = x if isinstance(x, Tensor) else x.values
    if size is torch.abs and all(part.numel() == 0 or part.min() >= 0 for part in (values, a.values, slopes)):
        reached = non_negative_importance(_transposed(ours), slopes, u)
        if isinstance(x, Tensor):
            return x.T @ reached, bias
        return _transposed(x).matmul(_transposed(a).matmul(reached)), bias
    if slopes.dtype != torch.bool or not _agree(a, x, ours, slopes):
        return None
    weight, room = u.new_zeros(u.shape[1], x.shape[1]), GPU_CHUNK if u.is_cuda else CHUNK
    at_once = room if u.is_cuda else min(room, CACHED)
    for anchors in _cut(ours.indptr.diff().double() * u.shape[1], room):
        near, shares = compact(ours.picked(anchors))
        patterns = Patterns.of(shares, slopes[near], size(u[anchors]))
        for begin, p in _columns(a, x, near, room // (len(near) + len(anchors))):
            weight[:, begin : begin + p.shape[1]] += weight_importance(patterns, p, size, at_once)
    return weight.T.contiguous(), bias


def _agree(a: SparseMatrix, x: Input, ours: SparseMatrix, slopes: Tensor) -> bool:
    """Whether slopes agree over so many neighbourhoods that their rows need not be taken one by one.

    An estimate from numbers of multiply-adds: of a dense product a sixteenth of those of a sparse one.
    """
    on, degree = bags(slopes.float(), ours.indices, ours.indptr), ours.indptr.diff()[:, None]
    mixed = int(((on > 0) & (on < degree)).sum())
    entries = float(len(degree) * x.shape[1])
    if not isinstance(x, Tensor):
        entries = float(bags(_reached(a, x.indptr.diff().double()[:, None], 1), ours.indices, ours.indptr).sum())
    return x.shape[1] * (on.numel() / 16 + 4 * mixed) <= 2 * entries * on.shape[1]


def _columns(a: SparseMatrix, x: Input, near: Tensor, room: int) -> Iterator[tuple[int, Tensor]]:
    """Some columns at a time of the rows that a layer multiplies with its weights, dense, and the first column."""
    if isinstance(x, Tensor):
        step = max(1, min(COLUMNS, room))
        yield from ((begin, x[:, begin : begin + step][near]) for begin in range(0, x.shape[1], step))
        return
    far, spread = compact(a.picked(near))
    turned = _transposed(x.picked(far))  # input x node
    step = max(1, min(COLUMNS, room * len(near) // max(1, len(far))))
    cuts = [*range(0, x.shape[1], step), x.shape[1]]
    for (begin, end), (low, high) in zip(pairwise(cuts), pairwise(turned.indptr[cuts].tolist()), strict=True):
        column = _numbers(end - begin, far.device).repeat_interleave(
            turned.indptr[begin : end + 1].diff(), output_size=high - low
        )
        dense = turned.values.new_zeros(len(far), end - begin)
        dense[turned.indices[low:high], column] = turned.values[low:high]
        yield begin, spread.matmul(dense)


def _by_rows(
    encoder: Encoder, a: SparseMatrix, inputs: list[Input], slopes: list["Slope"], nodes: Tensor, g: Tensor, size: Size
) -> dict[str, Tensor]:
    """Of all layers but the last, by the rows of single anchors."""
    total = {name: torch.zeros_like(p) for name, p in encoder.named_parameters()}
    for anchors in _chunks(a, inputs[0], encoder, nodes):
        # Rows begin as the anchors themselves, and widen by one step of the graph with every layer.
        rows, delta = AnchorRows.of(nodes[anchors]), g[anchors]
        for layer in reversed(range(encoder.num_layers - 1)):
            rows, spread = rows.widened(a)
            delta = slopes[layer].at(rows.node, spread.matmul(delta @ encoder.weights[layer + 1].T))
            x, weight = inputs[layer], total[f"weights.{layer}"]
            total[f"biases.{layer}"] += size(rows.sums(delta)).sum(dim=0)
            if isinstance(x, Tensor):
                _add_size(weight, x, rows, delta, size)
            else:  # not carried over the graph yet: so the gradient is
                further, spread = rows.widened(a)
                _add_size_of_sparse(weight, x, further, spread.matmul(delta), size)
    return total


@dataclass(frozen=True, eq=False)
class AnchorRows:
    """Pairs (owner, node), in ascending order: the nodes that an anchor's gradient has reached."""

    owner: Tensor
    """The place of an anchor in its chunk."""
    node: Tensor
    starts: Tensor
    """Where each owner's rows begin, and the end."""

    @classmethod
    def of(cls, anchors: Tensor) -> "AnchorRows":
        place = torch.arange(len(anchors) + 1, device=anchors.device)
        return cls(place[:-1], anchors, place)

    @property
    def owners(self) -> int:
        return len(self.starts) - 1

    def sums(self, values: Tensor) -> Tensor:
        """Sum over the rows of each owner."""
        return bags(values, _numbers(len(values), values.device), row_starts(self.starts[1:], len(values)))

    def widened(self, a: SparseMatrix) -> tuple["AnchorRows", SparseMatrix]:
        """Rows one step further: every (owner, neighbour), and the matrix that carries gradients there."""
        reach = a.picked(self.node)  # row x neighbour, the share of each neighbour in the row's sum
        row = _numbers(len(self.node), self.node.device).repeat_interleave(
            reach.indptr.diff(), output_size=len(reach.indices)
        )
        width = a.shape[1]
        key, order = (self.owner[row] * width + reach.indices).sort(stable=True)
        key, counts = torch.unique_consecutive(key, return_counts=True)
        starts, shape = row_starts(counts.cumsum(0), len(row)), (len(key), len(self.node))
        spread = SparseMatrix(starts, row[order], reach.values[order], shape)
        owner = key // width
        starts = torch.searchsorted(owner, torch.arange(self.owners + 1, device=owner.device))
        return AnchorRows(owner, key - owner * width, starts), spread


def whole_propagation(graph: Graph, runtime: Runtime) -> SparseMatrix:
    """D^-1/2 (A + I) D^-1/2 of all nodes."""
    return operators(graph, runtime).blocks[0].aggregation["symmetric"].matrix


def _layer_inputs(encoder: Encoder, task: Task, runtime: Runtime) -> tuple[SparseMatrix, list[Input], list[Slope]]:
    """The propagation, what each layer multiplies with its weights, and the slopes of the activations after them.

    For every node. Of the first layer it may be the sparse features, which are not carried over the graph yet.
    """
    graph = task.graph
    ready, a = operators(graph, runtime), whole_propagation(graph, runtime)
    features = ready.features.aggregated.get("symmetric")
    inputs: list[Input] = [cast(SparsePair, ready.features.x).matrix if features is None else features]
    hidden, slopes = encoder.first_layer(ready), []
    for number, p in enumerate(encoder.layers()):
        if number:
            carried = a.matmul(hidden)
            inputs.append(carried)
            hidden = carried @ p["weights"] + p["biases"]
        activated = partial(encoder.activated, p=p, is_last=number == encoder.num_layers - 1)
        slope, hidden = Slope.of(activated, hidden)
        slopes.append(slope)
    return a, inputs, slopes


def _chunks(a: SparseMatrix, x: Input, encoder: Encoder, nodes: Tensor) -> Iterator[Tensor]:
    """Places of training nodes, similar ones together, cut so that the arrays of a chunk stay small."""
    yield from _cut(_numbers_of_anchors(a, x, encoder)[nodes], GPU_CHUNK if nodes.is_cuda else CHUNK)


def _cut(numbers: Tensor, room: int) -> Iterator[Tensor]:
    """Places in `numbers`, the largest first, so that no part holds more than `room` of them."""
    order = numbers.argsort(descending=True, stable=True)
    largest = numbers[order].tolist()
    begin = 0
    while begin < len(largest):
        end = begin + max(1, int(room // largest[begin]))
        yield order[begin:end]
        begin = end


def _numbers_of_anchors(a: SparseMatrix, x: Input, encoder: Encoder) -> Tensor:
    """How large the arrays of each node may become, were it an anchor."""
    shapes: list[torch.Size] = [weight.shape for weight in encoder.weights]
    widths, sizes = [shape[1] for shape in shapes], [shape.numel() for shape in shapes]
    one = torch.ones(a.shape[0], dtype=torch.float64, device=a.values.device)
    if isinstance(x, Tensor):
        # Not the larger of gradients and rows but both: so nodes are sorted by their rows, and little is padded.
        gradients = max(sizes[:-1])
        rows = _reached(a, one[:, None], len(widths) - 1)[:, 0].clamp(max=len(one))
        return rows * max(*widths, x.shape[1]) + gradients
    gradients = max(sizes[1:-1], default=1)
    reached = _reached(a, torch.stack([one, x.indptr.diff()], dim=1), len(widths))
    rows, entries = reached[:, 0].clamp(max=len(one)), reached[:, 1].clamp(max=len(x.indices))
    return (rows * max(widths)).maximum(ENTRY * entries).clamp(min=gradients)


def _reached(a: SparseMatrix, values: Tensor, steps: int) -> Tensor:
    """Sums over all ways of so many steps in the graph: at least those over the nodes that they lead to."""
    for _ in range(steps):
        values = bags(values, a.indices, a.indptr)
    return values


def _add_size(total: Tensor, x: Tensor, rows: AnchorRows, delta: Tensor, size: Size) -> None:
    """Add the size of every owner's gradient, which is the sum over its rows of x[node]^T delta."""
    if len(rows.node) == rows.owners:  # one row each: the size of an outer product is the product of sizes
        total += size(x[rows.node]).T @ size(delta)
        return
    # Every owner gets as many rows as the longest; those beyond its own are zero.
    longest = int(rows.starts.diff().max())
    shift = torch.arange(rows.owners, device=delta.device) * longest - rows.starts[:-1]
    place = torch.arange(len(delta), device=delta.device) + shift[rows.owner]
    node = place.new_zeros(rows.owners * longest).index_copy_(0, place, rows.node)
    padded = delta.new_zeros(len(node), delta.shape[1]).index_copy_(0, place, delta)
    gradients = x[node].view(rows.owners, longest, -1).mT @ padded.view(rows.owners, longest, -1)
    total += size(gradients).sum(dim=0)


def _add_size_of_sparse(total: Tensor, x: SparseMatrix, rows: AnchorRows, delta: Tensor, size: Size) -> None:
    """The same with sparse x: a gradient has a line for every input that its owner reaches, and no other."""
    entries = _transposed(x.picked(rows.node))  # input x row
    # Lines are those of the first input, one for each owner, then those of the next: as rows are sorted by owner, the
    # entries of a line stand together already.
    owner = rows.owner.int().index_select(0, entries.indices)
    begins = torch.ones(len(owner) + 1, dtype=torch.bool, device=owner.device)
    torch.ne(owner[1:], owner[:-1], out=begins[1:-1])
    begins[entries.indptr] = True
    entry = torch.nonzero(begins).flatten().int()  # the first of each line, and the end
    line = torch.searchsorted(entry, entries.indptr, out_int32=True)  # the first of each input, and the end
    # Some lines at a time, which may begin or end amidst those of an input.
    room = GPU_CHUNK if delta.is_cuda else min(CHUNK, CACHED)
    number, step = len(entry) - 1, max(1, room // delta.shape[1])
    cuts = torch.arange(0, number, step, dtype=torch.int32, device=delta.device)
    inputs = torch.searchsorted(line, cuts, right=True) - 1
    cut = [*torch.stack([cuts, inputs, entry[cuts]], dim=1).tolist(), [number, x.shape[1] - 1, len(owner)]]
    for (begin, low, first), (end, high, last) in pairwise(cut):
        ends = entry[begin : end + 1] - first
        gradients = bags(delta, entries.indices[first:last], ends, entries.values[first:last])
        ends = line[low : high + 2].clamp(begin, end) - begin
        total[low : high + 1] += bags(size(gradients), _numbers(len(gradients), ends.device), ends)


def _transposed(matrix: SparseMatrix) -> SparseMatrix:
    """The transpose: on a CPU as SciPy makes it, which counts where torch sorts. Both give the same."""
    if matrix.indices.is_cuda:
        return matrix.transposed()
    parts = (matrix.values.numpy(), matrix.indices.numpy(), matrix.indptr.numpy())
    turned = sp.csr_array(parts, shape=matrix.shape).T.tocsr()
    indptr, indices, values = map(torch.from_numpy, (turned.indptr, turned.indices, turned.data))
    return SparseMatrix(indptr, indices, values, turned.shape)


def _numbers(number: int, device: torch.device) -> Tensor:
    check_entries(number)
    return torch.arange(number, device=device, dtype=torch.int32)
