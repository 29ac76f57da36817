"""Settings of a learner: those of its method and those that all learners share, checked and described."""

import dataclasses
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import Field, ValidationError, create_model

from ipal.backend.batches import check_fanouts
from ipal.config import (
    EncoderConfig,
    Sampling,
    Section,
    Seed,
    Share,
    TestGraph,
    TrainConfig,
    attribute_docs,
    explain,
    first_paragraph,
    known_settings,
)
from ipal.errors import ConfigError
from ipal.methods.base import Method, Trained
from ipal.nn.encoders import ENCODERS


class SharedSettings(Section):
    """Settings that every learner has."""

    seed: Seed = 0
    """Decides the initial weights and every random draw."""
    device: str = "cpu"
    """cpu, cuda or cuda:N."""
    test_graph: TestGraph = "both"
    """Graphs it will predict on: of one task each (isolated), of all nodes so far (seen), or both."""
    calibration: Share = 0.2
    """Share of training nodes used for calibration: a copy learns without them. 0: none, in half the time."""
    verbose: Annotated[bool | int, Field(exclude=True)] = 0
    """Whether a line on stderr says how far a task has come."""


class TrainedSettings(SharedSettings):
    """Settings that every learner with a network has, too."""

    encoder: EncoderConfig = EncoderConfig()
    """The network that makes embeddings: an EncoderConfig, or its settings as a dict."""
    train: TrainConfig = TrainConfig()
    """The optimisation: a TrainConfig, or its settings as a dict."""
    batch: Literal["full"] | Sampling = "full"
    """full: the whole task is one batch. Or mini-batches, as {nodes: 2000, fanouts: [10, 25]}."""


class LearnerConfig(TrainedSettings):
    """A method and all else that a learner is made with, checked; what test graphs decide is filled in."""

    method: Method
    given: Mapping[str, Any]
    """All settings by name, as they were given or are by default."""

    @property
    def name(self) -> str:
        return self.method.name

    @property
    def epochs(self) -> int:
        """How many epochs a task takes; none where nothing is trained."""
        return self.train.epochs if isinstance(self.method, Trained) else 0

    def plain(self) -> dict[str, Any]:
        """All settings as plain data."""
        found = settings_model(type(self.method)).model_validate(self.given).model_dump(mode="json")
        return found | ({"encoder": self.encoder.model_dump(mode="json")} if "encoder" in found else {})


@cache
def settings_model(method: type[Method]) -> type[SharedSettings]:
    """What the settings of a method must be: its own fields, and the shared ones."""
    hints = get_type_hints(method, include_extras=True)
    fields: dict[str, Any] = {f.name: (hints[f.name], _default(f)) for f in dataclasses.fields(method)}
    if issubclass(method, Trained):
        fields |= {"encoder": (EncoderConfig, method.default_encoder), "train": (TrainConfig, method.default_train)}
    return create_model(method.__name__, __base__=_shared(method), **fields)


def _shared(method: type[Method]) -> type[SharedSettings]:
    return TrainedSettings if issubclass(method, Trained) else SharedSettings


def _default(field: "dataclasses.Field[Any]") -> Any:
    if field.default is dataclasses.MISSING:
        raise ConfigError(f"The setting '{field.name}' has no default: give it one.")
    return field.default


def learner_config(method: type[Method], given: Mapping[str, Any]) -> LearnerConfig:
    """The settings of a learner, checked; every complaint names the setting and the closest known one."""
    try:
        checked = settings_model(method).model_validate(_completed(method, given))
    except ValidationError as error:
        for name, section in (("train", TrainConfig), ("encoder", EncoderConfig)):
            if found := sorted(set(given) & set(section.model_fields)) if name in shared_settings(method) else ():
                raise ConfigError(f"'{found[0]}' is a setting of {name}: give {name}={{'{found[0]}': …}}.") from error
        known = [f"{method.name}.{name}" for name in known_settings(settings_model(method))]
        raise explain(error, known, prefix=f"{method.name}.") from error
    values = {name: getattr(checked, name) for name in [*own_settings(method), *shared_settings(method)]}
    made = method(**{name: values[name] for name in own_settings(method)})
    shared = {name: values[name] for name in shared_settings(method)}
    made.check_setup(shared["test_graph"])
    if "encoder" in shared:
        kind = ENCODERS.find(shared["encoder"].kind)
        shared["encoder"] = kind.settled(shared["encoder"], shared["test_graph"])
        kind.check(shared["encoder"])
        if shared["batch"] != "full" and kind.reads_neighbours():
            check_fanouts(shared["batch"], shared["encoder"])
    return LearnerConfig.model_construct(method=made, given=values, **shared)


def _completed(method: type[Method], given: Mapping[str, Any]) -> dict[str, Any]:
    """With the method's own values for the rest of a section that is given as a dict."""
    found = dict(given)
    for name in {"encoder", "train"} & set(shared_settings(method)):
        if isinstance(some := given.get(name), Mapping):
            default = settings_model(method).model_fields[name].default
            if some.get("kind") not in (None, getattr(default, "kind", None)):
                default = EncoderConfig()  # the method's values are for its own kind of network
            found[name] = {**dict(default), **some}
    return found


def own_settings(method: type[Method]) -> list[str]:
    """The settings that a method adds."""
    return [field.name for field in dataclasses.fields(method)]


def shared_settings(method: type[Method]) -> list[str]:
    """Which of the shared settings a method uses."""
    return list(_shared(method).model_fields)


def setting_docs(method: type[Method]) -> dict[str, str]:
    """What every setting of a learner means."""
    return attribute_docs(_shared(method)) | attribute_docs(method)


def describe(method: type[Method]) -> dict[str, Any]:
    """A method as plain facts: name, what it is, its settings."""
    docs = attribute_docs(method)
    settings = [{"name": f.name, "default": f.default, "about": docs.get(f.name)} for f in dataclasses.fields(method)]
    about = first_paragraph(method.__doc__)
    return {"name": method.name, "about": about, "stores_exemplars": method.keeps != "statistics", "settings": settings}
