"""From a graph to the rows that a closed form adds up: propagated, normalised, expanded by fixed random directions.

Nothing here is learned: the same seed gives the same map, which is what makes sums of two models addable.
"""

import hashlib
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from sklearn.preprocessing import normalize
from torch import Tensor

from ipal.engine import SparseMatrix
from ipal.graph import Graph

ROWS_AT_ONCE = 4096

_ready: "weakref.WeakKeyDictionary[Graph, dict[Any, Tensor]]" = weakref.WeakKeyDictionary()


def unit_rows(x: Tensor) -> Tensor:
    """Rows of length one; a row of zeros stays."""
    return torch.nn.functional.normalize(x, dim=1)


def random_features(x: Tensor, directions: Tensor) -> Tensor:
    r"""Random ReLU features.

    .. math:: \phi(x) = \sqrt{2 / D} \; \mathrm{ReLU}(x R), \quad R_{ij} \sim N(0, 1)

    Source: McDonnell et al. 2023, "RanPAC: Random Projections and Pre-trained Models for Continual Learning", Sec. 4,
    with a factor that keeps squared lengths in the mean (Cho & Saul 2009, the arc-cosine kernel of degree one).
    """
    return torch.relu_(x @ directions).mul_((2 / directions.shape[1]) ** 0.5)


@dataclass(frozen=True)
class Propagation:
    """Features spread over the graph: wide ones are first projected to fewer columns, which commutes with it."""

    num_features: int
    sketch: int
    """Features wider than this are projected to so many columns."""
    seed: int
    device: torch.device

    @property
    def columns(self) -> int:
        """Columns of one hop."""
        return min(self.num_features, self.sketch)

    @cached_property
    def _sketch(self) -> NDArray[np.float64]:
        random = np.random.default_rng([self.seed, 2])
        return np.asarray(random.standard_normal((self.num_features, self.columns)) / self.columns**0.5)

    def hops(self, graph: Graph, most: int) -> list[Tensor]:
        """Unit rows after 0, 1, … `most` hops, in single precision; what is spread are unit rows as well.

        Summed in double precision: so a node's row does not depend on how the rest of its graph is numbered.
        """
        x: Any = normalize(graph.x.astype(np.float64))
        if self.columns < self.num_features:
            x = x @ self._sketch  # sparse until here
        elif isinstance(x, sp.csr_array):
            x = x.toarray()
        spread = torch.from_numpy(np.ascontiguousarray(x, dtype=np.float64)).to(self.device)
        matrix = SparseMatrix.of(graph.normalised.astype(np.float64), self.device)
        found = [unit_rows(spread).float()]
        for _ in range(most):
            spread = matrix.matmul(spread)
            found.append(unit_rows(spread).float())
        return found


@dataclass(frozen=True)
class FeatureMap:
    """Propagated features of the chosen hops side by side, then expanded; a function of its fields alone."""

    propagation: Propagation
    hops: tuple[int, ...]
    expansion: int
    """Number of random ReLU features; 0 for none."""

    @property
    def inputs(self) -> int:
        return self.propagation.columns * len(self.hops)

    @property
    def width(self) -> int:
        """Length of the rows it gives."""
        return self.expansion or self.inputs

    @cached_property
    def _directions(self) -> Tensor:
        random = np.random.default_rng([self.propagation.seed, 3])
        drawn = random.standard_normal((self.inputs, self.expansion), dtype=np.float32)
        return torch.from_numpy(drawn).to(self.propagation.device)

    @cached_property
    def _directions_double(self) -> Tensor:
        return self._directions.double()

    def propagated(self, graph: Graph) -> Tensor:
        """(nodes, inputs); made once for a graph, and kept as long as it lives."""
        by_map = _ready.setdefault(graph, {})
        key = (self.propagation, self.hops)
        if key not in by_map:
            by_map[key] = side_by_side(self.propagation.hops(graph, max(self.hops)), self.hops)
        return by_map[key]

    def expanded(self, x: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
        """The rows themselves, from propagated ones: in double precision to be added up, in single to be scored."""
        x = x.to(dtype)
        if not self.expansion:
            return x
        return random_features(x, self._directions_double if dtype == torch.float64 else self._directions)

    @cached_property
    def fingerprint(self) -> str:
        """Tells two maps apart, also where a library drew other random numbers from the same seed."""
        digest = hashlib.sha256(f"{self.hops} {self.expansion}".encode())
        parts = [self._directions.cpu().numpy()] if self.expansion else []
        if self.propagation.columns < self.propagation.num_features:
            parts.append(self.propagation._sketch)
        for part in parts:
            digest.update(np.ascontiguousarray(part[:8]).tobytes())
        return digest.hexdigest()[:16]


def pieces(x: Tensor) -> list[Tensor]:
    """Rows, some at a time: expanded ones are wide."""
    return [x[begin : begin + ROWS_AT_ONCE] for begin in range(0, max(1, len(x)), ROWS_AT_ONCE)]


def side_by_side(blocks: list[Tensor], hops: Iterable[int]) -> Tensor:
    """The blocks of these hops as one row a node."""
    return torch.cat([blocks[hop] for hop in hops], dim=1)
