"""Which input features (words of a bag of words) occur in nodes that were learned, inferred from the first layer.

A feature that no node has gives its row of the first layer no gradient, so that its moments stay zero and its weights
keep their initial values, which anyone who knows the seed can draw again.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score
from torch import Tensor

from ipal.data.graph import Features

FIRST_LAYER = "encoder.weights.0"
CHANGE = f"{FIRST_LAYER} minus its initial values"


def occurring(x: Features) -> NDArray[np.bool_]:
    """Which features at least one of the nodes has."""
    if isinstance(x, sp.csr_array):
        return np.bincount(x.indices[x.data != 0], minlength=x.shape[1]) > 0
    return np.asarray((x != 0).any(axis=0))


def features_revealed(tensors: Mapping[str, Tensor], occurs: NDArray[np.bool_]) -> dict[str, Any]:
    """AUC of telling from the norm of a feature's row, in the first layer or its moments, whether the feature occurs.

    1 is certainty, 0.5 is guessing.
    """
    first = {
        name: tensor.detach().cpu().double().norm(dim=1).numpy()
        for name, tensor in tensors.items()
        if (name in (FIRST_LAYER, CHANGE) or name.startswith(f"optimizer.{FIRST_LAYER}."))
        and tensor.dim() == 2
        and len(tensor) == len(occurs)  # else it reads projections of features
    }
    if not first:
        return {"skipped": "there is no trained first layer that reads features as they are"}
    if occurs.all() or not occurs.any():
        return {"skipped": f"{'all' if occurs.all() else 'none'} of the features occur: there is nothing to tell"}
    auc = {name: float(roc_auc_score(occurs, length)) for name, length in first.items()}
    return {"features": len(occurs), "occurring": int(occurs.sum()), "auc": auc}
