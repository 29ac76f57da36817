"""Means over neighbours beside a node's own values."""

from torch import Tensor

from ipal.backend.operators import LayerInput
from ipal.config import EncoderConfig
from ipal.nn.encoders.base import Encoder, Parameters, Shapes


class SAGE(Encoder):
    r"""The mean over a node's neighbours and the node itself, each with weights of its own.

    .. math:: h_i^{(l+1)} =
        \sigma\Big(\frac{1}{|N(i)|} \sum_{j \in N(i)} h_j^{(l)} W^{(l)} + h_i^{(l)} R^{(l)} + b^{(l)}\Big)

    Source: Hamilton et al. 2017, "Inductive Representation Learning on Large Graphs", Algorithm 1 with the mean
    aggregator, without the scaling to unit length. As PyTorch Geometric's `SAGEConv`.
    """

    name = "sage"
    needs = ("mean", "own")

    @classmethod
    def shapes(cls, fan_in: int, fan_out: int, config: EncoderConfig, *, is_last: bool) -> Shapes:
        return {"weights": (fan_in, fan_out), "own_weights": (fan_in, fan_out), "biases": (fan_out,)}

    def layer(self, seen: LayerInput, p: Parameters) -> Tensor:
        return seen.aggregated(p["weights"], "mean").add_(seen.own(p["own_weights"])).add_(p["biases"])
