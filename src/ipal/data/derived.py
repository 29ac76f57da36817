"""Results that follow from an immutable object, computed once and kept with it."""

from collections.abc import Callable, Hashable
from functools import cached_property
from typing import Any, TypeVar

T = TypeVar("T")


class Derives:
    """An immutable object that keeps what was computed from it, as long as it lives."""

    @cached_property
    def _derived(self) -> dict[str, dict[Hashable, Any]]:
        return {}

    def derived(self, group: str, key: Hashable, make: Callable[[], T], *, most: int | None = None) -> T:
        """What `make` gives, computed at the first call; of a group with `most` entries the oldest is dropped."""
        kept: dict[Hashable, T] = self._derived.setdefault(group, {})
        if key not in kept:
            if len(kept) == most:
                del kept[next(iter(kept))]
            kept[key] = make()
        return kept[key]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_derived"}
