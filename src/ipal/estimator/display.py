"""A learner as a line of text, and as a notebook shows it."""

from collections.abc import Sequence
from html import escape
from typing import Any

from pydantic import BaseModel

from ipal.config import first_paragraph
from ipal.estimator.model import Model
from ipal.estimator.settings import LearnerConfig, own_settings, settings_model
from ipal.system.units import size

MOST_CLASSES = 20
"""That are named."""
LIST = "display:grid;grid-template-columns:max-content 1fr;gap:2px 12px;margin:0"
# No colours: those of the page around it, light or dark, stay.


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


def as_html(config: LearnerConfig, model: Model | None) -> str:
    """Method, classes, what is kept and how large it is, as a list in HTML."""
    about = first_paragraph(type(config.method).__doc__)
    rows = {"method": f"{config.method.title}: {about}", "settings": as_text(config)}
    if model is not None:
        report = model.memory_report()
        nodes = "raw nodes are stored" if report["stores_exemplars"] else "no node is stored"
        items = "; ".join(f"{item['what']} ({size(item['bytes'])})" for item in report["items"])
        rows |= {
            "features": f"{model.num_features:,}",
            "classes": _classes(model.labels, report["nodes_behind_class"]),
            "kept": f"{items}; {nodes}",
            "size": size(report["bytes"]),
        }
    else:
        rows["classes"] = "none: nothing has been learned yet"
    lines = (f'<dt><b>{name}</b></dt><dd style="margin:0">{escape(text)}</dd>' for name, text in rows.items())
    return f'<dl style="{LIST}">{"".join(lines)}</dl>'


def _set_by_hand(config: LearnerConfig) -> dict[str, Any]:
    known = settings_model(type(config.method)).model_fields
    defaults = {name: field.get_default() for name, field in known.items()}
    values = {name: value for name, value in config.given.items() if value != defaults[name]}
    return {name: _changed(value, defaults[name]) for name, value in values.items()}


def _changed(value: Any, default: Any) -> Any:
    """A section as what it changes of the method's own, which a learner is made from; other values as they are."""
    if not isinstance(value, BaseModel):
        return value
    if not isinstance(default, BaseModel):
        return value.model_dump(exclude_defaults=True)
    return {name: one for name, one in value if one != getattr(default, name)}


def _classes(labels: Sequence[Any], nodes: dict[str, int]) -> str:
    named = [f"{label} ({nodes[str(label)]} nodes)" if str(label) in nodes else str(label) for label in labels]
    more = f", and {len(named) - MOST_CLASSES} more" if len(named) > MOST_CLASSES else ""
    return f"{len(named)}: {', '.join(named[:MOST_CLASSES])}{more}"
