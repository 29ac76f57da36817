"""The estimator's face, for every registered method."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import ipal
from ipal.config import EncoderConfig, ProtocolConfig, TrainConfig
from ipal.data.datasets import Dataset
from ipal.data.streams import TaskStream, default_split
from ipal.errors import ConfigError, DataError, StoreError
from ipal.estimator import files
from ipal.estimator.learner import Learner
from ipal.estimator.learners import learner_class
from ipal.estimator.registry import METHODS
from ipal.estimator.settings import shared_settings
from ipal.methods.base import Method, Trained
from ipal.state.snapshot import Snapshot
from ipal.state.value import load_optimizer

LEARNERS = {name: learner_class(method) for name, method in METHODS.items()}
EVERY_METHOD = pytest.mark.parametrize("method", list(LEARNERS.values()), ids=list(LEARNERS))
"""As users make them: `ipal.IPAL`, ..."""
SOME = pytest.mark.parametrize("method", [ipal.IPAL, ipal.GEM, ipal.Analytic, ipal.NCM], ids=lambda one: one.__name__)

# A head starts from nothing with every class: in so few epochs it learns at this rate, not at the default one.
FEW = TrainConfig(epochs=15, lr_base=1e-2, lr_next=1e-2)
SMALL = EncoderConfig(hidden=32, width=32)
# What holds old parameters in place holds new classes off: where the newest task must be learned, gently.
GENTLE = {
    "ewc": {"strength": 1.0},
    "mas": {"strength": 0.01},
    "lwf": {"strength": 0.25},
    "twp": {"loss_strength": 1.0, "topology_strength": 1.0},
    "polo": {"kappa": 0.1, "replay_strength": 1.0},
    "pr": {"competing": "seen"},
}
# On a tiny graph many columns only take longer.
NARROW = {"analytic": {"width": 64}}


def method_of(learner: type[Learner]) -> type[Method]:
    return learner._method


def make(method: type[Learner] | type[Method], **options: object) -> Learner:
    """A learner that trains quickly, where it trains."""
    learner = method if issubclass(method, Learner) else learner_class(method)
    shared = {"train": FEW, "encoder": SMALL}
    used = {name: shared[name] for name in shared.keys() & shared_settings(method_of(learner))}
    return learner(**{**used, **NARROW.get(method_of(learner).name, {}), **options})


def data_of(stream: TaskStream, index: int) -> Data:
    """A task as a user would bring it: all labels present, the mask says which count."""
    task = stream.task(index)
    nodes = np.flatnonzero(stream.task_of == index)
    mask = torch.zeros(task.graph.num_nodes, dtype=torch.bool)
    mask[task.nodes] = True
    return Data(
        x=torch.from_numpy(task.graph.x),
        edge_index=torch.from_numpy(task.graph.edges),
        y=torch.from_numpy(stream.y[nodes]),
        train_mask=mask,
    )


def fitted(method: type[Learner] | type[Method], stream: TaskStream, tasks: int = 3, **options: object) -> Learner:
    learner = make(method, **{"seed": 1, **options})
    for index in range(tasks):
        learner.partial_fit(data_of(stream, index))
    return learner


def assert_same_bits(a: Learner, b: Learner) -> None:
    """All that is kept, also only while learning goes on."""
    left, right = files.checkpoint(a.model_), files.checkpoint(b.model_)
    assert left.facts == right.facts
    assert left.tensors.keys() == right.tensors.keys()
    for name, tensor in left.tensors.items():
        assert torch.equal(tensor, right.tensors[name]), name


@pytest.fixture(scope="module")
def known(tiny: Dataset) -> Callable[..., Learner]:
    """Learners taught once for all tests that only look at them."""
    stream = TaskStream(tiny.graph, tiny.y, default_split(tiny.num_classes), ProtocolConfig(), seed=0)
    return cache(lambda method, tasks=3: fitted(method, stream, tasks))


@EVERY_METHOD
def test_a_saved_model_has_no_moments_and_goes_on_learning_with_fresh_ones(method, tiny_stream: TaskStream, tmp_path):
    learner = fitted(method, tiny_stream, tasks=2)
    learner.save(tmp_path / "model.safetensors")
    assert not [name for name in Snapshot.load(tmp_path / "model.safetensors").tensors if name.startswith("optimizer")]
    loaded = method.load(tmp_path / "model.safetensors")
    assert loaded.memory_report() == {**learner.memory_report(), "only_while_learning": []}
    model, state = learner.model_, learner.model_.state
    assert files.snapshot(model, moments=True).tensors.keys() >= files.checkpoint(loaded.model_).tensors.keys()
    if state.network is not None:
        assert state.learning_rate is not None
        fresh = load_optimizer(state.network, {}, state.learning_rate, model.config.train.weight_decay)
        learner._become(replace(model, state=replace(state, optimizer=fresh)))
    for one in (learner, loaded):
        one.partial_fit(data_of(tiny_stream, 2))
    assert_same_bits(loaded, learner)


def test_a_model_made_on_a_gpu_can_be_loaded_and_draws_from_its_seed(tiny_stream: TaskStream, tmp_path):
    """A GPU's random state has 16 bytes, which no processor's generator takes."""
    learner = fitted(ipal.IPAL, tiny_stream, tasks=1)
    state = files.snapshot(learner.model_)
    Snapshot({**state.tensors, "generator": torch.zeros(16, dtype=torch.uint8)}, state.facts).save(tmp_path / "m")
    loaded = ipal.load(tmp_path / "m")
    assert np.array_equal(loaded.predict(data_of(tiny_stream, 0)), learner.predict(data_of(tiny_stream, 0)))
    assert loaded.partial_fit(data_of(tiny_stream, 1)).classes_.tolist() == [0, 1, 2, 3]


@EVERY_METHOD
def test_the_memory_report_counts_the_bytes_really_kept(method, known, tiny_stream: TaskStream):
    learner = known(method)
    report = learner.memory_report()
    passing = sum(item["bytes"] for item in report["only_while_learning"])
    kept = sum(t.numel() * t.element_size() for t in files.snapshot(learner.model_, moments=True).tensors.values())
    assert report["bytes"] == kept - passing == sum(item["bytes"] for item in report["items"])
    assert bool(passing) == issubclass(method_of(method), Trained)
    if report["nodes_behind_class"]:
        labels = np.concatenate([tiny_stream.task(index).labels for index in range(3)])
        assert report["nodes_behind_class"] == {str(label): int(np.sum(labels == label)) for label in range(6)}


@SOME
def test_labels_may_be_strings(method, tiny_stream: TaskStream, tmp_path):
    names = np.array(["ant", "bee", "cat", "dog", "eel", "fox"])
    learner = make(method)
    for index in range(3):
        task = data_of(tiny_stream, index)
        task.y = names[task.y.numpy()]
        learner.partial_fit(task)
    learner.save(tmp_path / "m")
    assert method.load(tmp_path / "m").classes_.tolist() == names.tolist()
    assert set(learner.predict(data_of(tiny_stream, 0))) <= set(names.tolist())


@EVERY_METHOD
def test_nodes_without_edges_and_nodes_that_were_not_there_work(method, known, tiny_stream: TaskStream):
    learner = known(method)
    lonely = Data(x=torch.from_numpy(tiny_stream.graph.x[:5]), edge_index=torch.zeros(2, 0, dtype=torch.long))
    assert learner.predict(lonely).shape == (5,)
    assert np.isfinite(learner.embed(Data(x=torch.zeros(1, 16)))).all()


@EVERY_METHOD
def test_sparse_features_give_what_dense_ones_give(method, known, tiny_stream: TaskStream):
    learner, graph = known(method), data_of(tiny_stream, 0)
    sparse = Data(x=graph.x.to_sparse_coo(), edge_index=graph.edge_index)
    np.testing.assert_allclose(learner.embed(sparse), learner.embed(graph), rtol=1e-4, atol=1e-5)


@SOME
def test_labels_outside_the_mask_are_not_even_looked_at(method, tiny_stream: TaskStream):
    task = data_of(tiny_stream, 0)
    garbage = task.clone()
    garbage.y = task.y.float()
    garbage.y[~task.train_mask] = float("nan")
    assert_same_bits(*(make(method).partial_fit(some) for some in (task, garbage)))


def public(thing: object) -> list[str]:
    return [name for name in dir(thing) if not name.startswith("_")]


@EVERY_METHOD
def test_the_public_face_is_small(method, known):
    assert len(public(known(method))) <= 30
    assert set(public(method)) == set(public(Learner)), "a method adds settings, no names"
    assert set(vars(known(method))) == {"_config", "_model"}


def test_the_package_offers_what_it_says_and_nothing_else():
    assert dir(ipal) == sorted(ipal.__all__)
    assert all(getattr(ipal, name) is not None for name in ipal.__all__)
    assert {learner.__name__ for learner in LEARNERS.values()} <= set(ipal.__all__)
    with pytest.raises(AttributeError, match="no attribute 'learners'"):
        ipal.learners  # noqa: B018


@SOME
def test_misuse_is_answered_with_a_sentence(method, tiny: Dataset, tiny_stream: TaskStream, tmp_path):
    task = data_of(tiny_stream, 0)
    with pytest.raises(ConfigError, match="partial_fit first"):
        method().predict(task)
    with pytest.raises(DataError, match="No node"):
        method().partial_fit(Data(x=task.x, edge_index=task.edge_index, y=task.y, train_mask=~task.train_mask & False))
    learner = fitted(method, tiny_stream, 1)
    with pytest.raises(DataError, match="trained on 16"):
        learner.predict(Data(x=torch.zeros(3, 4)))
    names = Data(x=task.x, edge_index=task.edge_index, y=np.array(["a"] * len(task.x)))
    with pytest.raises(DataError, match="of one kind"):
        learner.partial_fit(names)
    with pytest.raises(DataError, match="train_mask"):
        method().partial_fit(Data(x=task.x, y=task.y, train_mask=torch.ones(3, dtype=torch.bool)))
    (tmp_path / "m").write_bytes(b"not a model")
    with pytest.raises(StoreError, match="damaged"):
        method.load(tmp_path / "m")
