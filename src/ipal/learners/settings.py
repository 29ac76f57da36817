"""The settings of a method: the fields of its dataclass, checked and described."""

from abc import ABCMeta
from copy import copy
from typing import Any

from pydantic import ValidationError

from ipal.config import explain
from ipal.errors import ConfigError

SHARED_SETTINGS = frozenset({"seed", "device", "encoder", "train", "batch"})
"""Fields that are the run's, not one method's own."""


class MethodClass(ABCMeta):
    """The class of methods: knows their settings, and explains wrong ones as a ConfigError."""

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

    def own_settings(cls: Any) -> dict[str, Any]:
        """The fields that the method adds, with their descriptions."""
        # Copies: pydantic's own record of a class is not ours to change.
        own = {name: copy(info) for name, info in cls.__pydantic_fields__.items() if name not in SHARED_SETTINGS}
        for name, info in own.items():  # a field taken over from a base class has left its docstring there
            origin = next(base for base in reversed(cls.__mro__) if name in getattr(base, "__pydantic_fields__", {}))
            info.description = info.description or origin.__pydantic_fields__[name].description
        return own

    def shared_settings(cls: Any) -> set[str]:
        """Which of the run's settings the method uses."""
        return set(SHARED_SETTINGS & cls.__pydantic_fields__.keys())

    def describe(cls: Any) -> dict[str, Any]:
        """The method as plain facts: name, what it is, its settings."""
        settings = [
            {"name": name, "default": info.default, "about": info.description}
            for name, info in cls.own_settings().items()
        ]
        about = (cls.__doc__ or "").strip().splitlines()[0]
        return {"name": cls.name, "about": about, "stores_exemplars": cls.stores_exemplars, "settings": settings}
