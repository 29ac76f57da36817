"""Arrays and tensors of every kind, as NumPy and SciPy have them; a sentence where they cannot be that."""

from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray

from ipal.data.graph import Features
from ipal.errors import DataError, shortened


def is_sparse(values: Any) -> bool:
    """Whether it is a sparse matrix, of PyTorch or of SciPy."""
    return values.layout != torch.strided if isinstance(values, torch.Tensor) else bool(sp.issparse(values))


def as_numpy(values: Any, name: str) -> NDArray[Any]:
    """A dense array; sparse ones are filled in."""
    try:
        if isinstance(values, torch.Tensor):
            values = values.detach().cpu().to_dense().resolve_conj().resolve_neg()
            has_twin = values.dtype in (torch.float32, torch.float64) or not values.is_floating_point()
            values = values.numpy() if has_twin else values.float().numpy()
        array: NDArray[Any] = values.toarray() if sp.issparse(values) else np.asarray(values)
    except (ValueError, TypeError, RuntimeError) as error:
        raise DataError(f"{name} cannot be made an array: it needs values, in rows of the same length.") from error
    return array


def as_sparse(matrix: Any, name: str) -> sp.csr_array:
    """A sparse matrix, each place once."""
    try:
        if sp.issparse(matrix):
            return sp.csr_array(matrix)
        found = matrix.detach().cpu().to_sparse(layout=torch.sparse_coo).coalesce()
        ends = tuple(found.indices().numpy())
        return sp.coo_array((as_numpy(found.values(), name), ends), shape=tuple(matrix.shape)).tocsr()
    except (RuntimeError, ValueError) as error:
        raise DataError(f"{name} cannot be read: make it a sparse tensor of numbers on the CPU.") from error


def given_features(x: Any, name: str = "data.x") -> Features:
    """Features, dense or sparse, in 32 bits."""
    values = as_sparse(x, name) if is_sparse(x) and x.ndim == 2 else as_numpy(x, name)
    if values.dtype.kind not in "fiub":
        raise DataError(
            f"The features must be a table of numbers, nodes by features; these are of the type {values.dtype}: "
            "encode them, as with sklearn.preprocessing.OneHotEncoder."
        )
    with np.errstate(over="ignore"):  # what is too large becomes infinite, and is refused as such
        if isinstance(values, np.ndarray):
            return np.ascontiguousarray(values, dtype=np.float32)
        return sp.csr_array(values).astype(np.float32)


def single(given: Any, what: str) -> Any:
    """A label or a node that was given: one value, not several."""
    is_single = isinstance(given, np.generic | np.ndarray | torch.Tensor) and given.ndim == 0
    value = given.item() if is_single else given
    if not isinstance(value, int | float | str):
        raise DataError(f"{what} is named by a whole number or a string, not by {shortened(given)}.")
    return value
