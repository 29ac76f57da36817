"""Running an exported file, and what it is compared with."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnxruntime import InferenceSession, SessionOptions

from ipal.data.graph import checked_graph
from ipal.deploy.predict import predict
from ipal.estimator.model import Model


def session(file: Path | bytes) -> InferenceSession:
    options = SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4  # what is refused on purpose need not be logged
    return InferenceSession(file if isinstance(file, bytes) else str(file), options)


def outputs(file: InferenceSession, x: NDArray[Any], edges: NDArray[Any]) -> dict[str, NDArray[Any]]:
    names = [output.name for output in file.get_outputs()]
    return dict(zip(names, file.run(None, {"x": x, "edge_index": edges}), strict=True))


def clear(probabilities: NDArray[Any]) -> NDArray[np.bool_]:
    """Nodes at which one class comes first by more than rounding."""
    best = np.sort(probabilities, axis=1)
    return best[:, -1] - best[:, -2] > 1e-4 if best.shape[1] > 1 else np.ones(len(best), dtype=bool)


def assert_the_same(model: Model, file: InferenceSession, x: NDArray[Any], edge_index: NDArray[Any]) -> None:
    """The file answers as the library's own face does."""
    found, expected = (
        outputs(file, x, edge_index),
        predict(model, checked_graph(x, edge_index, undirected=False)).probabilities,
    )
    np.testing.assert_allclose(found["probabilities"], expected, atol=2e-5)
    assert found["scores"].dtype == found["probabilities"].dtype == np.float32
    sure = clear(expected)
    likeliest = model.classes_[expected.argmax(axis=1)]
    np.testing.assert_array_equal(model.classes_[found["predicted"]][sure], likeliest[sure])
