"""The settings of a method: the fields of its dataclass, checked and described."""

from abc import ABCMeta
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from ipal.config import attribute_docs, explain
from ipal.errors import ConfigError

Made = TypeVar("Made")

SHARED_SETTINGS = frozenset({"seed", "device", "test_graph", "calibration", "encoder", "train", "batch"})
"""Fields that are the run's, not one method's own."""


class MethodClass(ABCMeta):
    """The class of methods: knows their settings, and explains wrong ones as a ConfigError."""

    added: Mapping[str, Any] = MappingProxyType({})
    """Settings of later versions, which a method names: left out at these values, so that digests stay."""

    def __call__(cls, *arguments: Any, **settings: Any) -> Any:
        if arguments:
            raise ConfigError(f"The settings of {cls.__name__} go by name, as {cls.__name__}(seed=1).")
        try:
            return super().__call__(**settings)
        except ValidationError as error:
            raise cls.explained(error) from error

    def explained(cls: Any, error: ValidationError) -> ConfigError:
        """A sentence that names the setting and the closest known one."""
        return explain(error, [f"{cls.name}.{name}" for name in cls.own_settings()], prefix=f"{cls.name}.")

    def from_settings(cls: type[Made], values: dict[str, Any]) -> Made:
        """A learner from plain data; every complaint names the setting and the closest known one."""
        try:
            return TypeAdapter(cls).validate_python(values)
        except ValidationError as error:
            raise cls.explained(error) from error  # type: ignore[attr-defined]

    def plain_settings(cls: Any, learner: Any) -> dict[str, Any]:
        """All hyper-parameters of a learner as plain data."""
        plain = TypeAdapter(cls).dump_python(learner, mode="json")
        return {name: value for name, value in plain.items() if name not in cls.added or value != cls.added[name]}

    def completed(cls: Any, section: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Settings of a section by their names, with the method's own where they are not given."""
        default = cls.__pydantic_fields__[section].get_default(call_default_factory=True)
        if given.get("kind") not in (None, getattr(default, "kind", None)):
            default = type(default)()  # what the method says is for its own kind of network
        return {**dict(default), **given}

    def written(cls: Any) -> str:
        """Its title; the name of a method that declares none itself."""
        return str(vars(cls).get("title", cls.name))

    def own_settings(cls: Any) -> dict[str, Any]:
        """The fields that the method adds."""
        return {name: info for name, info in cls.__pydantic_fields__.items() if name not in SHARED_SETTINGS}

    def shared_settings(cls: Any) -> set[str]:
        """Which of the run's settings the method uses."""
        return set(SHARED_SETTINGS & cls.__pydantic_fields__.keys())

    def describe(cls: Any) -> dict[str, Any]:
        """The method as plain facts: name, what it is, its settings."""
        docs = attribute_docs(cls)
        settings = [
            {"name": name, "default": info.default, "about": docs.get(name)}
            for name, info in cls.own_settings().items()
        ]
        about = (cls.__doc__ or "").strip().splitlines()[0]
        return {"name": cls.name, "about": about, "stores_exemplars": cls.stores_exemplars, "settings": settings}
