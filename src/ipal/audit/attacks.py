"""Attacks on what a model keeps: rows that are stored, and training nodes, compared with the truth.

A failed attempt proves nothing: a better one may succeed.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from scipy.spatial import cKDTree
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import normalize
from torch import Tensor

from ipal.data.graph import Features

MOST_WORK = 2e11
"""Most multiplications of one attempt: some twenty seconds of one core."""
SAME = 1e-5
"""Largest distance of two unit rows that count as equal: more than rounding, less than chance."""
ENOUGH_VALUES = 4
"""Rows with fewer nonzero values are found by chance."""
ROWS_AT_ONCE = 4096


def from_mean(mean: Tensor, members: Tensor) -> dict[str, float]:
    """Similarity of the class mean to rows of the class: what a prototype reveals."""
    cosines = _unit(members) @ _unit(mean.double()[None])[0]
    return {"mean_cosine": float(cosines.mean()), "best_cosine": float(cosines.max())}


def from_matrix(matrix: Tensor, count: int, members: Tensor, untaught: Tensor, others: Tensor) -> dict[str, Any]:
    """What a matrix of products of so many rows reveals: who is in its span."""
    width = matrix.shape[0]
    if count >= width:
        return {"skipped": f"{count} nodes are not fewer than the width {width}: every row lies in the matrix's span"}
    if 2 * count * width * width + 4 * count * count * width > MOST_WORK:
        return {"skipped": f"{count} nodes at width {width} would take too long"}
    return {"span": span_test(directions(matrix, count), members, untaught, others)}


def directions(matrix: Tensor, rank: int) -> Tensor:
    """(directions, width): what a sum of so many products spans.

    Randomised, as the rank is known: width^2 x rank operations instead of width^3.
    """
    G = matrix.double()
    generator = torch.Generator().manual_seed(0)
    probes = torch.randn(len(G), rank, generator=generator, dtype=torch.float64).to(G.device)
    basis = torch.linalg.qr(G @ probes).Q
    sizes, turn = torch.linalg.eigh(basis.T @ G @ basis)
    kept = sizes > torch.finfo(matrix.dtype).eps * len(G) * sizes.max()  # the rest is rounding
    found: Tensor = (basis @ turn[:, kept]).T
    return found


def span_test(span: Tensor, members: Tensor, untaught: Tensor, others: Tensor) -> dict[str, float | None]:
    """Share of a row's squared norm inside the span, and its AUC for telling training rows from others.

    Members are rows of training nodes, or of all nodes of a class where these are not known; untaught are rows of
    other nodes of the class. 1 is certainty, 0.5 is guessing.
    """
    inside, *rest = ((_unit(rows) @ span.T).square().sum(dim=1) for rows in (members, untaught, others))
    return {
        "members_inside": float(inside.mean()),
        "auc_against_same_class": _auc(inside, rest[0]),
        "auc_against_others": _auc(inside, rest[1]),
    }


def _unit(rows: Tensor) -> Tensor:
    return torch.nn.functional.normalize(rows.double(), dim=1)


def _auc(members: Tensor, others: Tensor) -> float | None:
    if len(others) == 0:
        return None
    truth = np.repeat([1, 0], [len(members), len(others)])
    # Beyond rounding, all that lie wholly inside are alike.
    depth = torch.cat([members, others]).cpu().numpy().round(6)
    return float(roc_auc_score(truth, depth))


class Found(NamedTuple):
    """Which rows were found where."""

    looked_for: int
    too_plain: int
    """Rows with too few nonzero values, which are not searched for."""
    nodes: set[int]
    where: set[str]


def stored_rows(tensors: Mapping[str, Tensor], rows: Features) -> Found:
    """Find rows in the tensors: each is compared, up to a scale, with all that can be read as rows or columns."""
    values = np.diff(rows.indptr) if isinstance(rows, sp.csr_array) else np.count_nonzero(rows, axis=1)
    telling = np.flatnonzero(values >= ENOUGH_VALUES)
    arrays = {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}
    drawn = np.random.default_rng(0).standard_normal((rows.shape[1], 4))
    axes = drawn / np.linalg.norm(drawn, axis=0)
    shadows = cKDTree(_shadows(rows, axes)[telling])
    nodes, where = set[int](), set[str]()
    for name, table in _tables(arrays, rows.shape[1]) if len(telling) else ():
        theirs = _shadows(table, axes)
        there = np.flatnonzero(theirs.any(axis=1))  # not rows of zeros, which have no length
        near = shadows.query_ball_point(theirs[there], SAME, p=np.inf)
        for place, some in zip(there.tolist(), near, strict=True):
            if some:
                kept = _unit_row(table, place)
                here = {int(n) for n in telling[some] if abs(_unit_row(rows, n) @ kept) >= 1 - SAME**2 / 2}
                nodes |= here
                where |= {name} if here else set()
    return Found(len(telling), rows.shape[0] - len(telling), nodes, where)


def _shadows(table: Features, axes: NDArray[np.float64]) -> NDArray[np.float64]:
    """(rows, projections) of rows of length one, without their signs: few rows that differ have the same."""
    parts = (table[at : at + ROWS_AT_ONCE] for at in range(0, table.shape[0], ROWS_AT_ONCE))
    return np.concatenate([np.abs(normalize(part.astype(np.float64)) @ axes) for part in parts])


def _tables(arrays: Mapping[str, NDArray[Any]], width: int) -> Iterator[tuple[str, Features]]:
    """Everything that can be read as rows of this width."""
    for name, array in arrays.items():
        if array.size and array.size % width == 0:
            yield name, array.reshape(-1, width)
        if array.ndim == 2 and array.shape[0] == width:
            yield name, array.T
        group = name.removesuffix("_indptr")
        values, places = arrays.get(f"{group}_values"), arrays.get(f"{group}_indices")
        if group != name and values is not None and places is not None and places.max(initial=-1) < width:
            yield f"{group}_values", sp.csr_array((values, places, array), shape=(len(array) - 1, width))


def _unit_row(table: Features, place: int) -> NDArray[np.float64]:
    row = table[[place]].toarray() if isinstance(table, sp.csr_array) else table[[place]]
    return np.asarray(normalize(row.astype(np.float64))[0])
