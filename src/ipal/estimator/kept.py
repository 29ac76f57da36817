"""What a model keeps, in words and bytes."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ipal.config import attribute_docs
from ipal.estimator.open_world.calibration import Calibration
from ipal.state.value import State, flatten, moment_tensors, network_tensors

Items = list[dict[str, Any]]
"""kind, what, bytes"""


def kept_items(state: State, calibration: Calibration) -> tuple[Items, Items]:
    """What a saved model holds, in words and bytes; and what is kept only while learning goes on."""
    docs = attribute_docs(type(state.memory))
    groups: dict[tuple[str, str], dict[str, Tensor]] = {
        ("encoder", "encoder weights"): {},
        ("head", "classifier weights"): {},
    }
    for name, tensor in network_tensors(state.network).items():
        kind = "encoder" if name.startswith("encoder.") else "head"
        groups[kind, "encoder weights" if kind == "encoder" else "classifier weights"][name] = tensor
    for name, tensor in flatten(state.memory, "memory").items():
        field = name.split(".")[1]
        groups.setdefault((field, docs.get(field, field)), {})[name] = tensor
    groups["generator", "random state"] = {"generator": state.generator.get_state()}
    groups["calibration", "quantiles of a few scores of training nodes, by class"] = calibration.tensors()
    learning = {
        ("optimizer", "optimiser moments"): moment_tensors(state.network, state.optimizer),
        ("teacher", "network before the task"): network_tensors(state.teacher),
    }
    return _items(groups), _items(learning)


def _items(groups: Mapping[tuple[str, str], Mapping[str, Tensor]]) -> Items:
    sizes = {key: sum(one.numel() * one.element_size() for one in tensors.values()) for key, tensors in groups.items()}
    return [{"kind": kind, "what": what, "bytes": size} for (kind, what), size in sizes.items() if size]
