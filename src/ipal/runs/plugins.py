"""Which kinds of things plugins bring, and which plugins a run needs."""

from pathlib import Path
from types import ModuleType
from typing import Any

from ipal.config import RunConfig
from ipal.data.datasets.catalog import CATALOG
from ipal.data.names import split_names
from ipal.data.streams import STREAMS
from ipal.estimator.registry import METHODS
from ipal.evaluation.metrics import ACCURACIES, METRICS
from ipal.nn.encoders import ENCODERS
from ipal.system import plugins

REGISTRIES: tuple[plugins.Registry[Any], ...] = (METHODS, ENCODERS, STREAMS, METRICS, ACCURACIES, CATALOG)


def load_plugin(path: str | Path) -> ModuleType:
    """Load a plugin file: what it defines (methods, encoders, datasets) is known by its name from then on."""
    return plugins.load(path, REGISTRIES)


def plugins_of(config: RunConfig) -> dict[str, str]:
    """The plugins that bring what a run names: files with their SHA-256, packages with their versions."""
    named: tuple[tuple[plugins.Registry[Any], str], ...] = (
        (METHODS, config.method),
        (ENCODERS, config.encoder.kind),
        (STREAMS, config.protocol.stream.name),
        (ACCURACIES, config.protocol.accuracy),
        *((CATALOG, name.partition(":")[0]) for name in split_names(config.dataset)),
    )
    origins = [registry.origin(name) for registry, name in named if name in registry]
    return dict(filter(None, origins))
