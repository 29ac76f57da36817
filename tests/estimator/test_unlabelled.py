"""Nodes without a label neither count in a score nor teach a class, whatever stands in its place."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import ipal
from ipal import DataError, GraphData

N = 40
X = np.random.default_rng(0).normal(size=(N, 5)).astype(np.float32) + 2 * (np.arange(N) % 2)[:, None]
E = np.random.default_rng(1).integers(0, N, (2, 100))
KIND = np.array(["bot", "human"])[np.arange(N) % 2]
KNOWN = np.arange(N) < 24
"""The nodes that have a label."""


def table(**parts: Any) -> GraphData:
    y = [str(kind) if there else None for kind, there in zip(KIND, KNOWN, strict=True)]
    return ipal.graph_from({"x": X, "edge_index": E, "y": y} | parts)


def numbers(kind: np.ndarray) -> np.ndarray:
    return (kind == "human").astype(int)


WORDS: dict[str, Any] = {
    "empty": np.where(KNOWN, KIND, ""),
    "None": [str(kind) if there else None for kind, there in zip(KIND, KNOWN, strict=True)],
    "NaN among words": [str(kind) if there else float("nan") for kind, there in zip(KIND, KNOWN, strict=True)],
}
NUMBERS: dict[str, Any] = {
    "-1": np.where(KNOWN, numbers(KIND), -1),
    "-1.0": np.where(KNOWN, numbers(KIND), -1.0),
    "NaN": np.where(KNOWN, numbers(KIND), np.nan),
    "None among numbers": [int(one) if there else None for one, there in zip(numbers(KIND), KNOWN, strict=True)],
}


@pytest.mark.parametrize("missing", WORDS | NUMBERS)
@pytest.mark.parametrize("masked", [False, True])
def test_a_score_is_that_of_the_nodes_with_a_label(missing: str, masked: bool) -> None:
    y = KIND if missing in WORDS else numbers(KIND)
    data = Data(x=torch.from_numpy(X), edge_index=torch.from_numpy(E), y=y, train_mask=torch.from_numpy(KNOWN))
    model = ipal.NCM().partial_fit(data)
    expected = float((model.predict(data) == y)[KNOWN].mean())
    assert expected > KNOWN.mean()
    given = Data(x=data.x, edge_index=data.edge_index, y=(WORDS | NUMBERS)[missing])
    assert model.score(given, np.ones(N, dtype=bool) if masked else None) == expected


def test_a_score_of_graph_from_is_that_of_the_nodes_with_a_label() -> None:
    data = table()
    model = ipal.NCM().partial_fit(data)
    assert model.score(data) == (model.predict(data) == KIND)[KNOWN].mean()
    with pytest.raises(DataError, match="No node of this graph has a label"):
        model.score(data, ~KNOWN)


def test_a_number_below_zero_that_was_learned_counts() -> None:
    y = 2 * numbers(KIND) - 1
    data = Data(x=torch.from_numpy(X), edge_index=torch.from_numpy(E), y=y)
    data.train_mask = torch.ones(N, dtype=torch.bool)
    model = ipal.NCM().partial_fit(data)
    assert model.classes_.tolist() == [-1, 1]
    assert model.score(data) == (model.predict(data) == y).mean()


@pytest.mark.parametrize("y", [WORDS["empty"], WORDS["None"], NUMBERS["-1"]])
def test_a_mask_of_nodes_without_a_label_teaches_no_class(y: Any) -> None:
    data = table(y=y)
    model = ipal.NCM().partial_fit(replace(data, train_mask=np.ones(N, dtype=bool)))
    assert model.classes_.tolist() == np.unique(data.y[KNOWN]).tolist()
    assert sum(model.memory_report()["nodes_behind_class"].values()) == KNOWN.sum()


@pytest.mark.parametrize("missing", ["empty", "None", "NaN among words", "NaN", "None among numbers"])
def test_of_a_data_too(missing: str) -> None:
    data = Data(x=torch.from_numpy(X), edge_index=torch.from_numpy(E), y=(WORDS | NUMBERS)[missing])
    with pytest.raises(DataError, match=r"set data\.train_mask"):
        ipal.NCM().partial_fit(data)
    data.train_mask = torch.ones(N, dtype=torch.bool)
    assert len(ipal.NCM().partial_fit(data).classes_) == 2


def test_a_correction_needs_a_label() -> None:
    data = table()
    model = ipal.NCM().partial_fit(data)
    with pytest.raises(DataError, match=r"data\.new_y has no label for a node in train_mask"):
        ipal.relabel(model, replace(data, new_y=np.full(N, "")))
