"""One run from configuration to result: the only place that builds objects and knows their order."""

import dataclasses
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import islice
from typing import Any, Protocol

import numpy as np
import torch
from pydantic import ValidationError

from ipal.backend.finite import StepTerms, check_terms, not_finite, read_terms
from ipal.backend.runtime import Runtime
from ipal.data.streams import TaskStream
from ipal.data.task import Task
from ipal.engine.executors.recorded import Automatic
from ipal.engine.executors.stacked import Stack
from ipal.engine.trainer import finished
from ipal.errors import NonFiniteError, StoreError
from ipal.estimator import files
from ipal.estimator.display import in_words
from ipal.estimator.history import fingerprint
from ipal.estimator.model import Model, begin_learning
from ipal.estimator.settings import LearnerConfig
from ipal.evaluation.evaluate import evaluate, evaluate_before
from ipal.evaluation.metrics import (
    Scores,
    average_forgetting,
    average_performance,
    average_performance_curve,
    measured,
)
from ipal.evaluation.rows import Row
from ipal.runs.environment import PeakMemory, environment
from ipal.runs.memory_plan import explained, is_out_of_memory
from ipal.runs.records import Progress
from ipal.runs.resolved import Resolved, resolve
from ipal.runs.run_folder import RunFolder
from ipal.state.snapshot import Snapshot

__all__ = ["Observer", "Resolved", "Silent", "resolve", "run", "run_by_epochs"]

SHARE, LOOK_EVERY = 0.05, 0.1
"""Of the time that checkpoints may take, and seconds between two looks at losses, which make a GPU wait."""


class Observer(Protocol):
    """What watches a run, for instance a progress bar."""

    def started(self, tasks: int, epochs: int, done: int) -> None: ...
    def epoch(self, task: int, terms: dict[str, float]) -> None: ...
    def learned(self, index: int, task: Task, model: Model) -> None:
        """A task is learned, and not tested yet."""

    def task(self, index: int, row: Row) -> None: ...


class Silent:
    """Watches a run and says nothing."""

    def started(self, *_: object) -> None: ...
    def epoch(self, *_: object) -> None: ...
    def learned(self, index: int, task: Task, model: Model) -> None: ...
    def task(self, *_: object) -> None: ...


def run(resolved: Resolved, folder: RunFolder, observer: Observer, **options: Any) -> dict[str, Any]:
    """Learn the whole stream, from a checkpoint where there is one; returns the result, which is also stored.

    The options are those of `run_by_epochs`.
    """
    result: dict[str, Any] = finished(run_by_epochs(resolved, folder, observer, **options))
    return result


