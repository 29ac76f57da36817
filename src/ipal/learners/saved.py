"""A learner as a value: saved to a file, and restored from one after everything in it was checked."""

from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from torch import nn

from ipal.errors import ConfigError, StoreError
from ipal.learners.checks import MisfitError, check_finite, check_same, check_shapes, require
from ipal.learners.facts import checked_facts
from ipal.learners.state import State, laid_out
from ipal.system import plugins

if TYPE_CHECKING:
    from ipal.learners.stateful import Stateful

Method = TypeVar("Method", bound="Stateful")


def made_with(learner: "Stateful") -> dict[str, Any]:
    """The plugin files that define the method or a part of its network; nothing where there are none."""
    values = vars(learner).values()
    parts = chain(values, *(value.modules() for value in values if isinstance(value, nn.Module)))
    return dict(plugins.record(type(learner), *map(type, parts)))


def of_state(method: type[Method], state: State, path: str | Path, device: str) -> Method:
    """The learner of a state that was read from a model file."""
    facts = state.facts
    if facts.get("method") != method.name:
        raise StoreError(f"{path} holds a '{str(facts.get('method'))[:60]}' model, not '{method.name}'.")
    if not isinstance(facts.get("settings"), dict):
        raise StoreError(f"{path} is no model: it has no settings.")
    try:
        learner = method.from_settings({**facts["settings"], "device": device})
    except ConfigError as error:
        raise StoreError(f"{path} is damaged or of another version: {str(error)[:300]}") from error
    restore(learner, state, whole=True, source=str(path))
    return learner


def restore(learner: "Stateful", state: State, *, whole: bool, source: str) -> None:
    """Make a learner the one that `state` was taken from, or leave it as it is where `state` is not sound."""
    facts: Any = state.facts
    tensors = learner.renewed({name: laid_out(tensor) for name, tensor in state.tensors.items()})
    other = object.__new__(type(learner))
    other.__dict__ = {**learner.get_params(), "runtime_": learner.runtime_}
    try:
        facts = checked_facts(facts, other.schema)
        check_shapes(tensors, other.shapes(facts))
        check_finite(tensors)
        other.initialise(facts["num_features"])
        other.load_facts(facts)
        for kept in other.declared().values():
            kept.restore(other, tensors)
        check_same(tensors, {**other.tensors(), "generator": tensors["generator"]})
        apart = {"settings": None, "plugins": None}
        require(_agree({**facts, **apart}, {**other.facts(), **apart}), "it has facts of another kind")
        for kept in other.declared().values():
            kept.check_restored(other, whole)
    except KeyError as error:
        raise StoreError(f"{source} does not fit this model: {error} is missing.") from error
    except (MisfitError, RuntimeError) as error:
        reason = (str(error).splitlines() or ["it cannot be restored"])[0][:200]
        raise StoreError(f"{source} does not fit this model: {reason}.") from error
    learner.__dict__ = other.__dict__


def _agree(stored: Any, known: Any) -> bool:
    """Whether facts are those of the learner that was made of them; earlier versions wrote less about a feature map."""
    if isinstance(stored, dict) and isinstance(known, dict):
        return all(name in known and _agree(fact, known[name]) for name, fact in stored.items())
    return bool(stored == known)
