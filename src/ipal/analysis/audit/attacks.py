"""Attacks on what a model keeps: rows of a class, and which nodes it was trained on, compared with the truth.

A failed attempt proves nothing: a better one may succeed.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

TURNS = 200
MOST_WORK = 2e11
"""Most multiplications of one attempt: some twenty seconds of one core."""
RECOVERED = 0.99
"""Cosine from which a row counts as recovered."""


@dataclass(frozen=True, eq=False)
class Known:
    """The truth for an attempt: training rows of a class, and other rows."""

    members: Tensor
    """(nodes, width): of the training nodes if known, else of all nodes of the class."""
    untaught: Tensor
    """Of other nodes of the same class; empty if not known."""
    others: Tensor
    """Of nodes of other classes."""


def from_mean(mean: Tensor, known: Known) -> dict[str, float]:
    """Similarity of the class mean to the rows: what a prototype reveals."""
    cosines = _unit(known.members) @ _unit(mean.double()[None])[0]
    return {"mean_cosine": float(cosines.mean()), "best_cosine": float(cosines.max())}


def from_matrix(matrix: Tensor, count: int, known: Known, *, rebuild: bool = False, seed: int = 0) -> dict[str, Any]:
    """What a matrix of products of so many rows reveals: membership in its span, and the rows themselves."""
    width = matrix.shape[0]
    if count >= width:
        return {"skipped": f"{count} nodes are not fewer than the width {width}: every row lies in the matrix's span"}
    if 2 * count * width * width + 4 * count * count * width > MOST_WORK:
        return {"skipped": f"{count} nodes at width {width} would take too long"}
    directions, sizes = factored(matrix, count, seed)
    found: dict[str, Any] = {"span": span_test(directions, known)}
    return {**found, "rows": _rebuilt(directions, sizes, count, known, seed)} if rebuild else found


def factored(matrix: Tensor, rank: int, seed: int) -> tuple[Tensor, Tensor]:
    """Directions (rows) and sizes of a sum of so many products: `directions.T @ diag(sizes) @ directions` is the sum.

    Randomised, as the rank is known: width^2 x rank operations instead of width^3.
    """
    G = matrix.double()
    generator = torch.Generator().manual_seed(seed)
    probes = torch.randn(len(G), rank, generator=generator, dtype=torch.float64).to(G.device)
    basis = torch.linalg.qr(G @ probes).Q
    sizes, turn = torch.linalg.eigh(basis.T @ G @ basis)
    kept = sizes > torch.finfo(matrix.dtype).eps * len(G) * sizes.max()  # the rest is rounding
    return (basis @ turn[:, kept]).T, sizes[kept]


def span_test(directions: Tensor, known: Known) -> dict[str, float | None]:
    """Share of a row's squared norm inside the span, and its AUC for telling training rows from others.

    1 is certainty, 0.5 is guessing.
    """
    members, untaught, others = (
        (_unit(rows) @ directions.T).square().sum(dim=1) for rows in (known.members, known.untaught, known.others)
    )
    return {
        "members_inside": _mean(members),
        "same_class_inside": _mean(untaught),
        "others_inside": _mean(others),
        "auc_against_same_class": _auc(members, untaught),
        "auc_against_others": _auc(members, others),
    }


def unrotated(factor: Tensor, n: int, seed: int) -> Tensor:
    """`n` nonnegative rows with the same second-moment matrix as the rows of `factor`, by alternating projections.

    The matrix gives the rows up to a rotation, and nonnegativity leaves few rotations. Alternates between reflecting
    negative values and taking the nearest rotation of the factor.
    """
    generator = torch.Generator().manual_seed(seed)
    rotation = torch.randn(n, len(factor), generator=generator, dtype=factor.dtype).to(factor.device)
    for _ in range(TURNS):
        u, _, v = torch.linalg.svd((rotation @ factor).abs() @ factor.T, full_matrices=False)
        rotation = u @ v
    return (rotation @ factor).clamp_min(0)


def _rebuilt(directions: Tensor, sizes: Tensor, n: int, known: Known, seed: int) -> dict[str, Any]:
    """Reconstruct rows from the matrix and compare each true row with the most similar one."""
    # Columns that are never negative single out the right rotation: of the closed form random features, after a ReLU.
    columns = torch.cat([known.members, known.untaught, known.others]).amin(dim=0) >= 0
    width = int(columns.sum())
    if width < n:
        return {"skipped": "rows have negative values: what singles out the right rotation is missing"}
    if TURNS * (4 * n * n * width + 20 * n**3) > MOST_WORK:
        return {"skipped": f"{n} rows of width {width} would take too long"}
    sought = _unit(unrotated(sizes.sqrt()[:, None] * directions[:, columns], n, seed))
    cosines, others = ((_unit(rows[:, columns]) @ sought.T).amax(dim=1) for rows in (known.members, known.others))
    return {
        "mean_cosine": float(cosines.mean()),
        "recovered_share": float((cosines >= RECOVERED).double().mean()),
        "others_mean_cosine": _mean(others),
    }


def _unit(rows: Tensor) -> Tensor:
    return torch.nn.functional.normalize(rows.double(), dim=1)


def _mean(values: Tensor) -> float | None:
    return float(values.mean()) if len(values) else None


def _auc(members: Tensor, others: Tensor) -> float | None:
    if len(members) == 0 or len(others) == 0:
        return None
    truth = np.repeat([1, 0], [len(members), len(others)])
    # Beyond rounding, all that lie wholly inside are alike.
    depth = torch.cat([members, others]).cpu().numpy().round(6)
    return float(roc_auc_score(truth, depth))
