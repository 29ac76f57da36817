"""The state of a learner: one value, and generic functions that copy, flatten, restore and rebuild it.

A method's memory is a frozen dataclass. Its fields are tensors, numbers, tasks (stored nodes), tensors by name, or
further dataclasses; the type of a field says how it is read back. What holds no tensor is no part of the state.
"""

import copy
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import numpy as np
import torch
from torch import Tensor, nn

from ipal.backend.adam import Adam
from ipal.backend.checks import check_shapes, require
from ipal.data.graph import Derives
from ipal.data.labels import Label
from ipal.data.task import Task
from ipal.methods.base import Parameters
from ipal.nn.network import Network
from ipal.state.stored_tasks import task_of_tensors, task_tensors

GPU_GENERATOR = 16
"""Bytes of a GPU's random state."""


@dataclass(frozen=True, eq=False)
class State:
    """All that survives a task and, between two epochs, all that is needed to go on."""

    classes: tuple[Label, ...]
    """Labels of all classes, in the order in which they came."""
    memory: Any
    """The method's own value."""
    generator: torch.Generator
    network: Network | None = None
    """None where nothing is trained."""
    optimizer: Adam | None = None
    learning_rate: float | None = None
    """Of the last task; None before the first."""
    teacher: Network | None = None
    """The network before the task, only while a task is being learned."""


class Sizes(NamedTuple):
    """What restored values are checked against."""

    classes: int
    features: int
    parameters: tuple[str, ...] = ()
    """Names of the network's parameters, in their order."""


def copied(state: State) -> State:
    """A copy whose network, optimiser and generator may change in place. The memory is immutable and shared."""
    mutable = copy.deepcopy((state.generator, state.network, state.optimizer))
    generator, network, optimizer = mutable
    return dataclasses.replace(state, generator=generator, network=network, optimizer=optimizer)


# ---------------------------------------------------------------------- as named tensors


