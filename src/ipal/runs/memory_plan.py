"""Estimates the main memory of a run before it starts, and chooses a way that fits a limit.

A network is trained on every task's graph at once or, where that does not fit, by mini-batches with sampled
neighbours; then, and where nothing is trained, what is beyond the limit is made in pieces, from and to files.

An estimate is what is kept (the graph as far as it is in memory, the graphs of all tasks and their operators, since
every task is tested on again, weights, and what going through edges leaves behind) and the larger of training (what a
step saves for its backward pass, or the end of a task) and testing (what a forward pass holds).
benchmarks/memory_limits.py compares limits with measurements.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import torch

from ipal.backend.batches import Fanout, fanouts_for
from ipal.backend.propagated import BLOCK, walking_bytes
from ipal.config import EncoderConfig, RunConfig, Sampling
from ipal.data.csr import EDGES_AT_ONCE
from ipal.data.graph import Graph
from ipal.data.streams import TaskStream
from ipal.errors import CapacityError, shortened
from ipal.methods.base import Trained
from ipal.nn.embed import operators_bytes
from ipal.nn.encoders import ENCODERS
from ipal.nn.per_node_gradients import CHUNK
from ipal.runs.resolved import Resolved
from ipal.system.memory_budget import Budget

GIB = 2**30
BASE = int(0.5 * GIB)
"""Python, torch and the other libraries."""
AN_EDGE, A_DRAW, WEIGHT = 42, 24, 28
"""Bytes of an edge that is gone through, a sampled edge, and a weight with its gradient, moments and last value."""
VALUES_AT_ONCE = 2**24
"""Features that are multiplied in one go, where something is made in pieces."""


@dataclass(frozen=True)
class Way:
    """One way to learn a stream."""

    config: RunConfig
    bytes: int
    """About what it takes at least."""
    budget: Budget
    """What is left of the limit, for what can also be made in pieces."""


@dataclass(frozen=True)
class Extent:
    """The size of a part of a graph, in bytes."""

    nodes: int
    edges: int
    copy: int
    """Of its features and edges."""
    dense: int
    """Of its features alone where they are dense: those may lie in a file."""
    operators: int
    """Of its propagation matrix (as SciPy and as torch keep it) and its propagated features."""


def ways(resolved: Resolved, limit: int | None = None) -> list[Way]:
    """The ways that a method has, the fastest first."""
    config, method, graph = resolved.config, resolved.learner_config().method, resolved.dataset.graph
    protocol, whole = config.protocol, extent(graph, graph.num_nodes, graph.num_edges)
    # With graphs of all nodes so far: in the end the whole graph. Those of tasks stay, with their operators.
    task, together = (whole, whole) if protocol.train_graph == "seen" else task_extents(graph, resolved.stream)
    tested, copies, operators = task, [together], [together]
    if protocol.test_graph == "seen":
        tested, copies, operators = whole, [together, whole], [whole]
    in_files = sum(one.dense for one in copies)
    if method.keeps == "everything":  # keeps all tasks as one, grows it, and copies it where it is saved or calibrated
        task = together
        copies += (4 if protocol.calibration else 3) * [together]
        operators.append(together)
    edges = min(max(task.edges, tested.edges), EDGES_AT_ONCE)
    kept = BASE + held_bytes(graph) + sum(one.copy for one in copies) + AN_EDGE * edges

    def in_pieces(config: RunConfig, needed: int) -> Way:
        """Dense features of tasks may lie in files: what is left of the limit is for them, and for what is faster."""
        needed -= in_files
        return Way(config, needed, Budget(None if limit is None else max(0, limit - needed)))

    if not isinstance(method, Trained):
        piece = min(8 * (tested.edges + tested.nodes), 8 * EDGES_AT_ONCE)
        own = method.working_memory(graph.num_features, sum(config.split or ()), tested.nodes, piece)
        return [in_pieces(config, kept + own)]
    encoder, kind = config.encoder, ENCODERS.find(config.encoder.kind)
    columns, ends_on_graph = kind.widths(graph.num_features, encoder)[0], method.ends_on_whole_graph()
    if ends_on_graph and protocol.train_graph == "seen":
        operators.append(together)
    layers = kind.all_shapes(graph.num_features, encoder)
    kept += WEIGHT * sum(math.prod(shape) for layer in layers for shape in layer.values())
    if kind.reads_neighbours():
        beside = "own" in kind.needs  # raw features are kept beside those of neighbours
        ready = sum(one.operators + one.dense * beside for one in operators)
    else:  # propagated and projected features
        ready = sum(4 * one.nodes * columns for one in operators)
        kept += walking_bytes(max(task.nodes, tested.nodes), min(BLOCK, columns)) + 4 * graph.num_features * columns
    # The rows of the matrix that give embeddings of training nodes, with their transpose; gradients of some nodes.
    whole_step = (
        16 * (task.edges + task.nodes) + step_bytes(encoder, task.nodes, task.nodes) + 4 * CHUNK * ends_on_graph
    )
    forward = 4 * tested.nodes * (2 * encoder.hidden + encoder.width)
    batch, found = protocol.batch, []
    if batch == "full":
        found.append(Way(config, kept + ready + max(whole_step, forward), Budget()))
        batch = Sampling(fanouts=fanouts_for(encoder.layers))
    lean = config.model_copy(update={"protocol": protocol.model_copy(update={"batch": batch})})
    fanouts = batch.fanouts if kind.reads_neighbours() else ()
    step = max(batch_bytes(batch.nodes, fanouts, task, columns, encoder), whole_step * ends_on_graph)
    piece = 4 * min(VALUES_AT_ONCE, tested.nodes * graph.num_features) + min(tested.operators, 8 * EDGES_AT_ONCE)
    found.append(in_pieces(lean, kept + ready * ends_on_graph + max(step, forward + piece)))
    return found


def step_bytes(encoder: EncoderConfig, nodes: int, read: int) -> int:
    """Of a step: the hidden layers and a gradient twice, or the hidden layer and both layers of the nodes read."""
    inner = (encoder.layers + 1) * nodes * encoder.hidden
    return 4 * max(inner, nodes * encoder.hidden + 2 * read * (encoder.hidden + encoder.width))


def batch_bytes(nodes: int, fanouts: Sequence[Fanout], task: Extent, columns: int, encoder: EncoderConfig) -> int:
    """Of two mini-batches, of nodes with so many columns of features: one in use, one made ahead."""
    # Of the outermost neighbours nothing is kept but the sums of their features.
    rows = reached = read = min(nodes, task.nodes)
    entries = 0
    for fanout in fanouts:
        around = task.nodes if fanout == "all" else fanout
        entries += min(reached * (1 + around), task.edges + task.nodes)
        rows, reached = reached, min(task.nodes, reached * (1 + around))
    return 2 * (4 * rows * columns + A_DRAW * entries) + step_bytes(encoder, rows, read)


def extent(graph: Graph, nodes: int, edges: int) -> Extent:
    """Of a part of a graph with so many nodes and edges."""
    x, dense = graph.x, 4 * nodes * graph.num_features
    features = dense
    if isinstance(x, sp.csr_array):
        features, dense = int(8 * x.nnz * nodes / max(1, graph.num_nodes)), 0
    copy = features + (8 if graph.neighbours.weights is not None else 4) * edges + 8 * nodes
    return Extent(nodes, edges, copy, dense, operators_bytes(graph, nodes, edges))


def held_bytes(graph: Graph) -> int:
    """Of the whole graph, as far as it is in memory and not mapped from files."""
    x, rows = graph.x, graph.neighbours
    parts = [x.data, x.indices, x.indptr] if isinstance(x, sp.csr_array) else [x]
    parts += [part for part in (rows.indices, rows.indptr, rows.weights) if part is not None]
    return sum(part.nbytes for part in parts if not isinstance(part, np.memmap))


def task_extents(graph: Graph, stream: TaskStream) -> tuple[Extent, Extent]:
    """Of the task with the largest graph, and of the graphs of all tasks together."""
    sizes = stream.sizes()
    return extent(graph, *max(sizes, key=sum)), extent(graph, *map(sum, zip(*sizes, strict=True)))


def fitted(resolved: Resolved, limit: int) -> Way:
    """The fastest way that keeps to a limit."""
    known = ways(resolved, limit)
    for way in known:
        if way.bytes <= limit:
            return way
    least = min(way.bytes for way in known)
    raise CapacityError(
        f"This run takes about {least / GIB:.1f} GiB at least, more than the limit of "
        f"{limit / GIB:.3g} GiB: raise --memory-limit, or map a large graph from files ('ipal data --convert')."
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether it was memory, of the host or a device, that was missing."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    words = ("not enough memory", "can't allocate memory", "out of memory")
    return isinstance(error, RuntimeError) and any(word in str(error) for word in words)


def explained(device: str) -> CapacityError:
    """What to do where memory has run out."""
    return CapacityError(
        f"Out of memory on {device}: set --memory-limit, smaller batches (protocol.batch.nodes), a narrower network or "
        "fewer columns, or use a machine with more memory. What was saved is kept: the same command goes on from there."
    )


def parse_bytes(text: str, option: str = "--memory-limit") -> int:
    """`8GB`, `512M` or a plain number of bytes; units are powers of 1024."""
    units = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
    number = text.strip().upper().removesuffix("B").removesuffix("I")
    unit = number[-1:] if number[-1:] in units else ""
    try:
        value = int(float(number.removesuffix(unit)) * units[unit])
    except (ValueError, OverflowError):
        value = 0
    if not 0 < value < 2**63:
        raise CapacityError(f"{option} takes a size as 8GB or 512MB; got '{shortened(text)}'.")
    return value
