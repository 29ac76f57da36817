"""What a method keeps, declared once: how it is saved, restored, checked, counted and described follows from that.

A declaration names an attribute of the learner. Its value is one of

    a tensor, or None           saved as NAME
    tensors by name, or a list  saved as NAME.KEY, NAME.0, NAME.1, …
    a frozen dataclass          saved as NAME.FIELD, or as its methods `tensors` and `of_tensors` say

Nodes of a graph (`exemplars.Nodes`) and networks (`network_state`) say for themselves how they are saved.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from ipal.learners.checks import Shapes, check_same, require

Parameters = dict[str, Tensor]
GPU_GENERATOR = 16
"""Bytes of a GPU's random state."""


@runtime_checkable
class ClassStatistics(Protocol):
    """A kept value that holds the mean and the number of training nodes of every class."""

    @property
    def count(self) -> Tensor: ...

    @property
    def mean(self) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class Kept:
    """One declared value of a learner's state."""

    name: str
    """In files, before the first dot."""
    what: str
    """In words, for reports."""
    attribute: str = ""
    """Of the learner; the name with an underscore unless given."""
    shape: tuple[str, ...] | Mapping[str, tuple[str, ...]] | None = None
    """Sizes of the tensor, or of each field, by name: classes, features, width. Checked before memory is taken."""
    check: Callable[[Any, Any, bool], None] | None = None
    """Refuses a restored value (`checks.require`), from the learner, the value, and whether no task is in progress."""
    only_while_learning: bool = False
    """Whether checkpoints hold it and models do not: no prediction needs it."""
    look: Callable[[Any], dict[str, Tensor]] | None = None
    """Gives, from the learner, tensors that are finite only if all of it is, where that is quicker than all of it."""

    def value(self, learner: Any) -> Any:
        return getattr(learner, self.attribute or f"{self.name}_")

    def tensors(self, learner: Any) -> dict[str, Tensor]:
        """The value as named tensors."""
        value = self.value(learner)
        if value is None:
            return {}
        if isinstance(value, Tensor):
            return {self.name: value}
        if isinstance(value, list):
            value = dict(enumerate(value))
        elif not isinstance(value, Mapping):
            value = value.tensors() if hasattr(value, "tensors") else _fields(value)
        return {f"{self.name}.{key}": tensor for key, tensor in value.items()}

    def looked_at(self, learner: Any) -> dict[str, Tensor]:
        """Tensors that say whether the value is finite, at the end of every task or batch."""
        return self.look(learner) if self.look else self.tensors(learner)

    def restore(self, learner: Any, tensors: Mapping[str, Tensor]) -> None:
        """Give the learner the value that `tensors` gave; its value before the first task says of which kind it is."""
        initial, device = self.value(learner), learner.generator_.device
        own = {key: tensor.to(device) for key, tensor in tensors.items() if self.owns(key)}
        parts = {key[len(self.name) + 1 :]: tensor for key, tensor in own.items()}
        value: Any
        if isinstance(initial, Tensor) or self.name in own:
            value = tensors[self.name].to(device)
        elif hasattr(initial, "of_tensors"):
            value = initial.of_tensors(parts, device)
        elif dataclasses.is_dataclass(initial):
            value = type(initial)(**{name: own[f"{self.name}.{name}"] for name in _fields(initial)})  # type: ignore[misc]
        elif isinstance(initial, list):
            value = [parts[str(index)] for index in range(len(parts))]
        else:
            # In the order of the parameters: a file has an order of its own, and the bits of a sum depend on it.
            order = {name: place for place, name in enumerate(learner.parameters())}
            value = {key: parts[key] for key in sorted(parts, key=lambda key: (order.get(key, len(order)), key))}
            value = value if parts or initial is not None else None
        for before, after in zip(_tensors(initial), _tensors(value), strict=False):
            require(after.dtype == before.dtype, f"'{self.name}' holds {after.dtype} instead of {before.dtype}")
        setattr(learner, self.attribute or f"{self.name}_", value)

    def owns(self, key: str) -> bool:
        return key == self.name or key.startswith(f"{self.name}.")

    def shapes(self, sizes: Mapping[str, int]) -> Shapes:
        """Names and sizes of the tensors whose sizes are known before they are read."""
        shapes = self.shape if isinstance(self.shape, Mapping) else {"": self.shape}
        for part, shape in shapes.items():
            if shape is not None:
                yield f"{self.name}{part and '.'}{part}", tuple(sizes[size] for size in shape)

    def check_restored(self, learner: Any, whole: bool) -> None:
        """Refuse a restored value that contradicts the rest of the state; `whole`: no task is in progress."""
        if self.check:
            self.check(learner, self.value(learner), whole)


@dataclass(frozen=True, eq=False)
class PerParameter(Kept):
    """Tensors like the parameters of the network, under their names; none before the first task."""

    part: str = ""
    """Of some parameters only, by the beginning of their names."""
    non_negative: bool = False

    def check_restored(self, learner: Any, whole: bool) -> None:
        value: Parameters = self.value(learner)
        theta = {name: tensor for name, tensor in learner.parameters().items() if name.startswith(self.part)}
        if not whole:  # parameters of the classes being learned are new
            first = next(kept for kept in learner.declared().values() if isinstance(kept, PerParameter))
            theta = {name: theta[name] for name in first.value(learner)}
        check_same(value, theta)
        holds = not self.non_negative or all(bool((tensor >= 0).all()) for tensor in value.values())
        require(holds, f"'{self.name}' holds negative numbers")


@dataclass(frozen=True, eq=False)
class RandomState(Kept):
    """The state of the learner's generator."""

    def tensors(self, learner: Any) -> dict[str, Tensor]:
        return {self.name: learner.generator_.get_state()}

    def restore(self, learner: Any, tensors: Mapping[str, Tensor]) -> None:
        saved, own = tensors[self.name], learner.generator_.get_state()
        sizes = {(GPU_GENERATOR,), tuple(torch.Generator().get_state().shape)}
        require(saved.dtype == torch.uint8 and tuple(saved.shape) in sizes, f"'{self.name}' is no random state")
        if saved.shape == own.shape:  # another kind of device draws other numbers: there they start from the seed
            learner.generator_.set_state(saved.cpu())


def looked_at(learner: Any) -> dict[str, Tensor]:
    """Tensors that say whether what a learner keeps is finite."""
    return {name: tensor for kept in learner.declared().values() for name, tensor in kept.looked_at(learner).items()}


def class_statistics(learner: Any) -> ClassStatistics | None:
    """The first kept value that holds the mean and the number of nodes of every class."""
    values = (kept.value(learner) for kept in learner.declared().values())
    return next((value for value in values if isinstance(value, ClassStatistics)), None)


def _fields(value: Any) -> dict[str, Tensor]:
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    parts = _fields(value).values() if dataclasses.is_dataclass(value) else ()
    return [part for part in parts if isinstance(part, Tensor)]
