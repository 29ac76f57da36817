"""How far a run has come: with the learner's state, all that a checkpoint needs."""

import dataclasses
from typing import Annotated

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ipal.errors import StoreError
from ipal.evaluate import Row
from ipal.state import State
from ipal.store import History
from ipal.whereabouts import Whereabouts


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
    whereabouts: Whereabouts = dataclasses.field(default_factory=lambda: Whereabouts({}))

    def state(self) -> State:
        """All of it as a value."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        facts = {**fields, "rows": [vars(row) for row in self.rows], "whereabouts": list(self.whereabouts.clouds)}
        return State(self.whereabouts.tensors(), facts)

    @classmethod
    def of_state(cls, state: State, device: torch.device, tasks: int, epochs: int, source: str) -> "Progress":
        """What `state` gave, of a run of so many tasks and epochs a task; `source` names it in complaints."""
        try:
            facts = _Facts.model_validate(state.facts)
        except (ValidationError, RecursionError) as error:
            raise StoreError(f"{source} is damaged: what it says about the progress of the run is wrong.") from error
        whereabouts = Whereabouts.of_tensors(facts.whereabouts, state.tensors, device)
        if not facts.fits(tasks, epochs) or whereabouts is None:
            raise StoreError(f"{source} does not fit this run: it is further than the run can be, or not as far.")
        rows = [Row(**row) for row in state.facts["rows"]]
        return cls(**{**state.facts, "rows": rows, "whereabouts": whereabouts})


class _Scores(BaseModel):
    """The facts of a row."""

    model_config = ConfigDict(strict=True, extra="forbid")

    validation: list[float]
    test: list[float]
    per_class: dict[str, float]
    confusion: dict[str, dict[str, Annotated[int, Field(ge=0)]]] = {}
    drift: dict[str, dict[str, float | None]] = {}


class _Facts(BaseModel):
    """The facts of a progress, as a checkpoint holds them."""

    model_config = ConfigDict(strict=True, extra="forbid")

    task: int = Field(ge=0)
    epoch: int = Field(ge=0)
    rows: list[_Scores]
    history: list[dict[str, float]]
    seconds: list[Annotated[float, Field(ge=0)]]
    evaluation_seconds: float = Field(ge=0)
    peak_memory_bytes: int = Field(ge=0)
    whereabouts: list[str] = []

    def fits(self, tasks: int, epochs: int) -> bool:
        """Whether a run of so many tasks, and so many epochs a task, can have come so far."""
        begun = self.task + (self.epoch > 0)
        there = begun <= tasks and self.epoch <= epochs and len(self.rows) == self.task
        scored = all(len(row.test) == len(row.validation) == number for number, row in enumerate(self.rows, 1))
        return there and scored and begun <= len(self.seconds) <= tasks
