"""One run from configuration to result: the only place that builds objects and knows their order."""

import dataclasses
import sys
import time
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from ipal import datasets
from ipal.config import EncoderConfig, RunConfig, TrainConfig
from ipal.datasets import Dataset
from ipal.environment import PeakMemory, environment
from ipal.errors import ConfigError, StoreError, did_you_mean
from ipal.evaluate import Row, evaluate
from ipal.learners import Learner, learner_class
from ipal.learners.base import usable_device
from ipal.metrics import average_forgetting, average_performance, average_performance_curve
from ipal.state import State
from ipal.store import History, RunFolder
from ipal.streams import TaskStream, assign_parts, default_split

UNUSED = {"encoder": EncoderConfig(), "train": TrainConfig()}


class Observer(Protocol):
    """Somebody who watches a run, for instance a progress bar."""

    def started(self, tasks: int, epochs: int, done: int) -> None: ...
    def epoch(self, task: int, terms: dict[str, float]) -> None: ...
    def task(self, index: int, row: Row) -> None: ...


@dataclasses.dataclass
class Progress:
    """How far a run has come; with the learner's state, all that a checkpoint needs."""

    task: int = 0
    epoch: int = 0
    rows: list[Row] = dataclasses.field(default_factory=list)
    history: History = dataclasses.field(default_factory=list)
    seconds: list[float] = dataclasses.field(default_factory=list)
    """Time spent learning each task, evaluation not counted."""
    evaluation_seconds: float = 0.0
    peak_memory_bytes: int = 0

    @classmethod
    def from_facts(cls, facts: dict[str, Any]) -> "Progress":
        return cls(**{**facts, "rows": [Row(**row) for row in facts["rows"]]})


def resolve(
    config: RunConfig, data_root: Path | None = None, *, dataset: Dataset | None = None
) -> tuple[RunConfig, Dataset]:
    """Fill in what only the data and the method know, so that the configuration's hash covers all of it.

    Who resolves many runs on one graph reads it once and hands it in as `dataset`.
    """
    method = learner_class(config.method)
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
            "settings": {name: own[name] for name in method.own_settings()},
            # What a method does not use must not make two runs of one.
            **{name: default for name, default in UNUSED.items() if name not in method.shared_settings()},
        }
    )
    return complete, dataset


def build_learner(config: RunConfig) -> Learner:
    own = [f"{config.method}.{name}" for name in learner_class(config.method).own_settings()]
    for path in (f"{config.method}.{name}" for name in config.settings):
        if path not in own:
            raise ConfigError(f"Unknown setting '{path}'.{did_you_mean(path, own)}")
    shared = {name: getattr(config, name) for name in learner_class(config.method).shared_settings()}
    return learner_class(config.method).from_settings({**config.settings, **shared})


def run(
    config: RunConfig,
    dataset: Dataset,
    folder: RunFolder,
    observer: Observer,
    *,
    checkpoint_every: int = 5,
    data_root: Path | None = None,
) -> dict[str, Any]:
    """Learn the whole stream, from a checkpoint where there is one; returns the result, which is also stored."""
    torch.set_num_threads(config.threads)
    memory = PeakMemory()
    learner = build_learner(config)
    assert config.split is not None, "the configuration has not been resolved"
    stream = TaskStream(dataset.graph, dataset.y, config.split, config.protocol, config.seed)
    with folder.locked():
        if folder.is_finished:  # by another process, while this one was starting
            return folder.result()
        if folder.checkpoint.exists():
            progress = _restore(learner, folder)
            folder.log(f"resumed at task {progress.task}, epoch {progress.epoch}")
        else:
            progress = Progress()
            folder.start(config, {**environment(config, sys.argv), "data_root": str(data_root or "")})
            folder.log("started")
        observer.started(len(stream), learner.epochs, progress.task * learner.epochs + progress.epoch)
        for index in range(progress.task, len(stream)):
            _learn_task(learner, stream, index, progress, folder, observer, memory, checkpoint_every)
        result = _result(config, dataset, stream, learner, progress)
        folder.write_history(progress.history)
        learner.save(folder.model)
        folder.write_json("result.json", result)
        folder.checkpoint.unlink(missing_ok=True)
        folder.log("finished")
    return result


def _learn_task(
    learner: Learner,
    stream: TaskStream,
    index: int,
    progress: Progress,
    folder: RunFolder,
    observer: Observer,
    memory: PeakMemory,
    checkpoint_every: int,
) -> None:
    if len(progress.seconds) == index:
        progress.seconds.append(0.0)
    clock = time.perf_counter()
    for terms in learner.learn(stream.task(index), first_epoch=progress.epoch):
        values = {name: float(term) for name, term in terms.items()}
        progress.history.append({"task": index, "epoch": progress.epoch, **values})
        progress.epoch += 1
        observer.epoch(index, values)
        if progress.epoch % checkpoint_every == 0:
            progress.seconds[index] += time.perf_counter() - clock
            _checkpoint(learner, progress, folder, memory)
            clock = time.perf_counter()
    progress.seconds[index] += time.perf_counter() - clock
    clock = time.perf_counter()
    row = evaluate(learner, stream.exams(index), stream.protocol.accuracy)
    progress.evaluation_seconds += time.perf_counter() - clock
    progress.rows.append(row)
    progress.task, progress.epoch = index + 1, 0
    _checkpoint(learner, progress, folder, memory)
    folder.log(f"learned task {index}: test accuracy {', '.join(f'{score:.2f}' for score in row.test)}")
    observer.task(index, row)


def _checkpoint(learner: Learner, progress: Progress, folder: RunFolder, memory: PeakMemory) -> None:
    progress.peak_memory_bytes = max(progress.peak_memory_bytes, memory.bytes())
    state = learner.state()
    facts = {"learner": state.facts, "progress": dataclasses.asdict(progress)}
    State(state.tensors, facts).save(folder.checkpoint)


def _restore(learner: Learner, folder: RunFolder) -> Progress:
    state = State.load(folder.checkpoint)
    if not state.facts.keys() >= {"progress", "learner"}:
        raise StoreError(f"{folder.checkpoint} is no checkpoint of a run.")
    if state.facts["learner"]["settings"] != learner.settings():
        raise StoreError(f"{folder.checkpoint} does not fit this run: it belongs to other settings.")
    learner.restore(State(state.tensors, state.facts["learner"]))
    return Progress.from_facts(dict(state.facts["progress"]))


def _result(
    config: RunConfig, dataset: Dataset, stream: TaskStream, learner: Learner, progress: Progress
) -> dict[str, Any]:
    test, validation = (_matrix([getattr(row, part) for row in progress.rows]) for part in ("test", "validation"))
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
    }


def _matrix(rows: list[list[float]]) -> Any:
    matrix = np.full((len(rows), len(rows)), np.nan)
    for index, row in enumerate(rows):
        matrix[index, : len(row)] = row
    return matrix


def _triangle(matrix: Any) -> list[list[float | None]]:
    """JSON knows no NaN: null above the diagonal, where nothing is measured."""
    return [[None if np.isnan(value) else float(value) for value in row] for row in matrix]
