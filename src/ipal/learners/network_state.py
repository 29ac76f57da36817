"""How a network, its optimiser and the network before a task are saved and restored."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from ipal.learners.checks import check_shapes, require
from ipal.learners.kept import Kept
from ipal.nn.head import Head


@dataclass(frozen=True, eq=False)
class Part(Kept):
    """A part of the network: its encoder or its head."""

    def value(self, learner: Any) -> nn.Module | None:
        return cast(nn.Module, learner.network_[self.name]) if self.name in learner.network_ else None

    def tensors(self, learner: Any) -> dict[str, Tensor]:
        part = self.value(learner)
        return {} if part is None else {n: p.detach() for n, p in part.named_parameters(prefix=self.name)}

    def restore(self, learner: Any, tensors: Mapping[str, Tensor]) -> None:
        part = self.value(learner)
        if part is None:
            return
        if isinstance(part, Head):
            blocks, wrong = head_blocks(tensors), "its head has not one row of weights for every class"
            require(all(block.dim() == 2 and block.shape[1] == part.width for block in blocks), wrong)
            require(sum(map(len, blocks)) == len(learner.labels_), wrong)
            drawn = torch.Generator(learner.generator_.device)  # any numbers: others are put in their place
            for block in blocks:
                learner.grow_head(len(block), drawn)
        parameters = dict(part.named_parameters(prefix=self.name))
        check_shapes(tensors, ((name, tuple(parameter.shape)) for name, parameter in parameters.items()))
        for name, parameter in parameters.items():
            parameter.data.copy_(tensors[name])


@dataclass(frozen=True, eq=False)
class Moments(Kept):
    """The moments of Adam, by parameter."""

    def value(self, learner: Any) -> Any:
        return learner.optimizer_

    def tensors(self, learner: Any) -> dict[str, Tensor]:
        return {
            f"{self.name}.{name}.{key}": moment
            for name, parameter in learner.network_.named_parameters()
            for key, moment in learner.optimizer_.state.get(parameter, {}).items()
        }

    def restore(self, learner: Any, tensors: Mapping[str, Tensor]) -> None:
        for name, parameter in learner.network_.named_parameters():
            prefix = f"{self.name}.{name}."
            moments = {key[len(prefix) :]: value for key, value in tensors.items() if key.startswith(prefix)}
            if moments:
                device = learner.generator_.device
                learner.optimizer_.state[parameter] = {key: value.clone().to(device) for key, value in moments.items()}

    def check_restored(self, learner: Any, whole: bool) -> None:
        for parameter, moments in learner.optimizer_.state.items():
            sizes = {"step": (), "exp_avg": tuple(parameter.shape), "exp_avg_sq": tuple(parameter.shape)}
            holds = sizes == {name: tuple(moment.shape) for name, moment in moments.items()}
            holds = holds and all(moment.dtype == parameter.dtype for moment in moments.values())
            require(
                holds and moments["step"] >= 0 and (moments["exp_avg_sq"] >= 0).all(),
                "its optimiser's moments are not those of its weights",
            )


@dataclass(frozen=True, eq=False)
class Frozen(Kept):
    """A copy of the network that is not trained; None where there is none."""

    def tensors(self, learner: Any) -> dict[str, Tensor]:
        network = self.value(learner)
        return {} if network is None else dict(network.named_parameters(prefix=self.name))

    def restore(self, learner: Any, tensors: Mapping[str, Tensor]) -> None:
        own = {name[len(self.name) + 1 :]: tensor for name, tensor in tensors.items() if self.owns(name)}
        network = None
        if own:
            network = copy.deepcopy(learner.network_).requires_grad_(False)
            if "head" in network:  # it has as many rows as it had then
                head, blocks = network["head"], len(head_blocks(own))
                head.weights, head.biases = head.weights[:blocks], head.biases[:blocks]
            for name, parameter in network.named_parameters():
                parameter.copy_(own[name])
        setattr(learner, self.attribute or f"{self.name}_", network)

    def check_restored(self, learner: Any, whole: bool) -> None:
        require(not whole or self.value(learner) is None, "it stopped in the middle of a task")


def head_blocks(tensors: Mapping[str, Tensor]) -> list[Tensor]:
    """The saved blocks of a head's weights, in order."""
    number = sum(name.startswith("head.weights.") for name in tensors)
    return [tensors[f"head.weights.{index}"] for index in range(number)]
