"""Classifier heads that grow: rows for new classes are appended, rows of old classes stay as they are."""

import torch
from torch import Tensor, nn

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
