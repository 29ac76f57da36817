"""A score of a node, divided among the features of all nodes that it was made of: features times gradients.

The model's own prediction runs over the graph, from the features that are not zero, with respect to which the gradient
is taken. Lengths and deviations by which rows are divided, and attention, are held fixed, as edges are: through them
every feature would take from the others what it adds.
"""

from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ipal.backend.operators import Features, Operators, operators
from ipal.backend.propagated import unit_rows
from ipal.backend.runtime import Runtime
from ipal.data.graph import Graph
from ipal.data.task import Task
from ipal.nn.compute import TensorCompute
from ipal.nn.encoders import Encoder
from ipal.state.value import leaves, rebuilt
from ipal.system import free_memory


def contribution(x: NDArray[Any], gradient: NDArray[Any]) -> NDArray[Any]:
    r"""What a feature of a node contributes to a score: its value times the gradient of the score.

    .. math:: c_{jf} = x_{jf} \, \partial s / \partial x_{jf}

    Source: Shrikumar et al. 2016, "Not Just a Black Box: Interpretable Deep Learning by Propagating Activation
    Differences", Sec. 3. Contributions add up to the score where it is linear in the features, or made of linear pieces
    without an offset, as by a ReLU.
    """
    return np.asarray(x * gradient)


class NodeEvidence(TensorCompute):
    """What a method computes with for one node, from values that a score can be divided among."""

    def __init__(self, graph: Graph, node: int, runtime: Runtime) -> None:
        self.graph, self.node, self.runtime = graph, node, runtime
        self._need(64 * (graph.x.nnz if isinstance(graph.x, sp.csr_array) else graph.x.size))
        self.x = sp.csr_array(graph.x).astype(np.float64)
        self.x.eliminate_zeros()
        self.values = torch.tensor(self.x.data, requires_grad=True)
        self.places = torch.from_numpy(np.stack(self.x.tocoo().coords).astype(np.int64))
        """(2, values): row and column of each."""

    def shares(self, score: Tensor) -> sp.csr_array:
        """What every feature of every node contributes to a score (see `contribution`)."""
        gradient = torch.zeros_like(self.values)
        if score.requires_grad:
            (gradient,) = torch.autograd.grad(score, [self.values], materialize_grads=True)
        shares = contribution(self.x.data, gradient.numpy())
        return sp.csr_array((shares, self.x.indices, self.x.indptr), shape=self.x.shape)

    def _encoded(self, encoder: Encoder) -> Tensor:
        task = Task(self.graph, np.array([self.node]), np.zeros(1, dtype=np.int64))
        blocks, like = operators(task, self.runtime, encoder.needs).blocks, next(encoder.parameters())
        numbers = (one.to(like.dtype) if one.is_floating_point() else one for one in leaves(blocks))
        found: Tensor = encoder(Operators(Features(self.features(like), {}), rebuilt(blocks, numbers)))
        return found

    def _walked(self, steps: int, restart: float, weights: Tensor | None = None) -> Tensor:
        """The node's row alone, (1, columns)."""
        start = np.zeros((1, self.graph.num_nodes))
        start[0, self.node] = 1
        share = start
        for _ in range(steps):
            share = (1 - restart) * (share @ self.graph.normalised) + restart * start
        row, column = self.places
        scale = share[0, row] * unit_rows(self.x).data / self.x.data
        mixed = torch.zeros(1, self.x.shape[1], dtype=torch.float64)
        mixed = mixed.index_add(1, column, (self.values * torch.from_numpy(scale))[None]).to(self.runtime.device)
        return mixed if weights is None else mixed.to(weights.dtype) @ weights.to(mixed.device)

    def features(self, like: Tensor) -> Tensor:
        """Features of all nodes as a sparse tensor, whose products are differentiated."""
        self._need(8 * self.x.shape[0] * self.x.shape[1])
        values = self.values.to(like.dtype)
        found = torch.sparse_coo_tensor(self.places, values, self.x.shape, check_invariants=False, is_coalesced=True)
        return found.to(like.device)

    def _need(self, bytes: int) -> None:
        what = f"The explanation of a node with {self.graph.num_nodes} nodes within reach"
        free_memory.need(bytes, what, "explain one with fewer neighbours")


class FixedDivisors(TorchFunctionMode):
    """What rows are divided by, and attention, count as constants."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(function, "__name__", "")
        if name == "layer_norm":
            return _normalised(*args, **(kwargs or {}))
        found = function(*args, **(kwargs or {}))
        return found.detach() if name in {"rsqrt", "exp", "norm", "vector_norm", "linalg_vector_norm"} else found


def _normalised(values: Tensor, shape: Any, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """A layer norm by a deviation that is held fixed."""
    centred = values - values.mean(dim=1, keepdim=True)
    deviation = (centred.square().mean(dim=1, keepdim=True) + eps).sqrt().detach()
    return centred / deviation * weight + bias
