"""What scikit-learn and its users expect of an estimator."""

import numpy as np
import pytest
import torch
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.metrics import accuracy_score
from sklearn.utils.validation import check_is_fitted
from torch_geometric.data import Data

import ipal
from ipal.data.streams import TaskStream
from ipal.errors import ConfigError, DataError
from tests.estimator.test_estimator import SOME, data_of, make


def ncm(data: Data) -> ipal.NCM:
    return ipal.NCM().partial_fit(data)


# ---------------------------------------------------------------------- settings


@SOME
def test_settings_are_set_as_the_constructor_sets_them(method) -> None:
    learner = make(method)
    assert learner.set_params(seed=5) is learner
    assert learner.get_params() == make(method, seed=5).get_params()


@pytest.mark.parametrize("wrong", [{"gama": 0.5}, {"gamma": "high"}, {"seed": -1}, {"train": {"epochs": -2}}])
def test_wrong_settings_get_the_sentence_of_the_constructor_and_change_nothing(wrong) -> None:
    learner = ipal.IPAL(gamma=0.7)
    with pytest.raises(ConfigError) as said:
        learner.set_params(**{"seed": 3, **wrong})
    with pytest.raises(ConfigError) as expected:
        ipal.IPAL(**{"gamma": 0.7, **wrong})
    assert str(said.value) == str(expected.value)
    assert learner.get_params() == ipal.IPAL(gamma=0.7).get_params()


def test_what_was_learned_holds_its_settings(tiny_stream: TaskStream) -> None:
    learner = ncm(data_of(tiny_stream, 0))
    before = learner.model_
    with pytest.raises(ConfigError, match=r"rests on its settings: .* clone"):
        learner.set_params(seed=7)
    assert learner.set_params().model_ is before
    assert clone(learner).set_params(seed=7).get_params()["seed"] == 7
    assert not hasattr(clone(learner), "classes_"), "a clone has learned nothing"


def test_a_learner_is_written_as_the_call_that_makes_it() -> None:
    assert repr(ipal.Analytic()) == "Analytic()"
    learner = ipal.IPAL(gamma=0.7, train={"epochs": 3}, seed=2)
    assert (
        eval(repr(learner), {"IPAL": ipal.IPAL, "TrainConfig": ipal.TrainConfig}).get_params() == learner.get_params()
    )
    assert repr(learner).startswith("IPAL(gamma=0.7, seed=2, train=TrainConfig(epochs=3, ")
    whole = ipal.IPAL(encoder=ipal.EncoderConfig(), train=ipal.TrainConfig())
    assert repr(whole) == "IPAL(encoder=EncoderConfig(), train=TrainConfig())"


# ---------------------------------------------------------------------- scikit-learn's questions


@SOME
def test_every_method_is_a_classifier(method) -> None:
    learner = make(method)
    assert is_classifier(learner)
    assert learner._estimator_type == "classifier"
    assert not hasattr(learner, "classes_")
    assert not hasattr(learner, "n_features_in_")
    with pytest.raises(NotFittedError):
        check_is_fitted(learner)


def test_a_fitted_one_says_so(tiny_stream: TaskStream) -> None:
    data = data_of(tiny_stream, 0)
    learner = ncm(data)
    check_is_fitted(learner)
    assert learner.n_features_in_ == data.num_features


def test_fit_begins_anew_and_partial_fit_goes_on(tiny_stream: TaskStream) -> None:
    learner = ncm(data_of(tiny_stream, 0)).partial_fit(data_of(tiny_stream, 1))
    assert learner.fit(data_of(tiny_stream, 2)) is learner
    assert learner.classes_.tolist() == tiny_stream.classes[2]
    with pytest.raises(DataError):
        learner.fit(Data(x=torch.zeros(3, 2)))
    assert learner.classes_.tolist() == tiny_stream.classes[2]


# ---------------------------------------------------------------------- accuracy


def test_the_score_is_scikit_learns_accuracy(tiny_stream: TaskStream) -> None:
    data = data_of(tiny_stream, 0)
    learner, y = ncm(data), data.y.numpy()
    guesses = learner.predict(data)
    assert learner.score(data) == accuracy_score(y, guesses)
    data.test_mask = ~data.train_mask
    held_out = data.test_mask.numpy()
    assert learner.score(data) == accuracy_score(y[held_out], guesses[held_out])
    chosen = y == y[0]
    assert learner.score(data, mask=chosen) == accuracy_score(y[chosen], guesses[chosen])


def test_nodes_without_a_label_do_not_count_and_unknown_classes_are_missed(tiny_stream: TaskStream) -> None:
    data = data_of(tiny_stream, 0)
    learner = ncm(data)
    right = learner.predict(data)
    half = np.arange(len(right)) % 2 == 0
    data.y = torch.from_numpy(np.where(half, right, -1))
    assert learner.score(data) == 1.0
    data.y = torch.from_numpy(np.where(half, right, np.nan))
    assert learner.score(data) == 1.0
    data.y = torch.from_numpy(np.where(half, right, 99))
    assert learner.score(data) == pytest.approx(half.mean())
    data.y = [str(label) for label in right]
    with pytest.raises(DataError, match="one kind"):
        learner.score(data)
    data.y = torch.full((len(right),), -1)
    with pytest.raises(DataError, match="No node"):
        learner.score(data)
    with pytest.raises(DataError, match="True or False"):
        learner.score(data, mask=[True])
    data.y = None
    with pytest.raises(DataError, match="labels"):
        learner.score(data)
