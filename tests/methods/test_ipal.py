"""The IPAL learner: every switch does something, and memory holds what it may and no more."""

import numpy as np
import pytest
import torch
from scipy.stats import beta

from ipal.config import EncoderConfig, TrainConfig
from ipal.data.streams import TaskStream
from ipal.learners import IPAL

SET = {"encoder": EncoderConfig(), "gamma": 0.4, "node_weights": "pagerank"}


def learn(stream: TaskStream, tasks: int = 2, epochs: int = 5, **options: object) -> IPAL:
    learner = IPAL(train=TrainConfig(epochs=epochs, **options.pop("train", {})), **{**SET, **options})
    for index in range(tasks):
        for _ in learner.learn(stream.task(index)):
            pass
    return learner


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
    assert not torch.equal(learn(tiny_stream).memory_.mean, learn(tiny_stream, **switch).memory_.mean)


def test_the_last_relu_makes_embeddings_non_negative(tiny_stream: TaskStream):
    with_relu = learn(tiny_stream, tasks=1, encoder=EncoderConfig(last_activation="relu"))
    assert with_relu.memory_.mean.min() >= 0
    assert learn(tiny_stream, tasks=1).memory_.mean.min() < 0


def test_a_new_prototype_is_the_weighted_mean_of_its_training_nodes_after_training(tiny_stream: TaskStream):
    learner = learn(tiny_stream, tasks=1, node_weights="uniform")
    task = tiny_stream.task(0)
    f = learner.training_embeddings(task)
    for row, label in enumerate(learner.labels_):
        own = f[torch.from_numpy(task.labels == label)]
        torch.testing.assert_close(learner.memory_.mean[row], own.mean(dim=0))
        torch.testing.assert_close(learner.memory_.variance[row], own.var(dim=0, correction=0))


def test_old_prototypes_move_only_by_compensation_and_old_variances_never(tiny_stream: TaskStream):
    after_one = learn(tiny_stream, tasks=1)
    still = learn(tiny_stream, tasks=2, compensation="none")
    moved = learn(tiny_stream, tasks=2)
    assert torch.equal(still.memory_.mean[:2], after_one.memory_.mean)
    assert not torch.equal(moved.memory_.mean[:2], after_one.memory_.mean)
    assert torch.equal(moved.memory_.variance[:2], after_one.memory_.variance)


def test_nothing_is_distilled_on_the_first_task_and_something_on_the_second(tiny_stream: TaskStream):
    learner = IPAL(train=TrainConfig(epochs=2), **SET)
    assert [set(terms) for terms in learner.learn(tiny_stream.task(0))] == [{"contrast"}] * 2
    assert [set(terms) for terms in learner.learn(tiny_stream.task(1))] == [{"contrast", "distillation"}] * 2


def test_the_first_step_of_a_task_has_nothing_to_distil_yet(tiny_stream: TaskStream):
    learner = IPAL(train=TrainConfig(epochs=2), **SET)
    for _ in learner.learn(tiny_stream.task(0)):
        pass
    first, second = (terms["distillation"].item() for terms in learner.learn(tiny_stream.task(1)))
    assert first == 0.0
    assert second > 0.0


def test_virtual_features_are_mixed_by_the_papers_distribution(tiny_stream: TaskStream):
    mixing = learn(tiny_stream, tasks=1, epochs=0)._mixing
    values = mixing.step * np.arange(len(mixing.mass))
    assert values[-1] == pytest.approx(0.4)
    np.testing.assert_allclose(mixing.mass, beta.cdf(values, 9, 21) / beta.cdf(0.4, 9, 21), rtol=1e-9)


def test_after_a_task_only_weights_moments_random_state_and_gaussians_remain(tiny_stream: TaskStream):
    learner = learn(tiny_stream, tasks=3)
    groups = {name.split(".")[0] for name in learner.state().tensors}
    assert groups == {"encoder", "optimizer", "generator", "prototypes"}
    assert {name for name in learner.state().tensors if name.startswith("prototypes")} == {
        "prototypes.mean",
        "prototypes.variance",
        "prototypes.count",
    }


def test_the_loss_falls(tiny_stream: TaskStream):
    learner = IPAL(train=TrainConfig(epochs=40), **SET)
    contrast = [terms["contrast"].item() for terms in learner.learn(tiny_stream.task(0))]
    assert contrast[-1] < 0.5 * contrast[0]


def test_raw_products_score_by_products_and_train_to_finite_numbers(tiny_stream: TaskStream):
    learner = learn(tiny_stream, epochs=50, products="raw", distillation="ipad-printed", compensation="printed")
    graph = tiny_stream.test_splits(0)[0].graph
    f = learner.represent(graph)
    torch.testing.assert_close(learner.scores(graph), f @ learner.memory_.mean.T)
    assert torch.isfinite(f).all()
