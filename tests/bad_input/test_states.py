"""Saved states whose parts contradict each other, or are out of bounds, are refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

import ipal
from ipal import EncoderConfig, StoreError, TrainConfig
from ipal.backend.runtime import Runtime
from ipal.estimator import files
from ipal.estimator.convert.pyg import task_of
from ipal.estimator.learners import learner_class
from ipal.estimator.model import begin_learning
from ipal.estimator.registry import METHODS
from ipal.state.snapshot import Snapshot
from tests.bad_input.support import Y, some_data


def small_state(method: str) -> Snapshot:
    return state_of(method, train=TrainConfig(epochs=1), encoder=EncoderConfig(hidden=4, width=3))


def state_of(method: str, **settings: Any) -> Snapshot:
    learner = learner_class(METHODS.find(method))(**settings)
    return files.snapshot(learner.partial_fit(some_data()).model_, moments=True)


def assert_refused(state: Snapshot, tensors: dict[str, Tensor], words: str, path: Path) -> None:
    Snapshot(tensors, state.facts).save(path)
    with pytest.raises(StoreError, match=words):
        ipal.load(path)


def test_gem_without_a_node_is_refused(tmp_path: Path) -> None:
    state = small_state("gem")
    kept = {name: tensor for name, tensor in state.tensors.items() if not name.startswith("memory.tasks.")}
    assert_refused(state, kept, "it keeps no node", tmp_path / "m")


@pytest.mark.parametrize(("method", "place"), [("er-gnn", "buffer"), ("joint", "data")])
def test_stored_nodes_that_lack_a_class_are_refused(method: str, place: str, tmp_path: Path) -> None:
    state, name = small_state(method), f"memory.{place}.labels"
    fewer = {**state.tensors, name: state.tensors[name].clamp_max(2)}
    assert_refused(state, fewer, "it does not keep nodes of every class", tmp_path / "m")
    none = {key: tensor for key, tensor in state.tensors.items() if not key.startswith("memory.")}
    assert_refused(state, none, "it does not keep nodes of every class", tmp_path / "m")


def test_a_state_of_another_method_is_refused() -> None:
    config = ipal.PCL(train=TrainConfig(epochs=1), encoder=EncoderConfig(hidden=4, width=3))._config
    with pytest.raises(StoreError, match="It does not fit this model: it is of the method 'pr'"):
        files.restored(config, small_state("pr"), Runtime.of(), whole=True, source="It")


def test_a_scatter_that_is_no_matrix_of_products_is_refused(tmp_path: Path) -> None:
    state = state_of("slda")
    lopsided = state.tensors["memory.scatter"].clone()
    lopsided[0, 1] += 1 + lopsided.abs().max()
    for scatter in (lopsided, -state.tensors["memory.scatter"]):
        assert_refused(state, {**state.tensors, "memory.scatter": scatter}, "'scatter' is no matrix", tmp_path / "m")


@pytest.mark.parametrize("wrong", [torch.zeros(4, 5), torch.zeros(4), torch.zeros(())], ids=["wide", "flat", "one"])
def test_a_head_of_other_weights_is_refused(wrong: Tensor, tmp_path: Path) -> None:
    state = small_state("bare")
    assert state.tensors["head.weights.0"].shape == (4, 3)
    words = "its head has not one row of weights for every class"
    assert_refused(state, {**state.tensors, "head.weights.0": wrong}, words, tmp_path / "m")


@pytest.mark.parametrize("method", ["ewc", "bare", "ipal", "joint", "er-gnn"])
def test_moments_that_are_not_those_of_the_weights_are_refused(method: str, tmp_path: Path) -> None:
    state = small_state(method)
    changed = {"optimizer.encoder.weights.0.exp_avg_sq": -torch.ones(5, 4)}
    assert_refused(state, {**state.tensors, **changed}, "optimiser's moments are not", tmp_path / "m")


@pytest.mark.parametrize("group", ["importance", "values"])
def test_an_anchor_or_importance_of_another_network_is_refused(group: str, tmp_path: Path) -> None:
    state = small_state("mas")
    name = f"memory.anchor.{group}.encoder.biases.0"
    fewer = {key: tensor for key, tensor in state.tensors.items() if key != name}
    assert_refused(state, fewer, "'encoder.biases.0' is missing", tmp_path / "m")
    shorter = {**fewer, name: torch.zeros(3)}
    assert_refused(state, shorter, r"'encoder.biases.0' has the shape \(3,\) instead of \(4,\)", tmp_path / "m")
    doubled = {**fewer, name: torch.zeros(4, dtype=torch.float64)}
    assert_refused(state, doubled, "holds torch.float64 instead of torch.float32", tmp_path / "m")


def test_a_state_from_the_middle_of_a_task_is_a_checkpoint_and_no_model(tmp_path: Path) -> None:
    learner = ipal.LwF(train=TrainConfig(epochs=2), encoder=EncoderConfig(hidden=4, width=3))
    model = learner.partial_fit(some_data(train_mask=np.isin(Y, (0, 1)))).model_
    later = begin_learning(model.config, model, task_of(some_data(train_mask=np.isin(Y, (2, 3)))), model.runtime)
    middle = files.checkpoint(replace(model, state=next(later.epochs()).state))
    assert_refused(middle, dict(middle.tensors), "it stopped in the middle of a task", tmp_path / "m")
    files.restored(model.config, middle, Runtime.of(), whole=False, source="It")


# ---------------------------------------------------------------------- plain data, at its bounds

PLAIN: dict[str, Any] = {"method": "m", "settings": {}, "num_features": 3, "labels": [0, 1]}
LONG = [*map(str, range(2**13 - 1)), "x" * 2**13]  # as many labels as the longest has letters
BOUNDS: dict[str, tuple[list[Any], list[Any]]] = {
    "num_features": ([1, 2**31 - 1], [0, 2**31, 2**40, "3", 3.0]),
    "labels": (
        [[0], ["a"], [-(2**63), 2**63 - 1], LONG],
        [[], [0, 0], [2**63], [-(2**63) - 1], [0, "a"], [*LONG, "a"]],
    ),
    "identity": (["", "f" * 64], ["f" * 65, 1, None, {}]),
    "learning_rate": ([None, 1e-9], [0.0, -0.1, float("nan"), float("inf")]),
}


@pytest.mark.parametrize("place", BOUNDS)
def test_plain_data_of_a_state_has_bounds(place: str) -> None:
    allowed, refused = BOUNDS[place]
    for value in allowed:
        files.Facts.model_validate({**PLAIN, place: value})
    for value in refused:
        with pytest.raises(ValidationError):
            files.Facts.model_validate({**PLAIN, place: value})
