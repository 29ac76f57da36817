"""The page of all settings by their dotted names, from the configuration and the methods themselves."""

import inspect
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from ipal.config import Counts, EncoderConfig, ProtocolConfig, RunConfig, Sampling, TrainConfig, attribute_docs
from ipal.estimator.registry import METHODS
from ipal.estimator.settings import describe, own_settings, settings_model
from ipal.methods.base import Method, Trained

INTRODUCTION = """# Settings

Everything that decides the numbers of a run, by its dotted name. On the command line `--set train.epochs=50`; in a YAML
file for `--config` the names are nested (`train: {epochs: 50}`); in Python the fields of
[the configuration](api/configuration.md). A name that does not exist is refused, with the nearest one that does.
"""
SECTIONS: list[tuple[str, str, type[BaseModel]]] = [
    ("The run", "", RunConfig),
    ("The protocol", "protocol.", ProtocolConfig),
    ("Nodes of each part", "protocol.parts.", Counts),
    ("Mini-batches", "protocol.batch.", Sampling),
    ("The encoder", "encoder.", EncoderConfig),
    ("Training", "train.", TrainConfig),
]
NESTED = {"protocol", "encoder", "train", "settings"}


def everything() -> str:
    """The settings of every run, then those of each method."""
    parts = [INTRODUCTION]
    for title, prefix, section in SECTIONS:
        fields = {name: field for name, field in section.model_fields.items() if prefix or name not in NESTED}
        parts += [
            f"## {title}",
            (inspect.getdoc(section) or "") if prefix else "",
            _table(prefix, fields, attribute_docs(section)),
        ]
    parts += ["## The methods", "Only the settings that a method adds; those above are shared by all that use them."]
    for name, method in METHODS.items():
        facts, fields = describe(method), settings_model(method).model_fields
        stores = " **Stores raw nodes.**" if facts["stores_exemplars"] else ""
        parts += [f"### {name}", facts["about"] + stores, _other_defaults(method)]
        own = {setting: fields[setting] for setting in own_settings(method)}
        parts += [_table(f"{name}.", own, attribute_docs(method)) if own else "It has none of its own."]
    return "\n\n".join(filter(None, parts)) + "\n"


def _table(prefix: str, fields: dict[str, Any], docs: dict[str, str]) -> str:
    lines = ["| setting | default | what it is |", "|---|---|---|"]
    for name, field in fields.items():
        about = " ".join(docs.get(name, "").split()).replace("|", r"\|").replace("<", "&lt;")
        lines.append(f"| `{prefix}{name}` | {_default(field, prefix)} | {about}{_choices(field.annotation, about)} |")
    return "\n".join(lines)


def _other_defaults(method: type[Method]) -> str:
    """What a method sets in the sections above, where it differs from the defaults there."""
    if not issubclass(method, Trained):
        return ""
    sections = ("encoder", method.default_encoder, EncoderConfig()), ("train", method.default_train, TrainConfig())
    found = [
        f"`{section}.{name}={value}`"
        for section, own, plain in sections
        for name, value in own
        if value != getattr(plain, name)
    ]
    return f"Its defaults of settings above: {', '.join(found)}." if found else ""


def _default(field: Any, prefix: str) -> str:
    if field.default is PydanticUndefined:
        return "required"
    if field.default is None:
        return "none" if prefix else "from the data"
    value = field.default
    text = ", ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
    return f"`{text}`".replace("|", r"\|") if text else ""


def _choices(annotation: Any, about: str) -> str:
    """The words that may be given, where the description does not name them all."""
    if get_origin(annotation) is not Literal:
        return ""
    words = [str(word) for word in get_args(annotation)]
    return "" if all(word in about for word in words) else f" One of {', '.join(f'`{word}`' for word in words)}."


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put the list in place of the page that a code host shows."""
    return everything() if page.file.src_uri == "settings.md" else markdown
