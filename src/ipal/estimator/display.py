"""A learner and a model as a line of text."""

from typing import Any

from pydantic import BaseModel

from ipal.estimator.model import Model
from ipal.estimator.settings import LearnerConfig, own_settings, settings_model


def as_text(config: LearnerConfig) -> str:
    """The class with the settings that differ from its own: `IPAL(gamma=0.7)`."""
    set_by_hand = ", ".join(f"{name}={value!r}" for name, value in _set_by_hand(config).items())
    return f"{type(config.method).__name__}({set_by_hand})"


def in_words(model: Model) -> str:
    """What a model is, in a line: its encoder, epochs, the first numbers among its settings, and those set by hand."""
    config, by_hand = model.config, _set_by_hand(model.config)
    own = {name: getattr(config.method, name) for name in own_settings(type(config.method))}
    own |= model.method.chosen(model.state.memory)
    numbers = [name for name, value in own.items() if isinstance(value, int | float | tuple) and value is not True]
    words = []
    if model.network is not None:
        encoder = config.encoder
        words.append(f"{encoder.kind} {model.network.encoder.width:,}")
        words += [f"{name} {_number(value)}" for name in ("steps", "restart") if (value := getattr(encoder, name))]
        words.append(f"{config.epochs:,} epochs")
    first = numbers[: 4 if model.network is None else 2]
    words += [f"{name} {_number(own[name])}" for name in own if name in first or name in by_hand]
    return f"{model.name}: {', '.join(words)}"


def _number(value: Any) -> str:
    if isinstance(value, tuple | list):
        return " and ".join(map(_number, value))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,g}"


def _set_by_hand(config: LearnerConfig) -> dict[str, Any]:
    """Settings that are not the method's own; a section as what it changes of it."""
    found, fields = {}, settings_model(type(config.method)).model_fields
    for name, value in config.given.items():
        default = fields[name].get_default()
        if isinstance(value, BaseModel) and isinstance(default, BaseModel):
            found[name] = {key: one for key, one in value if one != getattr(default, key)}
        elif value != default:
            found[name] = value.model_dump(exclude_defaults=True) if isinstance(value, BaseModel) else value
    return {name: value for name, value in found.items() if value != {}}
