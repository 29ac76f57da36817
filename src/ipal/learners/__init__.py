"""The methods. To add one: a file here, a line in METHODS."""

import inspect
from pathlib import Path

from ipal.config import RunConfig
from ipal.errors import ConfigError, StoreError
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
from ipal.learners.saved import of_state
from ipal.learners.slda import SLDA
from ipal.learners.state import State
from ipal.learners.twp import TWP
from ipal.system import plugins


def _check(method: type[Learner]) -> None:
    if method.name in RunConfig.model_fields:
        raise ConfigError(f"the name '{method.name}' is that of a setting of every run")
    method.describe()
    method.from_settings({})  # every setting has a default that is valid


METHODS: plugins.Registry[type[Learner]] = plugins.Registry(
    "method",
    own=(IPAL, Joint, Bare, EWC, MAS, LwF, GEM, TWP, ERGNN, POLO, EFC, PR, PCL, NCM, SLDA, Analytic),
    is_one=lambda thing: inspect.isclass(thing) and issubclass(thing, Learner),
    check=_check,
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
    plugins.require(plugins.named_in(state.facts), str(path))
    if not isinstance(method, str) or method not in METHODS:
        raise StoreError(
            f"{path} holds a model of the method '{str(method)[:60]}', which is not known here: name the plugin that "
            "has it with --plugin, or install its package."
        )
    return of_state(METHODS[method], state, path, device)
