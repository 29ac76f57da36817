"""An exported file answers as the model it was made from, on graphs of every shape."""

import numpy as np
import pytest

from ipal.closed_form.method import Analytic
from ipal.config import EncoderConfig, run_config
from ipal.data.streams import TaskStream
from ipal.deploy.export import onnx_model, program
from ipal.deploy.export.check import difference, random_graphs, random_weights
from ipal.estimator.registry import METHODS
from ipal.methods.base import Method
from ipal.methods.ipal import IPAL
from ipal.methods.ncm import NCM
from ipal.methods.slda import SLDA
from ipal.nn.encoders import ENCODERS
from ipal.runs.resolved import resolve
from tests.deploy.export_support import assert_the_same, outputs, session
from tests.learning import config, learn, learned

VARIANTS: dict[str, tuple[type[Method], dict[str, object]]] = {
    "distance": (NCM, {"nearness": "distance"}),
    "features as they are": (SLDA, {"steps": 0}),
    "wide features": (Analytic, {"width": 16, "restart": 0.2}),
    "wide features, two restarts": (Analytic, {"width": 32, "steps": 3, "restart": (0.05, 0.4), "sums": "per-class"}),
    "narrow features": (Analytic, {"width": 80, "restart": 0.0}),
    "narrow features, two restarts": (Analytic, {"width": 80, "steps": 3, "restart": (0.05, 0.4)}),
    "features without their neighbours": (Analytic, {"width": 40, "steps": 0}),
    **{
        kind: (METHODS["bare"], {"encoder": EncoderConfig(kind=kind, hidden=12, width=12)})
        for kind in ("gcn", "linear", "appnp", "sage", "gat", "gin", "skip")
    },
    "propagated and projected": (
        IPAL,
        {"encoder": EncoderConfig(kind="appnp", layers=1, hidden=16, width=10, steps=4, restart=(0.1, 0.4))},
    ),
    "three layers": (IPAL, {"encoder": EncoderConfig(layers=3, hidden=20, width=8, last_activation="relu")}),
}


SMALL: dict[str, dict[str, object]] = {"analytic": {"width": 64}}
FAMILIES = ["ipal", "bare", "polo", "ncm", "slda", "analytic"]


@pytest.mark.parametrize("method", FAMILIES)
def test_every_family_on_a_hundred_random_graphs(method: str, tiny_stream: TaskStream):
    model = learned(METHODS[method], tiny_stream, 2, epochs=2, **SMALL.get(method, {}))
    file = session(onnx_model(model))
    sizes = set()
    for x, edges in random_graphs(100, 16, seed=5):
        assert_the_same(model, file, x, edges)
        sizes.add((min(len(x), 2), min(edges.shape[1], 1)))
    assert sizes == {(1, 0), (1, 1), (2, 0), (2, 1)}, "with and without edges, of one node and of several"


@pytest.mark.parametrize("method", sorted(METHODS.keys() - set(FAMILIES)))
def test_every_other_method(method: str, tiny_stream: TaskStream):
    model = learned(METHODS[method], tiny_stream, 2, epochs=1)
    file = session(onnx_model(model))
    for x, edges in random_graphs(7, 16, seed=9):
        assert_the_same(model, file, x, edges)


@pytest.mark.parametrize("name", VARIANTS)
def test_settings_that_change_how_a_method_predicts(name: str):
    # Classes that overlap: calibrated on classes that never do, probabilities magnify rounding a hundredfold.
    graph = "synthetic:nodes=240,classes=6,features=16,signal=0.3,seed=1"
    stream = resolve(run_config({"dataset": graph, "method": "ncm", "split": [2, 2, 2]})).stream
    method, options = VARIANTS[name]
    model = learned(method, stream, 2, epochs=2, **options)
    file = session(onnx_model(model))
    for x, edges in random_graphs(14, 16, seed=6):
        assert_the_same(model, file, x, edges)


@pytest.mark.parametrize("kind", ENCODERS)
def test_weights_of_edges_are_a_third_input(kind: str, tiny_stream: TaskStream):
    encoder = EncoderConfig(kind=kind, hidden=12, width=12)
    model = learned(IPAL, tiny_stream, 2, epochs=2, encoder=encoder)
    file = session(onnx_model(model, edge_weights=True))
    for number, (x, edges) in enumerate(random_graphs(28, 16, seed=6)):
        difference(model, file, x, edges, random_weights(edges.shape[1], number))


