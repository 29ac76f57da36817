"""A learner as a value: saved to a file, and restored from one after everything in it was checked."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ipal.errors import ConfigError, StoreError
from ipal.learners.checks import MisfitError, Shapes, check_finite, check_same, check_shapes, require
from ipal.learners.facts import Facts, check_facts
from ipal.learners.state import State, laid_out
from ipal.system import plugins

GPU_GENERATOR = 16
"""Bytes of a GPU's random state."""
UNFITTED = "This model has learned nothing yet: call partial_fit first."


class Saved(ABC):
    """What a learner's state is made of; a method adds its own to `tensors`, `load_tensors`, `shapes` and `check`."""

    name: ClassVar[str]
    only_while_learning: ClassVar[frozenset[str]] = frozenset()
    """Groups of tensors that checkpoints hold and models do not: no prediction needs them."""
    schema: ClassVar[type[Facts]] = Facts
    """Of the state's plain data."""

    generator_: torch.Generator
    num_features_: int
    labels_: list[Any]

    # ------------------------------------------------------------------ what a learner has besides

    @property
    @abstractmethod
    def is_fitted(self) -> bool: ...

    @property
    @abstractmethod
    def is_learning(self) -> bool: ...

    @abstractmethod
    def initialise(self, num_features: int) -> None: ...

    @abstractmethod
    def get_params(self, deep: bool = True) -> dict[str, Any]: ...

    @abstractmethod
    def settings(self) -> dict[str, Any]: ...

    @classmethod
    @abstractmethod
    def from_settings(cls, settings: dict[str, Any]) -> Self: ...

    # ------------------------------------------------------------------ files

    def save(self, path: str | Path, *, moments: bool = False) -> None:
        """Write the learner to one file, whole or not at all.

        Without the optimiser's moments: they say much about the last task's nodes, and only who goes on training
        exactly as if never saved needs them. Without them, the next task starts with fresh ones.
        """
        if not self.is_fitted:
            raise ConfigError(UNFITTED)
        if self.is_learning:
            raise ConfigError("A task is being learned: a model can be saved when it is done.")
        left_out = frozenset() if moments else self.only_while_learning
        kept = {name: tensor for name, tensor in self.tensors().items() if name.split(".")[0] not in left_out}
        State(kept, self.facts()).save(Path(path))

    @classmethod
    def load(cls, path: str | Path, *, device: str = "cpu") -> Self:
        """A learner from a file written by `save`. Nothing is unpickled."""
        return cls.of_state(State.load(Path(path)), path, device)

    @classmethod
    def of_state(cls, state: State, path: str | Path, device: str) -> Self:
        """The learner of a state that was read from a model file."""
        facts = state.facts
        if facts.get("method") != cls.name:
            raise StoreError(f"{path} holds a '{str(facts.get('method'))[:60]}' model, not '{cls.name}'.")
        if not isinstance(facts.get("settings"), dict):
            raise StoreError(f"{path} is no model: it has no settings.")
        try:
            learner = cls.from_settings({**facts["settings"], "device": device})
        except ConfigError as error:
            raise StoreError(f"{path} is damaged or of another version: {str(error)[:300]}") from error
        learner.restore(state, whole=True, source=str(path))
        return learner

    # ------------------------------------------------------------------ the state

    def tensors(self) -> dict[str, Tensor]:
        """All tensors that make the state, named by group; a method adds its own."""
        return {"generator": self.generator_.get_state()}

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Take over what `tensors` gave; a method takes its own."""
        saved, own = tensors["generator"], self.generator_.get_state()
        sizes = {(GPU_GENERATOR,), tuple(torch.Generator().get_state().shape)}
        require(saved.dtype == torch.uint8 and tuple(saved.shape) in sizes, "'generator' is no random state")
        if saved.shape == own.shape:  # another kind of device draws other numbers: there they start from the seed
            self.generator_.set_state(saved.cpu())

    def renewed(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Tensors of a state that an earlier version wrote, in the form of this one."""
        return tensors

    def shapes(self, facts: Mapping[str, Any]) -> Shapes:
        """Tensors whose sizes follow from settings and facts, looked at before room is made for them."""
        yield from ()

    def check(self, whole: bool) -> None:  # noqa: B027  # nothing to contradict each other here
        """Refuse a restored state whose parts contradict each other; `whole`: no task is in the middle."""

    def facts(self) -> dict[str, Any]:
        """The plain data of the state."""
        return {
            "method": self.name,
            "settings": self.settings(),
            "num_features": self.num_features_,
            "labels": list(self.labels_),
            **plugins.record(type(self), *map(type, vars(self).values())),
        }

    def load_facts(self, facts: Mapping[str, Any]) -> None:
        """Take over what `facts` gave."""
        self.labels_ = list(facts["labels"])

    def state(self) -> State:
        """The learner as a value: enough to go on exactly as if never interrupted."""
        return State({name: laid_out(tensor) for name, tensor in self.tensors().items()}, self.facts())

    def restore(self, state: State, *, whole: bool = False, source: str = "The saved state") -> None:
        """Become the learner that `state` was taken from, or stay as it is where `state` is not sound.

        `whole`: a model, not a checkpoint, which may be in the middle of a task. `source` names it in complaints.
        """
        facts = state.facts
        tensors = self.renewed({name: laid_out(tensor) for name, tensor in state.tensors.items()})
        other = object.__new__(type(self))
        other.__dict__ = self.get_params()
        try:
            check_facts(facts, self.schema)
            check_shapes(tensors, other.shapes(facts))
            check_finite(tensors)
            other.initialise(facts["num_features"])
            other.load_facts(facts)
            other.load_tensors(tensors)
            check_same(tensors, {**other.tensors(), "generator": tensors["generator"]})
            apart = {"settings": None, "plugins": None}
            require({**facts, **apart} == {**other.facts(), **apart}, "it has facts of another kind")
            other.check(whole)
        except KeyError as error:
            raise StoreError(f"{source} does not fit this model: {error} is missing.") from error
        except (MisfitError, RuntimeError) as error:
            reason = (str(error).splitlines() or ["it cannot be restored"])[0][:200]
            raise StoreError(f"{source} does not fit this model: {reason}.") from error
        self.__dict__ = other.__dict__
