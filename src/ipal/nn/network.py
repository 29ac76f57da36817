"""What is trained: an encoder and, where a method classifies by one, a head."""

import copy
from collections.abc import Mapping

from torch import Tensor, nn

from ipal.backend.batches import Batch as Batch
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
        for name, parameter in other.named_parameters():
            parameter.data.copy_(parameters[name])
        return other