@pytest.mark.parametrize("method", ["ncm", "slda", "analytic", "bare"])
def test_weights_count_in_files_of_other_families(method: str, tiny_stream: TaskStream):
    model = learned(METHODS[method], tiny_stream, 2, epochs=2, **SMALL.get(method, {}))
    file = session(onnx_model(model, edge_weights=True))
    for number, (x, edges) in enumerate(random_graphs(14, 16, seed=6)):
        difference(model, file, x, edges, random_weights(edges.shape[1], number))


def test_a_file_refuses_what_are_no_weights(tiny_stream: TaskStream):
    model = learned(NCM, tiny_stream, 1)
    x, edges = next(random_graphs(1, 16))
    weighted, plain = (session(onnx_model(model, edge_weights=asked)) for asked in (True, False))
    sound = np.ones(edges.shape[1], dtype=np.float32)
    assert np.array_equal(
        weighted.run(None, {"x": x, "edge_index": edges, "edge_weight": sound})[2],
        plain.run(None, {"x": x, "edge_index": edges})[2],
    )
    for wrong in (-sound, np.nan * sound, np.inf * sound, sound[1:]):
        with pytest.raises(Exception, match=r"out of|bounds|range|broadcast|dimension"):
            weighted.run(None, {"x": x, "edge_index": edges, "edge_weight": wrong})
    with pytest.raises(ValueError, match="edge_weight"):
        weighted.run(None, {"x": x, "edge_index": edges})
    with pytest.raises(Exception, match="edge_weight"):
        plain.run(None, {"x": x, "edge_index": edges, "edge_weight": sound})


def test_wide_rows_go_over_the_graph_in_parts(tiny_stream: TaskStream, monkeypatch: pytest.MonkeyPatch):
    model = learned(NCM, tiny_stream, 1)
    monkeypatch.setattr(program, "COLUMNS_AT_ONCE", 5)
    file = session(onnx_model(model))
    for x, edges in random_graphs(7, 16, seed=7):
        assert_the_same(model, file, x, edges)


def test_a_model_of_strings_and_of_a_single_class(tiny_stream: TaskStream):
    task = tiny_stream.task(0)
    for names in (["oak", "elm"], ["oak", "oak"]):
        labels = np.asarray(names)[(task.labels != task.labels[0]).astype(int)]
        model = learn(config(NCM), type(task)(task.graph, task.nodes, labels))
        for x, edges in random_graphs(7, 16, seed=8):
            assert_the_same(model, session(onnx_model(model)), x, edges)


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_features_too_small_or_too_large_to_be_squared(size: float, tiny_stream: TaskStream):
    model = learned(Analytic, tiny_stream, 1, width=64)
    x, edges = next(random_graphs(1, 16))
    assert_the_same(model, session(onnx_model(model)), np.float32(size) * x, edges)


def test_loops_and_repeats_make_no_difference_and_directions_do(tiny_stream: TaskStream):
    file = session(onnx_model(learned(IPAL, tiny_stream, 1, epochs=1)))
    x = next(random_graphs(1, 16))[0][:2]
    one_way = np.array([[0], [1]])
    once = outputs(file, x, one_way)["scores"]
    messy = np.array([[0, 0, 1, 0], [1, 1, 1, 0]])
    np.testing.assert_array_equal(outputs(file, x, messy)["scores"], once)
    assert np.abs(outputs(file, x, one_way[::-1].copy())["scores"] - once).max() > 1e-4


@pytest.mark.parametrize("wrong", [2, -1])
def test_an_edge_to_a_node_that_is_not_there_is_refused(wrong: int, tiny_stream: TaskStream):
    file = session(onnx_model(learned(IPAL, tiny_stream, 1, epochs=1)))
    x = next(random_graphs(1, 16))[0][:2]
    with pytest.raises(Exception, match="out of data bounds"):
        outputs(file, x, np.array([[0], [wrong]]))
