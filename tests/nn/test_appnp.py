"""The encoder over propagated features: by hand, what is projected, how wide it is, and that it is made once."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize
from torch_geometric.data import Data

import ipal
from ipal.backend.batches import sampled, whole_task
from ipal.backend.propagated import DEFAULTS, Spreading, walk
from ipal.config import EncoderConfig, Sampling, TestGraph
from ipal.data.datasets import load
from ipal.data.graph import Graph
from ipal.data.streams import TaskStream
from ipal.errors import ConfigError
from ipal.estimator import files
from ipal.estimator.registry import METHODS
from ipal.estimator.settings import learner_config
from ipal.methods.ipal import IPAL
from ipal.nn.encoders import APPNP, ENCODERS
from tests.learning import config, learn
from tests.nn.encoders_support import GRAPHS, embedded, graph
from tests.nn.support import HERE

SPARSE = GRAPHS["sparse features"]
TWO = {"restart": (0.1, 0.6), "steps": 3}


def network(num_features: int, **options: Any) -> APPNP:
    """As it starts."""
    options = {"layers": 1, "hidden": 8, "width": 8, **options}
    return APPNP(num_features, EncoderConfig(kind="appnp", **options), torch.Generator().manual_seed(0))


# ------------------------------------------------------------------ what it computes


def test_appnp_by_hand() -> None:
    # Unit rows (0.6, 0.8) and (0.8, -0.6), whose mean is (0.7, 0.1). One step, a restart of a half: (0.65, 0.45) and
    # (0.75, -0.25), both of the length sqrt(0.625). The weights start as the identity.
    pair = graph([[3, 4], [8, -6]], [[0], [1]])
    found = embedded(network(2, steps=1, restart=0.5), pair)
    torch.testing.assert_close(found, torch.tensor([[0.65, 0.45], [0.75, -0.25]]) / 0.625**0.5)
    # Two steps: half the mean, which both have, and half of the own row, again.
    found = embedded(network(2, steps=2, restart=0.5), pair)
    torch.testing.assert_close(found, normalize(torch.tensor([[0.65, 0.45], [0.75, -0.25]])))
    # Without a restart both are the mean; beside it, with no step, the rows themselves.
    found = embedded(network(2, steps=1, restart=(0.0, 0.5)), pair)
    torch.testing.assert_close(found[:, :2], normalize(torch.tensor([[0.7, 0.1]])).expand(2, 2))
    torch.testing.assert_close(embedded(network(2, steps=0), pair), torch.tensor([[0.6, 0.8], [0.8, -0.6]]))


def test_walk_by_hand() -> None:
    # A pair, which a hop averages: 6 and 0 become 3 and 3, with a third of the start 4 and 2; then 3 and 3 again.
    spread = Spreading(graph([[1], [1]], [[0], [1]]).neighbours, HERE.device)
    start = torch.tensor([[6.0], [0.0]], dtype=torch.float64)
    torch.testing.assert_close(walk(start, spread, 1, 1 / 3), torch.tensor([[4.0], [2.0]], dtype=torch.float64))
    torch.testing.assert_close(walk(start, spread, 2, 1 / 3), torch.tensor([[4.0], [2.0]], dtype=torch.float64))
    assert torch.equal(walk(start, spread, 0, 1 / 3), start)
    assert start.tolist() == [[6.0], [0.0]], "left as it is"


def test_a_projected_pair_by_hand() -> None:
    # Two columns of three features; nothing but the place of the restart decides the projection.
    pair = graph([[3, 4, 0], [0, 0, 2]], [[0], [1]])
    drawn = torch.from_numpy(np.random.default_rng((1,)).standard_normal((3, 2), dtype=np.float32))
    start = torch.tensor([[0.6, 0.8, 0], [0, 0, 1]]) @ drawn
    mean = start.mean(dim=0, keepdim=True)
    expected = normalize(0.75 * mean + 0.25 * start)
    found = embedded(network(3, steps=1, restart=(0.5, 0.25), hidden=4, width=4), pair)
    torch.testing.assert_close(found[:, 2:], expected)


# ------------------------------------------------------------------ how wide it is


@pytest.mark.parametrize(
    ("features", "options", "widths"),
    [
        (7, {}, [7, 7]),
        (200, {}, [8, 8]),
        (200, TWO, [8, 8]),
        (3, TWO, [6, 6]),
        (7, {"width": 5}, [7, 5]),
        (7, {"hidden": 4, "width": 100}, [4, 4]),
        (7, {"layers": 3, "width": 5}, [7, 8, 8, 5]),
        (7, {"layers": 2, "width": 100}, [7, 8, 100]),
    ],
)
def test_a_single_layer_is_square_where_the_width_allows_it(
    features: int, options: dict[str, Any], widths: list[int]
) -> None:
    made = network(features, **options)
    assert [tuple(weight.shape) for weight in made.weights] == list(pairwise(widths))
    assert made.width == widths[-1]
    for weight in made.weights:
        rows, columns = weight.shape
        product = weight.T @ weight if rows >= columns else weight @ weight.T
        torch.testing.assert_close(product, torch.eye(min(rows, columns)), rtol=0, atol=1e-5)
        assert rows != columns or torch.equal(weight, torch.eye(rows))


@pytest.mark.parametrize("method", ["ipal", "pr", "efc", "ewc", "twp", "gem"])
def test_methods_ask_the_encoder_how_wide_embeddings_are(method: str, tiny_stream: TaskStream, tmp_path: Path) -> None:
    encoder = EncoderConfig(kind="appnp", layers=1, hidden=32, width=32)  # of 16 features
    model = learn(config(METHODS[method], epochs=2, encoder=encoder), tiny_stream.task(0), tiny_stream.task(1))
    some = tiny_stream.task(1).graph
    assert model.embed(some).shape == (some.num_nodes, 16)
    files.save(model, tmp_path / "model.safetensors")
    assert torch.equal(files.load(tmp_path / "model.safetensors").forward(some).scores, model.forward(some).scores)


# ------------------------------------------------------------------ made once, read in any way


def test_rows_are_made_once_for_all_that_ask_for_the_same(tiny_stream: TaskStream) -> None:
    graph = tiny_stream.task(0).graph
    one, same, other = network(16), network(16), network(16, steps=3)
    assert one.rows.of(graph, HERE) is same.rows.of(graph, HERE)
    assert one.rows.of(graph, HERE) is not other.rows.of(graph, HERE)
    task = tiny_stream.task(0)
    assert whole_task(task, HERE, one.needs).graph is whole_task(task, HERE, same.needs).graph


def test_batches_are_rows_of_the_whole_graph(tiny_stream: TaskStream) -> None:
    task = tiny_stream.task(0)
    made = network(16, layers=2)
    whole, seen = embedded(made, task.graph)[torch.from_numpy(task.nodes)], []
    for batch in sampled(task, Sampling(nodes=7, fanouts=(1,)), 0, HERE, made.needs):
        torch.testing.assert_close(made(batch.graph), whole[batch.positions], rtol=1e-5, atol=1e-6)
        seen.append(batch.positions)
    assert sorted(torch.cat(seen).tolist()) == list(range(len(task.nodes)))  # type: ignore[arg-type]


# ------------------------------------------------------------------ in learners


@pytest.mark.parametrize("test_graph", ["isolated", "seen", "both"])
def test_what_is_open_is_decided_by_the_test_graphs_and_saved_as_numbers(
    test_graph: TestGraph, tiny_stream: TaskStream, tmp_path: Path
) -> None:
    steps, restarts = DEFAULTS[test_graph]
    settings = learner_config(IPAL, {"test_graph": test_graph, "calibration": 0})
    given = settings.given["encoder"]
    assert (given.steps, given.restart) == (None, None)
    model = learn(settings, tiny_stream.task(0), tiny_stream.task(1))
    assert (settings.encoder.steps, settings.encoder.restart, model.reach) == (steps, restarts, steps)
    assert [part.restart for part in model.state.network.encoder.rows.columns] == list(restarts)  # type: ignore
    files.save(model, tmp_path / "model.safetensors")
    again = files.load(tmp_path / "model.safetensors")
    assert again.config.given["encoder"] == settings.encoder
    graph = tiny_stream.task(1).graph
    assert torch.equal(again.forward(Graph(graph.x, graph.neighbours)).scores, model.forward(graph).scores)
    other = learner_config(IPAL, {**settings.given, "test_graph": "seen"})
    assert other.encoder.restart == (0.2,), "what was open stays open"


def test_by_itself_ipal_learns_digits() -> None:
    dataset = load("digits")
    data = Data(torch.from_numpy(dataset.graph.x), torch.from_numpy(dataset.graph.edges), y=torch.from_numpy(dataset.y))
    learner = ipal.IPAL()
    for classes in ((0, 1, 2, 3, 4), (5, 6, 7, 8, 9)):
        data.train_mask = torch.isin(data.y, torch.tensor(classes)) & (torch.arange(len(data.y)) % 2 == 0)
        learner.partial_fit(data)
    assert learner.score(data, torch.arange(len(data.y)) % 2 == 1) > 0.9


def test_restarts_and_layers_that_do_not_fit_get_a_sentence() -> None:
    with pytest.raises(ConfigError, match=r"encoder\.hidden is 1, which 2 restarts cannot share"):
        config(IPAL, encoder=EncoderConfig(kind="appnp", hidden=1, restart=(0.1, 0.2)))
    with pytest.raises(ConfigError, match=r"encoder\.layers is 1: 'gcn' takes 2 or more"):
        config(IPAL, encoder=EncoderConfig(layers=1))
    for wrong in (1.0, -0.1, (), (0.1, 1.0), (0.1,) * 9):
        with pytest.raises(ConfigError, match=r"restart"):
            EncoderConfig(restart=wrong)
    for steps in (-1, 257):
        with pytest.raises(ConfigError, match="steps"):
            EncoderConfig(steps=steps)
    assert set(ENCODERS) >= {"appnp"}
    assert "lazy" not in ENCODERS
