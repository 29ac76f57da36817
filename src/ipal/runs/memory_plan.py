"""Estimates the main memory of a run before it starts, and chooses a way that fits a limit.

Three ways to learn a stream, from the fastest to the smallest:

    full       every task's graph at once
    sampled    mini-batches with sampled neighbours; graphs to be tested on at once
    chunked    as sampled, with embeddings (without training: rows) made in pieces, from and to files

Estimates cover what grows with the graph; docs/performance.md compares some with measurements.
"""

from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp
import torch

from ipal.config import RunConfig, Sampling
from ipal.data.graph import Graph
from ipal.data.streams import Stream
from ipal.errors import CapacityError, shortened
from ipal.learners.trained import TrainedLearner
from ipal.learners.values import Extents
from ipal.nn.embed import operators_bytes
from ipal.nn.encoders import ENCODERS
from ipal.runs.resolved import Resolved
from ipal.system.memory_budget import Budget

GIB = 2**30
BASE = int(0.5 * GIB)
"""Python, torch and the other libraries."""
PIECE = GIB // 4
"""What is looked at in one go, where something is made in pieces."""


@dataclass(frozen=True)
class Way:
    """One way to learn a stream."""

    name: str
    config: RunConfig
    bytes: int
    """About what it takes."""
    budget: Budget


def ways(resolved: Resolved, limit: int | None = None) -> list[Way]:
    """The ways that a method has, the fastest first."""
    config, method, graph = resolved.config, resolved.method, resolved.dataset.graph
    if config.protocol.train_graph == "seen":  # all nodes so far pass messages: in the end the whole graph
        task = together = whole(graph)
    else:
        task, together = task_extents(graph, resolved.stream)
    # Graphs of tasks stay: every one of them is tested on again.
    tested, copies = together, [together]
    if config.protocol.test_graph == "seen":
        tested = whole(graph)
        copies.append(tested)
    if method.stores_all_tasks:  # keeps all tasks as one, and copies that where it is saved
        task = together
        copies += 4 * [together]
    kept = BASE + held_bytes(graph) + sum(one.copy for one in copies)

    def chunked(config: RunConfig, needed: int) -> Way:
        """Dense features may lie in files: what remains of the limit is for them, and for what is faster at once."""
        needed -= sum(one.dense for one in copies)
        return Way("chunked", config, needed, Budget(None if limit is None else max(0, limit - needed)))

    if not issubclass(method, TrainedLearner):
        at_once, in_pieces = method.working_memory(
            Extents(
                features=graph.num_features,
                classes=sum(config.split or ()),
                task_nodes=task.nodes,
                tested_nodes=tested.nodes,
                operators=tested.operators,
                piece=min(tested.operators, PIECE),
            )
        )
        return [Way("full", config, kept + at_once, Budget()), chunked(config, kept + in_pieces)]
    learner = resolved.learner()
    assert isinstance(learner, TrainedLearner)
    encoder = learner.largest_encoder(graph.num_features)
    if "own" in ENCODERS.find(encoder.kind).needs:  # raw features are kept beside those of neighbours
        task, tested, together = (replace(one, operators=one.operators + one.dense) for one in (task, tested, together))
    hidden = 4 * (encoder.hidden + encoder.width)
    weights = 20 * graph.num_features * encoder.hidden
    evaluated = kept + weights + 3 * tested.nodes * hidden
    # What the end of a task takes whatever its batches are; operators stay as long as their graphs do.
    ending = together.operators + 6 * task.nodes * hidden + PIECE if method.looks_at_whole_tasks else 0
    found = []
    batch = config.protocol.batch
    if batch == "full":
        step = task.operators + 6 * task.nodes * hidden
        found.append(Way("full", config, evaluated + max(tested.operators, step, ending), Budget()))
        batch = Sampling(fanouts=(10,) + (25,) * (config.encoder.layers - 1))
    protocol = config.protocol.model_copy(update={"batch": batch})
    lean = config.model_copy(update={"protocol": protocol})
    step = max(batch_bytes(batch, task, graph, hidden), ending)
    found.append(Way("sampled", lean, evaluated + max(tested.operators, step), Budget()))
    found.append(chunked(lean, evaluated + max(min(tested.operators, PIECE), step)))
    return found


