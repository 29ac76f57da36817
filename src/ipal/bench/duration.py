"""Estimates the duration of runs from similar finished ones. No torch here."""

import statistics
from collections import defaultdict
from collections.abc import Hashable, Iterable
from contextlib import suppress

from ipal.config import RunConfig
from ipal.errors import StoreError
from ipal.runs.run_folder import RunStore


def estimates(store: RunStore, configs: Iterable[RunConfig]) -> list[float | None]:
    """Seconds: the median of the runs of the same method on the same graph, with the same network, batches, device.

    None where there is no such run: methods differ by more than a factor of a hundred.
    """
    known: dict[Hashable, list[tuple[float, float]]] = defaultdict(list)
    for folder in store.all():
        with suppress(StoreError):  # a damaged run has no time
            if folder.is_finished:
                config, timing = folder.config(), folder.result()["timing"]
                tasks, evaluation = len(config.split or ()), timing["evaluation_seconds"] / len(config.split or ())
                learning = timing["total_seconds"] / tasks - evaluation
                known[_alike(config)].append((learning / max(1, config.train.epochs), evaluation))
    return [
        statistics.median(epoch * max(1, config.train.epochs) + test for epoch, test in of_method)
        * len(config.split or ())
        if (of_method := known.get(_alike(config)))
        else None
        for config in configs
    ]


def _alike(config: RunConfig) -> Hashable:
    """What two runs must share for an estimate."""
    sizes = (config.encoder.model_dump_json(), str(config.protocol.batch))
    return config.dataset_hash, config.method, config.device.partition(":")[0], *sizes
