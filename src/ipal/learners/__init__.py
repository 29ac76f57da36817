"""The methods. To add one: a file here, a line in METHODS."""

import inspect
from pathlib import Path

from ipal.errors import StoreError
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
from ipal.system.plugins import Registry

METHODS: Registry[type[Learner]] = Registry(
    "method",
    own=(IPAL, Joint, Bare, EWC, MAS, LwF, GEM, TWP, ERGNN, POLO, EFC, PR, PCL, NCM, SLDA, Analytic),
    is_one=lambda thing: inspect.isclass(thing) and issubclass(thing, Learner),
)

__all__ = [
    "EFC",
    "ERGNN",
    "EWC",
    "GEM",
    "IPAL",
    "MAS",
    "METHODS",
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
    "load_learner",
]


def load_learner(path: str | Path, *, device: str = "cpu") -> Learner:
    """A saved model of whichever method."""
    state = State.load(Path(path))
    method = state.facts.get("method")
    if not isinstance(method, str) or method not in METHODS:
        name = str(method)[:60]
        raise StoreError(f"{path} holds a model of the method '{name}', which this version does not know.")
    return METHODS[method].of_state(state, path, device)
