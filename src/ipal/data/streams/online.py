"""The tasks of the class-incremental stream in small batches of nodes, each seen once; their borders may be blurred."""

import hashlib
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ipal.config import Count
from ipal.data.graph import Nodes
from ipal.data.streams.splits import TRAIN, at_most
from ipal.data.streams.tasks import TaskStream
from ipal.data.task import Task
from ipal.errors import DataError

ARRIVAL, NEIGHBOURHOOD = 3, 4
"""Places of the seeds of random draws, after those of splits.py and tasks.py."""


class Online(TaskStream):
    """A task comes in batches, each attached to nodes that came before, within a bounded neighbourhood.

    Unlabelled nodes of a task come along with its training nodes. With isolated training graphs a batch is attached to
    nodes of its own task only. Tests are those of the class-incremental stream. With `sigma` a batch has nodes of
    several tasks, those of a task spread over the batches in proportion to its share in them.
    """

    name = "online"
    gives = frozenset()

    class Settings(TaskStream.Settings):
        batch: Literal["task"] | Count = 50
        """Training nodes of a batch. task: a task is one batch."""
        hops: int = Field(2, ge=0, le=16)
        """Nodes so many steps from the batch are its neighbourhood; 0 for the batch alone."""
        neighbours: Count = 3
        """Most earlier neighbours of every node in it."""
        points: Count = 50
        """Tests along the stream, at equal distances, beside those after every task."""
        sigma: float = Field(0.0, ge=0, le=1e9)
        """Width of the overlap of tasks, in batches; 0 for none."""

    def __init__(self, *arguments: Any) -> None:
        """Decide also which node comes in which batch."""
        super().__init__(*arguments)
        sizes = np.bincount(self.task_of[self.part == TRAIN], minlength=len(self))
        most = sizes.max() if self.settings.batch == "task" else self.settings.batch
        self.starts = np.concatenate([[0], np.cumsum(-(-sizes // most))])  # of the batches of each task, and the end
        order = np.random.default_rng([self.seed, ARRIVAL]).permutation(len(self.y))
        shares = self.shares()
        self.batch_of = np.full(len(self.y), -1, dtype=np.int64)  # counted over the whole stream
        for task in range(len(self)):
            for part in np.unique(self.part[self.part >= 0]):
                mine = np.flatnonzero((self.task_of == task) & (self.part == part))
                self.batch_of[mine[np.argsort(order[mine])]] = spread_evenly(len(mine), shares[:, task])
        sizes = np.bincount(self.batch_of[self.part == TRAIN], minlength=len(shares))
        if not sizes.all():
            raise DataError(f"Batch {sizes.argmin() + 1} has no training node: set a larger protocol.stream.batch.")

    def shares(self) -> NDArray[np.float64]:
        """(batches, tasks), what share of a batch is of which task."""
        if self.settings.sigma == 0:
            return np.repeat(np.eye(len(self)), self.batches, axis=0)
        middles = (self.starts[:-1] + self.starts[1:] - 1) / 2
        return blurred_shares(middles, int(self.starts[-1]), self.settings.sigma)

    @property
    def revisits(self) -> bool:
        """A batch that is blurred is attached to earlier nodes of each of its tasks."""
        return bool(self.settings.sigma and self.settings.hops)

    @property
    def batches(self) -> list[int]:
        return list(map(int, np.diff(self.starts)))

    def batch(self, index: int, number: int) -> Task:
        b = int(self.starts[index]) + number
        new = self.batch_of == b
        if self.protocol.visibility == "inductive":
            new &= self.untested
        nodes = self._with_neighbourhood(np.flatnonzero(new), b)
        graph, groups = self.graph.induced(nodes, self.budget), self.task_of[nodes]
        if self.protocol.train_graph == "isolated" and (groups != groups[0]).any():
            graph = graph.within(groups)
        mine = np.flatnonzero(new[nodes] & (self.part[nodes] == TRAIN))
        return Task(graph=graph, nodes=mine, labels=self.y[nodes[mine]], origin=nodes)

    def _with_neighbourhood(self, nodes: Nodes, b: int) -> Nodes:
        """Nodes of batch `b`, and earlier ones near them."""
        random = np.random.default_rng([self.seed, NEIGHBOURHOOD, b])
        reached = edge = nodes
        for _ in range(self.settings.hops):
            place, found = self.graph.neighbours.rows_of(edge)
            there = (self.batch_of[found] >= 0) & (self.batch_of[found] < b)
            if self.protocol.train_graph == "isolated":
                there &= self.task_of[found] == self.task_of[edge[place]]
            if self.protocol.visibility == "inductive":
                there &= self.untested[found]
            some = at_most(place[there], self.settings.neighbours, random)
            edge = np.setdiff1d(found[there][some], reached)
            reached = np.union1d(reached, edge)
        return reached

    def is_tested_after(self, index: int, number: int) -> bool:
        total, points = int(self.starts[-1]), int(self.settings.points)
        b = int(self.starts[index]) + number
        return (b + 1) * points // total > b * points // total

    @property
    def split_hash(self) -> str:
        if max(self.batches) == 1:
            return super().split_hash
        return hashlib.sha256(super().split_hash.encode() + self.batch_of.tobytes()).hexdigest()

    def describe(self) -> dict[str, Any]:
        """With the number of batches of each task."""
        return {**super().describe(), "batches": self.batches}


def spread_evenly(number: int, shares: NDArray[np.float64]) -> NDArray[np.int64]:
    r"""The batch of each of so many nodes, in proportion to shares, and in order.

    .. math:: b_k = \min_b b \quad \text{with} \quad \sum_{a \le b} s_a > \frac{k + 1/2}{n} \sum_a s_a

    Quantiles of the shares s, k = 0, ..., n - 1: no batch is more than one node away from its part of the n nodes.
    """
    reached = np.cumsum(shares)
    places = np.searchsorted(reached, (np.arange(number) + 0.5) / number * reached[-1], side="right")
    return np.asarray(places, dtype=np.int64)


def blurred_shares(middles: NDArray[np.float64], batches: int, sigma: float) -> NDArray[np.float64]:
    r"""What share of batch b is of group t.

    .. math:: s_{bt} = \mathrm{softmax}_t \Big( -\frac12 \Big( \frac{b - m_t}{\sigma} \Big)^2 \Big)

    Source: DRIFT 2026, arXiv 2605.12998. m_t is the middle of the group's natural window, sigma is in batches.
    """
    z = -0.5 * np.square((np.arange(batches)[:, None] - middles[None, :]) / sigma)
    raised = np.exp(z - z.max(axis=1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=1, keepdims=True))
