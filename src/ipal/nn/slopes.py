"""Slopes of activations, and per-node gradients of layers that read a node alone."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ipal.nn.encoders import Encoder
from ipal.nn.slope_patterns import Size


@dataclass(frozen=True, eq=False)
class Slope:
    """The derivative of what follows a layer, for every node."""

    values: Tensor | None
    """None where it is one."""

    @classmethod
    @torch.enable_grad()
    def of(cls, activated: Callable[[Tensor], Tensor], hidden: Tensor) -> tuple["Slope", Tensor]:
        """And what follows the layer."""
        hidden = hidden.detach().requires_grad_()
        after = activated(hidden * 1)  # a copy, as it may be changed in place
        (slope,) = torch.autograd.grad(after.sum(), hidden)
        if bool((slope == 1).all()):
            return cls(None), after.detach()
        # A ReLU lets pass or not: one byte tells it.
        return cls(slope.bool() if bool(((slope == 0) | (slope == 1)).all()) else slope), after.detach()

    def at(self, nodes: Tensor | slice, gradients: Tensor) -> Tensor:
        """Gradients before the activation, from those after it."""
        return gradients if self.values is None else gradients * self.values[nodes]


@torch.no_grad()
def dense_importance(encoder: Encoder, x: Tensor, g: Tensor, size: Size) -> dict[str, Tensor]:
    """Mean over nodes of the size of each one's own gradient, where layers are products of a node's own row.

    `x` are the rows that the first layer reads, `g` the derivatives with respect to embeddings. The size of an outer
    product is the product of sizes.
    """
    inputs, slopes, layers = [x], list[Slope](), encoder.layers()
    for number, p in enumerate(layers):
        activated = partial(encoder.activated, p=p, is_last=number == encoder.num_layers - 1)
        slope, hidden = Slope.of(activated, inputs[-1] @ p["weights"] + p["biases"])
        inputs.append(hidden)
        slopes.append(slope)
    total: dict[str, Tensor] = {}
    for number, p in reversed(list(enumerate(layers))):
        g = slopes[number].at(slice(None), g)
        total |= {f"weights.{number}": size(inputs[number]).T @ size(g), f"biases.{number}": size(g).sum(dim=0)}
        g = g @ p["weights"].T
    return {name: total[name] / len(x) for name, _ in encoder.named_parameters()}
