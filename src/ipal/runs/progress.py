"""How far a run has come: with the model, all that a checkpoint needs."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import torch
from pydantic import ValidationError

from ipal.errors import StoreError
from ipal.evaluation.class_drift import ClassDrift
from ipal.evaluation.evaluate import Row
from ipal.evaluation.metrics import Before
from ipal.runs import records
from ipal.runs.run_folder import History
from ipal.state.snapshot import Snapshot


class Point(NamedTuple):
    """A test along a stream of batches."""

    batch: int
    """How many batches were learned."""
    test: float
    """Mean accuracy over the tasks so far, in percent."""
    validation: float
    bytes: int
    """What a saved model holds."""


@dataclasses.dataclass
class Progress:
    """How far a run has come; with the model, all that a checkpoint needs."""

    task: int = 0
    batch: int = 0
    """Batches of this task that are learned."""
    epoch: int = 0
    rows: list[Row] = dataclasses.field(default_factory=list)
    history: History = dataclasses.field(default_factory=list)
    seconds: list[float] = dataclasses.field(default_factory=list)
    """Time spent learning each task, evaluation not counted."""
    batch_seconds: list[float] = dataclasses.field(default_factory=list)
    """The same for each batch of the stream."""
    points: list[Point] = dataclasses.field(default_factory=list)
    """Tests along a stream of batches."""
    before: list[Before | None] = dataclasses.field(default_factory=list)
    """Tests of tasks before they were learned; None where that was not possible."""
    evaluation_seconds: float = 0.0
    peak_memory_bytes: int = 0
    centroids: ClassDrift = dataclasses.field(default_factory=lambda: ClassDrift({}))

    def spent(self, task: int, seconds: float) -> None:
        """Time spent learning a batch of a task."""
        self.seconds[task] += seconds
        self.batch_seconds[-1] += seconds

    def state(self) -> Snapshot:
        """All of it as a value."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        facts = {
            **fields,
            "rows": [vars(row) for row in self.rows],
            "points": [point._asdict() for point in self.points],
            "before": [one and one._asdict() for one in self.before],
            "centroids": list(self.centroids.clouds),
        }
        return Snapshot(self.centroids.tensors(), facts)

    @classmethod
    def of_state(cls, state: Snapshot, device: torch.device, source: str) -> "Progress":
        """What `state` gave; `source` names it in complaints."""
        try:
            facts = records.ProgressRecord.model_validate(state.facts)
            rows = [Row(**row) for row in state.facts["rows"]]
            points = [Point(**point) for point in state.facts["points"]]
            before = [one and Before(**one) for one in state.facts["before"]]
        except (ValidationError, RecursionError, KeyError) as error:
            raise StoreError(f"{source} is damaged: what it says about the progress of the run is wrong.") from error
        centroids = ClassDrift.of_tensors(facts.centroids, state.tensors, device)
        if centroids is None:
            raise StoreError(f"{source} is damaged: what it says about the drift of classes is wrong.")
        read = {"rows": rows, "points": points, "before": before, "centroids": centroids}
        return cls(**{**state.facts, **read})

    def fits(self, batches: Sequence[int], epochs: int) -> bool:
        """Whether a run whose tasks come in so many batches, with so many epochs each, can have come so far."""
        tasks, begun = len(batches), self.task + (self.batch > 0 or self.epoch > 0)
        if begun > tasks or self.epoch > epochs or not begun <= len(self.seconds) <= tasks:
            return False
        if self.batch >= (batches[self.task] if self.task < tasks else 1):
            return False
        done = sum(batches[: self.task]) + self.batch
        return done <= len(self.batch_seconds) <= done + 1
