"""Mini-batches of fixed shapes: what is drawn, that it is right, and that steps of them are recorded by size."""

from collections import Counter
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from ipal.backend.batches import around as compact_around
from ipal.backend.cuda_graphs import Recordings
from ipal.backend.fixed_batches import MOST_ROWS, Drawn, FixedBatches, around
from ipal.backend.neighbor_sampling import Sampler
from ipal.backend.runtime import Runtime
from ipal.config import EncoderConfig, Sampling
from ipal.data.csr import Neighbours
from ipal.data.datasets import Dataset, load
from ipal.data.graph import Graph
from ipal.data.streams import TaskStream
from ipal.data.task import Task
from ipal.engine.executors import recorded as executor
from ipal.engine.trainer import finished
from ipal.estimator.model import Model, begin_learning
from ipal.estimator.settings import LearnerConfig
from ipal.methods.ipal import IPAL
from ipal.methods.joint import Joint
from ipal.nn.encoders import ENCODERS
from ipal.state.value import network_tensors
from tests.learning import config as settings_of

CPU, HERE = torch.device("cpu"), Runtime.of()
SMALL = Sampling(nodes=7, fanouts=(3, 2))
DRAWN = [name for name, kind in ENCODERS.items() if kind.reads_neighbours() and "attention" not in kind.needs]


