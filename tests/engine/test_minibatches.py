"""Mini-batches: what is sampled, that it is right in the mean, and that every method learns from it."""

import dataclasses
import threading
from collections import Counter
from itertools import chain, combinations
from typing import Any

import numpy as np
import pytest
import torch

from ipal.backend.batches import Batch, Sampler, compact, distinct_places, prefetched, sampled, whole_task
from ipal.backend.runtime import Runtime
from ipal.config import EncoderConfig, Sampling
from ipal.data.datasets import Dataset
from ipal.data.streams import TaskStream
from ipal.data.task import Task
from ipal.engine.trainer import Training, finished
from ipal.errors import ConfigError
from ipal.estimator import files
from ipal.estimator.model import Model, begin_learning
from ipal.estimator.registry import METHODS
from ipal.estimator.settings import learner_config
from ipal.methods.base import Terms, Trained
from ipal.methods.ipal import IPAL
from ipal.methods.pcl import PCL
from ipal.nn import losses
from tests.learning import accuracy, begun, config, gradients, learn

HERE = Runtime.of()
CPU = torch.device("cpu")
EVERYTHING = Sampling(nodes=10**6, fanouts=("all", "all"))
SMALL = Sampling(nodes=7, fanouts=(3, 2))
TRAINED = [method for method in METHODS.values() if issubclass(method, Trained)]
CHOOSING = {"ipal", "ipal-online", "polo", "twp"}
"""Methods that choose nodes or signs: the last digit of a number may decide otherwise."""


def random(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# ------------------------------------------------------------------ what is drawn


def test_every_set_of_places_is_equally_likely() -> None:
    draws = 20_000
    places = distinct_places(torch.full((draws,), 5), 3, random())
    seen = Counter(tuple(sorted(row)) for row in places.tolist())
    assert seen.keys() == set(combinations(range(5), 3))
    expected = draws / 10
    chi_square = sum((count - expected) ** 2 / expected for count in seen.values())
    assert chi_square < 27.9  # 9 degrees of freedom: exceeded once in a thousand seeds


def dense(matrix: Any) -> np.ndarray:
    found = np.zeros(matrix.shape, dtype=np.float64)
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr.numpy()))
    np.add.at(found, (rows, matrix.indices.numpy()), matrix.values.numpy())
    return found


def test_sampled_rows_are_right_in_the_mean(tiny: Dataset) -> None:
    neighbours, nodes = Sampler.of(tiny.graph, CPU), torch.arange(tiny.graph.num_nodes)
    whole = tiny.graph.normalised.toarray()
    assert (np.diff(tiny.graph.neighbours.indptr) > 2).mean() > 0.5  # or nothing was left out
    generator, draws = random(), 600
    samples = [neighbours.rows(nodes, 2, generator) for _ in range(draws)]
    assert max(int(sample.indptr.diff().max()) for sample in samples) == 3  # two neighbours, and the node
    mean = sum(map(dense, samples)) / draws
    # An entry is 0 or d/k times its value: its standard error is at most value * sqrt(d/k / draws).
    error = whole * np.sqrt(np.diff(tiny.graph.neighbours.indptr).clip(2)[:, None] / 2 / draws)
    assert (np.abs(mean - whole) <= 5 * error + 1e-6).all()
    assert np.abs(mean - whole).max() > 0  # they are samples


def test_a_compact_matrix_holds_the_columns_that_are_used(tiny: Dataset) -> None:
    matrix = Sampler.of(tiny.graph, CPU).rows(torch.tensor([3, 9]), 2, random())
    columns, small = compact(matrix)
    assert columns.tolist() == sorted(set(matrix.indices.tolist()))
    np.testing.assert_array_equal(dense(small), dense(matrix)[:, columns.numpy()])
    np.testing.assert_array_equal(dense(small.transposed()), dense(small).T)


# ------------------------------------------------------------------ an epoch of batches


def positions(batches: list[Batch]) -> list[list[int]]:
    return [batch.positions.tolist() for batch in batches]


