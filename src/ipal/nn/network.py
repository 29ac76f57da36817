"""What is trained: an encoder and, where a method classifies by one, a head."""

import copy
import math
from collections.abc import Iterable, Mapping

from torch import Tensor, nn

from ipal.backend.operators import Operators
from ipal.nn.encoders import Encoder
from ipal.nn.head import Head


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
        other.load_state_dict(dict(parameters))
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
