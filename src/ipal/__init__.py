"""ipal: exemplar-free continual learning on graphs.

A graph keeps growing, and with it the classes of its nodes. A learner of this package takes one task after the
other (`partial_fit`), predicts over all classes so far (`predict`), and keeps no node it was trained on.
"""

import sys as _sys
from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from ipal._version import __version__ as __version__

if _TYPE_CHECKING:  # `as` says to type checkers that a name is public
    from ipal.config import EncoderConfig as EncoderConfig
    from ipal.config import ProtocolConfig as ProtocolConfig
    from ipal.config import RunConfig as RunConfig
    from ipal.config import TrainConfig as TrainConfig
    from ipal.data.datasets import load as _load
    from ipal.data.datasets.catalog import DatasetEntry as DatasetEntry
    from ipal.data.graph_data import GraphData as GraphData
    from ipal.data.streams import Stream as Stream
    from ipal.data.streams import TaskStream as TaskStream
    from ipal.data.task import LabelledNodes as LabelledNodes
    from ipal.data.task import Task as Task
    from ipal.data.task import TestSplit as TestSplit
    from ipal.errors import ConfigError as ConfigError
    from ipal.errors import DataError as DataError
    from ipal.errors import IpalError as IpalError
    from ipal.errors import StoreError as StoreError
    from ipal.estimator.conformance import check_method as check_method
    from ipal.estimator.convert.sources import graph_from as graph_from
    from ipal.estimator.edits import forget_class as forget_class
    from ipal.estimator.edits import forget_nodes as forget_nodes
    from ipal.estimator.edits import forget_rows as forget_rows
    from ipal.estimator.edits import merge_classes as merge_classes
    from ipal.estimator.edits import merge_models as merge_models
    from ipal.estimator.edits import relabel as relabel
    from ipal.estimator.edits import rename_class as rename_class
    from ipal.estimator.functions import explain as explain
    from ipal.estimator.learner import Learner as Learner
    from ipal.estimator.learners import DPCR as DPCR
    from ipal.estimator.learners import EFC as EFC
    from ipal.estimator.learners import ERGNN as ERGNN
    from ipal.estimator.learners import EWC as EWC
    from ipal.estimator.learners import GEM as GEM
    from ipal.estimator.learners import IPAL as IPAL
    from ipal.estimator.learners import MAS as MAS
    from ipal.estimator.learners import NCM as NCM
    from ipal.estimator.learners import PCL as PCL
    from ipal.estimator.learners import POLO as POLO
    from ipal.estimator.learners import PR as PR
    from ipal.estimator.learners import SLDA as SLDA
    from ipal.estimator.learners import TWP as TWP
    from ipal.estimator.learners import AdaGauss as AdaGauss
    from ipal.estimator.learners import Analytic as Analytic
    from ipal.estimator.learners import Bare as Bare
    from ipal.estimator.learners import Joint as Joint
    from ipal.estimator.learners import LwF as LwF
    from ipal.estimator.learners import OnlineIPAL as OnlineIPAL
    from ipal.estimator.learners import learner_class as learner_class
    from ipal.estimator.learners import load as load
    from ipal.estimator.open_world.discover import discover as discover
    from ipal.estimator.open_world.unknown import predict_sets as predict_sets
    from ipal.estimator.open_world.unknown import score_unknown as score_unknown
    from ipal.evaluation.metrics import Accuracy as Accuracy
    from ipal.evaluation.metrics import Metric as Metric
    from ipal.evaluation.metrics import Scores as Scores
    from ipal.methods.base import OnePass as OnePass
    from ipal.methods.base import TaskContext as TaskContext
    from ipal.methods.base import Trained as Trained
    from ipal.methods.classifier import Classifier as Classifier
    from ipal.nn.encoders import Encoder as Encoder
    from ipal.report.frame import results as results

    load_dataset = _load

# Where each name is: imported when first used, so that `ipal --help` does not wait for torch.
_WHERE = {
    "ipal.config": ("EncoderConfig", "ProtocolConfig", "RunConfig", "TrainConfig"),
    "ipal.data.datasets.catalog": ("DatasetEntry",),
    "ipal.estimator.convert.sources": ("graph_from",),
    "ipal.data.graph_data": ("GraphData",),
    "ipal.data.streams": ("Stream", "TaskStream"),
    "ipal.data.task": ("LabelledNodes", "Task", "TestSplit"),
    "ipal.errors": ("ConfigError", "DataError", "IpalError", "StoreError"),
    "ipal.estimator.conformance": ("check_method",),
    "ipal.estimator.edits": (
        "forget_class",
        "forget_nodes",
        "forget_rows",
        "merge_classes",
        "merge_models",
        "relabel",
        "rename_class",
    ),
    "ipal.estimator.functions": ("explain",),
    "ipal.estimator.learner": ("Learner",),
    "ipal.estimator.learners": (
        "DPCR",
        "EFC",
        "ERGNN",
        "EWC",
        "GEM",
        "IPAL",
        "MAS",
        "NCM",
        "PCL",
        "POLO",
        "PR",
        "SLDA",
        "TWP",
        "AdaGauss",
        "Analytic",
        "Bare",
        "Joint",
        "LwF",
        "OnlineIPAL",
        "learner_class",
        "load",
    ),
    "ipal.estimator.open_world.discover": ("discover",),
    "ipal.estimator.open_world.unknown": ("predict_sets", "score_unknown"),
    "ipal.evaluation.metrics": ("Accuracy", "Metric", "Scores"),
    "ipal.methods.base": ("OnePass", "TaskContext", "Trained"),
    "ipal.methods.classifier": ("Classifier",),
    "ipal.nn.encoders": ("Encoder",),
    "ipal.report.frame": ("results",),
}
_LAZY = {
    "load_dataset": ("ipal.data.datasets", "load"),
    **{name: (module, name) for module, names in _WHERE.items() for name in names},
}

__all__ = [
    "__version__",
    *sorted(_LAZY),
]


def __getattr__(name: str) -> _Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'ipal' has no attribute '{name}'", name=name, obj=_sys.modules[__name__])
    module, attribute = _LAZY[name]
    return getattr(_import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted(__all__)
