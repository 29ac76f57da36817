"""GEM: gradient episodic memory. Stores exemplars.

Lopez-Paz & Ranzato 2017, "Gradient Episodic Memory for Continual Learning", https://arxiv.org/abs/1706.08840.
Of every old task some nodes are kept, with the subgraph around them; where a step would raise the loss on any of
these memories, its gradient is turned to the nearest one that does not. Differences from the paper: memories are
drawn at random from the training nodes (the paper keeps the last ones; nodes have no order), and the loss on them
is class-balanced as everywhere here; Adam takes the step where the paper has SGD, so that it is the gradient, not
the step, that disagrees with no memory. The quadratic programme is solved as non-negative least squares, which it is.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ipal.config import Count, Hops, NonNegative, TrainConfig
from ipal.data.task import Task
from ipal.methods.base import Network, Space, TaskContext
from ipal.methods.classifier import Classifier, balanced_cross_entropy
from ipal.methods.shared.exemplars import StoredTasks, excerpt


def dual_solution(K: NDArray[np.float64], q: NDArray[np.float64], margin: float) -> NDArray[np.float64]:
    r"""How much of each memory's gradient is added to the step's.

    .. math:: \min_v \tfrac12 v^T G G^T v + g^T G^T v, \quad v \ge \text{margin}

    Source: Lopez-Paz & Ranzato 2017, the dual of their quadratic programme. `K` is G G^T, `q` is G g. With K = R^T R
    and v = w + margin it is the least-squares problem R w = -R^{-T} (q + margin K 1), w >= 0.
    """
    from scipy.optimize import nnls  # half a second that other methods need not wait for

    values, vectors = np.linalg.eigh(K)
    usable = values > values.max() * 1e-12
    root = np.sqrt(values[usable])
    R = root[:, None] * vectors[:, usable].T
    target = -(vectors[:, usable].T @ (q + margin * K.sum(axis=1))) / root
    w, _ = nnls(R, target)
    return np.asarray(w + margin, dtype=np.float64)


def projected_gradient(g: Tensor, G: Tensor, margin: float) -> Tensor:
    r"""The gradient nearest to `g` that disagrees with none of the memories' gradients, the rows of `G`.

    .. math:: \min_{\tilde g} \tfrac12 \|g - \tilde g\|_2^2, \quad \langle \tilde g, g_k \rangle \ge 0 \; \forall k

    Source: Lopez-Paz & Ranzato 2017, the primal; g~ = G^T v + g with v from the dual. A gradient that disagrees with
    none is left as it is.
    """
    q = G @ g
    if bool((q >= 0).all()):
        return g
    K = (G @ G.T).double().cpu().numpy()
    if not (np.isfinite(K).all() and K.any()):  # a loss that is no number is reported as such; no length, no direction
        return g
    v = dual_solution(K, q.double().cpu().numpy(), margin)
    return g + torch.from_numpy(v).to(g) @ G


@dataclass(frozen=True, kw_only=True)
class GEM(Classifier):
    """Gradient episodic memory: steps that would harm stored nodes of old tasks are turned away."""

    memory: Count = 100
    """Nodes kept of every task."""
    hops: Hops = 1
    """Steps of neighbourhood kept around them; their embeddings are exact from one more than there are layers."""
    margin: NonNegative = 0.5
    """Least share of every memory's gradient, once one is needed."""

    name = "gem"
    title = "GEM"
    default_train = TrainConfig(epochs=200)
    keeps = "nodes"

    def needs(self) -> dict[str, str]:
        return {"boundaries": "take er-gnn, which keeps nodes by class, not by task"}

    def init(self, space: Space) -> StoredTasks:
        return StoredTasks(())

    def adjust_gradients(self, network: Network, memory: StoredTasks, context: TaskContext) -> None:
        if not memory.tasks:
            return
        parameters = list(network.parameters())
        g = torch.cat([p.grad.reshape(-1) for p in parameters if p.grad is not None])
        rows = []
        for task in memory.tasks:
            loss = self._loss_on(task, network, context)
            gradients = torch.autograd.grad(loss, parameters, materialize_grads=True)
            rows.append(torch.cat([gradient.reshape(-1) for gradient in gradients]))
        turned = projected_gradient(g, torch.stack(rows), self.margin)
        for p, part in zip(parameters, torch.split(turned, [p.numel() for p in parameters]), strict=True):
            p.grad = part.reshape(p.shape)

    def _loss_on(self, task: Task, network: Network, context: TaskContext) -> Tensor:
        logits, labels = context.compute.outputs(network, task), context.compute.labels(task)
        if self.competing == "current":
            others = torch.ones(logits.shape[1], dtype=torch.bool, device=logits.device)
            others[labels] = False
            logits = logits.masked_fill(others, -torch.inf)
        return balanced_cross_entropy(logits, labels)

    def end_task(self, network: Network, memory: Any, context: TaskContext, rng: torch.Generator) -> StoredTasks:
        order = torch.randperm(len(context.task.nodes), generator=rng, device=rng.device)
        chosen = order[: self.memory].cpu().numpy()
        return StoredTasks((*memory.tasks, excerpt(context.task, chosen, self.hops, context.compute.runtime.budget)))
