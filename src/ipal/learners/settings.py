"""The settings of a method: the fields of its dataclass, checked and described."""

from abc import ABCMeta
from copy import copy
from typing import Any

from pydantic import ValidationError

from ipal.config import explain
from ipal.errors import ConfigError

SHARED_SETTINGS = {"seed", "device", "encoder", "train", "batch"}
"""Fields that are the run's, not one method's own."""


class Explaining(ABCMeta):
    """Makes a learner built by hand complain as one built from a file's settings: as a ConfigError."""

    def __call__(cls, *arguments: Any, **settings: Any) -> Any:
        if arguments:
            raise ConfigError(f"The settings of {cls.__name__} go by name, as {cls.__name__}(seed=1).")
        try:
            return super().__call__(**settings)
        except ValidationError as error:
            raise explained(cls, error) from error


def explained(method: Any, error: ValidationError) -> ConfigError:
    """A sentence that names the setting and the closest known one."""
    return explain(error, [f"{method.name}.{name}" for name in own_settings(method)], prefix=f"{method.name}.")


def own_settings(method: Any) -> dict[str, Any]:
    """The fields that a method adds, with their descriptions."""
    # Copies: pydantic's own record of a class is not ours to change.
    own = {name: copy(info) for name, info in method.__pydantic_fields__.items() if name not in SHARED_SETTINGS}
    for name, info in own.items():  # a field taken over from a base class has left its docstring there
        origin = next(base for base in reversed(method.__mro__) if name in getattr(base, "__pydantic_fields__", {}))
        info.description = info.description or origin.__pydantic_fields__[name].description
    return own


def describe(method: Any) -> dict[str, Any]:
    """A method as plain facts: name, what it is, its settings."""
    settings = [
        {"name": name, "default": info.default, "about": info.description}
        for name, info in own_settings(method).items()
    ]
    about = (method.__doc__ or "").strip().splitlines()[0]
    return {"name": method.name, "about": about, "stores_exemplars": method.stores_exemplars, "settings": settings}