def random(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_neighbours_are_drawn_once_each_and_no_more_than_asked_for(tiny: Dataset) -> None:
    graph, nodes, k = tiny.graph, torch.arange(tiny.graph.num_nodes), 5
    drawn = Drawn.of(Sampler.of(graph, CPU), nodes, k, random())
    assert torch.equal(drawn.columns[:, 0], nodes)
    some_are_cut = False
    for node in nodes.tolist():
        known = graph.indices[graph.indptr[node] : graph.indptr[node + 1]]
        there = drawn.columns[node, 1:][drawn.factor[node, 1:] > 0].tolist()
        assert len(there) == len(set(there)) == min(k, len(known))
        assert set(there) <= set(known.tolist())
        assert drawn.factor[node, 1:].sum().item() == pytest.approx(len(known))
        some_are_cut |= len(known) > k
    assert some_are_cut


def test_every_set_of_neighbours_is_equally_likely() -> None:
    indptr = np.array([0, 5, 5, 5, 5, 5, 5])
    graph = Graph.of(np.zeros((6, 1), dtype=np.float32), Neighbours(indptr, np.arange(1, 6, dtype=np.int32)))
    draws = 20_000
    drawn = Drawn.of(Sampler.of(graph, CPU), torch.zeros(draws, dtype=torch.int64), 3, random())
    seen = Counter(tuple(sorted(row)) for row in drawn.columns[:, 1:].tolist())
    assert seen.keys() == set(combinations(range(1, 6), 3))
    expected = draws / 10
    assert sum((count - expected) ** 2 / expected for count in seen.values()) < 27.9  # once in a thousand seeds


@pytest.mark.parametrize("kind", DRAWN)
def test_with_room_for_all_neighbours_embeddings_and_gradients_are_those_of_the_graph(kind: str, tiny: Dataset) -> None:
    config = EncoderConfig(kind=kind, hidden=16, width=16)
    encoder = ENCODERS.find(kind)(tiny.graph.num_features, config, random())
    most, rows = int(np.diff(tiny.graph.indptr).max()), torch.tensor([5, 0, 17, 5])
    fixed = around(tiny.graph, rows, (most, most), encoder.needs, random())
    exact = compact_around(tiny.graph, rows, ("all", "all"), encoder.needs, random())
    found = []
    for graph in (fixed, exact):
        encoder.zero_grad()
        embeddings = encoder(graph)
        embeddings.square().sum().backward()
        found.append([embeddings.detach(), *(parameter.grad.clone() for parameter in encoder.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("norm", ["symmetric", "mean", "sum"])
def test_sums_are_right_in_the_mean(norm: Any, tiny: Dataset) -> None:
    graph, generator = tiny.graph, random()
    sampler, nodes = Sampler.of(graph, CPU), torch.arange(graph.num_nodes)
    x = torch.from_numpy(graph.x)
    mean = sum(Drawn.of(sampler, nodes, 3, generator).matrix(norm).matmul(x) for _ in range(600)) / 600
    exact = torch.from_numpy(np.asarray(graph.aggregation(norm) @ graph.x))
    assert (mean - exact).abs().max() < 0.35 * exact.abs().max()
    assert (mean - exact).mean().abs() < 0.01


def test_every_training_node_is_in_one_batch_of_an_epoch(tiny_stream: TaskStream) -> None:
    task = tiny_stream.task(0)
    batches = FixedBatches.of(task, SMALL, HERE, ("symmetric",))
    assert batches is not None
    first, again, other = (batches.places(seed) for seed in (1, 1, 2))
    assert [len(here) for here in first[:-1]] == [7] * (len(first) - 1)  # type: ignore[arg-type]
    assert sorted(torch.cat(first).tolist()) == list(range(len(task.nodes)))  # type: ignore[arg-type]
    assert torch.equal(torch.cat(first), torch.cat(again))  # type: ignore[arg-type]
    assert not torch.equal(torch.cat(first), torch.cat(other))  # type: ignore[arg-type]
    everything = FixedBatches.of(task, Sampling(nodes=10**6, fanouts=(3, 2)), HERE, ("symmetric",))
    assert everything is not None
    assert everything.places(0) == [slice(None)]


def test_what_has_no_fixed_shape_is_left_to_other_batches(tiny_stream: TaskStream) -> None:
    task, plain = tiny_stream.task(0), ("symmetric",)
    graph = task.graph

    def of(changed: Graph, sampling: Sampling = SMALL, needs: Any = plain) -> Any:
        return FixedBatches.of(Task(changed, task.nodes, task.labels), sampling, HERE, needs)

    assert of(graph) is not None
    assert of(graph, Sampling(nodes=7, fanouts=("all", 2))) is None
    assert of(graph, needs=("attention",)) is None
    assert of(Graph.of(sp.csr_array(graph.x), graph.neighbours)) is None
    assert of(graph, Sampling(nodes=7, fanouts=(MOST_ROWS, 2))) is None


def learned_recorded(settings: LearnerConfig, tasks: list[Task], runtime: Runtime) -> Model:
    """What is learned as on a GPU: by batches of fixed shapes, and recorded steps where they can be."""
    model, recordings, known = None, Recordings(), dict[type, bool]()
    for task in tasks:
        steps = lambda training: executor.RecordedSteps(training, recordings, known)  # noqa: E731
        learning = begin_learning(settings, model, task, runtime, steps)
        model = learning.finish(finished(learning.epochs()))
    assert model is not None
    return model


@pytest.mark.parametrize("kind", ["gcn", "appnp"])
@pytest.mark.parametrize("method", [IPAL, Joint])
def test_batches_of_one_size_share_a_recording(
    method: Any, kind: str, tiny_stream: TaskStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = []

    class Repeated:
        """Takes the step again, as a recording does."""

        def __init__(self, step: Any, generators: Any) -> None:
            self.step, self.generators, self.times = step, generators, 0
            recorded.append(self)

        def __call__(self) -> Any:
            self.times += 1
            return self.step()

        def close(self) -> None:
            self.step = None

    encoder = EncoderConfig(kind=kind, hidden=16, width=8)
    options: Any = {"batch": SMALL, "epochs": 3, "encoder": encoder, **({"gamma": 0.4} if method is IPAL else {})}
    settings, tasks = settings_of(method, **options), [tiny_stream.task(0), tiny_stream.task(1)]
    monkeypatch.setattr(executor, "can_record", lambda: False)
    step_by_step = learned_recorded(settings, tasks, HERE)
    monkeypatch.setattr(Recordings, "record", lambda self, step, *generators: Repeated(step, generators))
    monkeypatch.setattr(executor, "can_record", lambda: True)
    monkeypatch.setattr(executor, "never_waits", lambda *_: True)
    model = learned_recorded(settings, tasks, HERE)
    first, second = (len(task.nodes) for task in tasks)
    numbers = (first, second if method is IPAL else first + second)
    assert len(recorded) == sum(2 if number % 7 else 1 for number in numbers), "full batches, and the last one"
    assert sum(one.times for one in recorded) == sum(3 * -(-number // 7) - 1 for number in numbers)
    assert all(one.step is None for one in recorded)
    assert all(len(one.generators) == 2 for one in recorded)
    for name, parameter in network_tensors(step_by_step.state.network).items():
        assert torch.equal(parameter, network_tensors(model.state.network)[name])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("kind", ["gcn", "appnp"])
def test_a_gpu_learns_the_same_recorded_and_step_by_step(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data, found = load("synthetic:nodes=600,classes=6,features=16,signal=3"), []
    nodes, encoder = np.arange(data.graph.num_nodes), EncoderConfig(kind=kind, hidden=16, width=8)
    tasks = [Task(data.graph, nodes[some], data.y[some]) for some in (data.y < 3, data.y >= 3)]
    settings = settings_of(IPAL, gamma=0.4, batch={"nodes": 50, "fanouts": [3, 5]}, epochs=4, encoder=encoder)
    for recordable in (True, True, False):
        monkeypatch.setattr(executor, "can_record", lambda recordable=recordable: recordable)
        model = learned_recorded(settings, tasks, Runtime.of("cuda"))
        found.append({name: value.cpu() for name, value in network_tensors(model.state.network).items()})
    for other in found[1:]:
        assert all(torch.equal(value, other[name]) for name, value in found[0].items())
