"""ipal: exemplar-free continual learning on graphs.

A graph keeps growing, and with it the classes of its nodes. A learner of this package takes one task after the
other (`partial_fit`), predicts over all classes so far (`predict`), and keeps no node it was trained on.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from ipal._version import __version__ as __version__

if _TYPE_CHECKING:
    from ipal.config import EncoderConfig, ProtocolConfig, RunConfig, TrainConfig
    from ipal.data.datasets import load as load_dataset
    from ipal.data.datasets.catalog import DatasetEntry
    from ipal.data.datasets.sources import graph_from
    from ipal.data.graph_data import GraphData
    from ipal.data.streams import Stream, TaskStream
    from ipal.data.task import LabelledNodes, Task, TestSplit
    from ipal.errors import ConfigError, DataError, IpalError, StoreError
    from ipal.estimator.conformance import check_method
    from ipal.estimator.functions import (
        discover,
        explain,
        forget_class,
        forget_nodes,
        forget_rows,
        merge_classes,
        merge_models,
        predict_sets,
        relabel,
        rename_class,
        score_unknown,
        split_class,
    )
    from ipal.estimator.learner import Learner
    from ipal.estimator.learners import (
        EFC,
        ERGNN,
        EWC,
        GEM,
        IPAL,
        MAS,
        NCM,
        PCL,
        POLO,
        PR,
        SLDA,
        TWP,
        Analytic,
        Bare,
        Joint,
        LwF,
        OnlineIPAL,
        learner_class,
        load,
    )
    from ipal.evaluation.metrics import Accuracy, Metric, Scores
    from ipal.methods.base import OnePass, TaskContext, Trained
    from ipal.methods.classifier import Classifier
    from ipal.nn.encoders import Encoder
    from ipal.report.frame import results
    from ipal.runs.plugins import load_plugin

# Where each name is: imported when first used, so that `ipal --help` does not wait for torch.
_WHERE = {
    "ipal.config": ("EncoderConfig", "ProtocolConfig", "RunConfig", "TrainConfig"),
    "ipal.data.datasets.catalog": ("DatasetEntry",),
    "ipal.data.datasets.sources": ("graph_from",),
    "ipal.data.graph_data": ("GraphData",),
    "ipal.data.streams": ("Stream", "TaskStream"),
    "ipal.data.task": ("LabelledNodes", "Task", "TestSplit"),
    "ipal.errors": ("ConfigError", "DataError", "IpalError", "StoreError"),
    "ipal.estimator.conformance": ("check_method",),
    "ipal.estimator.functions": (
        "discover",
        "explain",
        "forget_class",
        "forget_nodes",
        "forget_rows",
        "merge_classes",
        "merge_models",
        "predict_sets",
        "relabel",
        "rename_class",
        "score_unknown",
        "split_class",
    ),
    "ipal.estimator.learner": ("Learner",),
    "ipal.estimator.learners": (
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
        "Analytic",
        "Bare",
        "Joint",
        "LwF",
        "OnlineIPAL",
        "learner_class",
        "load",
    ),
    "ipal.evaluation.metrics": ("Accuracy", "Metric", "Scores"),
    "ipal.methods.base": ("OnePass", "TaskContext", "Trained"),
    "ipal.methods.classifier": ("Classifier",),
    "ipal.nn.encoders": ("Encoder",),
    "ipal.report.frame": ("results",),
    "ipal.runs.plugins": ("load_plugin",),
}
_LAZY = {name: (module, name) for module, names in _WHERE.items() for name in names}
_LAZY["load_dataset"] = ("ipal.data.datasets", "load")

__all__ = [  # noqa: PLE0604
    "__version__",
    *sorted(_LAZY),
]


def __getattr__(name: str) -> _Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'ipal' has no attribute '{name}'")
    module, attribute = _LAZY[name]
    return getattr(_import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted(__all__)
