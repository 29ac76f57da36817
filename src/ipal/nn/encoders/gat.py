"""Attention over neighbours."""

from torch import Tensor

from ipal.backend.operators import LayerInput
from ipal.config import EncoderConfig
from ipal.errors import ConfigError
from ipal.nn.encoders.base import Encoder, Parameters, Shapes


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
                    f"encoder.{setting}",
                )

    def layer(self, seen: LayerInput, p: Parameters) -> Tensor:
        return seen.attended(p["weights"], p["queries"], p["keys"]).add_(p["biases"])