def test_an_epoch_goes_through_every_training_node_once(tiny_stream: TaskStream) -> None:
    task = tiny_stream.task(0)
    first, again, other = (positions(list(sampled(task, SMALL, seed, HERE))) for seed in (1, 1, 2))
    assert sorted(chain(*first)) == list(range(len(task.nodes)))
    assert {len(batch) for batch in first[:-1]} == {7}
    assert first == again
    assert first != other


def test_batches_are_made_ahead_in_order_and_mistakes_are_heard_of() -> None:
    made: list[int] = []
    ready = threading.Event()

    def maker(index: int) -> int:
        made.append(index)
        if index == 1:
            ready.set()
        if index == 3:
            raise ValueError("three")
        return index

    batches = prefetched([lambda index=index: maker(index) for index in range(4)])
    assert next(batches) == 0
    assert ready.wait(5), "the second was not made while the first was in use"
    assert [next(batches), next(batches)] == [1, 2]
    with pytest.raises(ValueError, match="three"):
        next(batches)
    assert made == [0, 1, 2, 3]


# ------------------------------------------------------------------ learning from them


def moved_step(model: Model, task: Task) -> tuple[Terms, Training]:
    """Loss terms of a step after some others: where nothing has moved yet, a distance has no direction."""
    training, noise = begun(model, task), random(3)
    for parameter in training.network.parameters():
        parameter.data += 0.03 * torch.randn(parameter.shape, generator=noise)
    (batch,) = training.batches(0)
    return training.loss(batch), training


@pytest.mark.parametrize("method", TRAINED, ids=lambda method: method.name)
def test_a_batch_of_everything_is_full_graph_training(method: type[Trained], tiny_stream: TaskStream):
    weak = {"ewc": {"strength": 1e4}, "dpcr": {"ridge": 0.1}}  # a strong pull, or a small ridge, makes rounding large
    settings = [config(method, epochs=3, batch=batch, **weak.get(method.name, {})) for batch in ("full", EVERYTHING)]
    whole = learn(settings[0], tiny_stream.task(0))
    # One step on a later task, from the same state: every term and every gradient.
    (terms, one), (others, other) = (
        moved_step(dataclasses.replace(whole, config=some), tiny_stream.task(1)) for some in settings
    )
    assert terms.keys() == others.keys()
    for name in terms:
        torch.testing.assert_close(terms[name], others[name], rtol=1e-5, atol=1e-6)
        pairs = zip(gradients(one, terms[name]).values(), gradients(other, others[name]).values(), strict=True)
        for a, b in pairs:
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5 * max(1.0, float(a.abs().max())))
    # And a whole stream.
    whole, everything = (learn(some, *map(tiny_stream.task, range(3))) for some in settings)
    if method.name not in CHOOSING:
        expected = files.checkpoint(everything).tensors
        for name, tensor in files.checkpoint(whole).tensors.items():
            torch.testing.assert_close(tensor, expected[name], rtol=1e-3, atol=1e-5)
    graph = tiny_stream.test_splits(2)[0].graph
    assert (whole.predict_graph(graph).labels == everything.predict_graph(graph).labels).mean() > 0.97


@pytest.mark.parametrize("method", TRAINED, ids=lambda method: method.name)
def test_every_method_learns_from_small_batches(method: type[Trained], tiny_stream: TaskStream) -> None:
    fast = {"pr": {"competing": "seen"}}  # new classes win against old ones at once
    model = learn(
        config(method, epochs=8, batch=SMALL, **fast.get(method.name, {})), tiny_stream.task(0), tiny_stream.task(1)
    )
    assert accuracy(model, tiny_stream, 1) > 0.6, "it is one of two new classes"


def part_of(training: Training, here: torch.Tensor) -> Batch:
    """A batch of some training nodes, with all their neighbours."""
    task, some = training.context.task, here.numpy()
    return Batch(whole_task(Task(task.graph, task.nodes[some], task.labels[some]), HERE).graph, here)


