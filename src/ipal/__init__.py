"""ipal: exemplar-free continual learning on graphs.

A graph keeps growing, and with it the classes of its nodes. A learner of this package takes one task after the
other (`partial_fit`), predicts over all classes so far (`predict`), and keeps no node it was trained on.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ipal._version import __version__ as __version__
from ipal.config import EncoderConfig, ProtocolConfig, RunConfig, TrainConfig
from ipal.errors import ConfigError, DataError, IpalError, StoreError

if TYPE_CHECKING:
    from ipal.data.datasets import load as load_dataset
    from ipal.data.datasets.catalog import DatasetEntry
    from ipal.data.datasets.sources import graph_from
    from ipal.data.graph_data import GraphData
    from ipal.data.streams import Answers, Exam, Stream, Task, TaskStream
    from ipal.evaluation.metrics import Accuracy, Metric, Scores
    from ipal.learners import (
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
        Learner,
        LwF,
    )
    from ipal.learners import load_learner as load
    from ipal.nn.encoders import Encoder
    from ipal.report.frame import results
    from ipal.runs.plugins import load_plugin

__all__ = [
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
    "Accuracy",
    "Analytic",
    "Answers",
    "Bare",
    "ConfigError",
    "DataError",
    "DatasetEntry",
    "Encoder",
    "EncoderConfig",
    "Exam",
    "GraphData",
    "IpalError",
    "Joint",
    "Learner",
    "LwF",
    "Metric",
    "ProtocolConfig",
    "RunConfig",
    "Scores",
    "StoreError",
    "Stream",
    "Task",
    "TaskStream",
    "TrainConfig",
    "graph_from",
    "load",
    "load_dataset",
    "load_plugin",
    "results",
]

# Imported when first used, so that `ipal --help` does not wait for torch.
_LAZY = {
    "load": ("ipal.learners", "load_learner"),
    "load_dataset": ("ipal.data.datasets", "load"),
    "load_plugin": ("ipal.runs.plugins", "load_plugin"),
    "results": ("ipal.report.frame", "results"),
    "Encoder": ("ipal.nn.encoders", "Encoder"),
    "GraphData": ("ipal.data.graph_data", "GraphData"),
    "graph_from": ("ipal.data.datasets.sources", "graph_from"),
    "DatasetEntry": ("ipal.data.datasets.catalog", "DatasetEntry"),
    **{name: ("ipal.data.streams", name) for name in ("Answers", "Exam", "Stream", "Task", "TaskStream")},
    **{name: ("ipal.evaluation.metrics", name) for name in ("Accuracy", "Metric", "Scores")},
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        module, attribute = _LAZY[name]
        return getattr(import_module(module), attribute)
    if name in __all__:
        return getattr(import_module("ipal.learners"), name)
    raise AttributeError(f"module 'ipal' has no attribute '{name}'")
