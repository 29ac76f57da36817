"""Stored runs, one line each. No torch: results can be read anywhere."""

from typing import Any

from ipal.errors import StoreError
from ipal.runs.records import stream_in_words
from ipal.runs.run_folder import RunFolder


def overview(folder: RunFolder) -> dict[str, Any]:
    """What a list says of a run; where it is not finished, or its files are damaged, the rest is None."""
    status = folder.status
    about: dict[str, Any] = {}
    result: dict[str, Any] = {}
    try:
        if folder.is_finished:
            about = result = folder.result()
        else:
            about = folder.config().to_tree()
    except StoreError:  # one damaged run does not hide the others
        status = "damaged"
    protocol, timing, kept = (result.get(part, {}) for part in ("protocol", "timing", "retained"))
    return {
        "run": folder.path.name,
        "status": status,
        "date": folder.date,
        **{name: about.get(name) for name in ("dataset", "method", "seed")},
        "stream": stream_in_words(protocol["stream"]) if protocol else None,
        "test_graph": protocol.get("test_graph"),
        **{name: result.get(name) for name in ("average_performance", "average_forgetting")},
        "metrics": result.get("metrics", {}),
        "seconds": timing.get("total_seconds"),
        "peak_memory_bytes": result.get("peak_memory_bytes"),
        "retained_bytes": kept.get("bytes"),
        "stores_exemplars": kept.get("stores_exemplars"),
    }
