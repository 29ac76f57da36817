"""What is measured of a model after one task, as it is stored. Neither torch nor NumPy here."""

from typing import Annotated

from pydantic import ConfigDict, Field

from ipal.system.documents import Record


class Row(Record):
    """Scores on each task seen so far, in percent, and what stands behind them."""

    model_config = ConfigDict(extra="forbid")

    validation: list[float]
    test: list[float]
    per_class: dict[str, float]
    """Test recall of every class seen so far, over all its test nodes: a class may come in several tasks."""
    confusion: dict[str, dict[str, Annotated[int, Field(ge=0)]]] = Field(default_factory=dict)
    """Of each class's test nodes, how many were taken for which class."""


class Before(Record):
    """The test of a task before it was learned, in percent."""

    accuracy: float
    chance: float
    """Of a guess among the classes to choose from."""
