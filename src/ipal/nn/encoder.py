"""The graph convolutional network that turns nodes into embeddings. Knows no classes, tasks or heads."""

from collections.abc import Iterator
from itertools import chain, pairwise, repeat

import torch
from torch import Tensor, nn

from ipal.backend.operators import Operators, sparse_matmul
from ipal.backend.partition import Layout
from ipal.config import EncoderConfig
from ipal.system import free_memory
from ipal.system.tracing import spanned


def layer_sizes(num_features: int, config: EncoderConfig) -> Iterator[tuple[int, int]]:
    """Rows and columns of every layer's weights."""
    return pairwise(chain([num_features], repeat(config.hidden, config.layers - 1), [config.width]))


class GCN(nn.Module):
    r"""Graph convolutions with ReLU between them, no classifier head.

    .. math:: H^{(l+1)} = \mathrm{ReLU}(\hat A H^{(l)} W^{(l)} + b^{(l)})

    Source: Kipf & Welling 2017, "Semi-Supervised Classification with Graph Convolutional Networks", Eq. 2.
    The last ReLU is an option. Weights start as in Glorot & Bengio 2010, biases at zero. In training mode dropout may
    zero a share of the inputs of every layer but the first, the others scaled up to the same mean.
    """

    def __init__(self, num_features: int, config: EncoderConfig, generator: torch.Generator) -> None:
        super().__init__()
        if generator.device.type == "cpu":
            weights = sum(fan_in * fan_out for fan_in, fan_out in layer_sizes(num_features, config))
            free_memory.need(
                16 * weights,  # four bytes each, with gradients and the optimiser's two moments
                f"A network for {num_features} features with {config.layers} layers (hidden {config.hidden})",
                "use fewer features, or a smaller encoder.hidden",
            )
        self.last_relu = config.last_activation == "relu"
        self.dropout = config.dropout
        self.generator = generator
        self.weights = nn.ParameterList()
        self.biases = nn.ParameterList()
        for fan_in, fan_out in layer_sizes(num_features, config):
            weight = torch.empty(fan_in, fan_out, device=generator.device)
            self.weights.append(nn.Parameter(nn.init.xavier_uniform_(weight, generator=generator)))
            self.biases.append(nn.Parameter(torch.zeros(fan_out, device=generator.device)))

    @spanned("encoder")
    def forward(self, graph: Operators) -> Tensor:
        """Embeddings of the nodes at which `graph` reads out: all of them, or a task's training nodes."""
        parameters = graph.layout.copied(*self.weights, *self.biases)
        weights, biases = parameters[: len(self.weights)], parameters[len(self.weights) :]
        hidden = graph.first_layer(weights[0], biases[0])
        for through, weight, bias in zip(graph.later(len(weights) - 1), weights[1:], biases[1:], strict=True):
            if self.training and self.dropout:
                # As no factor is negative, this is the same as after the ReLU, whose output must not change in place.
                hidden.mul_(self._factors(hidden, graph.layout))
            hidden = (sparse_matmul(through, graph.layout.everywhere(hidden.relu_())) @ weight).add_(bias)
        return graph.layout.complete(torch.relu(hidden) if self.last_relu else hidden)

    def first_layer(self, graph: Operators) -> Tensor:
        """What the first layer gives for every node of a graph, before its ReLU."""
        return graph.layout.complete(graph.first_layer(*graph.layout.copied(self.weights[0], self.biases[0])))

    def _factors(self, hidden: Tensor, layout: Layout) -> Tensor:
        """Of dropout: zeros, and what keeps the mean as it was."""
        kept = 1 - self.dropout
        return layout.uniform(hidden, self.generator).lt_(kept).div_(kept)
