"""Every encoder in the methods that train it: resumed and anchored; wrong ones get a sentence."""

from pathlib import Path
from typing import Any

import pytest
import torch

from ipal.config import EncoderConfig, Sampling
from ipal.data.streams import TaskStream
from ipal.errors import ConfigError
from ipal.estimator import files
from ipal.estimator.registry import METHODS
from ipal.methods.ewc import EWC
from ipal.methods.ipal import IPAL
from ipal.methods.twp import TWP
from tests.learning import config, learn
from tests.nn.encoders_support import KINDS

# ------------------------------------------------------------------ methods


@pytest.mark.parametrize("kind", KINDS)
def test_resumption_is_that_of_the_encoder(kind: str, tiny_stream: TaskStream, tmp_path: Path) -> None:
    options = {"encoder": EncoderConfig(kind=kind, hidden=16, width=8, dropout=0.2)}
    model = learn(config(IPAL, epochs=3, **options), tiny_stream.task(0))
    files.save(model, tmp_path / "model.safetensors", moments=True)
    again = files.load(tmp_path / "model.safetensors")
    assert again.network is not None
    assert again.network.encoder.name == kind
    first, second = (files.checkpoint(learn(one, tiny_stream.task(1))).tensors for one in (model, again))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", [EWC, TWP])
def test_anchored_methods_keep_an_importance_of_every_parameter(
    kind: str, method: Any, tiny_stream: TaskStream
) -> None:
    encoder = EncoderConfig(kind=kind, hidden=8, width=4)
    batch = Sampling(nodes=20, fanouts=(3, 3))
    model = learn(config(method, epochs=1, encoder=encoder, batch=batch), tiny_stream.task(0), tiny_stream.task(1))
    network, importance = model.network, model.state.memory.importance
    assert network is not None
    assert list(importance) == [name for name, _ in network.named_parameters()]
    assert all(value.isfinite().all() for value in importance.values())
    assert all(importance[f"encoder.{name}.0"].any() for name in network.encoder.layers()[0])


@pytest.mark.parametrize("kind", KINDS[1:])
@pytest.mark.parametrize("method", ["pcl", "lwf", "mas", "gem", "er-gnn", "efc", "polo", "joint"])
def test_methods_learn_with_every_encoder(method: str, kind: str, tiny_stream: TaskStream) -> None:
    encoder = EncoderConfig(kind=kind, hidden=8, width=4)
    model = learn(config(METHODS[method], epochs=1, encoder=encoder), tiny_stream.task(0), tiny_stream.task(1))
    assert model.forward(tiny_stream.task(1).graph).scores.isfinite().all()


def test_wrong_encoders_get_a_sentence() -> None:
    with pytest.raises(ConfigError, match=r"Unknown encoder 'sagee'\. Did you mean 'sage'"):
        config(IPAL, encoder=EncoderConfig(kind="sagee"))
    with pytest.raises(ConfigError, match=r"encoder\.width is 10, which 4 attention heads cannot share"):
        config(IPAL, encoder=EncoderConfig(kind="gat", width=10))
