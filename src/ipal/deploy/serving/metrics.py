"""Metrics for Prometheus. Labels come from fixed sets, so that memory is bounded."""

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.process_collector import ProcessCollector

__all__ = ["CONTENT_TYPE_LATEST", "Metrics"]

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """Counters of one server."""

    def __init__(self) -> None:
        self._registry = of = CollectorRegistry()
        ProcessCollector(registry=of)
        self.requests = Counter("ipal_requests", "Requests by path and status.", ("path", "status"), registry=of)
        self.seconds = Histogram(
            "ipal_request_seconds", "From a request's header to its answer.", ("path",), buckets=SECONDS, registry=of
        )
        self.in_flight = Gauge("ipal_requests_in_flight", "Requests that are being read or answered.", registry=of)
        self.nodes = Counter("ipal_nodes_predicted", "Nodes that were predicted, rejected ones too.", registry=of)
        self.rejected = Counter("ipal_nodes_rejected", "Nodes said to be of none of the known classes.", registry=of)
        self.reloads = Counter("ipal_reloads", "Replacements of the model, done or failed.", ("outcome",), registry=of)
        self.restarts = Counter("ipal_worker_restarts", "Workers that ended and were started again.", registry=of)
        self.current = Gauge(
            "ipal_model_current", "1 while the model in use is what its file holds, else 0.", registry=of
        )
        self._model = Gauge("ipal_model_info", "Which model is in use.", ("version",), registry=of)

    def uses(self, version: str) -> None:
        """Only the model in use is named: versions are many."""
        self._model.clear()
        self._model.labels(version).set(1)

    def text(self) -> bytes:
        return generate_latest(self._registry)
