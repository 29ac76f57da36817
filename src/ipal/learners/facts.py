"""Schemas of the plain data in a saved state, which may come from anywhere."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from ipal.config import LARGEST
from ipal.learners.checks import MisfitError
from ipal.learners.history import LETTERS, MOST, NAMED

MOST_LETTERS = 2**26
"""Of all labels together, each as long as the longest: as an array of strings they take four bytes each."""


def _refuse_long(value: Any) -> Any:
    if isinstance(value, int) and value >= 2**63:  # torch multiplies by shorter ones alone
        raise ValueError("a whole number is too large")
    return value


Number = Annotated[float, Field(ge=0, le=LARGEST), BeforeValidator(_refuse_long)]
Name = Annotated[str, Field(max_length=2**16)]


class KnownTypes(BaseModel):
    """Types of nodes and edges of the graphs that a model was made from; see `data.relations.Types`."""

    model_config = ConfigDict(strict=True, extra="forbid")

    nodes: dict[Name, Annotated[int, Field(ge=1, lt=2**31)]] = Field(min_length=1)
    edges: list[Annotated[list[Name], Field(min_length=3, max_length=3)]] = Field(max_length=2**16)

    @model_validator(mode="after")
    def _check_ends(self) -> Self:
        if any(end not in self.nodes for one, _, other in self.edges for end in (one, other)):
            raise ValueError("an edge type has an end that is no node type")
        return self


Names = Annotated[list[Annotated[str, Field(max_length=LETTERS)]], Field(max_length=NAMED)]
Natural = Annotated[int, Field(ge=0, lt=2**63)]
Edges = Annotated[list[Natural], Field(min_length=2, max_length=2)]
Time = Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]


class Event(BaseModel):
    """One entry of a history (see history.py)."""

    model_config = ConfigDict(strict=True, extra="forbid")

    what: str = Field(max_length=LETTERS)
    classes: Names
    number: Natural
    into: Names
    nodes: Natural
    edges: Edges
    time: Time | None
    events: Natural


class Reference(BaseModel):
    """What a graph looked like to the model when it was asked to remember it (see deploy/watch.py)."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    time: Time
    counts: list[Natural]
    edges: Edges
    confidence: Number
    spread: Number
    unknown: Number | None
    features: Number | None


class Facts(BaseModel):
    """The plain data of a state that every method has; a method with more extends it."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)

    method: str
    settings: dict[str, Any]
    num_features: int = Field(ge=1, lt=2**31)
    types: KnownTypes | None = None
    """None where graphs have one type of nodes and edges."""
    labels: Annotated[list[Annotated[int, Field(ge=-(2**63), lt=2**63)]] | list[str], Field(min_length=1)]
    columns: list[str] = []
    """Names of the features, where they have any."""
    history: Annotated[list[Event], Field(max_length=MOST)] = []
    reference: Reference | None = None

    @model_validator(mode="after")
    def _check_labels(self) -> Self:
        if self.types is not None and sum(self.types.nodes.values()) != self.num_features:
            raise ValueError("the node types have another number of features")
        if self.columns and len(self.columns) != self.num_features:
            raise ValueError("the columns are not as many as the features")
        if len(set(self.labels)) < len(self.labels):
            raise ValueError("the labels name a class twice")
        if len(self.labels) * max(len(label) if isinstance(label, str) else 1 for label in self.labels) > MOST_LETTERS:
            raise ValueError("the labels are too long")
        if self.reference is not None and len(self.reference.counts) != len(self.labels):
            raise ValueError("the reference has not one number for every class")
        return self


class TrainedFacts(Facts):
    """Also of a method that trains a network."""

    learning_rate: Number = Field(gt=0)


class CountedFacts(TrainedFacts):
    """Also the number of nodes behind the importances."""

    nodes: int = Field(ge=0, lt=2**63)


class Mapped(BaseModel):
    """The facts of a feature map."""

    model_config = ConfigDict(strict=True, extra="forbid")

    hops: list[Annotated[int, Field(ge=0, le=10_000)]] = Field(min_length=1, max_length=64)
    restart: float = Field(0.0, ge=0, lt=1)
    expansion: int = Field(ge=0, lt=2**31)
    sketch: int | None = Field(None, ge=1, lt=2**31)
    """None, as `sums`, in files of earlier versions: as the settings say."""
    sums: Literal["pooled", "per-class"] | None = None
    fingerprint: str = Field(max_length=64)


class SumsFacts(Facts):
    """Also of a closed form."""

    map: Mapped
    ridge: Number
    scale: list[Number] = Field(min_length=2, max_length=2)
    choices: dict[str, Any]

    @field_validator("scale")
    @classmethod
    def _check_scale(cls, scale: list[float]) -> list[float]:
        if scale[0] <= 0 or scale[1] != int(scale[1]):
            raise ValueError("a factor and a number of classes are needed")
        return scale

    @field_validator("choices")
    @classmethod
    def _check_choices(cls, choices: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(choices.get("ridge"), list):
            raise ValueError("the ridges that were chosen are missing")
        return choices


def checked_facts(facts: Any, schema: type[BaseModel]) -> dict[str, Any]:
    """Facts of this schema, with what an earlier version left out; others are refused."""
    try:
        schema.model_validate(facts)
        fields = schema.model_fields.items()
        return {**{name: field.default for name, field in fields if not field.is_required()}, **facts}
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))[:80]
        raise MisfitError(f"its facts are wrong{place and f' at {place!r}'} ({first['msg'].lower()})") from error
    except RecursionError as error:
        raise MisfitError("its facts are nested too deeply") from error
