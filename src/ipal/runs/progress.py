"""How far a run has come: with the learner's state, all that a checkpoint needs."""

import dataclasses

import torch
from pydantic import ValidationError

from ipal.errors import StoreError
from ipal.evaluation.class_drift import ClassDrift
from ipal.evaluation.evaluate import Row
from ipal.evaluation.metrics import Before
from ipal.learners.state import State
from ipal.runs import records
from ipal.runs.run_folder import History


@dataclasses.dataclass
class Progress:
    """How far a run has come; with the learner's state, all that a checkpoint needs."""

    task: int = 0
    epoch: int = 0
    rows: list[Row] = dataclasses.field(default_factory=list)
    history: History = dataclasses.field(default_factory=list)
    seconds: list[float] = dataclasses.field(default_factory=list)
    """Time spent learning each task, evaluation not counted."""
    before: list[Before | None] = dataclasses.field(default_factory=list)
    """Tests of tasks before they were learned; None where that was not possible."""
    evaluation_seconds: float = 0.0
    peak_memory_bytes: int = 0
    whereabouts: ClassDrift = dataclasses.field(default_factory=lambda: ClassDrift({}))

    def state(self) -> State:
        """All of it as a value."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        facts = {
            **fields,
            "rows": [vars(row) for row in self.rows],
            "before": [one and one._asdict() for one in self.before],
            "whereabouts": list(self.whereabouts.clouds),
        }
        return State(self.whereabouts.tensors(), facts)

    @classmethod
    def of_state(cls, state: State, device: torch.device, source: str) -> "Progress":
        """What `state` gave; `source` names it in complaints."""
        try:
            facts = records.Progress.model_validate(state.facts)
        except (ValidationError, RecursionError) as error:
            raise StoreError(f"{source} is damaged: what it says about the progress of the run is wrong.") from error
        whereabouts = ClassDrift.of_tensors(facts.whereabouts, state.tensors, device)
        if whereabouts is None:
            raise StoreError(f"{source} is damaged: what it says about the drift of classes is wrong.")
        rows = [Row(**row) for row in state.facts["rows"]]
        before = [one and Before(**one) for one in state.facts.get("before", [None] * len(facts.seconds))]
        return cls(**{**state.facts, "rows": rows, "before": before, "whereabouts": whereabouts})

    def fits(self, tasks: int, epochs: int) -> bool:
        """Whether a run of so many tasks, and so many epochs a task, can have come so far."""
        begun = self.task + (self.epoch > 0)
        return begun <= tasks and self.epoch <= epochs and begun <= len(self.seconds) <= tasks
