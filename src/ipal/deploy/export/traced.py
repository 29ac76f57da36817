"""A graph as tensors that torch traces to ONNX: prediction runs over it as over any other graph.

Edges are read as the library reads them: self-loops and repeats count once, with the mean of their weights, and every
node has a loop of its own. Repeats stay in the arrays with weight zero, so that no array's size depends on the values.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu

from ipal.backend.attention import SLOPE
from ipal.backend.operators import LayerInput
from ipal.data.csr import Norm
from ipal.estimator.model import Model
from ipal.estimator.open_world.calibration import sharpened
from ipal.nn.compute import TensorCompute, row_lengths
from ipal.nn.encoders import Encoder

COLUMNS_AT_ONCE = 512
"""Columns that are sent along the edges at a time: each takes 4 bytes per edge."""
TINY = torch.finfo(torch.float32).tiny


@dataclass(frozen=True, eq=False)
class TracedGraph(TensorCompute):
    """Features and edges of a graph, and what methods and encoders compute with them."""

    x: Tensor
    source: Tensor
    target: Tensor
    weight: Tensor
    """(edges, 1); zero for repeats."""
    scaled: dict[Norm, Tensor] = field(default_factory=dict)
    """Weights of the edges by norm, as they are needed."""

    @classmethod
    def of(cls, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None) -> "TracedGraph":
        n, nodes = x.shape[0], torch.arange(x.shape[0], device=x.device)
        # Looking up every end refuses an edge to a missing node; negative numbers would count from the end.
        ends = nodes.index_select(0, torch.where(edge_index < 0, n, edge_index).flatten()).view(2, -1)
        source, target = (torch.cat([end, nodes]) for end in ends)
        pair, order = (target * n + source).sort()
        is_new = torch.cat([pair[:1] >= 0, pair[1:] != pair[:-1]])
        weight = is_new.to(x.dtype)
        if edge_weight is not None:
            # Looking up place 1 of one number refuses what is negative, infinite or NaN.
            is_sound = (edge_weight >= 0) & (edge_weight < torch.inf)
            given = edge_weight + edge_weight.new_zeros(1).index_select(0, torch.where(is_sound, 0, 1))
            is_edge, loops = (ends[0] != ends[1]).to(x.dtype), torch.ones_like(nodes, dtype=x.dtype)
            place = is_new.long().cumsum(0) - 1
            sums, times = (
                torch.zeros_like(weight).index_add(0, place, torch.cat([one, loops]).index_select(0, order))
                for one in (given * is_edge, is_edge)
            )
            mean = (sums / times.clamp_min(1)).index_select(0, place)
            weight = torch.where(mean >= TINY, mean * weight, 0.0)
        return cls(x, source.index_select(0, order), target.index_select(0, order), weight[:, None])

    @property
    def first(self) -> LayerInput:
        return TracedInput(self, self.x)

    def later(self, layers: int) -> Sequence[Callable[[Tensor], LayerInput]]:
        return [partial(TracedInput, self)] * layers

    def _encoded(self, encoder: Encoder) -> Tensor:
        return encoder(self)  # type: ignore[no-any-return]

    def _walked(self, steps: int, restart: float, weights: Tensor | None = None) -> Tensor:
        largest = self.x.abs().amax(dim=1, keepdim=True).clamp_min(TINY)
        within_one = self.x / largest  # whose square is never too large
        unit = within_one / row_lengths(within_one)
        found = start = unit if weights is None else unit @ weights.to(self.x)
        for _ in range(steps):
            found = self.sums(found) * (1 - restart) + start * restart
        return found

    def sums(self, z: Tensor, norm: Norm = "symmetric") -> Tensor:
        """Over neighbours."""
        return self._sent(z, self._weights(norm))

    def _weights(self, norm: Norm) -> Tensor:
        """Of the edges, for sums over neighbours, (edges, 1)."""
        if norm not in self.scaled:
            weight = self.weight if norm == "symmetric" else self.weight * (self.source != self.target)[:, None]
            if norm != "sum":
                degree = self._added(weight)
                to, by = (degree.index_select(0, end) for end in (self.target, self.source))
                scale = to if norm == "mean" else to.sqrt() * by.sqrt()
                weight = weight / torch.where(scale > 0, scale, 1.0)
            self.scaled[norm] = weight
        return self.scaled[norm]

    def attended(self, z: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """Means over a node and its neighbours, by one head of attention (see `backend.attention`)."""
        to, by = z @ query, z @ key
        e = leaky_relu(to.index_select(0, self.target) + by.index_select(0, self.source), SLOPE)
        e = torch.where(self.weight[:, 0] > 0, e, -torch.inf)
        highest = torch.full_like(to, -torch.inf).scatter_reduce(0, self.target, e, "amax")
        raised = (e - highest.index_select(0, self.target)).exp()[:, None] * self.weight
        return self._sent(z, raised) / self._added(raised)

    def _sent(self, z: Tensor, weight: Tensor) -> Tensor:
        """Every node's weighted sum over the sources of its edges."""
        parts = torch.split(z, COLUMNS_AT_ONCE, dim=1)
        return torch.cat([self._added(part.index_select(0, self.source) * weight) for part in parts], dim=1)

    def _added(self, values: Tensor) -> Tensor:
        """Rows of edges, added up at their targets."""
        return values.new_zeros(self.x.shape[0], values.shape[1]).index_add(0, self.target, values)


@dataclass(frozen=True, eq=False)
class TracedInput(LayerInput):
    """Values of all nodes of a traced graph."""

    graph: TracedGraph
    values: Tensor

    def aggregated(self, weight: Tensor, norm: Norm = "symmetric") -> Tensor:
        # Propagated where rows are narrower: before or after the product.
        narrow = weight.shape[0] < weight.shape[1]
        z = self.values if narrow else self.values @ weight
        sums = self.graph.sums(z, norm)
        return sums @ weight if narrow else sums

    def own(self, weight: Tensor) -> Tensor:
        return self.values @ weight

    def attended(self, weight: Tensor, query: Tensor, key: Tensor) -> Tensor:
        heads = zip((self.values @ weight).chunk(len(query), dim=1), query, key, strict=True)
        return torch.cat([self.graph.attended(*head) for head in heads], dim=1)


class Inference(nn.Module):
    """Scores, probabilities and the place of the likeliest class, from features and edges: what is exported."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model, self.power = model, model.calibrating_power
        self.network = model.network

    def forward(
        self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        graph: Any = TracedGraph.of(x, edge_index, edge_weight)
        scores = self.model.forward(graph, compute=graph).scores
        probabilities = self.model.probabilities(scores, graph, compute=graph)
        if self.power != 1:
            probabilities = sharpened(probabilities, self.power)
        return scores, probabilities, scores.argmax(dim=1)
