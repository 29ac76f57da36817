"""Estimates the duration of a run from similar finished runs. No torch here."""

import statistics
from collections import defaultdict
from collections.abc import Hashable
from typing import NamedTuple

from ipal.config import RunConfig
from ipal.errors import StoreError
from ipal.runs.run_folder import RunStore


class _Finished(NamedTuple):
    """Times of a finished run, in seconds."""

    config: RunConfig
    learning: float
    evaluation: float

    def scaled_to(self, config: RunConfig) -> float:
        """Estimate for a similar run with other numbers of epochs and tasks."""
        epochs = max(1, config.train.epochs) / max(1, self.config.train.epochs)
        tasks = len(config.split or ()) / max(1, len(self.config.split or ()))
        return (self.learning * epochs + self.evaluation) * tasks


class Stopwatch:
    """Durations of the finished runs."""

    def __init__(self, store: RunStore) -> None:
        self._finished: dict[Hashable, list[_Finished]] = defaultdict(list)
        for folder in store.all():
            if not folder.is_finished:
                continue
            try:
                config, timing = folder.config(), folder.result()["timing"]
            except StoreError:  # a damaged run has no time
                continue
            evaluation = timing["evaluation_seconds"]
            run = _Finished(config, timing["total_seconds"] - evaluation, evaluation)
            self._finished[_alike(config)].append(run)

    def estimate(self, config: RunConfig) -> float | None:
        """Seconds: the median of the runs of the same method on the same graph, with the same network, batches, device.

        None where there is no such run: methods differ by more than a factor of a hundred.
        """
        known = self._finished.get(_alike(config))
        return statistics.median(run.scaled_to(config) for run in known) if known else None


def _alike(config: RunConfig) -> Hashable:
    """What two runs must share for an estimate."""
    sizes = (config.encoder.model_dump_json(), str(config.protocol.batch))
    return config.dataset_hash, config.method, config.device.partition(":")[0], *sizes
