"""One run from configuration to result: the only place that builds objects and knows their order."""

import dataclasses
import sys
import time
import weakref
from collections.abc import Generator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from ipal.backend.devices import usable_device
from ipal.backend.distributed import team
from ipal.backend.finite import check_tensors, check_terms, not_finite, read_terms
from ipal.config import EncoderConfig, RunConfig, TrainConfig
from ipal.data import datasets
from ipal.data.datasets import Dataset
from ipal.data.streams import TaskStream, assign_parts, default_split
from ipal.errors import ConfigError, NonFiniteError, StoreError, did_you_mean
from ipal.evaluation.class_drift import UNIT
from ipal.evaluation.evaluate import Row, evaluate
from ipal.evaluation.metrics import average_forgetting, average_performance, average_performance_curve, matrix_of_rows
from ipal.learners import METHODS, Learner
from ipal.learners.settings import SHARED_SETTINGS
from ipal.learners.state import State
from ipal.learners.trained import TrainedLearner
from ipal.learners.values import Terms
from ipal.runs.cadence import Cadence
from ipal.runs.environment import PeakMemory, environment
from ipal.runs.memory_plan import explained, is_out_of_memory
from ipal.runs.plugins import plugins_of
from ipal.runs.progress import Progress
from ipal.runs.run_folder import RunFolder
from ipal.system import plugins
from ipal.system.tracing import span, spanned

UNUSED = {"encoder": EncoderConfig(), "train": TrainConfig()}


class Observer(Protocol):
    """Somebody who watches a run, for instance a progress bar."""

    def started(self, tasks: int, epochs: int, done: int) -> None: ...
    def epoch(self, task: int, terms: dict[str, float]) -> None: ...
    def task(self, index: int, row: Row) -> None: ...


class Silent:
    """Watches a run and says nothing."""

    def started(self, *_: object) -> None: ...
    def epoch(self, *_: object) -> None: ...
    def task(self, *_: object) -> None: ...


def resolve(
    config: RunConfig, data_root: Path | None = None, *, dataset: Dataset | None = None
) -> tuple[RunConfig, Dataset]:
    """Fill in what only the data and the method know, so that the configuration's hash covers all of it.

    Who resolves many runs on one graph reads it once and hands it in as `dataset`.
    """
    plugins.require(config.plugins, "This run")
    method = METHODS.find(config.method)
    learner = build_learner(config)
    usable_device(config.device)
    if dataset is None:
        dataset = datasets.load(config.dataset, data_root, undirected=config.protocol.edges == "undirected")
    if config.dataset_hash not in (None, dataset.hash):
        raise StoreError(
            f"The graph '{config.dataset}' is not the one this run was started on: its content has changed."
        )
    own = learner.settings()
    part, _ = assign_parts(dataset.y, config.protocol, config.seed)
    num_kept = len(np.unique(dataset.y[part >= 0]))
    complete = config.model_copy(
        update={
            "dataset": dataset.name,
            "dataset_hash": dataset.hash,
            "split": config.split or dataset.split or default_split(num_kept),
            "plugins": config.plugins or plugins_of(config),
            "settings": {name: own[name] for name in method.own_settings()},
            # What a method does not use must not make two runs of one.
            **{name: default for name, default in UNUSED.items() if name not in method.shared_settings()},
        }
    )
    return complete, dataset


def build_learner(config: RunConfig) -> Learner:
    own = [f"{config.method}.{name}" for name in METHODS.find(config.method).own_settings()]
    for path in (f"{config.method}.{name}" for name in config.settings):
        if path not in own:
            raise ConfigError(f"Unknown setting '{path}'.{did_you_mean(path, own)}")
    known = {"batch": config.protocol.batch, **{name: getattr(config, name) for name in SHARED_SETTINGS - {"batch"}}}
    shared = {name: known[name] for name in METHODS.find(config.method).shared_settings()}
    return METHODS.find(config.method).from_settings({**config.settings, **shared})


def run(
    config: RunConfig,
    dataset: Dataset,
    folder: RunFolder,
    observer: Observer,
    *,
    checkpoint_every: int | None = None,
    data_root: Path | None = None,
) -> dict[str, Any]:
    """Learn the whole stream, from a checkpoint where there is one; returns the result, which is also stored."""
    epochs = run_by_epochs(config, dataset, folder, observer, checkpoint_every=checkpoint_every, data_root=data_root)
    while True:
        try:
            next(epochs)
        except StopIteration as end:
            result: dict[str, Any] = end.value
            return result


