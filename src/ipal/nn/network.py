"""What is trained: an encoder and, where a method classifies by one, a head."""

import copy
import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from ipal.backend.batches import Batch as Batch
from ipal.backend.operators import Operators
from ipal.nn.encoders import Encoder
from ipal.nn.losses import unit


class Head(nn.Module):
    """One row of weights a class, in the order in which classes came.

    Every growth adds a block with parameters of its own, so that an optimiser knows no moments of new rows. With
    a `temperature` the outputs are cosines divided by it; without one they are linear, with a bias.
    """

    def __init__(self, width: int, temperature: float | None = None) -> None:
        super().__init__()
        self.width = width
        self.temperature = temperature
        self.weights = nn.ParameterList()
        self.biases = nn.ParameterList()

    @property
    def num_classes(self) -> int:
        return sum(len(block) for block in self.weights)

    @property
    def weight(self) -> Tensor:
        """(classes, width)"""
        return torch.cat(list(self.weights))

    @property
    def bias(self) -> Tensor:
        """(classes,), of a linear head."""
        return torch.cat(list(self.biases))

    def grow(self, num_classes: int, generator: torch.Generator) -> list[nn.Parameter]:
        """Rows for so many more classes; returns the new parameters. Drawn as `torch.nn.Linear` draws them."""
        bound = self.width**-0.5
        shapes = [(num_classes, self.width)] + ([(num_classes,)] if self.temperature is None else [])
        new = []
        for blocks, shape in zip([self.weights, self.biases], shapes, strict=False):
            drawn = torch.empty(shape, device=generator.device).uniform_(-bound, bound, generator=generator)
            blocks.append(nn.Parameter(drawn))
            new.append(blocks[-1])
        return new

    def forward(self, f: Tensor) -> Tensor:
        """Embeddings to (nodes x classes)."""
        if self.temperature is not None:
            return unit(f) @ unit(self.weight).T / self.temperature
        return torch.addmm(self.bias, f, self.weight.T)


class Network(nn.Module):
    """An encoder, and a head that scores the classes; None where a method scores them in another way."""

    def __init__(self, encoder: Encoder, head: Head | None = None) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head

    @property
    def classifier(self) -> Head:
        """The head of a network that has one."""
        assert self.head is not None, "the method has a head"
        return self.head

    def forward(self, graph: Operators) -> Tensor:
        """Scores of the classes for the nodes at which `graph` reads out."""
        scores: Tensor = self.classifier(self.encoder(graph))
        return scores

    def tensors(self) -> dict[str, Tensor]:
        """Copies of all parameters by name."""
        return {name: parameter.detach().clone() for name, parameter in self.named_parameters()}

    def with_parameters(self, parameters: Mapping[str, Tensor]) -> "Network":
        """A copy with other values of its parameters."""
        other = copy.deepcopy(self)
        for name, parameter in other.named_parameters():
            parameter.data.copy_(parameters[name])
        return other


def root_mean_square(weights: Iterable[Tensor]) -> float:
    r"""The size of a network's weights, which relative learning rates are multiplied by; 1 where all of them are zero.

    .. math:: \Big( \frac 1 n \sum_{i=1}^n w_i^2 \Big)^{1/2}

    over all n weights of matrices.

    Source: Shazeer & Stern 2018, "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost", Sec. 8: relative step
    sizes; here one for all matrices, by their weights as a task begins. Adam's steps are about as large as the rate,
    whatever the width; one rate for all widths would turn the embeddings of a wide network around within a few steps.
    """
    matrices = [one.detach() for one in weights if one.dim() > 1]
    squares = sum(float(one.square().sum()) for one in matrices)
    return math.sqrt(squares / max(1, sum(one.numel() for one in matrices))) or 1.0
