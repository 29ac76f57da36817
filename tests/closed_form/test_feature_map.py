"""The fixed map of the closed form against numbers worked by hand."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor

from ipal.backend.propagated import propagated
from ipal.backend.runtime import Runtime
from ipal.closed_form.feature_map import FeatureMap, random_features
from ipal.data.graph import Graph, checked_graph

HERE = Runtime.of()
# Two nodes joined by an edge, a third alone; features of lengths 2, 5 and 0.
PAIR = checked_graph(np.array([[2, 0], [3, 4], [0, 0]], dtype=np.float32), np.array([[0], [1]]), undirected=True)
RESTARTS = pytest.mark.parametrize("restarts", [(0.2,), (0.05, 0.4)], ids=["one restart", "two restarts"])
WIDTHS = pytest.mark.parametrize("width", [16, 60], ids=["wide features", "narrow features"])


def floats(*rows: object) -> Tensor:
    return torch.tensor(rows, dtype=torch.float32)


def feature_map(
    features: int = 12, width: int = 60, restarts: tuple[float, ...] = (0.2,), steps: int = 3
) -> FeatureMap:
    return FeatureMap(features, width, steps, restarts, 0, HERE)


def some_graph(features: int = 12, n: int = 40) -> Graph:
    random = np.random.default_rng(3)
    x = random.normal(size=(n, features)) * (random.random((n, features)) < 0.5)
    return checked_graph(x.astype(np.float32), random.integers(0, n, (2, 150)), undirected=True)


def rows_of(features: FeatureMap, graph: Graph, dtype: torch.dtype = torch.float64) -> Tensor:
    return features.expanded(features.propagated(graph), dtype)


# ------------------------------------------------------------------ random features


def test_random_features_by_hand() -> None:
    # sqrt(2 / 8) = 1/2 of what is positive.
    projected = floats([1, -1, 6, 3, -2, 0, 0, 0])
    found = random_features(projected, (2 / 8) ** 0.5)
    torch.testing.assert_close(found, floats([0.5, 0, 3, 1.5, 0, 0, 0, 0]))
    assert found is projected, "in place"


@pytest.mark.parametrize(("features", "width"), [(12, 4000), (3000, 4000)], ids=["narrow", "wide"])
def test_both_halves_of_a_row_are_about_one_long(features: int, width: int) -> None:
    made = feature_map(features, width)
    (part,) = made.parts
    rows = rows_of(made, some_graph(features))
    linear, rectified = rows[:, : part.columns.linear].norm(dim=1), rows[:, part.columns.linear :].norm(dim=1)
    torch.testing.assert_close(linear, torch.ones(40).double(), rtol=1e-5, atol=0)
    torch.testing.assert_close(rectified, torch.ones(40).double(), rtol=0.1, atol=0)


# ------------------------------------------------------------------ columns


def test_how_columns_are_shared_by_hand() -> None:
    # Five features fit into a half of 60: five linear columns, and 55 of random features. Into a half of 8 they do not:
    # four and four, both of them projected. Into a half of 10 they just fit.
    for width, linear, number in ((60, 5, 5), (8, 4, 8), (10, 5, 5), (9, 4, 9)):
        (part,) = feature_map(5, width).parts
        assert (part.columns.linear, part.columns.number, part.columns.linear + part.rectified) == (
            linear,
            number,
            width,
        )
        assert part.columns.is_projected == (number > linear)
    # Two restarts have half each; where that is no whole number, the second one more.
    parts = feature_map(5, 41, (0.1, 0.3)).parts
    assert [part.columns.linear + part.rectified for part in parts] == [20, 21]
    assert [part.columns.restart for part in parts] == [0.1, 0.3]
    assert len({part.columns.seed for part in parts}) == 2, "each has directions of its own"


def test_narrow_features_by_hand() -> None:
    made = feature_map(2, 6, (0.5,), steps=1)
    (part,) = made.parts
    x = propagated(PAIR, [part.columns], HERE)
    assert torch.equal(made.propagated(PAIR), x)
    found = rows_of(made, PAIR)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found[:, :2], x.double())
    # Four random features: sqrt(2 / 4).
    expected = (x.double() @ part.directions.double()).relu() * 0.5**0.5
    torch.testing.assert_close(found[:, 2:], expected)


def test_wide_features_by_hand() -> None:
    made = feature_map(12, 8)
    (part,) = made.parts
    x = propagated(some_graph(), [part.columns], HERE).double()
    assert x.shape == (40, 8)
    found = rows_of(made, some_graph())
    torch.testing.assert_close(found[:, :4], x[:, :4])
    # The others were divided by the length of 4 columns, about sqrt 4: sqrt(2 / 4) times 2 of what is positive.
    torch.testing.assert_close(found[:, 4:], x[:, 4:].relu() * 2**0.5)


def test_several_restarts_share_the_length_of_a_row() -> None:
    both = feature_map(12, 60, (0.05, 0.4))
    graph = some_graph()
    rows = []
    for part in both.parts:
        alone = part.expanded(propagated(graph, [part.columns], HERE).double())
        rows.append(alone / 2**0.5)
    torch.testing.assert_close(rows_of(both, graph), torch.cat(rows, dim=1))


@WIDTHS
@RESTARTS
def test_rows_to_be_scored_are_rows_to_be_added_up_in_single_precision(width: int, restarts: tuple[float, ...]) -> None:
    made, graph = feature_map(12, width, restarts), some_graph()
    before = made.propagated(graph).clone()
    torch.testing.assert_close(rows_of(made, graph).float(), rows_of(made, graph, torch.float32), rtol=1e-4, atol=1e-5)
    assert made.propagated(graph) is made.propagated(graph), "kept"
    assert torch.equal(made.propagated(graph), before), "and not changed by what is made of it"


def test_a_map_is_a_function_of_its_fields_and_every_field_tells_in_the_fingerprint() -> None:
    made = feature_map(50, 16, (0.1, 0.3))
    assert feature_map(50, 16, (0.1, 0.3)).fingerprint == made.fingerprint
    assert feature_map(50, 16, (0.1, 0.3)) == made
    changes = [
        {"width": 17},
        {"steps": 4},
        {"restarts": (0.3, 0.1)},
        {"restarts": (0.1,)},
        {"seed": 1},
    ]
    others = [dataclasses.replace(made, **change) for change in changes]
    assert len({each.fingerprint for each in [made, *others]}) == len(changes) + 1
    narrow = feature_map(5, 60)
    assert dataclasses.replace(narrow, seed=1).fingerprint != narrow.fingerprint
