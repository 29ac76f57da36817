"""Several models predict together, as those of runs whose steps are stacked."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ipal.data.graph import Graph
from ipal.engine.executors.stacked import Mapped, are_alike
from ipal.estimator.model import Model, Prediction
from ipal.methods.base import Trained
from ipal.nn.embed import fits


def predict_together(models: Sequence[Model]) -> Callable[[Graph, Tensor], Sequence[Prediction]]:
    """How models predict some nodes of a graph: as one where they are alike, else one by one."""
    first, mapped = models[0], None
    methods = [model.method for model in models if isinstance(model.method, Trained)]
    if len(methods) == len(models) and are_alike(methods, [model.state for model in models]):
        networks = [model.network for model in models if model.network is not None]
        if "attention" not in networks[0].encoder.needs:
            mapped = Mapped(methods, [[one] for one in networks], [model.state.memory for model in models])

    @torch.no_grad()
    def predictions(graph: Graph, nodes: Tensor) -> Sequence[Prediction]:
        if mapped is None or not fits(graph, first.runtime.budget):
            return [model.predict_graph(graph, nodes) for model in models]
        checked, at = first.checked(graph), nodes.to(first.device)

        def one(method: Trained, memory: object) -> Tensor:
            f = first.compute.embeddings(networks[0], checked)
            return method.classify(networks[0], memory, f)[at]

        scores = mapped(one)
        labels = first.likeliest(scores.flatten(0, 1)).reshape(len(models), -1)
        return [Prediction(*some) for some in zip(labels, scores, strict=True)]

    return predictions
