"""Estimates the duration of runs from similar finished ones. No torch here."""

import statistics
from collections import defaultdict
from collections.abc import Hashable, Mapping
from contextlib import suppress

from ipal.config import RunConfig
from ipal.errors import StoreError
from ipal.runs.run_folder import RunStore


def estimates(store: RunStore, configs: Mapping[str, RunConfig]) -> dict[str, float | None]:
    """Seconds by name: the median of the runs of the same method on the same graph, with the same network and batches.

    None where there is no such run: methods differ by more than a factor of a hundred.
    """
    known: dict[Hashable, list[tuple[float, float]]] = defaultdict(list)
    for folder in store.all():
        with suppress(StoreError):  # a damaged run has no time
            if folder.is_finished:
                config, timing = folder.config(), folder.result()["timing"]
                learning = timing["total_seconds"] - timing["evaluation_seconds"]
                known[_alike(config)].append((learning / max(1, config.train.epochs), timing["evaluation_seconds"]))
    found = {}
    for name, config in configs.items():
        times = [epoch * max(1, config.train.epochs) + tests for epoch, tests in known[_alike(config)]]
        found[name] = statistics.median(times) if times else None
    return found


def _alike(config: RunConfig) -> Hashable:
    """What two runs must share for an estimate."""
    sizes = (config.encoder.model_dump_json(), str(config.protocol.batch), config.split)
    return config.dataset_hash, config.method, config.device.partition(":")[0], *sizes
