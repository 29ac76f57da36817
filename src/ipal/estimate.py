"""How long a run will take, from runs like it that are finished. No torch here."""

import statistics
from collections import defaultdict
from typing import NamedTuple

from ipal.config import RunConfig
from ipal.errors import StoreError
from ipal.store import RunStore

MULTIPLICATIONS_PER_SECOND = 5e9
"""Of one core, as measured with IPAL on CS-CL; methods differ by a factor of ten or so."""


class Size(NamedTuple):
    """What of a graph decides the time of an epoch."""

    nodes: int
    edges: int
    features: int
    """Values that are not zero."""


class Estimate(NamedTuple):
    """Seconds, and where they come from."""

    seconds: float
    basis: str


class Stopwatch:
    """Knows how long an epoch of one task took in the finished runs."""

    def __init__(self, store: RunStore) -> None:
        self._seconds: dict[tuple[str, ...], list[float]] = defaultdict(list)
        for folder in store.all():
            if not folder.is_finished:
                continue
            try:
                result = folder.result()
            except StoreError:  # a damaged run says nothing about time
                continue
            seconds = statistics.fmean(result["timing"]["seconds_per_epoch"])
            self._seconds[result["dataset"], result["method"]].append(seconds)
            self._seconds[(result["dataset"],)].append(seconds)

    def estimate(self, config: RunConfig, size: Size) -> Estimate:
        """By runs of the same method on the same graph, else of any method on it, else by the graph's size."""
        tasks = len(config.split or ())
        steps = tasks * max(1, config.train.epochs)
        for key, what in (((config.dataset, config.method), ""), ((config.dataset,), " of any method")):
            if known := self._seconds.get(key):
                return Estimate(statistics.median(known) * steps, f"{len(known)} finished runs{what}")
        hidden = config.encoder.hidden
        products = hidden * (size.features + size.nodes * hidden + 2 * size.edges)
        # Forwards and backwards; each task is its share of the graph.
        return Estimate(3 * products / MULTIPLICATIONS_PER_SECOND / tasks * steps, "the graph's size, roughly")
