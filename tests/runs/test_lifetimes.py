"""Nothing of a run stays in memory when it ends, fails or is interrupted: reference counting alone frees it."""

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ipal.backend.finite import StepTerms
from ipal.backend.runtime import Runtime
from ipal.bench import interleave
from ipal.bench.experiment_file import as_tree, read_preset
from ipal.bench.interleave import run_interleaved
from ipal.config import run_config
from ipal.data import centrality
from ipal.data.datasets import Dataset, load
from ipal.data.graph import Graph
from ipal.data.streams import TaskStream
from ipal.data.task import Task
from ipal.engine.executors import recorded
from ipal.engine.executors.recorded import Automatic, RecordedSteps, Recordings
from ipal.engine.trainer import Steps, Training
from ipal.estimator.model import Model, empty_model
from ipal.estimator.registry import METHODS
from ipal.methods.base import Trained
from ipal.methods.ipal import IPAL
from ipal.runs import runner
from ipal.runs.run_folder import RunStore
from ipal.runs.runner import Silent
from ipal.state.value import State
from tests.learning import begun, config, learned
from tests.support import Watcher

NAME = "synthetic:nodes=240,classes=6,features=12"
QUICK = {"analytic": {"steps": 1, "width": 32}}
KINDS = (Graph, Task, TaskStream, Model, State, nn.Module, Tensor)


class Repeated:
    """Stands in for a recorded step: it holds what a recording holds, without a GPU."""

    made: list["Repeated"]

    def __init__(self, step: Callable[[], StepTerms], generator: torch.Generator) -> None:
        self.step: Callable[[], StepTerms] | None = step
        self.gradients_at_close = -1
        self.made.append(self)

    def __call__(self) -> StepTerms:
        assert self.step is not None
        return self.step()

    def close(self) -> None:
        assert self.step is not None, "closed once"
        network = self.step.func.__self__.network  # type: ignore[attr-defined]
        self.gradients_at_close = sum(parameter.grad is not None for parameter in network.parameters())
        self.step = None


@pytest.fixture
def repeated(monkeypatch: pytest.MonkeyPatch) -> list[Repeated]:
    """Steps are recorded, as on a GPU; what was recorded."""
    made: list[Repeated] = []
    monkeypatch.setattr(Repeated, "made", made, raising=False)

    def steps(self: Automatic, training: Training) -> Steps:
        return RecordedSteps(training, Recordings()) if training.setup.batch == "full" else training

    monkeypatch.setattr(Recordings, "record", lambda self, step, generator: Repeated(step, generator))
    monkeypatch.setattr(Automatic, "__call__", steps)
    monkeypatch.setattr(recorded, "can_record", lambda device: True)
    monkeypatch.setattr(recorded, "watched", lambda step: (step(), False))
    return made


@pytest.fixture
def data() -> Dataset:
    return load(NAME)