def flatten(value: Any, name: str, own: str = "tensors") -> dict[str, Tensor]:
    """All tensors of a value, by dotted names; `own` gives those of a part that has a form of its own."""
    if value is None:
        return {}
    if isinstance(value, Tensor):
        return {name: value}
    if isinstance(value, bool | int):
        return {name: torch.tensor(value, dtype=torch.int64)}
    if isinstance(value, Task):
        return task_tensors(value, name)
    if isinstance(value, Mapping):
        return {key: tensor for part in value for key, tensor in flatten(value[part], f"{name}.{part}", own).items()}
    if isinstance(value, tuple | list):
        return flatten(dict(enumerate(value)), name, own)
    if hasattr(value, own):
        return {f"{name}.{part}": tensor for part, tensor in getattr(value, own)().items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return flatten({field.name: getattr(value, field.name) for field in dataclasses.fields(value)}, name, own)
    return {}


def unflatten(template: Any, kind: Any, name: str, tensors: Mapping[str, Tensor], sizes: Sizes) -> Any:
    """The value that `flatten` gave these tensors of; `template` is one of its kind, `kind` the type it is declared as.

    Sizes of the template are those of the value, but for a dimension of zero, which may be any.
    """
    own = {key[len(name) + 1 :]: tensor for key, tensor in tensors.items() if key.startswith(f"{name}.")}
    if get_origin(kind) in (Union, UnionType):  # a value, or None
        (inner,) = (one for one in get_args(kind) if one is not NoneType)
        present = name in tensors or bool(own)
        return unflatten(template, inner, name, tensors, sizes) if present else None
    if kind in (Tensor, int):
        require(name in tensors, f"'{name}' is missing")
        found = tensors[name]
        if isinstance(template, Tensor):
            _check_like(found, name, template)
        if kind is int:
            holds = found.shape == () and found.dtype == torch.int64 and int(found) >= 0
            require(holds, f"'{name}' is no number of nodes")
        return int(found) if kind is int else found
    if kind is Task:
        return task_of_tensors(tensors, name, sizes.classes, sizes.features)
    if kind == tuple[Task, ...]:
        number = sum(key.endswith(".labels") for key in own)
        return tuple(unflatten(None, Task, f"{name}.{index}", tensors, sizes) for index in range(number))
    if kind == Parameters:  # in the order of the network: the bits of a sum depend on it
        order = {key: place for place, key in enumerate(sizes.parameters)}
        return {key: own[key] for key in sorted(own, key=lambda key: (order.get(key, len(order)), key))}
    if hasattr(template, "of_tensors"):
        return template.of_tensors(own)
    if dataclasses.is_dataclass(template):
        hints = get_type_hints(type(template))
        parts = {
            field.name: unflatten(
                getattr(template, field.name), hints[field.name], f"{name}.{field.name}", tensors, sizes
            )
            for field in dataclasses.fields(template)
        }
        return dataclasses.replace(template, **parts)  # type: ignore[type-var]
    return template


def _check_like(found: Tensor, name: str, template: Tensor) -> None:
    require(found.dtype == template.dtype, f"'{name}' holds {found.dtype} instead of {template.dtype}")
    sizes = zip(template.shape, found.shape, strict=True) if found.dim() == template.dim() else [(1, 0)]
    wanted = ", ".join(str(size or "any") for size in template.shape)
    fits = all(size in (0, own) for size, own in sizes)
    require(fits, f"'{name}' has the shape {tuple(found.shape)} instead of ({wanted})")


# ---------------------------------------------------------------------- networks, optimisers, generators


def network_tensors(network: Network | None, prefix: str = "") -> dict[str, Tensor]:
    """The parameters of a network by name."""
    if network is None:
        return {}
    return {f"{prefix}{name}": parameter.detach() for name, parameter in network.named_parameters()}


def moment_tensors(network: Network | None, optimizer: Adam | None) -> dict[str, Tensor]:
    """The moments of Adam by parameter."""
    if network is None or optimizer is None:
        return {}
    return {
        f"optimizer.{name}.{key}": moment
        for name, parameter in network.named_parameters()
        for key, moment in optimizer.state.get(parameter, {}).items()
    }


def load_network(network: Network, tensors: Mapping[str, Tensor], prefix: str = "") -> Network:
    """A fresh network with saved parameters in place of its own; its head grows as the saved one did."""
    if (head := network.head) is not None:
        device = next(iter(network.parameters())).device
        for index in range(sum(name.startswith(f"{prefix}head.weights.") for name in tensors)):
            block = tensors.get(f"{prefix}head.weights.{index}")
            fits = block is not None and block.dim() == 2 and block.shape[1] == head.width
            require(fits, "its head has not one row of weights for every class")
            head.grow(0 if block is None else len(block), torch.Generator(device))
    named = dict(network.named_parameters())
    check_shapes(tensors, ((f"{prefix}{name}", tuple(parameter.shape)) for name, parameter in named.items()))
    for name, parameter in named.items():
        parameter.data.copy_(tensors[f"{prefix}{name}"])
    return network


def load_optimizer(network: Network, tensors: Mapping[str, Tensor], rate: float, weight_decay: float) -> Adam:
    """An optimiser of a restored network, with its saved moments."""
    optimizer = Adam(network.parameters(), rate, weight_decay)
    for name, parameter in network.named_parameters():
        prefix = f"optimizer.{name}."
        moments = {key[len(prefix) :]: value for key, value in tensors.items() if key.startswith(prefix)}
        if moments:
            _check_moments(parameter, moments)
            optimizer.state[parameter] = {key: value.clone().to(parameter.device) for key, value in moments.items()}
    return optimizer


def load_generator(generator: torch.Generator, saved: Tensor) -> None:
    """Continue a random stream. Another kind of device draws other numbers: there it starts from the seed."""
    sizes = {(GPU_GENERATOR,), tuple(torch.Generator().get_state().shape)}
    require(saved.dtype == torch.uint8 and tuple(saved.shape) in sizes, "'generator' is no random state")
    if saved.shape == generator.get_state().shape:
        generator.set_state(saved.cpu())


def _check_moments(parameter: nn.Parameter, moments: Mapping[str, Tensor]) -> None:
    sizes = {"step": (), "exp_avg": tuple(parameter.shape), "exp_avg_sq": tuple(parameter.shape)}
    holds = sizes == {name: tuple(moment.shape) for name, moment in moments.items()}
    holds = holds and all(moment.dtype == parameter.dtype for moment in moments.values())
    holds = holds and bool(moments["step"] >= 0) and bool((moments["exp_avg_sq"] >= 0).all())
    require(holds, "its optimiser's moments are not those of its weights")


# ---------------------------------------------------------------------- tensors in and out of values


def leaves(value: Any) -> Iterator[Tensor]:
    """The tensors in a value, in a fixed order."""
    if isinstance(value, Tensor):
        yield value
    else:
        for part in (_parts(value) or {}).values():
            yield from leaves(part)


def rebuilt(value: Any, tensors: Iterator[Tensor]) -> Any:
    """The same value with other tensors, in the order of `leaves`."""
    if isinstance(value, Tensor):
        return next(tensors)
    parts = _parts(value)
    if parts is None:
        return value
    found = {name: rebuilt(part, tensors) for name, part in parts.items()}
    if all(found[name] is part for name, part in parts.items()):
        return value
    if isinstance(value, dict):
        return found
    if isinstance(value, list | tuple):
        return type(value)(found.values())
    return dataclasses.replace(value, **found)


def outline(value: Any) -> Any:
    """All of a value but the numbers in its tensors: equal where two values differ in these alone.

    Of a module only its kind counts. What cannot be compared must be the very same object.
    """
    if isinstance(value, Tensor):
        return value.shape, value.dtype
    if isinstance(value, nn.Module):
        return type(value)
    if isinstance(value, np.ndarray | Derives):
        return id(value)
    parts = _parts(value)
    if parts is None:
        return value
    if dataclasses.is_dataclass(value):
        parts = {field.name: parts[field.name] for field in dataclasses.fields(value) if field.compare}
    return type(value), {name: outline(part) for name, part in parts.items()}


def _parts(value: Any) -> dict[Any, Any] | None:
    """What a value is made of, where it may hold tensors; None where it is looked at as a whole."""
    if type(value) in (list, tuple):
        return dict(enumerate(value))
    if type(value) is dict:
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return None


def are_same(places: Sequence[Sequence[Tensor]]) -> list[bool]:
    """Of each place, whether the tensors that all have there are equal."""
    return [all(other is first or torch.equal(other, first) for other in others) for first, *others in places]
