"""Graph convolutions without an activation between them."""

import torch
from torch import Tensor, nn

from ipal.nn.encoders.base import Parameters
from ipal.nn.encoders.gcn import GCN


class Linear(GCN):
    r"""Features propagated over the graph, times weights; a last activation is an option.

    .. math:: H^{(l+1)} = \hat A H^{(l)} W^{(l)} + b^{(l)}

    Source: Wu et al. 2019, "Simplifying Graph Convolutional Networks", with weights in every layer. Square weights
    start as the identity, others as an orthogonal random projection: before any training, embeddings are propagated
    features, projected once.
    """

    name = "linear"

    @staticmethod
    def start(name: str, zeros: Tensor, generator: torch.Generator) -> Tensor:
        if zeros.dim() < 2:
            return zeros
        rows, columns = zeros.shape
        return nn.init.eye_(zeros) if rows == columns else nn.init.orthogonal_(zeros, generator=generator)

    def activated(self, values: Tensor, p: Parameters, *, is_last: bool) -> Tensor:
        return super().activated(values, p, is_last=True) if is_last else values
