"""A learner's attributes once more, to be changed: what is changed in place is copied, the rest is shared."""

import copy
from collections.abc import Mapping
from typing import Any


def drafted(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Lists, dictionaries, tensors, networks, optimisers and generators are copied, with what they refer to in common.

    Frozen dataclasses (sums, prototypes, tasks, feature maps) are shared: every change of one gives a new one.
    """
    memo: dict[int, Any] = {}
    return {name: _copied(value, memo) for name, value in attributes.items()}


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    if isinstance(value, list):
        return [_copied(item, memo) for item in value]
    if isinstance(value, dict):
        return {key: _copied(item, memo) for key, item in value.items()}
    frozen = getattr(getattr(value, "__dataclass_params__", None), "frozen", False)
    return value if frozen else copy.deepcopy(value, memo)
