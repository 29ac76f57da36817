"""What the tensors of a saved state must be before a learner becomes it."""

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor

Shapes = Iterator[tuple[str, tuple[int, ...]]]


class MisfitError(Exception):
    """A part of a saved state is not what it must be; the message says which."""


def require(holds: bool | Tensor, reason: str) -> None:
    """Refuse a state in which something does not hold."""
    if not holds:
        raise MisfitError(reason)


def check_shapes(tensors: Mapping[str, Tensor], shapes: Iterable[tuple[str, tuple[int, ...]]]) -> None:
    """Refuse tensors of other shapes than these."""
    for name, shape in shapes:
        require(name in tensors, f"'{name}' is missing")
        found = tuple(tensors[name].shape)
        require(found == shape, f"'{name}' has the shape {found} instead of {shape}")


def check_same(read: Mapping[str, Tensor], taken: Mapping[str, Tensor]) -> None:
    """Refuse tensors that a learner did not take over as they are, under the same names."""
    for name in (read.keys() - taken.keys()) | (taken.keys() - read.keys()):
        raise MisfitError(f"'{name[:80]}' is {'not part of it' if name in read else 'missing'}")
    check_shapes(read, ((name, tuple(tensor.shape)) for name, tensor in taken.items()))
    for name, tensor in taken.items():
        require(read[name].dtype == tensor.dtype, f"'{name}' holds {read[name].dtype} instead of {tensor.dtype}")


def check_counts(count: Tensor, name: str) -> None:
    """Refuse numbers of nodes that are not at least one for every class."""
    require(count.dtype == torch.int64 and (count >= 1).all(), f"'{name}' is not one number of nodes for every class")


def check_symmetric(matrices: Tensor, name: str) -> None:
    """Refuse what is no matrix of products: not symmetric but for rounding, or with a negative diagonal."""
    diagonal = matrices.diagonal(dim1=-2, dim2=-1)
    slack = 1e-3 * diagonal.abs().amax().clamp_min(1e-30) if diagonal.numel() else 0.0
    holds = (diagonal >= -slack).all() and ((matrices - matrices.mT).abs() <= slack).all()
    require(holds, f"'{name}' is no matrix of products")
