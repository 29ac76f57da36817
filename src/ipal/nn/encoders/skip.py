"""Graph convolutions with skips past each of them."""

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from ipal.backend.operators import LayerInput
from ipal.config import EncoderConfig
from ipal.nn.encoders.base import Encoder, Parameters, Shapes


class Skip(Encoder):
    r"""Graph convolutions, each with a linear skip past it: from the features, and from every layer to the next.

    .. math:: H^{(l+1)} = \sigma\big(\mathrm{LN}(\hat A H^{(l)} W^{(l)} + H^{(l)} R^{(l)} + b^{(l)})\big)

    Source: Luo et al. 2024, "Classic GNNs are Strong Baselines", the convolution with residual connections and
    normalisation; here a layer norm (Ba et al. 2016), and none after the last layer.
    """

    name = "skip"
    needs = ("symmetric", "own")

    @classmethod
    def shapes(cls, fan_in: int, fan_out: int, config: EncoderConfig, *, is_last: bool) -> Shapes:
        found: Shapes = {"weights": (fan_in, fan_out), "own_weights": (fan_in, fan_out), "biases": (fan_out,)}
        return found if is_last else found | {"scales": (fan_out,), "shifts": (fan_out,)}

    @staticmethod
    def start(name: str, zeros: Tensor, generator: torch.Generator) -> Tensor:
        return zeros.fill_(1) if name == "scales" else Encoder.start(name, zeros, generator)

    def layer(self, seen: LayerInput, p: Parameters) -> Tensor:
        return seen.aggregated(p["weights"]).add_(seen.own(p["own_weights"])).add_(p["biases"])

    def activated(self, values: Tensor, p: Parameters, *, is_last: bool) -> Tensor:
        if not is_last:
            values = layer_norm(values, p["scales"].shape, p["scales"], p["shifts"])
        return super().activated(values, p, is_last=is_last)