def run_by_epochs(
    config: RunConfig,
    dataset: Dataset,
    folder: RunFolder,
    observer: Observer,
    *,
    checkpoint_every: int | None = None,
    data_root: Path | None = None,
    company: int = 1,
    memory: PeakMemory | None = None,
) -> Generator[None, None, dict[str, Any]]:
    """A run that pauses after every epoch, so that several (`company`) can take turns in one process; see `run`.

    Runs that take turns share one `memory`: what their process holds is all of theirs together.
    Without `checkpoint_every` (epochs), checkpoints are as frequent as costs a small share of the time.
    """
    torch.set_num_threads(config.threads)
    memory = memory or PeakMemory()
    learner = build_learner(config)
    stream = stream_of(config, dataset)
    us = team()
    _check_team(config)
    # Of several processes only rank 0 reads and writes the folder.
    with folder.locked() if us.is_main else nullcontext():
        if us.broadcast(lambda: folder.is_finished):  # by another process, while this one was starting
            return us.broadcast(folder.result)
        state = us.broadcast(lambda: State.load(folder.checkpoint) if folder.checkpoint.exists() else None)
        progress = Progress() if state is None else _restore(learner, state, folder, len(stream))
        if us.is_main and state is None:
            folder.start(config, {**environment(config, sys.argv), "data_root": str(data_root or "")})
            folder.log("started")
        elif us.is_main:
            folder.log(f"resumed at task {progress.task}, epoch {progress.epoch}")
        observer.started(len(stream), learner.epochs, progress.task * learner.epochs + progress.epoch)
        watch = _Watch(learner, progress, folder, observer, memory, Cadence(checkpoint_every, company))
        try:
            for index in range(progress.task, len(stream)):
                yield from _learn_task(stream, index, watch)
        except NonFiniteError as error:
            raise error.within(f"task {progress.task + 1} of {len(stream)}") from error
        except (MemoryError, RuntimeError) as error:
            if is_out_of_memory(error):
                raise explained(config, dataset, stream) from error
            raise
        progress.peak_memory_bytes = max(progress.peak_memory_bytes, memory.bytes())
        result = _result(config, dataset, stream, learner, progress)
        result["timing"]["runs_taking_turns"] = company
        if us.is_main:
            folder.write_history(progress.history)
            folder.write_json("confusion.json", _confusion(stream, progress.rows), compact=True)
            if any(row.drift for row in progress.rows):
                folder.write_json("drift.json", {"unit": UNIT, "after_task": [row.drift for row in progress.rows]})
            learner.save(folder.model)
            folder.write_json("result.json", result)
            folder.checkpoint.unlink(missing_ok=True)
            folder.log("finished")
    return result


def _check_team(config: RunConfig) -> None:
    """All processes of a run make the same run, each on a device of its own."""
    if team().broadcast(lambda: config.digest) != config.digest:
        raise ConfigError(
            "The processes of this run have different settings or graphs: start the same command on every machine."
        )
    if team().size > 1 and config.device.startswith("cuda"):
        torch.cuda.set_device(usable_device(config.device))


_streams: "weakref.WeakKeyDictionary[Dataset, weakref.WeakValueDictionary[str, TaskStream]]"
_streams = weakref.WeakKeyDictionary()


def stream_of(config: RunConfig, dataset: Dataset) -> TaskStream:
    """The tasks of a resolved run. Runs that are under way and differ in the method alone share them."""
    assert config.split is not None, "the configuration has not been resolved"
    key = f"{config.split} {config.protocol.model_dump_json(exclude={'batch'})} {config.seed}"
    known = _streams.setdefault(dataset, weakref.WeakValueDictionary())
    stream = known.get(key)
    if stream is None:
        stream = known[key] = TaskStream(dataset.graph, dataset.y, config.split, config.protocol, config.seed)
    return stream


@dataclasses.dataclass
class _Watch:
    """A run under way, with all who follow it."""

    learner: Learner
    progress: Progress
    folder: RunFolder
    observer: Observer
    memory: PeakMemory
    cadence: Cadence
    unread: list[Terms] = dataclasses.field(default_factory=list)
    """Loss terms of epochs that nobody looked at yet: looking makes a GPU wait."""

    def epoch(self, terms: Terms) -> None:
        """An epoch is done."""
        self.unread.append(terms)
        self.progress.epoch += 1
        if self.cadence.is_due(self.progress.epoch):
            self.checkpoint()
        elif self.cadence.is_look_due():
            self.look()

    def look(self) -> None:
        """Read the terms that were left unread, all at once, and show them."""
        if self.unread:
            first = self.progress.epoch - len(self.unread)
            values = read_terms(self.unread)
            check_terms(values, first, self.learner.epochs)
            for number, named in enumerate(values, start=first):
                self.progress.history.append({"task": self.progress.task, "epoch": number, **named})
                self.observer.epoch(self.progress.task, named)
            self.unread = []
        self.cadence.looked()

    def checkpoint(self) -> None:
        self.look()
        if not team().is_main:
            return
        with self.cadence.paid():
            _checkpoint(self.learner, self.progress, self.folder, self.memory)


