"""Metrics for Prometheus. Labels come from fixed sets, so that memory is bounded."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.process_collector import ProcessCollector

__all__ = ["CONTENT_TYPE_LATEST", "Metrics", "Seen"]

GONE = "gone"
"""Status of a request whose client disconnected before the answer."""
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


@dataclass
class Seen:
    """The outcome of one request."""

    status: str = GONE


class Metrics:
    """Counters of one server."""

    def __init__(self, paths: frozenset[str]) -> None:
        self._paths = paths
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        of = self._registry
        self._requests = Counter("ipal_requests", "Requests by path and status.", ("path", "status"), registry=of)
        self._seconds = Histogram(
            "ipal_request_seconds", "From a request's header to its answer.", ("path",), buckets=SECONDS, registry=of
        )
        self._inside = Gauge("ipal_requests_in_flight", "Requests that are being read or answered.", registry=of)
        self._nodes = Counter("ipal_nodes_predicted", "Nodes that were predicted, rejected ones too.", registry=of)
        self._reloads = Counter("ipal_reloads", "Replacements of the model, done or failed.", ("outcome",), registry=of)
        self._restarts = Counter("ipal_worker_restarts", "Workers that ended and were started again.", registry=of)
        self._model = Gauge("ipal_model_info", "Which model is in use.", ("version",), registry=of)
        self._current = Gauge(
            "ipal_model_current", "1 while the model in use is what its file holds, else 0.", registry=of
        )
        self._rejected = Counter("ipal_nodes_rejected", "Nodes said to be of none of the known classes.", registry=of)

    @contextmanager
    def watched(self, path: str) -> Iterator[Seen]:
        """Count and time a request; the caller sets its status."""
        seen, known = Seen(), path if path in self._paths else "other"
        with self._inside.track_inprogress(), self._seconds.labels(known).time():
            try:
                yield seen
            finally:
                self._requests.labels(known, seen.status).inc()

    def malformed(self) -> None:
        """Count an invalid request."""
        self._requests.labels("other", "400").inc()

    def uses(self, version: str) -> None:
        """Only the model in use is named: versions are many."""
        self._model.clear()
        self._model.labels(version).set(1)

    def follows(self, is_current: Callable[[], bool]) -> None:
        """Asked whenever numbers are."""
        self._current.set_function(is_current)

    def reloaded(self, outcome: str) -> None:
        self._reloads.labels(outcome).inc()

    def restarted(self) -> None:
        self._restarts.inc()

    def predicted(self, nodes: int, rejected: int) -> None:
        self._nodes.inc(nodes)
        self._rejected.inc(rejected)

    def text(self) -> bytes:
        return generate_latest(self._registry)
