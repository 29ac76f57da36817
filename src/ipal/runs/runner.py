"""One run from configuration to result: the only place that builds objects and knows their order."""

import dataclasses
import sys
import time
from collections.abc import Callable, Generator
from contextlib import nullcontext
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch

from ipal.backend.finite import check_tensors, check_terms, not_finite, read_terms
from ipal.backend.runtime import Runtime
from ipal.config import RunConfig
from ipal.data.streams import Stream, Task
from ipal.errors import ConfigError, NonFiniteError, StoreError
from ipal.evaluation.class_drift import UNIT
from ipal.evaluation.evaluate import Row, evaluate, evaluate_before
from ipal.evaluation.metrics import (
    Scores,
    average_forgetting,
    average_performance,
    average_performance_curve,
    matrix_of_rows,
    measured,
)
from ipal.learners import Learner
from ipal.learners.stacked import Stack
from ipal.learners.state import State
from ipal.learners.trained import TrainedLearner
from ipal.learners.values import Terms
from ipal.runs.cadence import Cadence
from ipal.runs.environment import PeakMemory, environment
from ipal.runs.exams import company_of, tested
from ipal.runs.memory_plan import explained, is_out_of_memory
from ipal.runs.progress import Point, Progress
from ipal.runs.resolved import Resolved, resolve
from ipal.runs.run_folder import RunFolder

__all__ = ["Observer", "Resolved", "Silent", "resolve", "run", "run_by_epochs"]


Storing = Callable[[Callable[[], None]], Generator[None, None, None]]


class Observer(Protocol):
    """Somebody who watches a run, for instance a progress bar."""

    def started(self, tasks: int, epochs: int, done: int) -> None: ...
    def epoch(self, task: int, terms: dict[str, float]) -> None: ...
    def learned(self, index: int, task: Task, learner: Learner) -> None:
        """A task is learned, and not tested yet."""

    def task(self, index: int, row: Row) -> None: ...


class Silent:
    """Watches a run and says nothing."""

    def started(self, *_: object) -> None: ...
    def epoch(self, *_: object) -> None: ...
    def learned(self, index: int, task: Task, learner: Learner) -> None: ...
    def task(self, *_: object) -> None: ...