@pytest.mark.parametrize("method", [IPAL, PCL], ids=lambda method: method.name)
def test_a_class_without_a_node_in_the_batch_has_no_prototype(method: type, tiny_stream: TaskStream) -> None:
    # So warm that a prototype of zeros, at a cosine of 0 to every node, would be noticed among the negatives.
    training = begun(learn(config(method, epochs=2, tau=1.0), tiny_stream.task(0)), tiny_stream.task(1))
    context, memory = training.context, training.state.memory
    here = torch.nonzero(context.places == 1).flatten()
    batch = part_of(training, here)
    training.state.generator.manual_seed(5)
    terms = training.loss(batch)
    # As if the task had that one class: its prototype is the mean of its nodes by their own weights, and no other is
    # there but the old ones.
    f = training.network.encoder(batch.graph)
    weights = context.weights[1, here] / context.weights[1, here].sum()
    mu = losses.unit(torch.cat([(weights @ f)[None], memory.mean[context.old]]))
    directions = losses.unit(f)
    labels = torch.zeros(len(here), dtype=torch.int64)
    rest: dict[str, Any] = {}
    if method is IPAL:
        hardest = losses.hardness(mu @ directions.T, "entropy").topk(min(10, len(here))).indices
        rest = {
            "hard": directions[hardest],
            "hard_labels": torch.zeros(len(hardest), dtype=torch.int64),
            "replayed": losses.unit(memory.of(context.old).draw(10, random(5))),
        }
    expected = losses.prototype_contrast(directions, labels, mu, 1.0, **rest)
    torch.testing.assert_close(terms["contrast"], expected)


@pytest.mark.parametrize("method", ["ipal", "polo", "efc"])
def test_both_networks_look_at_the_same_sample(method: str, tiny_stream: TaskStream) -> None:
    training = begun(learn(config(METHODS[method], epochs=2, batch=SMALL), tiny_stream.task(0)), tiny_stream.task(1))
    for batch in training.batches(0):
        terms = training.loss(batch)
        # Before the first step both are one network: nothing is there to be distilled, whatever was drawn.
        assert terms["consolidation" if method == "efc" else "distillation"].item() == pytest.approx(0, abs=1e-5)


def test_batches_follow_from_the_state_between_epochs(tiny_stream: TaskStream) -> None:
    settings = config(IPAL, epochs=4, batch=SMALL)
    first = learn(settings, tiny_stream.task(0))
    whole = files.checkpoint(learn(first, tiny_stream.task(1))).tensors
    stopped = begin_learning(settings, first, tiny_stream.task(1), HERE)
    steps = stopped.epochs()
    for _ in range(3):  # before the first epoch, and after two
        next(steps)
    restored = files.restored(settings, files.checkpoint(stopped.model), HERE, whole=False, source="it")
    again = begin_learning(settings, restored, tiny_stream.task(1), HERE, first_epoch=2)
    found = files.checkpoint(again.finish(finished(again.epochs()))).tensors
    for name, tensor in whole.items():
        assert torch.equal(tensor, found[name]), name


# ------------------------------------------------------------------ settings


def test_there_is_a_fanout_for_every_layer() -> None:
    with pytest.raises(ConfigError, match=r"1 fan-out\(s\) for 2 layers"):
        learner_config(IPAL, {"encoder": EncoderConfig(), "batch": Sampling(fanouts=(5,))})
    with pytest.raises(ConfigError, match=r"2 fan-out\(s\) for 3 layers: give one for each, as \[10, 25, 25\]"):
        learner_config(IPAL, {"encoder": EncoderConfig(layers=3), "batch": Sampling()})


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("protocol.batch.fanouts=[10,0]", "protocol.batch.fanouts"),
        ("protocol.batch=half", "protocol.batch"),
    ],
)
def test_wrong_settings_are_explained(setting: str, said: str, command: Any) -> None:
    outcome = command("run", "--dataset", "digits", "--set", "encoder.kind=gcn", "--set", setting)
    assert outcome.code == 2
    assert said in outcome.err
