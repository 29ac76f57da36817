"""What every method must do, as checks that can be run over any of them: `ipal.check_method(YourMethod)`."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import safetensors.torch
import torch

from ipal.data.datasets import load as load_dataset
from ipal.data.graph_data import GraphData
from ipal.estimator import files
from ipal.estimator.convert.pyg import task_of
from ipal.estimator.learner import Learner
from ipal.estimator.learners import learner_class
from ipal.estimator.model import begin_learning
from ipal.estimator.settings import shared_settings
from ipal.methods.base import Method

Make = Callable[[], Learner]
"""Gives a learner that has learned nothing."""
SMALL = {"encoder": {"kind": "gcn", "layers": 2, "hidden": 16, "width": 8}, "train": {"epochs": 3}}


def check_method(method: type[Method], **settings: Any) -> None:
    """Check that a method does what every method must do; raises an AssertionError that says what it does not.

    Parameters
    ----------
    method : type
        A frozen dataclass that extends `ipal.Trained` or `ipal.OnePass`.
    **settings
        Settings of the learners that are made; small networks by default.
    """
    small = {name: value for name, value in SMALL.items() if name in shared_settings(method)}
    for check in CHECKS:
        check(lambda: learner_class(method)(**{"calibration": 0, **small, **settings}))


def task(*classes: int, first: int | None = None, nodes: int = 240) -> GraphData:
    """A graph of which only some classes are learned, from all their nodes or from the first few."""
    data = GraphData.of(load_dataset(f"synthetic:nodes={nodes},classes=6,features=16,signal=3,seed=1"))
    assert data.y is not None, "it has labels"
    mask = np.isin(data.y, classes)
    return replace(data, train_mask=mask if first is None else mask & (np.cumsum(mask) <= first))


def kept(learner: Learner) -> bytes:
    """All tensors of a model, bit for bit."""
    return safetensors.torch.save(dict(files.checkpoint(learner.model_).tensors))


def check_only_learning_changes_the_model(make: Make) -> None:
    """Predictions, arrays of the caller that are overwritten, and an interrupted task leave a model as it is."""
    data = task(0, 1)
    x, edges = np.array(data.x), data.edge_index.copy()
    learner = make().partial_fit(replace(data, x=x, edge_index=edges))
    before, proba = kept(learner), learner.predict_proba(data)
    x[:], edges[:] = 0, 0
    assert kept(learner) == before, "the model holds the caller's arrays"
    for ask in (learner.predict, learner.predict_proba, learner.decision_function, learner.embed):
        ask(data)[:] = 0
        assert kept(learner) == before, f"{ask.__name__} changes the model"
    model = learner.model_
    epochs = begin_learning(model.config, model, task_of(task(2, 3)), model.runtime).epochs()
    for _ in zip(epochs, range(2), strict=False):
        pass
    epochs.close()
    assert kept(learner) == before, "an interrupted task changes the model"
    assert np.array_equal(learner.predict_proba(data), proba), "predictions rest on arrays of the caller"


def check_columns_follow_classes(make: Make) -> None:
    """Columns of predict_proba are in the order of classes_, which only grows at its end."""
    learner, data = make().partial_fit(task(2, 3)), task(0, 1)
    first = learner.classes_.tolist()
    learner.partial_fit(data)
    assert learner.classes_.tolist()[: len(first)] == first, "classes_ changes its beginning"
    proba = learner.predict_proba(data)
    assert proba.shape[1] == len(learner.classes_) == 4
    assert np.allclose(proba.sum(axis=1), 1, atol=1e-4), "probabilities do not add up to one"
    assert np.array_equal(learner.classes_[learner.decision_function(data).argmax(axis=1)], learner.predict(data))


def check_saved_and_loaded(make: Make) -> None:
    """A loaded model predicts the same, and learns the next task to the same numbers."""
    data, more = task(0, 1), task(2, 3)
    learner = make().partial_fit(data)
    with TemporaryDirectory() as folder:
        learner.save(Path(folder) / "model", moments=True)
        other = type(learner).load(Path(folder) / "model")
    assert np.array_equal(other.predict_proba(data), learner.predict_proba(data)), "loaded, it predicts otherwise"
    assert kept(other.partial_fit(more)) == kept(learner.partial_fit(more)), "loaded, it learns otherwise"


def check_memory_is_bounded_by_classes(make: Make) -> None:
    """A method that stores no nodes keeps no more of a graph with more nodes."""
    small, large = (make().partial_fit(task(0, 1, nodes=nodes)).memory_report() for nodes in (240, 480))
    assert small["stores_exemplars"] or small["bytes"] == large["bytes"], "memory grows with the nodes"


def check_permuted_nodes(make: Make) -> None:
    """Numbering the nodes otherwise permutes the predictions."""
    data = task(0, 1)
    learner = make().partial_fit(data)
    order = np.random.default_rng(0).permutation(data.num_nodes)
    permuted = replace(data, x=np.asarray(data.x)[order], edge_index=np.argsort(order)[data.edge_index])
    scores, again = learner.decision_function(data)[order], learner.decision_function(permuted)
    assert np.allclose(scores, again, rtol=1e-3, atol=1e-4 * np.abs(scores).max()), "scores depend on the numbering"


def check_small_tasks(make: Make) -> None:
    """A task of one class, of known classes only, of one node."""
    learner = make().partial_fit(task(0, 1))
    for one in (task(2), task(0, 2), task(3, first=1), task(1, first=1)):
        learner.partial_fit(one)
        assert np.isfinite(learner.decision_function(one)).all()
    assert learner.classes_.tolist() == [0, 1, 2, 3]
    assert set(make().partial_fit(task(4)).predict(task(4)).tolist()) == {4}


def check_same_seed_same_numbers(make: Make) -> None:
    """Learning again gives the same bits, whatever torch's global generator has drawn meanwhile."""
    first = kept(make().partial_fit(task(0, 1)).partial_fit(task(2, 3)))
    torch.rand(7)
    again = kept(make().partial_fit(task(0, 1)).partial_fit(task(2, 3)))
    assert again == first, "the same seed gives other numbers"


CHECKS = (
    check_only_learning_changes_the_model,
    check_columns_follow_classes,
    check_saved_and_loaded,
    check_memory_is_bounded_by_classes,
    check_permuted_nodes,
    check_small_tasks,
    check_same_seed_same_numbers,
)