def run(resolved: Resolved, folder: RunFolder, observer: Observer, **options: Any) -> dict[str, Any]:
    """Learn the whole stream, from a checkpoint where there is one; returns the result, which is also stored.

    The options are those of `run_by_epochs`.
    """
    epochs = run_by_epochs(resolved, folder, observer, **options)
    while True:
        try:
            next(epochs)
        except StopIteration as end:
            result: dict[str, Any] = end.value
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
    storing: Storing | None = None,
) -> Generator[None, None, dict[str, Any]]:
    """A run that pauses after every epoch, so that several (`company`) can take turns in one process; see `run`.

    Runs that take turns share one `memory`: what their process holds is all of theirs together. `runtime` is
    what the run computes with, None for what its configuration says. In a `stack`, runs take their steps as one.
    `storing` writes what the run ends in, which pauses meanwhile; None to write it at once.
    Without `checkpoint_every` (epochs), checkpoints are as frequent as costs a small share of the time.
    """
    config = resolved.config
    runtime = runtime or resolved.runtime()
    stream, us = resolved.stream.within(runtime.budget), runtime.team
    torch.set_num_threads(runtime.threads or config.threads)
    memory = memory or PeakMemory()
    learner = resolved.learner(runtime)
    _check_team(config, runtime)
    # Of several processes only rank 0 reads and writes the folder.
    with folder.locked() if us.is_main else nullcontext():
        if us.broadcast(lambda: folder.is_finished):  # by another process, while this one was starting
            return us.broadcast(folder.result)
        state = us.broadcast(lambda: State.load(folder.checkpoint) if folder.checkpoint.exists() else None)
        progress = Progress() if state is None else _restore(learner, state, folder, stream)
        if us.is_main and state is None:
            facts = environment(resolved.machine, config, sys.argv, us.size)
            folder.start(config, {**facts, "data_root": str(resolved.data_root or "")})
            folder.log("started")
        elif us.is_main:
            folder.log(f"resumed at task {progress.task}, epoch {progress.epoch}")
        if isinstance(learner, TrainedLearner):
            learner.stack_ = stack
        batches, done = stream.batches, sum(stream.batches[: progress.task]) + progress.batch
        a_task = -(-learner.epochs * sum(batches) // len(stream))
        observer.started(len(stream), a_task, done * learner.epochs + progress.epoch)
        learner.tracer.next_lap()
        watch = _Watch(learner, progress, folder, observer, memory, Cadence(checkpoint_every, company))
        try:
            for index in range(progress.task, len(stream)):
                yield from _learn_task(stream, index, watch, config.protocol.accuracy)
        except NonFiniteError as error:
            raise error.within(f"task {progress.task + 1} of {len(stream)}") from error
        except (MemoryError, RuntimeError) as error:
            if is_out_of_memory(error):
                raise explained(resolved) from error
            raise
        progress.peak_memory_bytes = max(progress.peak_memory_bytes, memory.bytes())
        result = _result(resolved, learner, progress)
        result["timing"]["runs_taking_turns"] = company
        if stack and stack.largest > 1:
            result["timing"]["runs_stacked"] = stack.largest
        if us.is_main:
            store = partial(_store, folder, stream, progress, learner.model().on_cpu(), result)
            yield from storing(store) if storing else _at_once(store)
    return result


def _at_once(store: Callable[[], None]) -> Generator[None, None, None]:
    store()
    yield from ()


def _store(folder: RunFolder, stream: Stream, progress: Progress, model: State, result: dict[str, Any]) -> None:
    """Write what a run ends in; whoever finds a result finds all of it."""
    folder.write_history(progress.history)
    folder.write_json("confusion.json", _confusion(stream, progress.rows), compact=True)
    if any(row.drift for row in progress.rows):
        folder.write_json("drift.json", {"unit": UNIT, "after_task": [row.drift for row in progress.rows]})
    model.save(folder.model)
    folder.write_json("result.json", result)
    folder.checkpoint.unlink(missing_ok=True)
    folder.log("finished")


def _check_team(config: RunConfig, runtime: Runtime) -> None:
    """All processes of a run make the same run, each on a device of its own."""
    if runtime.team.broadcast(lambda: config.digest) != config.digest:
        raise ConfigError(
            "The processes of this run have different settings or graphs: start the same command on every machine."
        )
    if runtime.team.size > 1 and runtime.device.type == "cuda":
        torch.cuda.set_device(runtime.device)


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
                epoch = self.progress.batch * self.learner.epochs + number
                self.progress.history.append({"task": self.progress.task, "epoch": epoch, **named})
                self.observer.epoch(self.progress.task, named)
            self.unread = []
        self.cadence.looked()

    def checkpoint(self) -> None:
        self.look()
        if not self.learner.runtime_.team.is_main:
            return
        with self.cadence.paid(), self.learner.tracer.span("checkpoint"):
            self.progress.peak_memory_bytes = max(self.progress.peak_memory_bytes, self.memory.bytes())
            learned, come = self.learner.state(), self.progress.state()
            if not_finite(learned.tensors):
                return  # the last good one is kept: the next loss, or the end of the task, says what is wrong
            facts = {"learner": learned.facts, "progress": come.facts}
            State({**learned.tensors, **come.tensors}, facts).save(self.folder.checkpoint)


def _learn_task(stream: Stream, index: int, watch: _Watch, accuracy: str) -> Generator[None, None, None]:
    progress, learner = watch.progress, watch.learner
    if len(progress.before) == index:
        known = stream.is_tested_before(index)
        progress.before.append(evaluate_before(learner, stream.exams(index)[-1], accuracy) if known else None)
    if len(progress.seconds) == index:
        progress.seconds.append(0.0)
    task = yield from _learn_batches(stream, index, watch, accuracy)
    watch.observer.learned(index, task, learner)
    with company_of(learner, index) as company:
        if company:
            yield
        clock = time.perf_counter()
        with learner.tracer.span("evaluation"):
            row, clouds = tested(learner, company, partial(stream.exams, index), accuracy)
            if max(stream.batches) > 1:
                progress.points.append(_point(sum(stream.batches[: index + 1]), row, learner))
            if clouds:
                learned = set(map(str, stream.classes[index]))
                progress.whereabouts, moves = progress.whereabouts.followed(clouds, learner.remembered(), learned)
                row.drift.update(moves)
                check_tensors(progress.whereabouts.tensors(), {"whereabouts": "embeddings of test nodes"})
    progress.evaluation_seconds += time.perf_counter() - clock
    progress.rows.append(row)
    progress.task, progress.batch, progress.epoch = index + 1, 0, 0
    if watch.cadence.is_due(0):
        watch.checkpoint()
    if learner.runtime_.team.is_main:
        watch.folder.log(f"learned task {index}: test accuracy {', '.join(f'{score:.2f}' for score in row.test)}")
    watch.observer.task(index, row)
    learner.tracer.next_lap()


def _learn_batches(stream: Stream, index: int, watch: _Watch, accuracy: str) -> Generator[None, None, Task]:
    """Learn the batches of a task that are left, with tests along the way; returns the last one."""
    progress, learner, first = watch.progress, watch.learner, sum(stream.batches[:index])
    for number in range(progress.batch, stream.batches[index]):
        done = first + number + 1
        progress.batch_seconds += [0.0] * (done - len(progress.batch_seconds))
        clock = time.perf_counter()
        with learner.tracer.span("preparation"):
            task = stream.batch(index, number)
        for terms in learner.learn(task, first_epoch=progress.epoch):
            progress.spent(index, time.perf_counter() - clock)
            if terms:  # else others of its stack prepare the task
                watch.epoch(terms)
            yield
            clock = time.perf_counter()
        watch.look()
        progress.spent(index, time.perf_counter() - clock)
        if number + 1 == stream.batches[index]:
            break
        progress.batch, progress.epoch = number + 1, 0
        if stream.is_tested_after(index, number):
            clock = time.perf_counter()
            with learner.tracer.span("evaluation"):
                row = evaluate(learner, stream.exams(index), accuracy).row
            progress.points.append(_point(done, row, learner))
            progress.evaluation_seconds += time.perf_counter() - clock
        if watch.cadence.is_due(0):
            watch.checkpoint()
        yield
    return task


def _point(batch: int, row: Row, learner: Learner) -> Point:
    """A test after so many batches."""
    test, validation = float(np.mean(row.test)), float(np.mean(row.validation))
    return Point(batch, test, validation, learner.memory_report()["bytes"])


def _columns(points: list[Point]) -> dict[str, list[Any]]:
    return {name: [getattr(point, name) for point in points] for name in Point._fields}


def _restore(learner: Learner, state: State, folder: RunFolder, stream: Stream) -> Progress:
    if not state.facts.keys() >= {"progress", "learner"}:
        raise StoreError(f"{folder.checkpoint} is no checkpoint of a run.")
    learned, source = state.facts["learner"], str(folder.checkpoint)
    if not isinstance(learned, dict) or learned.get("settings") != learner.settings():
        raise StoreError(f"{source} does not fit this run: it belongs to other settings.")
    apart, own = (
        {name: tensor for name, tensor in state.tensors.items() if name.startswith("whereabouts.") is wanted}
        for wanted in (True, False)
    )
    device = learner.runtime_.device
    progress = Progress.of_state(State(apart, state.facts["progress"]), device, source)
    learner.restore(State(own, learned), whole=progress.epoch == 0, source=source)
    if not progress.fits(stream.batches, learner.epochs):
        raise StoreError(f"{source} does not fit this run: it is further than the run can be, or not as far.")
    places = progress.whereabouts.clouds.values()
    if isinstance(learner, TrainedLearner) and any(len(place.mean) != learner.encoder_.width for place in places):
        raise StoreError(f"{source} does not fit this run: its embeddings are not as wide as the encoder's.")
    return progress


def _result(resolved: Resolved, learner: Learner, progress: Progress) -> dict[str, Any]:
    config, dataset = resolved.config, resolved.dataset
    test = matrix_of_rows([row.test for row in progress.rows])
    validation = matrix_of_rows([row.validation for row in progress.rows])
    along = [point.test for point in progress.points]
    scores = Scores(test, validation, progress.rows[-1].confusion, progress.before, along)
    epochs = max(1, learner.epochs)
    return {
        "method": config.method,
        "title": type(learner).written(),
        "dataset": config.dataset,
        "seed": config.seed,
        "average_performance": average_performance(scores),
        "average_forgetting": average_forgetting(scores),
        "average_performance_curve": average_performance_curve(test),
        "metrics": measured(scores, resolved.metrics),
        "before_learning": [one and one._asdict() for one in progress.before],
        **({"along": _columns(progress.points)} if along else {}),
        "accuracy_matrix": _triangle(test),
        "per_class": progress.rows[-1].per_class,
        "validation": {
            "average_performance": average_performance(Scores(validation)),
            "average_forgetting": average_forgetting(Scores(validation)),
            "accuracy_matrix": _triangle(validation),
        },
        "protocol": {
            **resolved.stream.describe(),
            **config.protocol.model_dump(mode="json"),
            "split": list(config.split or ()),
            "exemplar_free": not learner.stores_exemplars
            and config.protocol.train_graph == "isolated"
            and not resolved.stream.revisits,
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
            **({"seconds_per_batch": progress.batch_seconds} if along else {}),
            "evaluation_seconds": progress.evaluation_seconds,
            "total_seconds": sum(progress.seconds) + progress.evaluation_seconds,
        },
        "peak_memory_bytes": progress.peak_memory_bytes,
        "retained": learner.memory_report(),
        "plugins": config.plugins,
    }


def _confusion(stream: Stream, rows: list[Row]) -> dict[str, Any]:
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
