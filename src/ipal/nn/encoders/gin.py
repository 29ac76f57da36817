"""Sums over neighbours through a small network."""

from torch import Tensor

from ipal.backend.operators import LayerInput
from ipal.config import EncoderConfig
from ipal.nn.encoders.base import ACTIVATIONS, Encoder, Parameters, Shapes


class GIN(Encoder):
    r"""The sum over a node's neighbours and, weighted by a learned number, the node itself, through two dense layers.

    .. math:: h_i^{(l+1)} =
        \sigma\Big(\mathrm{MLP}^{(l)}\big((1 + \epsilon^{(l)}) h_i^{(l)} + \sum_{j \in N(i)} h_j^{(l)}\big)\Big)

    Source: Xu et al. 2019, "How Powerful are Graph Neural Networks?", Eq. 4.1. The number starts at zero. The first
    dense layer is linear, so that it is applied before the sum. As PyTorch Geometric's `GINConv` with `train_eps`.
    """

    name = "gin"
    needs = ("sum", "own")

    @classmethod
    def shapes(cls, fan_in: int, fan_out: int, config: EncoderConfig, *, is_last: bool) -> Shapes:
        inner: Shapes = {"weights": (fan_in, fan_out), "biases": (fan_out,)}
        return inner | {"epsilons": (1,), "outer_weights": (fan_out, fan_out), "outer_biases": (fan_out,)}

    def layer(self, seen: LayerInput, p: Parameters) -> Tensor:
        inner = seen.aggregated(p["weights"], "sum", own=p["epsilons"] + 1).add_(p["biases"])
        return (ACTIVATIONS[self.activation](inner) @ p["outer_weights"]).add_(p["outer_biases"])
