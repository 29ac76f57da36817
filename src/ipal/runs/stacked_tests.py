"""The tests of runs whose steps are stacked: their models predict together."""

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor

from ipal.data.graph import Graph
from ipal.engine.executors.stacked import Mapped, are_alike
from ipal.estimator.model import Model, Prediction
from ipal.methods.base import Trained
from ipal.nn.embed import fits


def predict_together(models: Sequence[Model]) -> Callable[[Graph, Tensor], Sequence[Prediction]]:
    """How models predict some nodes of a graph: as one where they are alike, else one by one."""
    first, methods = models[0], [model.method for model in models]
    mapped = None
    if all(isinstance(method, Trained) for method in methods):
        trained = cast(list[Trained], methods)
        networks = [model.network for model in models if model.network is not None]
        if are_alike(trained, [model.state for model in models]) and "attention" not in networks[0].encoder.needs:
            mapped = Mapped(trained, [[one] for one in networks], [model.state.memory for model in models])

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
