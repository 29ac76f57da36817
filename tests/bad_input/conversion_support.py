"""The edges that every form of the sound graph is read as, and a sparse tensor as torch_sparse's."""

import numpy as np
import torch

from ipal.learners.from_pyg import graph_of
from tests.bad_input.support import X, some_data

N = len(X)


def expected() -> np.ndarray:
    return graph_of(some_data()).edges


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
