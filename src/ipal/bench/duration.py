"""Estimates the duration of a run from similar finished runs. No torch here."""

import statistics
from collections import defaultdict
from collections.abc import Hashable
from typing import NamedTuple

from ipal.config import RunConfig
from ipal.errors import StoreError
from ipal.runs.run_folder import RunStore


class Estimate(NamedTuple):
    """Seconds, and the number of finished runs behind them."""

    seconds: float
    runs: int


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
                evaluation = float(timing["evaluation_seconds"])
                learning = float(timing["total_seconds"]) - evaluation
            except (StoreError, KeyError):  # a damaged run has no time
                continue
            self._finished[_alike(config)].append(_Finished(config, learning, evaluation))

    def estimate(self, config: RunConfig) -> Estimate | None:
        """The median of the runs of the same method on the same graph, with the same network, batches and device.

        None where there is no such run: methods differ by more than a factor of a hundred.
        """
        known = self._finished.get(_alike(config))
        if not known:
            return None
        return Estimate(statistics.median(run.scaled_to(config) for run in known), len(known))


def _alike(config: RunConfig) -> Hashable:
    """What two runs must share for an estimate."""
    sizes = (config.encoder.model_dump_json(), str(config.protocol.batch))
    return config.dataset_hash, config.method, config.device.partition(":")[0], *sizes