def _learn_task(stream: TaskStream, index: int, watch: _Watch) -> Generator[None, None, None]:
    progress, learner = watch.progress, watch.learner
    if len(progress.seconds) == index:
        progress.seconds.append(0.0)
    clock = time.perf_counter()
    with span("preparation"):
        task = stream.task(index)
    for terms in learner.learn(task, first_epoch=progress.epoch):
        progress.seconds[index] += time.perf_counter() - clock
        watch.epoch(terms)
        yield
        clock = time.perf_counter()
    watch.look()
    progress.seconds[index] += time.perf_counter() - clock
    clock = time.perf_counter()
    with span("evaluation"):
        row, clouds = evaluate(learner, stream.exams(index), stream.protocol.accuracy)
        if clouds:
            learned = set(map(str, np.unique(task.labels).tolist()))
            progress.whereabouts, moves = progress.whereabouts.followed(clouds, learner.remembered(), learned)
            row.drift.update(moves)
            check_tensors(progress.whereabouts.tensors(), {"whereabouts": "embeddings of test nodes"})
    progress.evaluation_seconds += time.perf_counter() - clock
    progress.rows.append(row)
    progress.task, progress.epoch = index + 1, 0
    if watch.cadence.is_due(0):
        watch.checkpoint()
    if team().is_main:
        watch.folder.log(f"learned task {index}: test accuracy {', '.join(f'{score:.2f}' for score in row.test)}")
    watch.observer.task(index, row)


@spanned("checkpoint")
def _checkpoint(learner: Learner, progress: Progress, folder: RunFolder, memory: PeakMemory) -> None:
    progress.peak_memory_bytes = max(progress.peak_memory_bytes, memory.bytes())
    learned, come = learner.state(), progress.state()
    if not_finite(learned.tensors):
        return  # the last good one is kept: the next loss, or the end of the task, says what is wrong
    facts = {"learner": learned.facts, "progress": come.facts}
    State({**learned.tensors, **come.tensors}, facts).save(folder.checkpoint)


def _restore(learner: Learner, state: State, folder: RunFolder, tasks: int) -> Progress:
    if not state.facts.keys() >= {"progress", "learner"}:
        raise StoreError(f"{folder.checkpoint} is no checkpoint of a run.")
    learned, source = state.facts["learner"], str(folder.checkpoint)
    if not isinstance(learned, dict) or learned.get("settings") != learner.settings():
        raise StoreError(f"{source} does not fit this run: it belongs to other settings.")
    apart, own = (
        {name: tensor for name, tensor in state.tensors.items() if name.startswith("whereabouts.") is wanted}
        for wanted in (True, False)
    )
    device = usable_device(learner.device)
    progress = Progress.of_state(State(apart, state.facts["progress"]), device, tasks, learner.epochs, source)
    places = progress.whereabouts.clouds.values()
    if isinstance(learner, TrainedLearner) and any(len(place.mean) != learner.encoder.width for place in places):
        raise StoreError(f"{source} does not fit this run: its embeddings are not as wide as the encoder's.")
    learner.restore(State(own, learned), whole=progress.epoch == 0, source=source)
    return progress


def _result(
    config: RunConfig, dataset: Dataset, stream: TaskStream, learner: Learner, progress: Progress
) -> dict[str, Any]:
    test = matrix_of_rows([row.test for row in progress.rows])
    validation = matrix_of_rows([row.validation for row in progress.rows])
    epochs = max(1, learner.epochs)
    return {
        "method": config.method,
        "dataset": config.dataset,
        "seed": config.seed,
        "average_performance": average_performance(test),
        "average_forgetting": average_forgetting(test),
        "average_performance_curve": average_performance_curve(test),
        "accuracy_matrix": _triangle(test),
        "per_class": progress.rows[-1].per_class,
        "validation": {
            "average_performance": average_performance(validation),
            "average_forgetting": average_forgetting(validation),
            "accuracy_matrix": _triangle(validation),
        },
        "protocol": {
            **config.protocol.model_dump(mode="json"),
            "split": list(config.split or ()),
            "split_hash": stream.split_hash,
            "classes": stream.classes,
            "dropped_classes": stream.dropped,
            "exemplar_free": not learner.stores_exemplars and config.protocol.train_graph == "isolated",
        },
        "data": {
            "hash": dataset.hash,
            "preprocessing": dataset.preprocessing,
            "remark": dataset.remark,
            "features_looked_beyond_task": dataset.beyond_task,
        },
        "timing": {
            "seconds_per_task": progress.seconds,
            "seconds_per_epoch": [seconds / epochs for seconds in progress.seconds],
            "evaluation_seconds": progress.evaluation_seconds,
            "total_seconds": sum(progress.seconds) + progress.evaluation_seconds,
        },
        "peak_memory_bytes": progress.peak_memory_bytes,
        "retained": learner.memory_report(),
        "choices": learner.choices(),
        "plugins": config.plugins,
    }


def _confusion(stream: TaskStream, rows: list[Row]) -> dict[str, Any]:
    """Which classes were taken for which, after every task: [true, predicted, nodes], by their places in `classes`."""
    names = list(dict.fromkeys(str(label) for classes in stream.classes for label in classes))
    place = {name: number for number, name in enumerate(names)}
    after_task = [
        [
            [place[name], place[taken_for], count]
            for name, found in row.confusion.items()
            for taken_for, count in found.items()
        ]
        for row in rows
    ]
    return {"classes": names, "after_task": after_task}


def _triangle(matrix: Any) -> list[list[float | None]]:
    """JSON knows no NaN: null above the diagonal, where nothing is measured."""
    return [[None if np.isnan(value) else float(value) for value in row] for row in matrix]
