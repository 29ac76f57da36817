"""TWP: topology-aware weight preserving.

Liu, Yang & Wang 2021, "Overcoming Catastrophic Forgetting in Graph Neural Networks", https://arxiv.org/abs/2012.06002.
A parameter matters by how strongly the loss, and how strongly the attention between neighbours, depend on it; the
loss keeps such parameters near their old values, and keeps the importance for the loss itself small.

Readings: attention is the softmax over a node's neighbours (itself among them) of h_i . tanh(h_j), h the output of the
first layer, whatever the encoder; its squared length is averaged over nodes, as the loss is, so that both importances
are independent of the number of nodes; importances are absolute gradients; the last term is the L1 norm of the loss's
gradient, differentiated a second time. A public benchmark's variant applies the gradient of the loss twice and
detaches that term, which then has no effect on training.
"""

from itertools import pairwise

import numpy as np
import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from ipal.backend.batches import Batch
from ipal.backend.neighbor_sampling import compact
from ipal.backend.operators import operators
from ipal.backend.runtime import Runtime
from ipal.backend.sparse import SparseMatrix
from ipal.data.graph import Graph
from ipal.data.streams import Task
from ipal.learners import anchored
from ipal.learners.anchored import quadratic_pull
from ipal.learners.kept import Parameters
from ipal.learners.trained import Lesson, TrainedLearner
from ipal.learners.values import Terms
from ipal.nn.per_node_gradients import whole_propagation

# Numbers in the largest array of one chunk of edges.
CHUNK = 2**24


def attention_length(
    h: Tensor, h_neighbour: Tensor, neighbours: Tensor, starts: Tensor, weights: Tensor | None = None
) -> Tensor:
    r"""Sum over nodes of the squared length of their attention to their neighbours.

    .. math:: \sum_i \sum_{j \in N(i)} a_{ij}^2, \quad a_{ij} \propto w_{ij} \exp (h_i \cdot \tanh h_j)

    Source: Liu et al. 2021, the topological loss, where all `weights` w of edges are one (None). Node i has the
    neighbours that stand from `starts[i]` to `starts[i + 1]`, less the first start, in `neighbours`; they are rows of
    `h_neighbour`.
    """
    lengths = starts.diff().long()
    row = torch.arange(len(h), device=h.device).repeat_interleave(lengths, output_size=len(neighbours))
    e = (h[row] * h_neighbour[neighbours].tanh()).sum(dim=1)
    highest = torch.segment_reduce(e.detach(), "max", lengths=lengths, unsafe=True)
    raised = (e - highest[row]).exp()
    if weights is not None:
        raised = raised * weights
    a = raised / torch.segment_reduce(raised, "sum", lengths=lengths, unsafe=True)[row]
    return a.square().sum()


def gradient_length(gradients: list[Tensor]) -> Tensor:
    r"""L1 norm of the importance of all parameters for the loss.

    .. math:: \| I^{loss} \|_1 = \sum_m \Big| \frac{\partial L}{\partial \theta_m} \Big|

    Source: Liu et al. 2021, the term weighted by beta. Its gradient is a second derivative of the loss.
    """
    return torch.stack([gradient.abs().sum() for gradient in gradients]).sum()


@dataclass(kw_only=True, eq=False)
class TWP(TrainedLearner[Lesson]):
    """Topology-aware weight preserving: importance for the loss and for the attention between neighbours."""

    loss_strength: float = Field(1e4, ge=0)
    """Weight of the importance for the loss, the paper's lambda_l."""
    topology_strength: float = Field(1e4, ge=0)
    """Weight of the importance for the topology, the paper's lambda_t."""
    beta: float = Field(0.01, ge=0)
    """Weight of the L1 norm of the current importance for the loss."""

    name = "twp"
    title = "TWP"
    looks_at_whole_tasks = True
    recordable = True
    kept = anchored.KEPT

    def initialise(self, num_features: int) -> None:
        super().initialise(num_features)
        self.importance_, self.anchor_ = Parameters(), Parameters()

    def loss(self, batch: Batch, lesson: Lesson) -> Terms:
        terms = super().loss(batch, lesson)
        if self.importance_:
            theta = dict(self.network_.named_parameters())
            terms["pull"] = quadratic_pull(theta, self.importance_, self.anchor_)
        if self.beta:
            parameters = list(self.network_.parameters())
            gradients = torch.autograd.grad(
                terms["cross_entropy"], parameters, create_graph=True, allow_unused=True, materialize_grads=True
            )
            terms["minimal"] = self.beta * gradient_length(list(gradients))
        return terms

    def end_task(self, task: Task, lesson: Lesson) -> None:
        new, theta = self._importance(task, lesson), self.parameters()
        self.importance_, self.anchor_ = anchored.with_task(self.importance_, self.anchor_, new, theta)

    @torch.enable_grad()
    def _importance(self, task: Task, lesson: Lesson) -> Parameters:
        named = dict(self.network_.named_parameters())
        loss = lesson.cross_entropy(self.training_outputs(task), slice(None), self.competing)
        by_loss = torch.autograd.grad(loss, list(named.values()), allow_unused=True, materialize_grads=True)
        encoder = self.encoder_
        h = encoder.first_layer(operators(task.graph, self.runtime_, encoder.needs))
        first = {f"encoder.{name}.0": parameter for name, parameter in encoder.layers()[0].items()}
        by_topology = torch.autograd.grad(
            h,
            list(first.values()),
            grad_outputs=_attention_gradient(h.detach(), task.graph, self.runtime_),
            allow_unused=True,
            materialize_grads=True,
        )
        importance = {name: self.loss_strength * gradient.abs() for name, gradient in zip(named, by_loss, strict=True)}
        for name, gradient in zip(first, by_topology, strict=True):
            importance[name] = importance[name] + self.topology_strength * gradient.abs()
        return importance


def _attention_gradient(h: Tensor, graph: Graph, runtime: Runtime) -> Tensor:
    """Derivative of the mean squared attention length with respect to `h`, over chunks of nodes."""
    a = whole_propagation(graph, runtime)
    weights = torch.from_numpy(graph.with_loops.data).to(h.device) if graph.is_weighted else None
    total = torch.zeros_like(h)
    entries = graph.indptr + np.arange(graph.num_nodes + 1)  # those of `a`, known without asking the device
    edges_at_once = max(1, CHUNK // h.shape[1])
    cuts = np.searchsorted(entries, np.arange(0, entries[-1] + edges_at_once, edges_at_once))
    bounds = np.unique(np.append(cuts, graph.num_nodes).clip(max=graph.num_nodes)).tolist()
    for begin, end in pairwise(bounds):
        here = slice(entries[begin], entries[end])
        starts, shape = a.indptr[begin : end + 1], (end - begin, graph.num_nodes)
        nodes, block = compact(SparseMatrix(starts, a.indices[here], a.values[here], shape))
        own, others = h[begin:end].requires_grad_(), h[nodes].requires_grad_()
        length = attention_length(own, others, block.indices, starts, None if weights is None else weights[here])
        by_own, by_others = torch.autograd.grad(length, (own, others))
        total[begin:end] += by_own
        total[nodes] += by_others  # each once: nothing collides
    return total / graph.num_nodes
