"""Which kinds of things plugins bring, and which plugins a run needs."""

from pathlib import Path
from types import ModuleType
from typing import Any

from ipal.config import RunConfig
from ipal.data.datasets.catalog import CATALOG
from ipal.learners import METHODS
from ipal.nn.encoders import ENCODERS
from ipal.system import plugins

REGISTRIES: tuple[plugins.Registry[Any], ...] = (METHODS, ENCODERS, CATALOG)


def load_plugin(path: str | Path) -> ModuleType:
    """Load a plugin file: what it defines (methods, encoders, datasets) is known by its name from then on."""
    return plugins.load(path, REGISTRIES)


def plugins_of(config: RunConfig) -> dict[str, str]:
    """The plugins that bring what a run names: files with their SHA-256, packages with their versions."""
    dataset = config.dataset.partition(":")[0]
    named = ((METHODS, config.method), (ENCODERS, config.encoder.kind), (CATALOG, dataset))
    origins = [registry.origin(name) for registry, name in named if name in registry]
    return dict(filter(None, origins))
