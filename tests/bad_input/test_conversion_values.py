"""Features, labels and masks in any form: read for what they mean, or refused with the line that converts them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch_geometric.data import Data
from torch_geometric.utils import index_to_mask

from ipal import NCM, DataError
from ipal.estimator.convert.pyg import graph_of, task_of
from tests.bad_input.support import N, X, Y, converted, one, some_data

# ---------------------------------------------------------------------- features


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float64, torch.int8, torch.bool, torch.uint8])
@pytest.mark.parametrize("sparse", [False, True])
def test_features_of_any_numbers_become_float32_exactly(kind: torch.dtype, sparse: bool) -> None:
    x = torch.from_numpy(X).float().to(kind)
    found = graph_of(some_data(x=x.to_sparse() if sparse else x)).x
    assert found.dtype == np.float32
    assert np.array_equal(found.toarray() if sparse else found, x.float().numpy())


def test_features_with_a_gradient_or_from_other_libraries_are_read() -> None:
    plain = graph_of(some_data()).x
    data = some_data()
    for x in (data.x.clone().requires_grad_(), X, X.tolist(), np.asfortranarray(X), sp.csc_array(X), Table(X)):
        data.x = x
        found = graph_of(data).x
        assert np.array_equal(found.toarray() if sp.issparse(found) else found, plain)


class Table:
    """As a pandas DataFrame: no array, but it can give one."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self.values


FEATURES: dict[str, tuple[Any, str, Callable[[Any], Any] | None]] = {
    "complex": (torch.from_numpy(X + 1j), "complex128", lambda x: torch.view_as_real(x).flatten(1)),
    "objects": (X.astype(object), "of the type object", lambda x: torch.tensor(x.astype("float32"))),
    "words": (X.astype(str), "encode them", None),
    "one column": (torch.ones(N), "x.reshape(-1, 1)", lambda x: x.reshape(-1, 1)),
}


@pytest.mark.parametrize("kind", FEATURES)
def test_features_in_another_form_are_refused_with_the_line_that_converts_them(kind: str) -> None:
    graph = converted("x", *FEATURES[kind])
    assert (graph is None) == (FEATURES[kind][-1] is None)
    assert graph is None or graph.num_nodes == N


# ---------------------------------------------------------------------- labels


LABELS: dict[str, tuple[Any, str, Callable[[Data], None] | None]] = {
    "one-hot": (torch.eye(4)[Y], "data.y.argmax(dim=1)", lambda d: setattr(d, "y", d.y.argmax(dim=1))),
    "too many": (np.r_[Y, Y], "80 labels for 40 nodes", None),
    "NaN": (
        torch.from_numpy(one(Y.astype(float), 3, np.nan)),
        "set data.train_mask, True for the nodes with one",
        lambda d: setattr(d, "train_mask", ~d.y.isnan()),
    ),
    "None": (
        ["a", "b", None, "c"] * 10,
        "set data.train_mask, True for the nodes with one",
        lambda d: setattr(d, "train_mask", torch.tensor([label is not None for label in d.y])),
    ),
    "words and numbers": (
        ["a", 1] * 20,
        "[str(label) for label in data.y]",
        lambda d: setattr(d, "y", [str(label) for label in d.y]),
    ),
    "-1": (
        torch.from_numpy(Y - 1),
        "data.train_mask = data.y >= 0",
        lambda d: setattr(d, "train_mask", d.y >= 0),
    ),
    "-100": (
        one(Y, 0, -100).astype(float),
        "-100, which usually means unlabelled",
        lambda d: setattr(d, "train_mask", torch.ones(d.num_nodes, dtype=torch.bool)),
    ),
    "beyond 64 bits": (Y.astype(np.uint64) + np.uint64(2**63), "number the classes", None),
}


@pytest.mark.parametrize("kind", LABELS)
def test_labels_in_another_form_are_refused_with_the_line_that_converts_them(kind: str) -> None:
    y, line, convert = LABELS[kind]
    data, learner = some_data(), NCM()
    data.y = y
    with pytest.raises(DataError) as refusal:
        learner.partial_fit(data)
    assert line in str(refusal.value)
    assert not learner.__sklearn_is_fitted__()
    if convert is not None:
        convert(data)
        assert len(learner.partial_fit(data).classes_)


@pytest.mark.parametrize(
    ("y", "classes"),
    [
        (Y > 1, [0, 1]),
        (Y[:, None], [0, 1, 2, 3]),
        (Y.astype(np.float16), [0, 1, 2, 3]),
        (torch.from_numpy(Y).bfloat16(), [0, 1, 2, 3]),
        (np.array(["a", "b"] * 20, dtype=object), ["a", "b"]),
    ],
)
def test_labels_that_mean_what_they_say_are_read(y: Any, classes: list[Any]) -> None:
    data = some_data()
    data.y = y
    assert NCM().partial_fit(data).classes_.tolist() == classes


MASKS: dict[str, tuple[Any, str, Callable[[Any], Any] | None]] = {
    "columns": (torch.ones(N, 10, dtype=torch.bool), "data.train_mask[:, 0]", lambda mask: mask[:, 0]),
    "bytes": (torch.ones(N, dtype=torch.uint8), "data.train_mask.bool()", lambda mask: mask.bool()),
    "numbers": (torch.arange(12), "index_to_mask(numbers, size=40)", lambda mask: index_to_mask(mask, size=N)),
}


@pytest.mark.parametrize("kind", MASKS)
def test_masks_in_another_form_are_refused_with_the_line_that_converts_them(kind: str) -> None:
    mask, line, converted = MASKS[kind]
    with pytest.raises(DataError) as refusal:
        task_of(some_data(train_mask=mask))
    assert line in str(refusal.value)
    assert converted is not None
    assert len(task_of(some_data(train_mask=converted(mask))).nodes)
