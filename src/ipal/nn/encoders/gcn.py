"""Graph convolutions, the encoder of the paper."""

from collections.abc import Sequence

from torch import Tensor, nn

from ipal.backend.operators import LayerInput, Need
from ipal.config import EncoderConfig
from ipal.nn.encoders.base import Encoder, Parameters, Shapes


class GCN(Encoder):
    r"""Graph convolutions with an activation between them.

    .. math:: H^{(l+1)} = \sigma(\hat A H^{(l)} W^{(l)} + b^{(l)})

    Source: Kipf & Welling 2017, "Semi-Supervised Classification with Graph Convolutional Networks", Eq. 2.
    """

    biases: nn.ParameterList
    name = "gcn"
    needs: Sequence[Need] = ("symmetric",)

    @classmethod
    def shapes(cls, fan_in: int, fan_out: int, config: EncoderConfig, *, is_last: bool) -> Shapes:
        return {"weights": (fan_in, fan_out), "biases": (fan_out,)}

    def layer(self, seen: LayerInput, p: Parameters) -> Tensor:
        return seen.aggregated(p["weights"]).add_(p["biases"])
