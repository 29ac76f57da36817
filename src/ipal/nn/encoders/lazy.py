"""Graph convolutions that leave half of a node as it is."""

from torch import Tensor

from ipal.backend.operators import LayerInput
from ipal.nn.encoders.base import Parameters
from ipal.nn.encoders.linear import Linear


class Lazy(Linear):
    r"""Like `linear`, with the mean of a node's own values and of the propagated ones in every layer.

    .. math:: H^{(l+1)} = \tfrac 1 2 (\hat A + I) H^{(l)} W^{(l)} + b^{(l)}

    Source: Chung 1997, "Spectral Graph Theory", Ch. 1: the lazy random walk, in place of a plain one. For graphs whose
    edges often join classes: a node's own features stay in its embedding, as in Zhu et al. 2020, "Beyond Homophily in
    Graph Neural Networks".
    """

    name = "lazy"
    needs = ("symmetric", "own")

    def layer(self, seen: LayerInput, p: Parameters) -> Tensor:
        both = seen.aggregated(p["weights"], own=p["biases"].new_ones(1))
        return (both * 0.5).add_(p["biases"])
