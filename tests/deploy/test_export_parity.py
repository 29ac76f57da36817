"""An exported file answers as the model it was made from, on graphs of every shape.

What is exported is checked before torch's exporter sees it for every method and setting, and as a file for one method
of each kind of operation.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from onnxruntime import InferenceSession

from ipal.closed_form.method import Analytic
from ipal.config import EncoderConfig, run_config
from ipal.data.streams import TaskStream
from ipal.deploy.export import difference, onnx_model, random_graphs, traced
from ipal.estimator.model import Model
from ipal.estimator.registry import METHODS
from ipal.methods.base import Method
from ipal.methods.ipal import IPAL
from ipal.methods.ncm import NCM
from ipal.methods.slda import SLDA
from ipal.nn.encoders import ENCODERS
from ipal.runs.resolved import resolve
from tests.deploy.export_support import assert_the_same, outputs, session
from tests.learning import config, learn, learned

Case = tuple[type[Method], dict[str, Any]]
PROJECTED = EncoderConfig(kind="appnp", layers=1, hidden=16, width=10, steps=4, restart=(0.1, 0.4))
CASES: dict[str, Case] = {
    **{name: (METHODS[name], {}) for name in METHODS},
    "features as they are": (SLDA, {"steps": 0}),
    "wide features": (Analytic, {"width": 16, "restart": 0.2}),
    "wide features, two restarts": (Analytic, {"width": 32, "steps": 3, "restart": (0.05, 0.4)}),
    "features without their neighbours": (Analytic, {"width": 40, "steps": 0}),
    **{f"encoder {kind}": (IPAL, {"encoder": EncoderConfig(kind=kind, hidden=12, width=12)}) for kind in ENCODERS},
    "propagated and projected": (IPAL, {"encoder": PROJECTED}),
    "three layers": (IPAL, {"encoder": EncoderConfig(layers=3, hidden=20, width=8, last_activation="relu")}),
    "calibrated": (IPAL, {"encoder": PROJECTED, "calibration": 0.2}),
}
FILES = [
    "bare",
    "polo",
    "slda",
    "calibrated",
    "wide features",
    "encoder sage",
    "encoder gat",
]


@pytest.fixture(scope="module")
def made() -> Callable[[str], Model]:
    # Classes that overlap: calibrated on classes that never do, probabilities magnify rounding a hundredfold.
    graph = "synthetic:nodes=240,classes=6,features=16,signal=0.3,seed=1"
    stream = resolve(run_config({"dataset": graph, "method": "ncm", "split": [2, 2, 2]})).stream

    @cache
    def make(name: str) -> Model:
        method, options = CASES[name]
        return learned(method, stream, 2, epochs=2, **options)

    return make


@pytest.fixture(scope="module")
def file(made: Callable[[str], Model]) -> Callable[..., InferenceSession]:
    return cache(lambda name, weighted=False: session(onnx_model(made(name), edge_weights=weighted)))


class Traced:
    """What is exported, as a session runs it."""

    def __init__(self, model: Model) -> None:
        self.module = traced.Inference(model)

    def run(self, names: Any, given: dict[str, Any]) -> list[Any]:
        with torch.no_grad():
            return [one.numpy() for one in self.module(**{name: torch.from_numpy(v) for name, v in given.items()})]


@pytest.mark.parametrize("name", CASES)
def test_what_is_exported_is_the_prediction(name: str, made) -> None:
    model = made(name)
    for weighted in (False, True):
        for given in random_graphs(14, 16, seed=6, weighted=weighted):
            difference(model, Traced(model).run, given)


def test_a_file_on_random_graphs_of_every_kind(made, file) -> None:
    sizes = set()
    for given in random_graphs(28, 16, seed=5):
        assert_the_same(made("ncm"), file("ncm"), **given)
        sizes.add((min(len(given["x"]), 2), min(given["edge_index"].shape[1], 1)))
    assert sizes == {(1, 0), (1, 1), (2, 0), (2, 1)}, "with and without edges, of one node and of several"


@pytest.mark.parametrize("name", FILES)
def test_files_of_every_kind_of_operation_with_weights(name: str, made, file) -> None:
    for given in random_graphs(28, 16, seed=6, weighted=True):
        difference(made(name), file(name, True).run, given)


def test_a_file_refuses_what_are_no_weights(file) -> None:
    x, edges = next(random_graphs(1, 16)).values()
    weighted, plain = file("slda", True), file("ncm")
    sound = np.ones(edges.shape[1], dtype=np.float32)
    for wrong in (-sound, np.nan * sound, np.inf * sound, sound[1:]):
        with pytest.raises(Exception, match=r"out of|bounds|range|broadcast|dimension"):
            weighted.run(None, {"x": x, "edge_index": edges, "edge_weight": wrong})
    with pytest.raises(ValueError, match="edge_weight"):
        weighted.run(None, {"x": x, "edge_index": edges})
    with pytest.raises(Exception, match="edge_weight"):
        plain.run(None, {"x": x, "edge_index": edges, "edge_weight": sound})


def test_a_model_of_strings_and_of_a_single_class(tiny_stream: TaskStream) -> None:
    task = tiny_stream.task(0)
    for names in (["oak", "elm"], ["oak", "oak"]):
        labels = np.asarray(names)[(task.labels != task.labels[0]).astype(int)]
        model = learn(config(NCM, steps=1), type(task)(task.graph, task.nodes, labels))
        exported = session(onnx_model(model))
        for given in random_graphs(7, 16, seed=8):
            assert_the_same(model, exported, **given)


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_features_too_small_or_too_large_to_be_squared(size: float, made, file) -> None:
    given = next(random_graphs(1, 16, weighted=True))
    given["x"] *= np.float32(size)
    difference(made("wide features"), file("wide features", True).run, given)


def test_loops_and_repeats_make_no_difference_and_directions_do(file) -> None:
    x = next(random_graphs(1, 16))["x"][:2]
    one_way = np.array([[0], [1]])
    once = outputs(file("ncm"), x, one_way)["scores"]
    messy = np.array([[0, 0, 1, 0], [1, 1, 1, 0]])
    np.testing.assert_array_equal(outputs(file("ncm"), x, messy)["scores"], once)
    assert np.abs(outputs(file("ncm"), x, one_way[::-1].copy())["scores"] - once).max() > 1e-4


@pytest.mark.parametrize("wrong", [2, -1])
def test_an_edge_to_a_node_that_is_not_there_is_refused(wrong: int, file) -> None:
    x = next(random_graphs(1, 16))["x"][:2]
    with pytest.raises(Exception, match="out of data bounds"):
        outputs(file("ncm"), x, np.array([[0], [wrong]]))
