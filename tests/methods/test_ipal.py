"""The IPAL learner: every switch does something, and memory holds what it may and no more."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import beta

from ipal.backend.finite import read_terms
from ipal.config import EncoderConfig, TrainConfig
from ipal.data.streams import TaskStream
from ipal.estimator.model import Model, begin_learning
from ipal.estimator.settings import LearnerConfig
from ipal.methods.ipal import IPAL
from tests.learning import CPU, begun, config, learned

SET = {"encoder": EncoderConfig(), "gamma": 0.4, "node_weights": "pagerank"}


def settings(epochs: int = 5, train: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    return {**SET, "train": TrainConfig(epochs=epochs, **train or {}), **options}


def learn(stream: TaskStream, tasks: int = 2, **options: Any) -> Model:
    return learned(IPAL, stream, tasks, **settings(**options))


def terms(start: Model | LearnerConfig, stream: TaskStream, index: int) -> list[dict[str, float]]:
    """Of all epochs of a task."""
    model = start if isinstance(start, Model) else None
    learning = begin_learning(start.config if model else start, model, stream.task(index), CPU)
    return read_terms([epoch.terms for epoch in learning.epochs() if epoch.terms])


@pytest.mark.parametrize(
    "switch",
    [
        {"gamma": 0.1},
        {"products": "raw"},
        {"distillation": "ipad-printed"},
        {"distillation": "fd"},
        {"distillation": "none"},
        {"node_weights": "degree"},
        {"node_weights": "uniform"},
        {"boundary": False},
        {"hardness": "margin"},
        {"hardness": "energy"},
        {"replay": False},
        {"compensation": "printed"},
        {"compensation": "none"},
        {"tau": 0.2},
        {"alpha": 0.3},
        {"beta": 0.5},
        {"k": 2},
        {"subset": 5},
        {"seed": 1},
        {"train": {"moments": "reset"}},
        {"train": {"lr_base": 0.01}},
        {"train": {"lr_next": 0.01}},
        {"train": {"weight_decay": 0.1}},
        {"train": {"relative": True}},
    ],
    ids=str,
)
def test_every_setting_reaches_the_prototypes(switch, tiny_stream: TaskStream):
    assert not torch.equal(learn(tiny_stream).state.memory.mean, learn(tiny_stream, **switch).state.memory.mean)


def test_nothing_is_distilled_on_the_first_task_and_from_the_second_step_of_the_next(tiny_stream: TaskStream):
    first = terms(config(IPAL, **settings(epochs=2)), tiny_stream, 0)
    assert [set(of_epoch) for of_epoch in first] == [{"contrast"}] * 2
    second = terms(learn(tiny_stream, tasks=1, epochs=2), tiny_stream, 1)
    assert [set(of_epoch) for of_epoch in second] == [{"contrast", "distillation"}] * 2
    assert second[0]["distillation"] == 0.0
    assert second[1]["distillation"] > 0.0


def test_virtual_features_are_mixed_by_the_papers_distribution(tiny_stream: TaskStream):
    mixing = begun(config(IPAL), tiny_stream.task(0)).context.mixing
    values = float(mixing.step) * np.arange(len(mixing.mass))
    assert values[-1] == pytest.approx(0.4)
    np.testing.assert_allclose(mixing.mass, beta.cdf(values, 9, 21) / beta.cdf(0.4, 9, 21), rtol=1e-9)


def test_raw_products_score_by_products_and_train_to_finite_numbers(tiny_stream: TaskStream):
    model = learn(tiny_stream, epochs=50, products="raw", distillation="ipad-printed", compensation="printed")
    found = model.forward(tiny_stream.test_splits(0)[0].graph)
    torch.testing.assert_close(found.scores, found.embeddings @ model.state.memory.mean.T)
    assert torch.isfinite(found.embeddings).all()
