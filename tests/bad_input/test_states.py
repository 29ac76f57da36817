"""Saved states whose parts contradict each other, or are out of bounds, are refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

import ipal
from ipal import EncoderConfig, StoreError, TrainConfig
from ipal.learners import METHODS
from ipal.learners.checks import MisfitError
from ipal.learners.facts import CountedFacts, Facts, SumsFacts, checked_facts
from ipal.learners.from_pyg import task_of
from ipal.learners.state import State
from tests.bad_input.support import Y, some_data


def small_state(method: str) -> State:
    learner = METHODS.find(method)(train=TrainConfig(epochs=1), encoder=EncoderConfig(hidden=4, width=3))
    return learner.partial_fit(some_data()).state()


def assert_refused(state: State, tensors: dict[str, Tensor], words: str, path: Path) -> None:
    State(tensors, state.facts).save(path)
    with pytest.raises(StoreError, match=words):
        ipal.load(path)


def test_gem_without_a_node_is_refused(tmp_path: Path) -> None:
    state = small_state("gem")
    kept = {name: tensor for name, tensor in state.tensors.items() if not name.startswith("memory.")}
    assert_refused(state, kept, "it keeps no node", tmp_path / "m")


@pytest.mark.parametrize("part", ["scatter", "sums.sum", "sums.count", "discriminant.weights", "discriminant.offsets"])
def test_statistics_of_another_type_are_refused(part: str, tmp_path: Path) -> None:
    state = METHODS.find("slda")().partial_fit(some_data()).state()
    other = {**state.tensors, part: state.tensors[part].double()}
    assert_refused(state, other, f"'{part.split('.')[0]}' holds torch.float64 instead of", tmp_path / "m")


def test_a_scatter_that_is_no_matrix_of_products_is_refused(tmp_path: Path) -> None:
    state = METHODS.find("slda")().partial_fit(some_data()).state()
    lopsided = state.tensors["scatter"].clone()
    lopsided[0, 1] += 1 + lopsided.abs().max()
    for scatter in (lopsided, -state.tensors["scatter"]):
        assert_refused(state, {**state.tensors, "scatter": scatter}, "'scatter' is no matrix", tmp_path / "m")


@pytest.mark.parametrize("wrong", [torch.zeros(4, 4), torch.zeros(3, 5)], ids=["columns", "rows"])
def test_sums_of_other_features_or_classes_are_refused(wrong: Tensor, tmp_path: Path) -> None:
    state = METHODS.find("ncm")().partial_fit(some_data()).state()
    words = r"'sums.sum' has the shape .* instead of \(4, 5\)"
    assert_refused(state, {**state.tensors, "sums.sum": wrong}, words, tmp_path / "m")


@pytest.mark.parametrize("wrong", [torch.zeros(4, 5), torch.zeros(4), torch.zeros(())], ids=["wide", "flat", "one"])
def test_a_head_of_other_weights_is_refused(wrong: Tensor, tmp_path: Path) -> None:
    state = small_state("bare")
    assert state.tensors["head.weights.0"].shape == (4, 3)
    words = "its head has not one row of weights for every class"
    assert_refused(state, {**state.tensors, "head.weights.0": wrong}, words, tmp_path / "m")


def test_what_is_no_covariance_is_refused(tmp_path: Path) -> None:
    state = small_state("efc")
    wrong = torch.eye(3).repeat(4, 1, 1)
    wrong[2, 0, 1] = wrong[2, 1, 0] = 5.0  # two columns cannot vary together by more than each alone
    words = "'covariance' holds what is no covariance"
    assert_refused(state, {**state.tensors, "covariance": wrong}, words, tmp_path / "m")


@pytest.mark.parametrize("method", ["ewc", "bare", "ipal", "joint", "er-gnn"])
def test_moments_that_are_not_those_of_the_weights_are_refused(method: str, tmp_path: Path) -> None:
    state = small_state(method)
    changed = {"optimizer.encoder.weights.0.exp_avg_sq": -torch.ones(5, 4)}
    assert_refused(state, {**state.tensors, **changed}, "optimiser's moments are not", tmp_path / "m")


@pytest.mark.parametrize("group", ["importance", "anchor"])
def test_an_anchor_or_importance_of_another_network_is_refused(group: str, tmp_path: Path) -> None:
    state = small_state("mas")
    name = f"{group}.encoder.biases.0"
    fewer = {key: tensor for key, tensor in state.tensors.items() if key != name}
    assert_refused(state, fewer, "'encoder.biases.0' is missing", tmp_path / "m")
    shorter = {**fewer, name: torch.zeros(3)}
    assert_refused(state, shorter, r"'encoder.biases.0' has the shape \(3,\) instead of \(4,\)", tmp_path / "m")
    doubled = {**fewer, name: torch.zeros(4, dtype=torch.float64)}
    assert_refused(state, doubled, "holds torch.float64 instead of torch.float32", tmp_path / "m")


def test_a_state_from_the_middle_of_a_task_is_a_checkpoint_and_no_model(tmp_path: Path) -> None:
    learner = METHODS.find("lwf")(train=TrainConfig(epochs=2), encoder=EncoderConfig(hidden=4, width=3))
    learner.partial_fit(some_data(train_mask=np.isin(Y, (0, 1))))
    later = learner.learn(task_of(some_data(train_mask=np.isin(Y, (2, 3)))))
    next(later)
    middle = learner.state()
    later.close()
    assert_refused(middle, dict(middle.tensors), "it stopped in the middle of a task", tmp_path / "m")
    learner.restore(middle)


# ---------------------------------------------------------------------- plain data, at its bounds

PLAIN: dict[str, Any] = {"method": "m", "settings": {}, "num_features": 3, "labels": [0, 1]}
OF_SUMS = {**PLAIN, "map": "f"}
COUNTED = {**PLAIN, "learning_rate": 0.1, "nodes": 5}
LONG = [*map(str, range(2**13 - 1)), "x" * 2**13]  # as many labels as the longest has letters
BOUNDS: dict[str, tuple[list[Any], list[Any]]] = {
    "num_features": ([1, 2**31 - 1], [0, 2**31, 2**40, "3", 3.0]),
    "labels": (
        [[0], ["a"], [-(2**63), 2**63 - 1], LONG],
        [[], [0, 0], [2**63], [-(2**63) - 1], [0, "a"], [*LONG, "a"]],
    ),
    "map": (["", "f" * 64], ["f" * 65, 1, None, {}]),
    "nodes": ([0, 10**9], [-1, 0.5, 2**63]),
    "learning_rate": ([1e-9], [0.0, -0.1, float("nan"), 2**63]),
}


def with_fact(place: str, value: Any) -> tuple[dict[str, Any], type[Facts]]:
    if place in ("nodes", "learning_rate"):
        return {**COUNTED, place: value}, CountedFacts
    return {**OF_SUMS, place: value}, SumsFacts


@pytest.mark.parametrize("place", BOUNDS)
def test_plain_data_of_a_state_has_bounds(place: str) -> None:
    allowed, refused = BOUNDS[place]
    for value in allowed:
        checked_facts(*with_fact(place, value))
    for value in refused:
        with pytest.raises(MisfitError, match="facts are wrong"):
            checked_facts(*with_fact(place, value))


def test_of_a_long_place_the_beginning_is_told() -> None:
    with pytest.raises(MisfitError, match=r"at 'types\.nodes\.x{68}' "):
        checked_facts({**PLAIN, "types": {"nodes": {"x" * 200: 0}, "edges": []}}, Facts)


@pytest.mark.parametrize("letters", range(8))
def test_numbers_begin_at_a_multiple_of_eight_bytes(letters: int, tmp_path: Path) -> None:
    State({"a": torch.ones(2)}, {"name": "x" * letters}).save(tmp_path / "m")
    content = (tmp_path / "m").read_bytes()
    assert int.from_bytes(content[:8], "little") % 8 == 0
    assert len(content) % 8 == 0


def test_plain_data_that_were_checked_do_not_change() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Facts(**PLAIN).num_features = 4
