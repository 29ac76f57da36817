"""What every form of the sound graph is read as, also after conversion; a sparse tensor as torch_sparse's."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from ipal.data.graph import Graph
from ipal.errors import DataError
from ipal.estimator.convert.pyg import graph_of
from tests.bad_input.support import X, some_data

N = len(X)


def expected() -> np.ndarray:
    return graph_of(some_data()).edges


def converted(part: str, value: Any, line: str, convert: Callable[[Any], Any] | None) -> Graph | None:
    """The graph of some data whose part was refused with this line and then converted; None where nothing converts."""
    data = some_data()
    data[part] = value
    with pytest.raises(DataError) as refusal:
        graph_of(data)
    assert line in str(refusal.value)
    if convert is None:
        return None
    data[part] = convert(value)
    return graph_of(data)


class SparseTensor:
    """As much of torch_sparse's as is asked for."""

    def __init__(self, matrix: torch.Tensor, has_value: bool) -> None:
        self.matrix, self.has_value = matrix.to_sparse_coo().coalesce(), has_value

    def sparse_sizes(self) -> tuple[int, ...]:
        return tuple(self.matrix.shape)

    def coo(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        row, column = self.matrix.indices()
        return row, column, self.matrix.values() if self.has_value else None

    def csr(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        rows = self.matrix.to_sparse_csr()
        return rows.crow_indices(), rows.col_indices(), rows.values() if self.has_value else None
