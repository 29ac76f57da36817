"""How embeddings by one network become those by the next: linear maps, and what they do to class statistics."""

import torch
from torch import Tensor

from ipal.nn.cholesky import mean_diagonal


def linear_map(x: Tensor, y: Tensor, eps: float) -> Tensor:
    r"""The linear map from rows `x` to rows `y` by least squares, pulled to the identity.

    .. math:: P = I + (X^T X + \epsilon s I)^{-1} X^T (Y - X)

    Source: He et al. 2025, "Semantic Shift Estimation via Dual-Projection and Classifier Reconstruction", the task-wise
    projection, whose ridge pulls to zero: it forgets all directions that the rows do not have, and graphs have fewer
    nodes than images. s is the mean of the diagonal of X^T X, so that epsilon does not depend on the scale.
    """
    a, b = x.double(), y.double()
    gram = a.mT @ a
    eye = torch.eye(x.shape[1]).to(gram)
    lower, _ = torch.linalg.cholesky_ex(gram + eps * mean_diagonal(gram) * eye)
    return (eye + torch.cholesky_solve(a.mT @ (b - a), lower)).to(x)


def class_projection(G: Tensor, share: float) -> Tensor:
    r"""Projection on the leading directions of a class, as many as make up a share of the sum of its squares.

    .. math:: \Pi_c = U_c U_c^T, \quad G_c = [U_c \; U'_c] \, \Lambda \, [U_c \; U'_c]^T

    Source: He et al. 2025, the category-wise projection. `G` is the Gram matrix of the class; the paper does not say
    how many of its singular vectors U_c are.
    """
    values, vectors = torch.linalg.eigh(G.double())
    values = values.clamp_min(0)
    larger = values.sum() - values.cumsum(dim=0)  # of the directions after each: they are ascending
    projection: Tensor = (vectors * (larger < share * values.sum())) @ vectors.mT
    return projection.to(G)


def dual_projection(P: Tensor, Pi: Tensor) -> Tensor:
    r"""How the embeddings of one class drift: first on the class's directions, which are old ones, then to the new.

    .. math:: W_c = \Pi_c P

    Source: He et al. 2025, the dual projection, for embeddings as rows; of columns it is the product in the other
    order.
    """
    return Pi @ P


def drifted_moments(mu: Tensor, second: Tensor, W: Tensor) -> tuple[Tensor, Tensor]:
    r"""Mean and second moment of a class after the drift.

    .. math:: \mu_c \leftarrow \mu_c W_c, \quad G_c \leftarrow W_c^T G_c W_c

    Source: He et al. 2025. The covariance moves as the Gram matrix does.
    """
    moved = W.mT @ second @ W
    return mu @ W, (moved + moved.mT) / 2
