"""Where classes lay among the embeddings when they were last learned, and how far they have moved since.

Measured from outside, on test nodes, while a run goes on; the model is not asked and not told. `ipal drift` measures
the same thing in more detail, in a run of its own.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ipal.backend.finite import not_finite
from ipal.evaluation.evaluate import Cloud
from ipal.methods.base import Remembered
from ipal.state.snapshot import laid_out

UNIT = "the class's own spread when it was learned (root mean squared distance of its test nodes from their mean)"
Movement = dict[str, dict[str, float | None]]


@dataclass(frozen=True, eq=False)
class ClassDrift:
    """One place per class, from the task in which it was learned last. Every change gives a new value."""

    clouds: Mapping[str, Cloud]

    def updated(
        self, now: Mapping[str, Cloud], remembered: Mapping[str, Remembered], learned: Collection[str] = ()
    ) -> tuple["ClassDrift", Movement]:
        """With the places of new classes added, and of every class: how far it has moved, and its prototype's error.

        `learned` are the classes just learned. One that came again has more test nodes than before, so that its place
        is taken anew.

        shift: from where it was when learned to where it is. gap: from where it is to where it is remembered to be;
        None where nothing is remembered. Both in units of `UNIT`.
        """
        known = ClassDrift({**now, **{name: then for name, then in self.clouds.items() if name not in learned}})
        moves: Movement = {name: {"shift": None, "gap": None} for name in now}
        asked = {(name, "shift"): known.clouds[name].mean for name in now}
        asked |= {(name, "gap"): remembered[name].mean for name in now if name in remembered}
        for (name, kind), distance in zip(asked, known._distances(asked, now), strict=True):
            # None where a class has no spread to measure by, or has left the numbers.
            moves[name][kind] = distance if distance < float("inf") else None
        return known, moves

    def _distances(self, asked: Mapping[tuple[str, str], Tensor], now: Mapping[str, Cloud]) -> list[float]:
        """Of places from where their classes are now; all at once, so that a GPU is waited for but once."""
        if not asked:
            return []
        places = torch.stack([place.to(now[name].mean) for (name, _), place in asked.items()])
        means = torch.stack([now[name].mean for name, _ in asked])
        spreads = torch.stack([self.clouds[name].spread for name, _ in asked])
        found: list[float] = ((places - means).norm(dim=1) / spreads).tolist()
        return found

    def tensors(self) -> dict[str, Tensor]:
        """To be saved; the names are saved beside."""
        if not self.clouds:
            return {}
        parts = zip(*self.clouds.values(), strict=True)
        return {f"centroids.{name}": torch.stack(part) for name, part in zip(Cloud._fields, parts, strict=True)}

    @classmethod
    def of_tensors(cls, names: list[str], tensors: Mapping[str, Tensor], device: torch.device) -> "ClassDrift | None":
        """What `tensors` gave; None where they are not those of these classes."""
        expected = {f"centroids.{field}": dim for field, dim in zip(Cloud._fields, (2, 1), strict=True)}
        if not names:
            return None if tensors else cls({})
        found = {name: tensor.dim() for name, tensor in tensors.items() if tensor.shape[:1] == (len(names),)}
        kinds = {tensor.dtype for tensor in tensors.values()}
        if found != expected or kinds != {torch.float32} or len(set(names)) < len(names) or not_finite(tensors):
            return None
        parts = zip(*(map(laid_out, tensors[name].to(device)) for name in expected), strict=True)
        return cls({name: Cloud(*part) for name, part in zip(names, parts, strict=True)})