@pytest.fixture(scope="module", autouse=True)
def _frozen_again() -> Iterator[None]:
    """As it was for the tests before: see conftest.py."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.disable()
    gc.freeze()  # what other tests have left is neither counted nor gone through
    yield
    gc.unfreeze()
    gc.enable()


def alive() -> "Counter[str]":
    """How many there are of everything that holds much memory."""
    there: Counter[str] = Counter()
    for one, count in Counter(map(type, gc.get_objects())).items():
        there.update({kind.__name__: count for kind in KINDS if issubclass(one, kind)})
    return there


def made_run(data: Dataset, folder: Path, observer: Any = None, method: str = "ipal", **tree: Any) -> None:
    tree = {"dataset": NAME, "method": method, "train": {"epochs": 3}, method: QUICK.get(method, {}), **tree}
    resolved = runner.resolve(run_config(tree), dataset=data)
    runner.run(resolved, RunStore(folder).folder_for(resolved.config), observer or Silent(), checkpoint_every=1)


def test_what_is_held_is_counted(data: Dataset) -> None:
    before = alive()
    graph = data.graph.induced(torch.arange(50).numpy())
    model = empty_model(config(METHODS["ncm"]), graph, Runtime.of())
    there = alive() - before
    assert {name: there[name] for name in ("Graph", "Model", "State")} == {"Graph": 1, "Model": 1, "State": 1}
    assert graph.num_nodes == 50
    assert not model.labels


@pytest.mark.parametrize("method", METHODS)
def test_nothing_of_a_finished_run_stays(method: str, data: Dataset, tmp_path: Path, repeated: list[Repeated]) -> None:
    before = alive()
    made_run(data, tmp_path, method=method)
    assert alive() - before == {}
    assert bool(repeated) == issubclass(METHODS[method], Trained)
    assert [one.gradients_at_close for one in repeated] == [0] * len(repeated)


@pytest.mark.parametrize("batch", ["full", {"nodes": 10, "fanouts": [2, 2]}])
@pytest.mark.parametrize("method", ["ipal", "twp"])
def test_nothing_of_an_interrupted_run_stays(
    method: str, batch: Any, data: Dataset, tmp_path: Path, repeated: list[Repeated]
) -> None:
    before = alive()
    with pytest.raises(KeyboardInterrupt) as caught:
        made_run(data, tmp_path, Watcher(stop_after=4), method=method, encoder={"layers": 2}, protocol={"batch": batch})
    del caught
    assert alive() - before == {}
    assert all(one.gradients_at_close == 0 for one in repeated)


@pytest.mark.parametrize("message", ["something else", "out of memory"])
def test_nothing_of_a_failed_run_stays(
    message: str, data: Dataset, tmp_path: Path, repeated: list[Repeated], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError(message)

    monkeypatch.setattr(IPAL, "end_task", fails)
    monkeypatch.setattr(interleave, "LANES", 2)
    runs = [
        runner.resolve(
            run_config({**as_tree(read_preset("paper", "ipal")), "dataset": NAME, "seed": seed}), dataset=data
        )
        for seed in range(4)
    ]
    before = alive()
    failed = list(run_interleaved([(one, RunStore(tmp_path).folder_for(one.config)) for one in runs]))
    assert alive() - before == {}
    assert len(failed) == 4
    assert [one.gradients_at_close for one in repeated] == [0] * 4


def test_graphs_of_other_seeds_do_not_stay(data: Dataset, tmp_path: Path) -> None:
    before = alive()
    for seed in range(5):
        made_run(data, tmp_path, method="ncm", seed=seed, protocol={"visibility": "inductive"})
    assert alive() - before == {}


def test_features_of_other_closed_forms_do_not_stay(data: Dataset, tmp_path: Path) -> None:
    # The last graph to be tested on is the whole one, which lives as long as the data.
    for seed in range(3):
        made_run(data, tmp_path, method="analytic", seed=seed, protocol={"test_graph": "seen"})
    assert list(data.graph.derived("feature maps", None, dict[Any, Any])) == []


def test_weights_of_few_rules_are_kept(data: Dataset) -> None:
    for step in range(20):
        centrality.node_weights(data.graph, "pagerank", 0.01 * step)
    assert len(data.graph._derived["centrality"]) == centrality.MOST_KEPT  # type: ignore[attr-defined]
    newest = centrality.node_weights(data.graph, "pagerank", 0.19)
    assert centrality.node_weights(data.graph, "pagerank", 0.19) is newest


def test_what_cannot_be_repeated_is_not_recorded(
    tiny_stream: TaskStream, repeated: list[Repeated], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = learned(IPAL, tiny_stream, 1, epochs=1)

    def recorded_after(epochs: int, recordings: Recordings, *, without_moments: bool = False) -> int:
        repeated.clear()
        training = begun(model, tiny_stream.task(1))
        steps = RecordedSteps(training, recordings)
        for epoch in range(epochs):
            steps.epoch(epoch)
            if without_moments:
                del training.optimizer.state[next(training.network.parameters())]
        return len(repeated)

    assert [recorded_after(epochs, Recordings()) for epochs in (2, 3, 5)] == [0, 1, 1]
    known = Recordings()
    assert [recorded_after(epochs, known) for epochs in (2, 2)] == [0, 1], "one that was watched is enough"
    # A step that makes the moments of some weights is not what later ones are.
    assert recorded_after(5, known, without_moments=True) == 0
    # A step during which the GPU is waited for.
    monkeypatch.setattr(recorded, "watched", lambda step: (step(), True))
    waiting = Recordings()
    assert [recorded_after(5, waiting) for _ in range(2)] == [0, 0]
