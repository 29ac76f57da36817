"""An encoder in the words of rows: values that know how they are spread over a graph, whatever stands behind them.

Behind them are the nodes of an ONNX graph (`deploy/export/program.py`), or what single predictions are made of
(`evidence.py`).
"""

from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor

from ipal.backend.operators import LayerInput
from ipal.data.csr import Norm
from ipal.nn.encoders import Encoder


def encoded(encoder: Encoder, rows: Any) -> Any:
    """Embeddings as rows, from features as rows."""
    rows = encoder.read(rows)
    for number, parameters in enumerate(encoder.layers()):
        rows = encoder.computed(number, RowsInput(rows), parameters)
    return rows


@dataclass(frozen=True)
class RowsInput(LayerInput):
    """Rows in place of tensors."""

    rows: Any

    def aggregated(self, weight: Tensor, norm: Norm = "symmetric", own: Tensor | None = None) -> Tensor:
        # Propagated where rows are narrower: before or after the product.
        narrow = weight.shape[0] < weight.shape[1]
        z = self.rows if narrow else self.rows @ weight
        sums = z.spread(norm) if own is None else z.spread(norm) + z * own
        return cast(Tensor, sums @ weight if narrow else sums)

    def own(self, weight: Tensor) -> Tensor:
        return cast(Tensor, self.rows @ weight)

    def attended(self, weight: Tensor, query: Tensor, key: Tensor) -> Tensor:
        first, *others = (
            (self.rows @ part).attended(q, k)
            for part, q, k in zip(weight.chunk(len(query), dim=1), query, key, strict=True)
        )
        return cast(Tensor, first.beside(*others))