def run_by_epochs(
    resolved: Resolved,
    folder: RunFolder,
    observer: Observer,
    *,
    checkpoint_every: int | None = None,
    company: int = 1,
    memory: PeakMemory | None = None,
    runtime: Runtime | None = None,
    stack: Stack | None = None,
) -> Generator[None, None, dict[str, Any]]:
    """A run that pauses after every epoch, so that several (`company`) can take turns in one process; see `run`.

    Runs that take turns share one `memory`: what their process holds is all of theirs together. `runtime` is
    what the run computes with, None for what its configuration says. In a `stack`, runs take their steps as one.
    Without `checkpoint_every` (epochs), checkpoints are as frequent as costs a small share of the time.
    """
    config = resolved.config
    runtime = runtime or resolved.runtime()
    stream = resolved.stream.within(runtime.budget)
    torch.set_num_threads(runtime.threads or config.threads)
    memory = memory or PeakMemory()
    learner, directed = resolved.learner_config(), config.protocol.edges == "directed"
    with folder.locked():
        if folder.is_finished:  # by another process, while this one was starting
            return folder.result()
        if folder.checkpoint.exists():
            progress, model = _restore(learner, folder, stream, runtime)
            folder.log(f"resumed at task {progress.task}, epoch {progress.epoch}")
        else:
            progress, model = Progress(), None
            folder.start(config, {**environment(config, sys.argv), "data_root": str(resolved.data_root or "")})
            folder.log("started")
        batches, done = stream.batches, sum(stream.batches[: progress.task]) + progress.batch
        a_task = -(-learner.epochs * sum(batches) // len(stream))
        observer.started(len(stream), a_task, done * learner.epochs + progress.epoch)
        executor = stack or Automatic()
        watch = _Watch(learner.epochs, progress, folder, observer, memory, checkpoint_every, company, model)
        try:
            # Until all batches of all tasks are learned; what is done is in `progress`.
            while (index := progress.task) < len(stream):
                clock, number = time.perf_counter(), progress.batch
                watch.begin_batch(stream)
                task = stream.batch(index, number)
                task = task if stack is None else stack.shared(task)
                learning = begin_learning(
                    learner, watch.model, task, runtime, executor, progress.epoch, directed=directed
                )
                epochs = learning.epochs()
                while True:
                    try:
                        terms, state = next(epochs)
                    except StopIteration as end:
                        watch.model = learning.finish(end.value)
                        break
                    progress.batch_seconds[-1] += time.perf_counter() - clock
                    if terms:  # else others of its stack prepare the task
                        if watch.model is None or watch.model.state is not state:
                            watch.model = dataclasses.replace(learning.model, state=state)
                        watch.epoch(terms)
                        if progress.epoch == learner.epochs:
                            fingerprint(learning.task)  # kept until it is asked for: a GPU still takes its steps
                    yield
                    clock = time.perf_counter()
                watch.look()
                progress.batch_seconds[-1] += time.perf_counter() - clock
                row, is_last = None, number + 1 == stream.batches[index]
                if is_last:
                    observer.learned(index, task, watch.model)
                if is_last or stream.is_tested_after(index, number):
                    # In a stack it pauses until others have come as far, and is tested with them.
                    with stack.waiting((index, number), watch.model) if stack else nullcontext() as others:
                        if others:
                            yield
                        clock = time.perf_counter()
                        test = partial(_tests, stream, index)
                        row = others.together(test) if others else test([watch.model])[0]
                        progress.evaluation_seconds += time.perf_counter() - clock
                watch.end_batch(stream, row, is_last=is_last)
                yield
        except NonFiniteError as error:
            raise error.within(f"task {progress.task + 1} of {len(stream)}") from error
        except (MemoryError, RuntimeError) as error:
            if is_out_of_memory(error):
                raise explained(config.device) from error
            raise
        progress.peak_memory_bytes = max(progress.peak_memory_bytes, memory.bytes())
        result = _result(resolved, watch.fitted, progress)
        result["timing"]["runs_taking_turns"] = company
        if stack and stack.largest > 1:
            result["timing"]["runs_stacked"] = stack.largest
        folder.write_history(progress.history)
        folder.write_json("confusion.json", _confusion(stream, progress.rows), compact=True)
        files.snapshot(watch.fitted).save(folder.model)
        folder.write_json("result.json", result)  # last: what is there is whole
        folder.checkpoint.unlink(missing_ok=True)
        folder.log("finished")
    return result


def _tests(stream: TaskStream, index: int, models: Sequence[Model]) -> list[Row]:
    return evaluate(models, stream.test_splits(index), stream.protocol.accuracy)


@dataclasses.dataclass
class _Watch:
    """A run under way: what it has learned, and all who follow it."""

    epochs: int
    progress: Progress
    folder: RunFolder
    observer: Observer
    memory: PeakMemory
    every: int | None
    """Epochs between two checkpoints; None for as many as cost a small share of the time."""
    company: int
    model: Model | None = None
    """As it is between two epochs, too; None before anything was learned."""
    unread: list[StepTerms] = dataclasses.field(default_factory=list)
    """Loss terms of epochs that were not looked at yet: looking makes a GPU wait."""
    saved: float = dataclasses.field(default_factory=time.perf_counter)
    """When the last checkpoint was written."""
    cost: float = 0.0
    """Seconds that it took."""
    looked: float = 0.0

    @property
    def fitted(self) -> Model:
        assert self.model is not None, "something was learned"
        return self.model

    def begin_batch(self, stream: TaskStream) -> None:
        progress, index, before = self.progress, self.progress.task, None
        if len(progress.before) == index:
            if self.model is not None and stream.is_tested_before(index):
                before = evaluate_before(self.model, stream.test_splits(index)[-1], stream.protocol.accuracy)
            progress.before.append(before)
        done = sum(stream.batches[:index]) + progress.batch + 1
        progress.batch_seconds += [0.0] * (done - len(progress.batch_seconds))

    def epoch(self, terms: StepTerms) -> None:
        self.unread.append(terms)
        self.progress.epoch += 1
        if not self.checkpoint_if_due(self.progress.epoch) and self._since(self.looked) > LOOK_EVERY:
            self.look()

    def look(self) -> None:
        """Read the terms that were left unread, all at once, and show them."""
        if self.unread:
            first = self.progress.epoch - len(self.unread)
            values = read_terms(self.unread)
            check_terms(values, first, self.epochs)
            for number, named in enumerate(values, start=first):
                epoch = self.progress.batch * self.epochs + number
                self.progress.history.append({"task": self.progress.task, "epoch": epoch, **named})
                self.observer.epoch(self.progress.task, named)
            self.unread = []
        self.looked = time.perf_counter()

    def end_batch(self, stream: TaskStream, row: Row | None, *, is_last: bool) -> None:
        """A batch is learned, perhaps the last of its task, and tested if it was due."""
        progress, index = self.progress, self.progress.task
        progress.batch, progress.epoch = progress.batch + 1, 0
        if row and max(stream.batches) > 1:
            along = progress.along
            along.batch.append(sum(stream.batches[:index]) + progress.batch)
            along.test.append(float(np.mean(row.test)))
            along.validation.append(float(np.mean(row.validation)))
            along.bytes.append(self.fitted.memory_report()["bytes"])
        if row and is_last:
            progress.rows.append(row)
            progress.task, progress.batch = index + 1, 0
        self.checkpoint_if_due(0)
        if row and is_last:
            self.folder.log(f"learned task {index}: test accuracy {', '.join(f'{score:.2f}' for score in row.test)}")
            self.observer.task(index, row)

    def _since(self, moment: float) -> float:
        """Seconds, shared by all that take turns."""
        return (time.perf_counter() - moment) / self.company

    def checkpoint_if_due(self, epoch: int) -> bool:
        """Save how far the run has come, after so many epochs or where the last time was a small share of it."""
        is_due = epoch % self.every == 0 if self.every else self._since(self.saved) > max(1.0, self.cost / SHARE)
        if is_due:
            self.look()
            begin = time.perf_counter()
            self.progress.peak_memory_bytes = max(self.progress.peak_memory_bytes, self.memory.bytes())
            learned = files.checkpoint(self.fitted)
            if not not_finite(learned.tensors):  # else the last good one is kept: the next loss says what is wrong
                facts = {"learner": learned.facts, "progress": self.progress.model_dump()}
                Snapshot(learned.tensors, facts).save(self.folder.checkpoint)
            self.saved = time.perf_counter()
            self.cost = self.saved - begin
        return is_due


def _restore(
    learner: LearnerConfig, folder: RunFolder, stream: TaskStream, runtime: Runtime
) -> tuple[Progress, Model | None]:
    """How far an interrupted run has come; what cannot be gone on with does not block it."""
    source = str(folder.checkpoint)
    try:
        saved = Snapshot.load(folder.checkpoint)
        learned = saved.facts.get("learner")
        if not isinstance(learned, dict) or learned.get("settings") != learner.plain():
            raise StoreError(f"{source} does not fit this run: it is no checkpoint, or belongs to other settings.")
        try:
            progress = Progress.model_validate(saved.facts.get("progress"))
        except (ValidationError, RecursionError) as error:
            raise StoreError(f"{source} is damaged: what it says about the progress of the run is wrong.") from error
        if not progress.fits(stream.batches, learner.epochs):
            raise StoreError(f"{source} does not fit this run: it is further than the run can be, or not as far.")
        state = Snapshot(saved.tensors, learned)
        return progress, files.restored(learner, state, runtime, whole=progress.epoch == 0, source=source)
    except StoreError as error:
        raise StoreError(f"{error} Delete {source} to start the run from its first task.") from error


def _result(resolved: Resolved, model: Model, progress: Progress) -> dict[str, Any]:
    config, dataset = resolved.config, resolved.dataset
    test, validation = _square([row.test for row in progress.rows]), _square([row.validation for row in progress.rows])
    validated = Scores(np.array(validation, np.float64))
    along = progress.along.test
    by_batch = iter(progress.batch_seconds)
    seconds = [sum(islice(by_batch, count)) for count in resolved.stream.batches]
    scores = Scores(np.array(test, np.float64), [row.confusion for row in progress.rows], progress.before, along)
    epochs = max(1, model.config.epochs)
    return {
        "method": config.method,
        "title": model.method.title,
        "model": in_words(model),
        "dataset": config.dataset,
        "seed": config.seed,
        "average_performance": average_performance(scores),
        "average_forgetting": average_forgetting(scores),
        "average_performance_curve": average_performance_curve(scores.test),
        "metrics": measured(scores),
        "before_learning": [one and one.model_dump() for one in progress.before],
        **({"along": progress.along.model_dump()} if along else {}),
        "accuracy_matrix": test,
        "per_class": progress.rows[-1].per_class,
        "validation": {
            "average_performance": average_performance(validated),
            "average_forgetting": average_forgetting(validated),
            "accuracy_matrix": validation,
        },
        "protocol": {
            **resolved.stream.describe(),
            **config.protocol.model_dump(mode="json"),
            "split": list(config.split or ()),
            "exemplar_free": model.method.keeps == "statistics"
            and config.protocol.train_graph == "isolated"
            and not resolved.stream.revisits,
        },
        "data": {"hash": dataset.hash, "preprocessing": dataset.preprocessing, "remark": dataset.remark},
        "timing": {
            "seconds_per_task": seconds,
            "seconds_per_epoch": [each / epochs for each in seconds],
            **({"seconds_per_batch": progress.batch_seconds} if along else {}),
            "evaluation_seconds": progress.evaluation_seconds,
            "total_seconds": sum(seconds) + progress.evaluation_seconds,
        },
        "peak_memory_bytes": progress.peak_memory_bytes,
        "retained": model.memory_report(),
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


def _square(rows: list[list[float]]) -> list[list[float | None]]:
    """Scores after each task as a matrix: None above the diagonal, where nothing is measured."""
    return [[*row, *[None] * (len(rows) - len(row))] for row in rows]
