"""How learners are shown: their documentation, a model in a line, and a line that says how far a task has come."""

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from ipal.backend.finite import StepTerms, read_terms
from ipal.config import attribute_docs
from ipal.engine.trainer import Epoch
from ipal.estimator.model import Model
from ipal.estimator.settings import LearnerConfig, TrainedSettings, own_settings, settings_model, shared_settings
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


def in_words(model: Model) -> str:
    """What a model is, in a line: its encoder, epochs, the first numbers among its settings, and those set by hand."""
    config = model.config
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
    words += [f"{name} {_number(own[name])}" for name in own if name in first or name in config.by_hand]
    return f"{model.name}: {', '.join(words)}"


def _number(value: Any) -> str:
    if isinstance(value, tuple | list):
        return " and ".join(map(_number, value))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,g}"


@contextmanager
def progress(config: LearnerConfig, task: str) -> Iterator[Callable[[Epoch], object]]:
    """What shows each epoch of a task in a line on stderr, and keeps what it ended in; nothing unless asked for."""
    if not config.verbose:
        yield bool
        return
    from rich.console import Console

    from ipal.system.status import Status

    seen = list[StepTerms]()
    with Status(Console(stderr=True), task) as status:

        def show(epoch: Epoch) -> None:
            if epoch.terms:
                seen.append(epoch.terms)
                status.show(f"{task}, epoch {len(seen)} of {config.epochs}", len(seen) / config.epochs)

        yield show
        if seen:
            loss = sum(read_terms(seen[-1:])[0].values())
            task += f", epoch {config.epochs} of {config.epochs}, loss {loss:.3f}"
        status.keep(f"{task}, {status.seconds:.1f} s")


def documented(method: type[Method]) -> tuple[str, inspect.Signature]:
    """What the method is, its source, and every parameter with type, default and meaning; and the parameters alone."""
    docs = attribute_docs(TrainedSettings) | attribute_docs(method)
    parameters, listed = list[inspect.Parameter](), ""
    for name in [*own_settings(method), *shared_settings(method)]:
        field = settings_model(method).model_fields[name]
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=field.default))
        listed += f"{name} : {type_in_words(field.annotation)}, default={field.default!r}\n"
        listed += f"    {' '.join(docs.get(name, '').split())}\n"
    about = inspect.cleandoc(method.__doc__ or "")
    source = inspect.cleandoc(sys.modules[method.__module__].__doc__ or "")
    text = f"{about}\n\n{source}\n\nParameters\n----------\n{listed}\n{ATTRIBUTES.format(name=method.__name__)}"
    return text, inspect.Signature(parameters)


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
