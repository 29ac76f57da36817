"""Encoders whose layers read neighbours."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from ipal.backend.operators import LayerInput, Need
from ipal.config import EncoderConfig
from ipal.errors import ConfigError
from ipal.nn.encoders.base import Encoder, Parameters, Shapes


class GCN(Encoder):
    r"""Graph convolutions with an activation between them.

    .. math:: H^{(l+1)} = \sigma(\hat A H^{(l)} W^{(l)} + b^{(l)})

    Source: Kipf & Welling 2017, "Semi-Supervised Classification with Graph Convolutional Networks", Eq. 2.
    """

    name = "gcn"
    needs: Sequence[Need] = ("symmetric",)

    @classmethod
    def shapes(cls, fan_in: int, fan_out: int, config: EncoderConfig, *, is_last: bool) -> Shapes:
        return {"weights": (fan_in, fan_out), "biases": (fan_out,)}

    def layer(self, seen: LayerInput, p: Parameters) -> Tensor:
        return seen.aggregated(p["weights"]).add_(p["biases"])


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


class GAT(Encoder):
    r"""A node and its neighbours averaged by learned attention, several heads side by side in every layer.

    .. math:: h_i^{(l+1)} = \sigma\Big(\sum_{j \in N(i) \cup \{i\}} \alpha_{ij}^{(l)} h_j^{(l)} W^{(l)} + b^{(l)}\Big)

    Source: Velickovic et al. 2018, "Graph Attention Networks", Eq. 5; the attention is `backend.attention.attention`.
    Heads are concatenated in the last layer too, where the paper averages them. As PyTorch Geometric's `GATConv`.
    """

    name = "gat"
    needs = ("attention",)

    @classmethod
    def shapes(cls, fan_in: int, fan_out: int, config: EncoderConfig, *, is_last: bool) -> Shapes:
        heads = (config.heads, fan_out // config.heads)
        return {"weights": (fan_in, fan_out), "queries": heads, "keys": heads, "biases": (fan_out,)}

    @classmethod
    def check(cls, config: EncoderConfig) -> None:
        super().check(config)
        for setting, width in (("hidden", config.hidden), ("width", config.width)):
            if width % config.heads:
                raise ConfigError(
                    f"encoder.{setting} is {width}, which {config.heads} attention heads cannot share: set it to a "
                    "multiple of encoder.heads.",
                )

    def layer(self, seen: LayerInput, p: Parameters) -> Tensor:
        return seen.attended(p["weights"], p["queries"], p["keys"]).add_(p["biases"])


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
