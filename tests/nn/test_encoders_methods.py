"""Every encoder in the methods that train it: exported, resumed and anchored; wrong ones get a sentence."""

from pathlib import Path
from typing import Any

import pytest
import torch

from ipal.config import EncoderConfig, Sampling
from ipal.data.streams import TaskStream
from ipal.deploy.export import onnx_model
from ipal.deploy.export.check import random_graphs
from ipal.errors import ConfigError
from ipal.learners import EWC, IPAL, METHODS, TWP
from tests.deploy.export_support import assert_the_same, session
from tests.learning import learn, make
from tests.nn.encoders_support import KINDS

# ------------------------------------------------------------------ methods


@pytest.mark.parametrize("kind", KINDS)
def test_export_and_resumption_are_those_of_the_encoder(kind: str, tiny_stream: TaskStream, tmp_path: Path) -> None:
    options = {"encoder": EncoderConfig(kind=kind, hidden=16, width=8, activation="elu", dropout=0.2)}
    learner = learn(make(IPAL, epochs=3, **options), tiny_stream.task(0))
    file = session(onnx_model(learner))
    for x, edges in random_graphs(14, 16, seed=6):
        assert_the_same(learner, file, x, edges)
    learner.save(tmp_path / "model.safetensors", moments=True)
    again = IPAL.load(tmp_path / "model.safetensors")
    for one in (learner, again):
        learn(one, tiny_stream.task(1))
    assert learner.encoder_.name == again.encoder_.name == kind
    first, second = learner.state().tensors, again.state().tensors
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", [EWC, TWP])
def test_anchored_methods_keep_an_importance_of_every_parameter(
    kind: str, method: Any, tiny_stream: TaskStream
) -> None:
    config = EncoderConfig(kind=kind, hidden=8, width=4)
    batch = Sampling(nodes=20, fanouts=(3, 3))
    learner = learn(make(method, epochs=1, encoder=config, batch=batch), tiny_stream.task(0), tiny_stream.task(1))
    assert list(learner.importance_) == [name for name, _ in learner.network_.named_parameters()]
    assert all(value.isfinite().all() for value in learner.importance_.values())
    assert all(learner.importance_[f"encoder.{name}.0"].any() for name in learner.encoder_.layers()[0])


@pytest.mark.parametrize("kind", KINDS[1:])
@pytest.mark.parametrize("method", ["pcl", "lwf", "mas", "gem", "er-gnn", "efc", "polo", "joint"])
def test_methods_learn_with_every_encoder(method: str, kind: str, tiny_stream: TaskStream) -> None:
    config = EncoderConfig(kind=kind, hidden=8, width=4)
    learner = learn(make(METHODS[method], epochs=1, encoder=config), tiny_stream.task(0), tiny_stream.task(1))
    assert learner.scores(tiny_stream.task(1).graph).isfinite().all()


def test_wrong_encoders_get_a_sentence() -> None:
    with pytest.raises(ConfigError, match=r"Unknown encoder 'sagee'\. Did you mean 'sage'"):
        make(IPAL, encoder=EncoderConfig(kind="sagee"))
    with pytest.raises(ConfigError, match=r"encoder\.width is 10, which 4 attention heads cannot share"):
        make(IPAL, encoder=EncoderConfig(kind="gat", width=10))
