"""What the JSON files of a run hold, as schemas: who reads one can rely on names, types and sizes, and checks no more.

Names that a schema does not know are kept: a later version may have added them.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Self

from pydantic import ConfigDict, Field, StrictInt, model_validator

from ipal.evaluation.rows import Before, Row
from ipal.system.documents import Record

Bytes = Annotated[float, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0)]


class Protocol(Record):
    stream: str | dict[str, Any]
    split: list[Annotated[int, Field(ge=1)]] = Field(min_length=1)
    split_hash: str = ""
    batch: str | dict[str, Any]
    train_graph: str
    test_graph: str
    visibility: str
    accuracy: str
    classes: list[list[int | str]]
    """Of each task."""
    dropped_classes: list[int | str] = Field(default_factory=list)
    exemplar_free: bool
    """By the method, and by the stream: no node of an earlier task is kept or seen again."""
    batches: list[Annotated[int, Field(ge=1)]] | None = None
    """Of each task, in streams of batches."""


class Data(Record):
    hash: str
    remark: str | None


class Timing(Record):
    seconds_per_task: list[Seconds]
    seconds_per_epoch: list[Seconds] = Field(min_length=1)
    evaluation_seconds: Seconds
    total_seconds: Seconds
    runs_taking_turns: Annotated[int, Field(ge=1)]
    """How many runs shared a process, and so its peak memory."""


class Item(Record):
    what: str
    bytes: Bytes


class Retained(Record):
    bytes: Bytes
    items: list[Item]
    stores_exemplars: bool
    stores_all_tasks: bool
    nodes_behind_class: dict[str, int]


class Validation(Record):
    average_performance: float
    accuracy_matrix: list[list[float | None]]


class Along(Record):
    """Tests along a stream of batches: one entry for every point."""

    batch: list[Annotated[int, Field(ge=1)]] = Field(default_factory=list)
    """How many batches were learned."""
    test: list[float] = Field(default_factory=list)
    """Mean accuracy over the tasks so far, in percent."""
    validation: list[float] = Field(default_factory=list)
    bytes: list[Annotated[int, Field(ge=0)]] = Field(default_factory=list)
    """What a saved model holds."""

    @model_validator(mode="after")
    def _is_of_one_length(self) -> Self:
        if not len(self.batch) == len(self.test) == len(self.validation) == len(self.bytes):
            raise ValueError("parts of different numbers of points")
        return self


class Result(Record):
    """result.json."""

    method: str
    title: str
    """The method as tables write it."""
    model: str | None = None
    """What was learned, in a line."""
    dataset: str
    seed: int
    average_performance: float
    average_forgetting: float
    average_performance_curve: list[float]
    metrics: dict[str, float | None]
    before_learning: list[Before | None]
    along: Along | None = None
    accuracy_matrix: list[list[float | None]]
    """Row by row, after each task; nothing above the diagonal."""
    per_class: dict[str, float]
    validation: Validation
    protocol: Protocol
    data: Data
    timing: Timing
    peak_memory_bytes: Bytes
    retained: Retained

    @model_validator(mode="after")
    def _is_of_one_size(self) -> Self:
        tasks, validation = len(self.protocol.split), self.validation.accuracy_matrix
        lists: list[list[Any]] = [self.accuracy_matrix, *self.accuracy_matrix, self.average_performance_curve]
        lists += [self.timing.seconds_per_task, validation, *validation, self.before_learning]
        if any(len(one) != tasks for one in lists):
            raise ValueError("parts of different numbers of tasks")
        if any(value is None for index, row in enumerate(self.accuracy_matrix) for value in row[: index + 1]):
            raise ValueError("a task without accuracy")
        if list(map(len, self.protocol.classes)) != self.protocol.split:
            raise ValueError("classes that are not of the split")
        if self.protocol.batches is not None and len(self.protocol.batches) != tasks:
            raise ValueError("batches of other tasks")
        return self


def stream_in_words(stream: Any) -> str:
    """The protocol's field `stream`, as a result holds it."""
    if isinstance(stream, str):
        return stream
    settings = ", ".join(f"{name} {value}" for name, value in stream.items() if name != "name")
    return f"{stream['name']} ({settings})"


class Confusion(Record):
    """confusion.json: how many test nodes of one class were taken for another, after each task."""

    model_config = ConfigDict(strict=False)  # lists stand for the tuples
    classes: list[str]
    """In the order in which they were learned."""
    after_task: list[list[tuple[StrictInt, StrictInt, StrictInt]]]
    """Place of the true class, place of the predicted class, number of nodes."""

    @model_validator(mode="after")
    def _has_its_places(self) -> Self:
        for row in (row for rows in self.after_task for row in rows):
            if not (min(row) >= 0 and max(row[:2]) < len(self.classes)):
                raise ValueError("a class that is not there")
        return self


class Environment(Record):
    """environment.json: versions and machine."""

    packages: dict[str, str | None] = Field(default_factory=dict)
    processor: str | None = None
    device_name: str | None = None
    threads: int | None = None
    data_root: str | None = None
    command: list[str] = Field(default_factory=list)


class Progress(Record):
    """How far a run has come; with the model, all that a checkpoint needs."""

    model_config = ConfigDict(extra="forbid")

    task: int = Field(0, ge=0)
    batch: int = Field(0, ge=0)
    """Batches of this task that are learned."""
    epoch: int = Field(0, ge=0)
    rows: list[Row] = Field(default_factory=list)
    history: list[dict[str, int | float]] = Field(default_factory=list)
    batch_seconds: list[Seconds] = Field(default_factory=list)
    """Time spent learning each batch of the stream, evaluation not counted."""
    along: Along = Field(default_factory=Along)
    before: list[Before | None] = Field(default_factory=list)
    """Tests of tasks before they were learned; None where that was not possible."""
    evaluation_seconds: Seconds = 0.0
    peak_memory_bytes: int = Field(0, ge=0)

    @model_validator(mode="after")
    def _is_a_triangle(self) -> Self:
        for place, row in enumerate(self.rows, start=1):
            if not len(row.test) == len(row.validation) == place:
                raise ValueError("a row of another length")
        if len(self.rows) != self.task:
            raise ValueError("rows of other tasks")
        return self

    def fits(self, batches: Sequence[int], epochs: int) -> bool:
        """Whether a run whose tasks come in so many batches, with so many epochs each, can have come so far."""
        begun = self.task + (self.batch > 0 or self.epoch > 0)
        if begun > len(batches) or self.epoch > epochs or (self.batch and self.batch >= batches[self.task]):
            return False
        done = sum(batches[: self.task]) + self.batch
        return done <= len(self.batch_seconds) <= done + 1
