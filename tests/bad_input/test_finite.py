"""NaN and infinite values stop whatever is computed: one sentence, no result, and the last good checkpoint is kept."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ipal import TrainConfig
from ipal.backend.adam import Adam
from ipal.backend.finite import not_finite
from ipal.config import EncoderConfig, run_config
from ipal.errors import NonFiniteError
from ipal.estimator.learner import Learner
from ipal.estimator.learners import learner_class
from ipal.estimator.registry import METHODS
from ipal.methods.base import Trained
from ipal.runs import runner
from ipal.runs.run_folder import RunFolder, RunStore
from ipal.state.snapshot import Snapshot
from tests.bad_input.support import GRAPH, SMALL, X, some_data
from tests.bench.test_interleave import DEVICES
from tests.support import Command, Watcher, complaint

TRAINED = [name for name, method in METHODS.items() if issubclass(method, Trained)]


def part(half: int, size: float = 1.0) -> Any:
    """One of two tasks, its features so many times as large as usual."""
    data = some_data(x=(X.clip(-2, 2) * size).astype(np.float32))
    data.train_mask = torch.as_tensor(data.y) // 2 == half
    return data


def learner(method: str, **train: Any) -> Learner:
    network = {"encoder": EncoderConfig(), "train": TrainConfig(**{"epochs": 3, **train})}
    trained = network if method in TRAINED else {}
    return learner_class(METHODS[method])(**trained)


# ---------------------------------------------------------------------- the library


@pytest.mark.parametrize("method", TRAINED)
def test_training_that_diverges_is_an_error_which_names_epoch_and_term(method: str) -> None:
    with pytest.raises(NonFiniteError, match=r"in epoch 2 of 3: the loss term '(contrast|cross_entropy)' is NaN"):
        learner(method, lr_base=1e38, lr_next=1e38).partial_fit(part(0))


@pytest.mark.parametrize("method", TRAINED)
def test_a_last_step_that_spoils_the_weights_is_an_error(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, after=3)
    with pytest.raises(NonFiniteError, match=r"in epoch 3 of 3: encoder\.weights\.0 \(encoder weights\) holds NaN"):
        learner(method).partial_fit(part(0))


def spoil(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """The `after`-th step of an optimiser makes weights NaN; the loss it followed was a number."""
    step, steps = Adam.step, []

    def spoilt(self: Adam) -> None:
        step(self)
        steps.append(1)
        if len(steps) == after:
            self.parameters[0].data[0, 0] = math.nan

    monkeypatch.setattr(Adam, "step", spoilt)


@pytest.mark.parametrize("method", ["ipal", "ipal-online", "pcl", "polo", "pr", "efc", "ewc", "mas"])
def test_what_is_remembered_must_be_finite(method: str) -> None:
    with pytest.raises(NonFiniteError, match=r"memory\.\S+ \(what .* keeps of the classes\) holds NaN"):
        learner(method).partial_fit(part(0, 1e20))


@pytest.mark.parametrize("method", TRAINED)
def test_nodes_whose_scores_are_no_numbers_get_no_class(method: str) -> None:
    taught = learner(method).partial_fit(part(0))
    assert set(taught.predict(part(0))) <= {0, 1}
    network = taught.model_.network
    assert network is not None
    network.encoder.weights[0].data *= 1000
    for predict in (taught.predict, taught.predict_proba):
        with pytest.raises(NonFiniteError, match=r"the scores of node \d+ cannot be computed"):
            predict(part(0, 1e38))


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_not_finite_is_found_by_name(device: str) -> None:
    good = {"a": torch.ones(3), "none": torch.zeros(0), "whole": torch.ones(2, dtype=torch.int64)}
    bad = {
        "nan": torch.tensor([1.0, math.nan, 2.0]),
        "inf": torch.tensor([[1.0, math.inf]]),
        "minus": torch.tensor(-math.inf, dtype=torch.float64),
    }
    large = {"large": torch.tensor([1e300], dtype=torch.float64)}
    tensors = {name: tensor.to(device) for name, tensor in {**good, **bad, **large}.items()}
    assert not_finite(tensors) == ["nan", "inf", "minus"]
    spread = torch.zeros(3, 1000, device=device)
    spread[1, 700], spread[2, 3] = math.nan, -math.inf
    assert not_finite(dict(zip("abc", spread, strict=True))) == ["b", "c"]
    assert not_finite({}) == []


# ---------------------------------------------------------------------- a run

TREE = {"dataset": GRAPH, "threads": 1, "encoder": {"kind": "gcn"}, "train": {"epochs": 4, "lr_next": 1e38}}


def started(runs: Path, checkpoint_every: int | None, **tree: Any) -> tuple[RunFolder, str]:
    """A run that is stopped: its folder, and the sentence."""
    resolved = runner.resolve(run_config({**TREE, **tree}))
    folder = RunStore(runs).folder_for(resolved.config)
    with pytest.raises(NonFiniteError) as stopped:
        runner.run(resolved, folder, Watcher(), checkpoint_every=checkpoint_every)
    return folder, str(stopped.value)


def assert_stopped(folder: RunFolder) -> None:
    assert not folder.is_finished
    assert not folder.model.exists()
    if folder.checkpoint.exists():
        assert not_finite(Snapshot.load(folder.checkpoint).tensors) == []


@pytest.mark.parametrize("every", [1, None])
@pytest.mark.parametrize("method", ["ipal", "gem"])
def test_a_run_that_diverges_says_where_each_time(method: str, every: int | None, tmp_path: Path) -> None:
    folder, sentence = started(tmp_path, every, method=method)
    assert "in task 2 of 3, epoch 2 of 4: the loss term '" in sentence
    assert_stopped(folder)
    if every == 1:
        progress = Snapshot.load(folder.checkpoint).facts["progress"]
        assert progress["task"] == 1
        assert progress["epoch"] <= 1
    for _ in range(2):
        assert started(tmp_path, every, method=method)[1] == sentence
    assert_stopped(folder)


def test_no_checkpoint_is_written_of_weights_that_are_spoilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as once:
        spoil(once, after=6)  # of the second task the second
        folder, sentence = started(tmp_path, 1, train={"epochs": 4})
    assert "in task 2 of 3, epoch 3 of 4: the loss term 'contrast' is NaN" in sentence
    assert_stopped(folder)
    progress = Snapshot.load(folder.checkpoint).facts["progress"]
    assert (progress["task"], progress["epoch"]) == (1, 1)


def test_a_run_that_diverges_is_one_sentence_of_the_command(command: Command, tmp_path: Path) -> None:
    words = ("task 1 of 3, epoch 2 of 2", "the loss term 'contrast' is NaN", "lower learning rate")
    run = ("run", *SMALL, "--set", "encoder.kind=gcn", "--set", "train.lr_base=1e38")
    sentence = complaint(command(*run), *words, underway=True)
    (folder,) = (tmp_path / "runs").iterdir()
    assert complaint(command("resume", folder.name), *words, underway=True) == sentence
    assert complaint(command(*run), *words, underway=True) == sentence
    assert not (folder / "result.json").exists()
    complaint(command("run", *SMALL, "--set", "ipal.tau=1e-320"), "ipal.tau", "1e-320", "too small")
