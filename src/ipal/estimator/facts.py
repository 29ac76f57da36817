"""Schemas of the plain data in a saved state, which may come from anywhere."""

from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from ipal.backend.checks import MisfitError
from ipal.config import LARGEST
from ipal.estimator.history import Event

MOST_LETTERS = 2**26
"""Of all labels together, each as long as the longest: as an array of strings they take four bytes each."""


def _refuse_long(value: Any) -> Any:
    if isinstance(value, int) and value >= 2**63:  # torch multiplies by shorter ones alone
        raise ValueError("a whole number is too large")
    return value


Number = Annotated[float, Field(ge=0, le=LARGEST), BeforeValidator(_refuse_long)]


class Facts(BaseModel):
    """The plain data of a model."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False, extra="forbid")

    method: str
    settings: dict[str, Any]
    num_features: int = Field(ge=1, lt=2**31)
    labels: Annotated[list[Annotated[int, Field(ge=-(2**63), lt=2**63)]] | list[str], Field(min_length=1)]
    columns: list[str] = []
    """Names of the features, where they have any."""
    directed: bool = False
    """Whether an edge may run one way."""
    history: Annotated[list[Event], Field(max_length=2**20)] = []
    learning_rate: Annotated[Number, Field(gt=0)] | None = None
    """Of the last task, where a network is trained."""
    identity: str = Field("", max_length=64)
    """Fingerprint of what the memory rests on, where it rests on more than the settings."""
    plugins: dict[str, str] = {}

    @model_validator(mode="after")
    def _check_labels(self) -> Self:
        if self.columns and len(self.columns) != self.num_features:
            raise ValueError("the columns are not as many as the features")
        if len(set(self.labels)) < len(self.labels):
            raise ValueError("the labels name a class twice")
        if len(self.labels) * max(len(label) if isinstance(label, str) else 1 for label in self.labels) > MOST_LETTERS:
            raise ValueError("the labels are too long")
        return self


def checked_facts(facts: Any) -> Facts:
    """Facts of a model; others are refused."""
    try:
        return Facts.model_validate(facts)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))[:80]
        raise MisfitError(f"its facts are wrong{place and f' at {place!r}'} ({first['msg'].lower()})") from error
    except RecursionError as error:
        raise MisfitError("its facts are nested too deeply") from error
