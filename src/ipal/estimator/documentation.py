"""The documentation of a learner's class, from the settings of its method: numpydoc, and a readable signature."""

import inspect
import sys
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from ipal.estimator.settings import own_settings, setting_docs, settings_model, shared_settings
from ipal.methods.base import Method

ATTRIBUTES = """Attributes
----------
classes_ : ndarray of shape (n_classes,)
    Labels of all classes learned so far, in the order in which they came.
n_features_in_ : int
    Number of features of a node.
history_ : list of dict
    What was learned and changed, and when.
model_ : Model
    What was learned, as an immutable value.

Examples
--------
>>> import ipal
>>> data = ipal.graph_from(ipal.load_dataset("digits"))
>>> model = ipal.{name}().partial_fit(data)
>>> labels = model.predict(data)
"""


class Shown:
    """A default as a signature shows it."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __repr__(self) -> str:
        if not isinstance(self._value, BaseModel):
            return repr(self._value)
        given = self._value.model_dump(exclude_defaults=True)
        return f"{type(self._value).__name__}({', '.join(f'{name}={value!r}' for name, value in given.items())})"


def _parameters(method: type[Method]) -> dict[str, FieldInfo]:
    """All settings, the method's own first."""
    fields = settings_model(method).model_fields
    return {name: fields[name] for name in [*own_settings(method), *shared_settings(method)]}


def class_signature(method: type[Method]) -> inspect.Signature:
    """All settings by name, with their defaults."""
    kind, parameters = inspect.Parameter.KEYWORD_ONLY, _parameters(method).items()
    return inspect.Signature([inspect.Parameter(name, kind, default=Shown(f.default)) for name, f in parameters])


def class_doc(method: type[Method]) -> str:
    """What the method is, its source, and every parameter with type, default and meaning."""
    docs = setting_docs(method)
    listed = "\n".join(
        f"{name} : {type_in_words(field.annotation)}, default={Shown(field.default)!r}\n"
        f"    {' '.join(docs.get(name, '').split())}"
        for name, field in _parameters(method).items()
    )
    about = inspect.cleandoc(method.__doc__ or "")
    source = inspect.cleandoc(sys.modules[method.__module__].__doc__ or "")
    return f"{about}\n\n{source}\n\nParameters\n----------\n{listed}\n\n{ATTRIBUTES.format(name=method.__name__)}"


def type_in_words(hint: Any) -> str:
    """A type as numpydoc writes it."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return type_in_words(parts[0])
    if origin is Literal:
        return "{" + ", ".join(map(repr, parts)) + "}"
    if origin in (Union, UnionType):
        words = [type_in_words(part) for part in parts if part is not NoneType]
        return " or ".join(dict.fromkeys([*words, *["None"] * (NoneType in parts)]))
    if origin is tuple:
        return f"tuple of {type_in_words(parts[0])}"
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        return f"{hint.__name__} or dict"
    return getattr(hint, "__name__", str(hint))
