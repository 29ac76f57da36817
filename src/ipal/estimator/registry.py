"""All methods by name. To add one to the package: a file in `methods`, and its class in a tuple below."""

import dataclasses
import inspect
from typing import Any

from ipal.closed_form.method import Analytic
from ipal.config import RunConfig
from ipal.errors import ConfigError
from ipal.estimator.settings import learner_config
from ipal.methods.adagauss import AdaGauss
from ipal.methods.bare import Bare
from ipal.methods.base import Method, OnePass, Trained
from ipal.methods.dpcr import DPCR
from ipal.methods.efc import EFC
from ipal.methods.ergnn import ERGNN
from ipal.methods.ewc import EWC
from ipal.methods.gem import GEM
from ipal.methods.ipal import IPAL
from ipal.methods.ipal_online import OnlineIPAL
from ipal.methods.joint import Joint
from ipal.methods.lwf import LwF
from ipal.methods.mas import MAS
from ipal.methods.ncm import NCM
from ipal.methods.pcl import PCL
from ipal.methods.polo import POLO
from ipal.methods.pr import PR
from ipal.methods.slda import SLDA
from ipal.methods.twp import TWP
from ipal.system.plugins import Registry


def check_method(method: Any) -> None:
    """Refuse a method that breaks the protocol; the sentence names what is missing."""
    if not issubclass(method, Trained | OnePass):
        raise ConfigError("it must extend ipal.Trained (with a network) or ipal.OnePass (without)")
    if "__dataclass_params__" not in vars(method) or not method.__dataclass_params__.frozen:
        raise ConfigError("it lacks @dataclass(frozen=True, kw_only=True) above the class")
    if "title" not in vars(method):
        raise ConfigError("it lacks a title of its own, the name in tables")
    if method.name in RunConfig.model_fields:
        raise ConfigError(f"the name '{method.name}' is that of a setting of every run")
    own = dataclasses.fields(method)
    learner_config(method, {one.name: one.default for one in own if one.default is not dataclasses.MISSING})


TRAINED = (IPAL, OnlineIPAL, Joint, Bare, EWC, MAS, LwF, GEM, TWP, ERGNN, POLO, EFC, AdaGauss, DPCR, PR, PCL)
METHODS: Registry[type[Method]] = Registry(
    "method",
    (*TRAINED, NCM, SLDA, Analytic),
    lambda thing: inspect.isclass(thing) and issubclass(thing, Method),
    check_method,
)
