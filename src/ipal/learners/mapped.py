"""Learners of one shape computed as one: what is written for one of them is mapped over all by `torch.func.vmap`.

Tensors and numbers in which they differ are stacked, with their parameters: a sparse product is one product with the
columns of all, a dense one is batched. Random numbers are drawn once for all. What differs from computing each alone is
rounding.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ipal.backend.operators import Operators
from ipal.data.graph import Graph
from ipal.learners.state import laid_out
from ipal.learners.values import Look
from ipal.nn.embed import fits

if TYPE_CHECKING:
    from ipal.learners.trained import TrainedLearner

APART = {"_before", "generator_", "network_", "optimizer_", "runtime_", "stack_", "_recordings"}
"""Attributes of a learner that are not looked through for tensors that what is mapped may use."""


class Mapped:
    """Learners as one, each with a further value `beside` it."""

    def __init__(self, learners: Sequence["TrainedLearner[Any]"], beside: Sequence[Any]) -> None:
        self.parameters, self.dims = stacked_parameters([learner.network_ for learner in learners])
        self._learner = learners[0]
        values = [values_of(*pair) for pair in zip(learners, beside, strict=True)]
        self._first = values[0]
        places = list(zip(*map(tensors_in, values), strict=True))
        # What they have in two places is stacked once, and what is the same for all is not.
        first = dict[tuple[int, ...], int]()
        self._where = [first.setdefault(tuple(map(id, some)), place) for place, some in enumerate(places)]
        once = [places[place] for place in first.values()]
        same = zip(first.values(), once, are_same(once), strict=True)
        self._different = {place: torch.stack(some) for place, some, equal in same if not equal}
        self._numbers = numbers_of(learners)

    def __call__(self, work: Callable[[Any, Any], Any]) -> Any:
        """What `work` gives, from a learner and the value beside it, stacked."""
        one = partial(self._of_one, work)
        mapped = torch.func.vmap(one, in_dims=(self.dims, 0, 0), randomness="same")
        return mapped(self.parameters, self._different, self._numbers)

    def _of_one(
        self,
        work: Callable[[Any, Any], Any],
        parameters: dict[str, Tensor],
        different: dict[int, Tensor],
        numbers: dict[str, Tensor],
    ) -> Any:
        """Of one learner, which is the first with the tensors and numbers of another."""
        learner, shared = self._learner, zip(self._where, tensors_in(self._first), strict=True)
        beside, attributes = replaced(self._first, iter([different.get(place, tensor) for place, tensor in shared]))
        network = replaced(learner.network_, iter(parameters.values()))
        return work(shadow(learner, attributes | numbers | {"network_": network}), beside)


def looking(learners: Sequence["TrainedLearner[Any]"]) -> Callable[[Graph, Tensor], Sequence[Look]]:
    """How learners look at some nodes of a graph: as one where they are alike, else one by one."""
    first = learners[0]
    mapped = Mapped(learners, [None] * len(learners)) if are_alike(learners) else None

    @torch.no_grad()
    def looks(graph: Graph, nodes: Tensor) -> Sequence[Look]:
        if mapped is None or not fits(graph, first.runtime_.budget):
            return [learner.look(graph, nodes) for learner in learners]
        graph, nodes = first.checked(graph), nodes.to(first.runtime_.device)
        f, scores = mapped(lambda one, _: one.seen(graph, nodes))
        labels = first.likeliest(scores.flatten(0, 1)).reshape(len(learners), -1)
        return [Look(*some) for some in zip(labels, f, scores, strict=True)]

    return looks


@torch.no_grad()
def changes(
    learners: Sequence["TrainedLearner[Any]"], beside: Sequence[Any], work: Callable[[Any, Any], None]
) -> list[dict[str, Any]]:
    """The attributes that `work` gives to each learner, from it and the value beside it; the learners stay as they are.

    They are found as one where they are alike, else one by one.
    """

    def changed(one: Any, value: Any) -> dict[str, Any]:
        before = dict(vars(one))
        work(one, value)
        return {name: value for name, value in vars(one).items() if value is not before.get(name)}

    if not are_alike(learners, beside):
        return [changed(shadow(learner, {}), value) for learner, value in zip(learners, beside, strict=True)]
    kinds: list[dict[str, Any]] = []

    def tensors(one: Any, value: Any) -> list[Tensor]:
        kinds.append(changed(one, value))
        return list(tensors_in(kinds[-1]))

    found = Mapped(learners, beside)(tensors)
    return [replaced(kinds[-1], map(laid_out, some)) for some in zip(*found, strict=True)]


def shadow(learner: "TrainedLearner[Any]", attributes: Mapping[str, Any]) -> Any:
    """A learner with the attributes of another, but for these."""
    one = object.__new__(type(learner))
    one.__dict__ = {**vars(learner), **attributes}
    return one


def are_alike(learners: Sequence["TrainedLearner[Any]"], beside: Sequence[Any] | None = None) -> bool:
    """Whether there are several, and they differ in numbers alone; so do the values beside them."""
    first, *others = learners
    values = [values_of(*pair) for pair in zip(learners, beside or [None] * len(learners), strict=True)]
    sizes = [sizes_in([value, one.network_]) for one, value in zip(learners, values, strict=True)]
    return bool(others) and all(
        one.is_mappable
        and settings_of(one) == settings_of(first)
        and one.labels_ == first.labels_
        and shapes == sizes[0]
        for one, shapes in zip(learners, sizes, strict=True)
    )


def values_of(learner: "TrainedLearner[Any]", beside: Any) -> list[Any]:
    """What may be used of a learner besides its parameters."""
    return [beside, {name: value for name, value in vars(learner).items() if name not in APART}]


def settings_of(learner: "TrainedLearner[Any]") -> tuple[Any, ...]:
    """What learners must share of their settings to be mapped: all but the numbers that the method names."""
    free = {name for name in learner.stackable if isinstance(getattr(learner, name), float)}
    return type(learner), {name: value for name, value in learner.settings().items() if name not in free}


def numbers_of(learners: Sequence["TrainedLearner[Any]"]) -> dict[str, Tensor]:
    """The settings in which learners differ, as tensors."""
    found = {name: [getattr(learner, name) for learner in learners] for name in learners[0].stackable}
    device = learners[0].generator_.device
    return {name: torch.tensor(some, device=device) for name, some in found.items() if len(set(some)) > 1}


def embedded(networks: Sequence[nn.ModuleDict], graph: Operators) -> Tensor:
    """Embeddings by several networks, stacked."""
    parameters, dims = stacked_parameters(networks)

    def one(parameters: dict[str, Tensor]) -> Tensor:
        found: Tensor = replaced(networks[0], iter(parameters.values()))["encoder"](graph)
        return found

    with torch.no_grad():
        found: Tensor = torch.func.vmap(one, in_dims=(dims,), randomness="same")(parameters)
        return found


def stacked_parameters(networks: Sequence[nn.Module]) -> tuple[dict[str, Tensor], dict[str, int]]:
    """The parameters of several networks, stacked, and along which dimension."""
    own = [dict(network.named_parameters()) for network in networks]
    # Rows of matrices side by side, as a sparse product with the columns of all reads them.
    dims = {name: min(1, parameter.dim() - 1) for name, parameter in own[0].items()}
    return {name: side_by_side(own, name, dim) for name, dim in dims.items()}, dims


def side_by_side(values: Sequence[Mapping[str, Tensor]], name: str, dim: int) -> Tensor:
    """The tensors of one name, stacked."""
    return torch.stack([value[name].detach() for value in values], dim=dim)


def are_same(places: Sequence[Sequence[Tensor]]) -> list[bool]:
    """Of each place, whether the tensors that all have there are equal; a GPU is waited for but once."""
    found = [_is_same(some) for some in places]
    asked = [one for one in found if isinstance(one, Tensor)]
    answers = iter(torch.stack(asked).tolist() if asked else [])
    return [next(answers) if isinstance(one, Tensor) else one for one in found]


def _is_same(tensors: Sequence[Tensor]) -> bool | Tensor:
    """Where a GPU would be waited for, a tensor that says so."""
    first, *others = tensors
    if all(tensor is first for tensor in others):
        return True
    if not first.is_cuda:  # the first difference ends it
        return all(torch.equal(tensor, first) for tensor in others)
    return (torch.stack(others) == first).all()


def sizes_in(value: Any) -> list[tuple[torch.Size, torch.dtype]]:
    """Of the tensors in a value."""
    return [(tensor.shape, tensor.dtype) for tensor in tensors_in(value)]


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in a value, in a fixed order."""
    if isinstance(value, Tensor):
        yield value
    else:
        for part in (_parts(value) or {}).values():
            yield from tensors_in(part)


def replaced(value: Any, tensors: Iterator[Tensor]) -> Any:
    """The same value with other tensors, in the order of `tensors_in`."""
    if isinstance(value, Tensor):
        return next(tensors)
    parts = _parts(value)
    if parts is None:
        return value
    found = {name: replaced(part, tensors) for name, part in parts.items()}
    if all(found[name] is part for name, part in parts.items()):
        return value
    if type(value) is dict:
        return found
    if type(value) in (list, tuple):
        return type(value)(found.values())
    if isinstance(value, nn.Module):
        own, below = ({name: found[name] for name in names} for names in (value._parameters, value._modules))
        found = {"_parameters": own, "_modules": below}
    made = object.__new__(type(value))
    vars(made).update({**vars(value), **found})
    return made


def _parts(value: Any) -> dict[Any, Any] | None:
    """What a value is made of, where it may hold tensors; None where it is looked at as a whole."""
    if isinstance(value, nn.Module):
        return dict(value._parameters) | dict(value._modules)
    if type(value) in (list, tuple):
        return dict(enumerate(value))
    if type(value) is dict:
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return None
