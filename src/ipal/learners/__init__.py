"""The methods. To add one: a file here, a line in LEARNERS."""

from pathlib import Path
from typing import Any

from ipal.errors import ConfigError, StoreError, did_you_mean
from ipal.learners.base import Learner
from ipal.learners.ipal import IPAL
from ipal.state import State

__all__ = ["IPAL", "LEARNERS", "Learner", "learner_class", "load_learner"]

LEARNERS: dict[str, type[Learner[Any]]] = {learner.name: learner for learner in (IPAL,)}


def learner_class(name: str) -> type[Learner[Any]]:
    """A method by its name."""
    if name not in LEARNERS:
        raise ConfigError(f"Unknown method '{name}'.{did_you_mean(name, LEARNERS)}")
    return LEARNERS[name]


def load_learner(path: str | Path, *, device: str = "cpu") -> Learner[Any]:
    """A saved model of whichever method."""
    method = State.load(Path(path)).facts.get("method")
    if method not in LEARNERS:
        raise StoreError(f"{path} holds a model of the method '{method}', which this version does not know.")
    return LEARNERS[method].load(path, device=device)