@dataclass(frozen=True)
class Extent:
    """A graph's size, in bytes."""

    nodes: int
    copy: int
    """Of its features and edges."""
    dense: int
    """Of its features alone where they are dense: those may lie in a file."""
    operators: int
    """Of its propagation matrix (as SciPy and as torch keep it) and its propagated features."""


def extent(graph: Graph, nodes: int, edges: int) -> Extent:
    """Of a part of a graph with so many nodes and edges."""
    share = nodes / max(1, graph.num_nodes)
    x = graph.x
    sparse = int(8 * x.nnz * share) if isinstance(x, sp.csr_array) else 0
    dense = 0 if isinstance(x, sp.csr_array) else 4 * nodes * graph.num_features
    an_edge = 8 if graph.is_weighted else 4
    copy = sparse + dense + an_edge * edges + 8 * nodes
    return Extent(nodes, copy, dense, operators_bytes(graph, nodes, edges))


def whole(graph: Graph) -> Extent:
    return extent(graph, graph.num_nodes, graph.num_edges)


def held_bytes(graph: Graph) -> int:
    """Of the whole graph, as far as it is in memory and not mapped from files."""
    x = graph.x
    parts = [x.data, x.indices, x.indptr] if isinstance(x, sp.csr_array) else [x]
    parts += [graph.indices, graph.indptr] + [part for part in [graph.neighbours.weights] if part is not None]
    return sum(part.nbytes for part in parts if not isinstance(part, np.memmap))


def task_extents(graph: Graph, stream: Stream) -> tuple[Extent, Extent]:
    """Of the task with the largest graph, and of the graphs of all tasks together."""
    sizes = stream.sizes()
    return extent(graph, *max(sizes, key=sum)), extent(graph, *map(sum, zip(*sizes, strict=True)))


def batch_bytes(batch: Sampling, task: Extent, graph: Graph, hidden: int) -> int:
    """Of two mini-batches: one in use, one made ahead."""
    # Of the outermost neighbours nothing is kept but the sums of their features.
    rows, reached, entries = 0, min(batch.nodes, task.nodes), 0
    for fanout in batch.fanouts:
        around = task.nodes if fanout == "all" else fanout
        entries += min(reached * (1 + around), task.operators // 16)
        rows, reached = reached, min(task.nodes, reached * (1 + around))
    return 2 * (rows * (4 * graph.num_features + 4 * hidden) + 40 * entries)


def fitted(resolved: Resolved, limit: int) -> Way:
    """The fastest way that keeps to a limit."""
    known = ways(resolved, limit)
    for way in known:
        if way.bytes <= limit:
            return way
    least = min(known, key=lambda way: way.bytes)
    is_large = held_bytes(resolved.dataset.graph) >= BASE
    mapped = ", or map the graph from files ('ipal data --convert')" if is_large else ""
    raise CapacityError(
        f"This run takes about {least.bytes / GIB:.1f} GiB even {least.name}, more than the limit of "
        f"{limit / GIB:.1f} GiB: raise --memory-limit{mapped}."
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether it was memory, of the host or a device, that was missing."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    words = ("not enough memory", "can't allocate memory", "out of memory")
    return isinstance(error, RuntimeError) and any(word in str(error) for word in words)


def explained(resolved: Resolved) -> CapacityError:
    """What to do where memory has run out: what takes less, and how much."""
    known, config = ways(resolved), resolved.config
    first, rest = known[0], known[1:]
    tries = {
        "sampled": f"mini-batches about {{}} GiB (--set protocol.batch.nodes={Sampling().nodes})",
        "chunked": "in pieces about {} GiB (--memory-limit with what there is)",
    }
    leaner = [way for way in rest if way.bytes - BASE < 0.9 * (first.bytes - BASE)]
    fits = [tries[way.name].format(f"{way.bytes / GIB:.1f}") for way in leaner]
    if isinstance(config.protocol.batch, Sampling) and config.protocol.batch.nodes > 100:
        half = config.protocol.batch.nodes // 2
        fits.append(f"smaller batches less (--set protocol.batch.nodes={half})")
    if config.method == "analytic":
        fits.append("fewer random features less (--set analytic.expansion=2048)")
    advice = f"; {', '.join(fits)}" if fits else ": use a machine with more memory, or a smaller encoder.hidden"
    return CapacityError(
        f"Out of memory on {config.device}. This run takes about {first.bytes / GIB:.1f} GiB as it is{advice}. "
        "What was saved is kept: the same command goes on from there."
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
