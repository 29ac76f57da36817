"""Arrays and tensors of every kind, as NumPy and SciPy have them; a sentence where they cannot be that."""

from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray

from ipal.data.graph import Features
from ipal.errors import DataError


def is_sparse(values: Any) -> bool:
    """Whether it is a sparse matrix: of PyTorch, of SciPy, or torch_sparse's SparseTensor."""
    if isinstance(values, torch.Tensor):
        return values.layout != torch.strided
    return bool(sp.issparse(values)) or callable(getattr(values, "coo", None))


def shape_of(matrix: Any) -> tuple[int, ...]:
    """Of a matrix of any kind; nothing where its rows differ in length."""
    if isinstance(matrix, torch.Tensor) and matrix.is_nested:
        return ()
    sizes = getattr(matrix, "sparse_sizes", None)
    return tuple(sizes() if callable(sizes) else matrix.shape)


def as_numpy(values: Any, name: str) -> NDArray[Any]:
    """A dense array; sparse ones are filled in."""
    if isinstance(values, torch.Tensor):
        values = on_host(values, name)
        values = values if values.layout == torch.strided else values.to_dense()
    elif sp.issparse(values):
        values = values.toarray()
    try:
        array: NDArray[Any] = np.asarray(values)
    except (ValueError, TypeError, RuntimeError) as error:  # rows of different lengths, or no array at all
        raise DataError(f"{name} cannot be made an array: its rows must have the same length.") from error
    return array


def on_host(values: torch.Tensor, name: str) -> torch.Tensor:
    """In memory, without a gradient, in a type that NumPy has too."""
    if values.is_meta:
        raise DataError(f"{name} is on the meta device, where tensors have no values: make it on the CPU.")
    if values.is_nested:
        raise DataError(f"{name} is a nested tensor, whose rows differ in length: pad them to one length.")
    values = values.detach().cpu()
    values = values.dequantize() if values.is_quantized else values.resolve_conj().resolve_neg()
    plain = values.dtype in (torch.float32, torch.float64) or not values.is_floating_point()
    return values if plain else values.float()


def as_sparse(matrix: Any, name: str) -> sp.coo_array:
    """The entries of a sparse matrix of any kind, each place once."""
    if isinstance(matrix, torch.Tensor):
        found = on_host(matrix, name).to_sparse(layout=torch.sparse_coo).coalesce()
        if found.dense_dim():  # entries that are rows themselves
            found = found.to_dense().to_sparse(layout=torch.sparse_coo).coalesce()
        (row, column), values = found.indices(), found.values()
    elif callable(getattr(matrix, "coo", None)):  # torch_sparse's
        row, column, values = matrix.coo()
        values = torch.ones(len(row)) if values is None else values
    else:
        return sp.coo_array(sp.csr_array(matrix))
    ends = as_numpy(row, name), as_numpy(column, name)
    return sp.coo_array(sp.csr_array((as_numpy(values, name), ends), shape=shape_of(matrix)))


def given_features(x: Any, name: str = "data.x") -> Features:
    """Features, dense or sparse, in 32 bits."""
    if is_sparse(x) and len(shape_of(x)) == 2:
        found = as_sparse(x, name)
        _check_numbers(found.dtype, name)
        return sp.csr_array(found).astype(np.float32)
    values = as_numpy(x, name)
    _check_numbers(values.dtype, name)
    with np.errstate(over="ignore"):  # what is too large becomes infinite, and is refused as such
        return np.ascontiguousarray(values, dtype=np.float32)


def _check_numbers(kind: np.dtype[Any], name: str) -> None:
    if kind.kind in "fiub":
        return
    wrong = f"The features must be a table of numbers, nodes by features; these are of the type {kind}"
    if kind.kind == "c":
        raise DataError(f"{wrong}: set {name} = torch.view_as_real({name}).flatten(1), real and imaginary parts.")
    if kind.kind == "O":
        raise DataError(f"{wrong}: set {name} = torch.tensor(x.astype('float32')), or np.stack the rows first.")
    raise DataError(f"{wrong}: encode them, as with sklearn.preprocessing.OneHotEncoder.")
