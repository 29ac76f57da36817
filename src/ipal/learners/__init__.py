"""The methods. To add one: a file here, a line in LEARNERS."""

from pathlib import Path

from ipal.errors import ConfigError, StoreError, did_you_mean
from ipal.learners.analytic.learner import Analytic
from ipal.learners.bare import Bare
from ipal.learners.base import Learner
from ipal.learners.efc import EFC
from ipal.learners.ergnn import ERGNN
from ipal.learners.ewc import EWC
from ipal.learners.gem import GEM
from ipal.learners.ipal import IPAL
from ipal.learners.joint import Joint
from ipal.learners.lwf import LwF
from ipal.learners.mas import MAS
from ipal.learners.ncm import NCM
from ipal.learners.pcl import PCL
from ipal.learners.polo import POLO
from ipal.learners.pr import PR
from ipal.learners.slda import SLDA
from ipal.learners.state import State
from ipal.learners.twp import TWP

METHODS: tuple[type[Learner], ...] = (
    IPAL,
    Joint,
    Bare,
    EWC,
    MAS,
    LwF,
    GEM,
    TWP,
    ERGNN,
    POLO,
    EFC,
    PR,
    PCL,
    NCM,
    SLDA,
    Analytic,
)
LEARNERS: dict[str, type[Learner]] = {learner.name: learner for learner in METHODS}

__all__ = [
    "EFC",
    "ERGNN",
    "EWC",
    "GEM",
    "IPAL",
    "LEARNERS",
    "MAS",
    "NCM",
    "PCL",
    "POLO",
    "PR",
    "SLDA",
    "TWP",
    "Analytic",
    "Bare",
    "Joint",
    "Learner",
    "LwF",
    "learner_class",
    "load_learner",
]


def learner_class(name: str) -> type[Learner]:
    """A method by its name."""
    if name not in LEARNERS:
        raise ConfigError(f"Unknown method '{name}'.{did_you_mean(name, LEARNERS)}")
    return LEARNERS[name]


def load_learner(path: str | Path, *, device: str = "cpu") -> Learner:
    """A saved model of whichever method."""
    state = State.load(Path(path))
    method = state.facts.get("method")
    if not isinstance(method, str) or method not in LEARNERS:
        name = str(method)[:60]
        raise StoreError(f"{path} holds a model of the method '{name}', which this version does not know.")
    return LEARNERS[method].of_state(state, path, device)
