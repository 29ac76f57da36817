"""From a configuration to one value with all that it means: what run, bench, audit and memory plan share."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from ipal.backend.runtime import Runtime, usable_device
from ipal.config import EncoderConfig, RunConfig, Section, StreamConfig, TrainConfig, explain, known_settings
from ipal.data import datasets
from ipal.data.datasets import Dataset
from ipal.data.datasets.catalog import CATALOG
from ipal.data.streams import STREAMS, TaskStream
from ipal.errors import ConfigError, StoreError, did_you_mean
from ipal.estimator.registry import METHODS
from ipal.estimator.settings import LearnerConfig, learner_config, own_settings, shared_settings
from ipal.evaluation.metrics import METRICS
from ipal.nn.encoders import ENCODERS
from ipal.system.memory_budget import Budget
from ipal.system.plugins import Registry

REGISTRIES: tuple[Registry[Any], ...] = (METHODS, ENCODERS, STREAMS, METRICS, CATALOG)
"""All that packages can offer."""
SECTIONS: Mapping[str, Section] = MappingProxyType({"encoder": EncoderConfig(), "train": TrainConfig()})
"""Settings of the run that a method may use, and their values where it does not: they must not make two runs of one."""


@dataclass(frozen=True, eq=False)
class Resolved:
    """A run that can be made."""

    config: RunConfig
    """Complete: what only the data, the stream and the method know is filled in, so that its hash covers all of it."""
    dataset: Dataset
    stream: TaskStream
    data_root: Path | None = None
    """Where graphs are looked up by name."""

    def runtime(self, budget: Budget | None = None) -> Runtime:
        """What the run computes with."""
        return Runtime.of(self.config.device, threads=self.config.threads, budget=budget)

    def learner_config(self) -> LearnerConfig:
        return _learner(self.config)


def resolve(config: RunConfig, data_root: Path | None = None, *, dataset: Dataset | None = None) -> Resolved:
    """One run; a graph that was read already may be handed in."""
    return Resolver(data_root).resolve(config, dataset)


class Resolver:
    """Resolves many runs: every graph is read once, and runs that differ in the method alone share a stream."""

    def __init__(self, data_root: Path | None = None) -> None:
        self._root = data_root
        self._load = cache(datasets.load)
        self._streams: dict[Hashable, TaskStream] = {}

    def resolve(self, config: RunConfig, dataset: Dataset | None = None) -> Resolved:
        config = check_settings(config)
        usable_device(config.device)
        undirected = config.protocol.edges == "undirected"
        dataset = dataset or self._load(config.dataset, self._root, undirected=undirected)
        if config.dataset_hash not in (None, dataset.hash):
            raise StoreError(
                f"The graph '{config.dataset}' is not the one this run was started on: its content has changed."
            )
        stream = self.stream(config, dataset)
        split = tuple(map(len, stream.classes))
        if config.split not in (None, split):
            raise ConfigError(
                f"The stream '{stream.name}' makes tasks of {'+'.join(map(str, split))} classes, not of "
                f"{'+'.join(map(str, config.split))}: leave the split out."
            )
        found = {"dataset": dataset.name, "dataset_hash": dataset.hash, "split": split}
        resolved = Resolved(config.model_copy(update=found), dataset, stream, self._root)
        resolved.learner_config().method.check_classes(len({label for task in stream.classes for label in task}))
        return resolved

    def stream(self, config: RunConfig, dataset: Dataset) -> TaskStream:
        split = config.split or dataset.split
        key = dataset.hash, split, config.protocol.model_dump_json(exclude={"batch"}), config.seed
        if key not in self._streams:
            self._streams[key] = STREAMS.find(config.protocol.stream.name).of(dataset, config)
        return self._streams[key]


def check_settings(config: RunConfig) -> RunConfig:
    """With all settings of its method and its stream, checked; no graph is read."""
    protocol = config.protocol
    stream = STREAMS.find(protocol.stream.name)
    try:
        own = stream.Settings.model_validate(protocol.stream.settings).model_dump(mode="json", exclude_none=True)
    except ValidationError as error:
        known = [f"protocol.stream.{name}" for name in known_settings(stream.Settings)]
        raise explain(error, known, prefix="protocol.stream.") from error
    learner = _learner(config)
    for need, instead in learner.method.needs().items():
        if need not in stream.gives:
            nearest = next(name for name, other in STREAMS.items() if need in other.gives)
            raise ConfigError(
                f"The method '{config.method}' needs {need}, which the stream '{stream.name}' does not give: set "
                f"protocol.stream={nearest}, or {instead}."
            )
    settings = learner.plain()
    sections = {name: settings.get(name, dict(unused)) for name, unused in SECTIONS.items()}
    return config.model_copy(
        update={
            "protocol": protocol.model_copy(update={"stream": StreamConfig(name=protocol.stream.name, **own)}),
            "settings": {name: settings[name] for name in own_settings(type(learner.method))},
            **{name: type(SECTIONS[name])(**section) for name, section in sections.items()},  # all of it given
        }
    )


def _learner(config: RunConfig) -> LearnerConfig:
    method = METHODS.find(config.method)
    own = [f"{config.method}.{name}" for name in own_settings(method)]
    shared = [name for name in known_settings(RunConfig) if name.partition(".")[0] in ("seed", "protocol", *SECTIONS)]
    for path in (f"{config.method}.{name}" for name in config.settings):
        if path not in own:
            raise ConfigError(f"Unknown setting '{path}'.{did_you_mean(path, [*own, *shared])}")
    given = {name: getattr(config, name).model_dump(exclude_unset=True) for name in SECTIONS}
    known = dict(config.protocol) | dict(config) | given  # a learner's settings have the names of a run's
    used = {name: known[name] for name in shared_settings(method) if name in known}
    return learner_config(method, config.settings | used)
