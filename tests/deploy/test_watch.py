"""A graph as before gives no alarm; one that drifted does, and says in what."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import ipal
from ipal.data.datasets import Dataset, load
from ipal.data.graph import Graph
from ipal.deploy.watch import (
    LINES,
    REJECTED,
    Line,
    average_confidence,
    prometheus,
    remember,
    standardized_difference,
    total_variation,
    total_variation_limit,
    watch,
)
from ipal.errors import ConfigError, StoreError
from ipal.estimator import files as model_files
from ipal.estimator import history
from ipal.estimator.learner import Learner
from ipal.estimator.model import Model
from ipal.state.snapshot import Snapshot
from tests.cli.merge_and_forget_support import view
from tests.support import Command, complaint

SIZE = "synthetic:nodes=1500,classes=5,features=24,signal=2,homophily=0.8"


def test_total_variation_by_hand() -> None:
    assert total_variation(np.array([0.5, 0.5, 0]), np.array([0.25, 0.5, 0.25])) == 0.25


def test_total_variation_limit_by_hand() -> None:
    # s = 1/100 + 1/100; two classes of a half: sqrt(0.25 s) each, halved; level exp(-2): sqrt(s)
    limit = total_variation_limit(np.array([0.5, 0.5]), 100, 100, math.exp(-2))
    assert limit == pytest.approx(0.5 * math.sqrt(0.02) + math.sqrt(0.02))


def test_standardized_difference_by_hand() -> None:
    mean, other, deviation = torch.tensor([[1.0, 4.0, 9.0], [0.0, 0.0, 0.0], [1.0, 2.0, 0.0]])
    assert standardized_difference(mean, other, deviation) == pytest.approx(math.sqrt((1 + 4) / 2))
    assert standardized_difference(mean, other, torch.zeros(3)) == 0


def test_average_confidence_by_hand() -> None:
    assert average_confidence(np.array([[0.5, 0.25, 0.25], [0.0, 0.0, 1.0]])) == 0.75


@pytest.fixture(scope="module")
def grown() -> Dataset:
    return load(SIZE)


def part(graph: Dataset, nodes: NDArray[Any]) -> Graph:
    return graph.graph.induced(np.sort(nodes))


def halves(graph: Dataset) -> tuple[NDArray[Any], NDArray[Any]]:
    order = np.random.default_rng(0).permutation(len(graph.y))
    return order[: len(order) // 2], order[len(order) // 2 :]


def taught(method: type[Learner], graph: Dataset, **options: Any) -> Model:
    """Has learned half of the nodes, in the graph of that half."""
    return method(**options).partial_fit(view(graph, np.sort(halves(graph)[0]))).model_


def alarms(lines: list[Line]) -> set[str]:
    return {line.name for line in lines if line.alarm}


METHODS: list[tuple[type[Learner], dict[str, Any]]] = [
    (ipal.Analytic, {"steps": 1, "width": 64, "ridge": 0.01}),
    (ipal.NCM, {}),
    (ipal.PCL, {"train": {"epochs": 10}}),
    (ipal.Bare, {"train": {"epochs": 10}}),
]


@pytest.mark.parametrize(("method", "options"), METHODS, ids=[method.__name__ for method, _ in METHODS])
def test_a_graph_as_before_gives_no_alarm_and_a_drifted_one_does(
    method: type[Learner], options: dict[str, Any], grown: Dataset
) -> None:
    model = taught(method, grown, **options)
    first, second = halves(grown)
    assert not alarms(watch(model, part(grown, second)))
    model = remember(model, part(grown, first))
    assert not alarms(watch(model, part(grown, second)))
    fewer = second[~np.isin(grown.y[second], [0, 1])]
    assert "class_shares" in alarms(watch(model, part(grown, fewer)))
    other = part(grown, second)
    wired = np.stack([other.edges[0], np.random.default_rng(1).permutation(other.edges[1])])
    assert "homophily" in alarms(watch(model, Graph(other.x, wired)))
    moved = Graph(np.ascontiguousarray(other.x[:, ::-1]), other.edges)
    found = alarms(watch(model, moved))
    assert "expected_accuracy" in found
    assert ("features" in found) == (method is not ipal.Bare)


@pytest.mark.parametrize("seed", range(3))
def test_nodes_that_are_rejected_with_their_neighbours_are_no_alarm(grown: Dataset, seed: int) -> None:
    """Two samples of one graph: shares of rejected nodes differ by more than if each were rejected for itself."""
    first, second, third = np.array_split(np.random.default_rng([3, 4, 5][seed]).permutation(len(grown.y)), 3)
    model = ipal.NCM().partial_fit(view(grown, np.sort(first))).model_
    lines = watch(remember(model, part(grown, second)), part(grown, third))
    assert "unknown" not in alarms(lines)


def test_without_a_reference_training_nodes_are_compared(grown: Dataset) -> None:
    model = taught(ipal.NCM, grown)
    lines = watch(model, part(grown, halves(grown)[1]))
    assert [line.name for line in lines] == list(LINES)
    shares, _, homophily, unknown, accuracy = lines
    same, edges = history.edges_learned(model.history)
    assert homophily.learned == same / edges
    assert unknown.learned == REJECTED
    assert unknown.limit is not None
    assert 0 < unknown.now < unknown.limit < 3 * REJECTED
    assert accuracy.learned is None
    assert accuracy.limit is None
    assert shares.limit is not None
    assert shares.limit > 1 - accuracy.now, "wrong predictions alone explain so much"
    (*_, low) = watch(model, part(grown, halves(grown)[1]), limits={"expected_accuracy": 1.0})
    assert low.alarm


def test_a_reference_is_kept_in_the_file_until_the_model_changes(grown: Dataset, tmp_path: Path) -> None:
    model = remember(taught(ipal.NCM, grown), view(grown))
    model_files.save(model, tmp_path / "m")
    again = model_files.load(tmp_path / "m")
    assert again.reference == model.reference is not None
    assert sum(again.reference["counts"]) == len(grown.y)
    learner = ipal.rename_class(ipal.load(tmp_path / "m"), 0, 50)
    assert learner.model_.reference == model.reference
    assert ipal.merge_classes(learner, [50, 1], into=1).model_.reference is None
    assert ipal.load(tmp_path / "m").partial_fit(view(grown)).model_.reference is None


def test_a_reference_that_does_not_fit_is_refused(grown: Dataset) -> None:
    model = remember(taught(ipal.NCM, grown), view(grown))
    kept = model_files.snapshot(model)
    for wrong in (
        {"counts": [1]},
        {"counts": [0] * 5},
        {"confidence": math.nan},
        {"confidence": 1.5},
        {"unknown": 2.0},
        {"time": "now"},
        {"edges": [1]},
        {"edges": [3, 2]},
    ):
        facts = {**kept.facts, "reference": {**kept.facts["reference"], **wrong}}
        with pytest.raises(StoreError, match="reference"):
            model_files.restored(model.config, Snapshot(kept.tensors, facts), model.runtime, whole=True, source="It")


def test_a_model_behind_which_no_nodes_are_counted_is_compared_in_what_is_left(grown: Dataset) -> None:
    model = taught(ipal.Bare, grown, train={"epochs": 1})
    assert not any(model.nodes_behind_class().values())
    lines = watch(model, part(grown, halves(grown)[1]))
    assert (
        {"homophily", "expected_accuracy"} <= {line.name for line in lines} <= set(LINES) - {"class_shares", "features"}
    )
    assert all(math.isfinite(line.now) for line in lines)


def test_a_model_that_is_entirely_sure_has_no_reference_for_that(grown: Dataset, monkeypatch: Any) -> None:
    model = taught(ipal.Bare, grown, train={"epochs": 1})
    assert model.nodes_behind_class() == {}
    monkeypatch.setattr("ipal.deploy.watch.average_confidence", lambda _: 1.0)
    (*_, accuracy) = watch(model, part(grown, halves(grown)[1]))
    assert (accuracy.now, accuracy.learned, accuracy.limit, accuracy.alarm) == (1.0, None, None, False)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"false_alarms": 0}, "between 0 and 1"),
        ({"limits": {"homophilly": 1}}, "Did you mean 'homophily'"),
        ({"limits": {"features": -1}}, "a number of 0 or more"),
    ],
)
def test_impossible_limits_are_refused(options: dict[str, Any], words: str, grown: Dataset) -> None:
    with pytest.raises(ConfigError, match=words):
        watch(taught(ipal.NCM, grown), part(grown, halves(grown)[1]), **options)


def test_prometheus_text() -> None:
    lines = [Line("features", 0.25, 0.0, 0.25, 0.1, True), Line("expected_accuracy", 0.9, None, 0.9, None, False)]
    text = prometheus(lines, 'a"b\\.safetensors')
    assert text.endswith("\n")
    assert 'ipal_watch_value{model="a\\"b\\\\.safetensors",what="features"} 0.25\n' in text
    assert text.count("# TYPE") == text.count("# HELP") == 3
    assert text.count("ipal_watch_limit{") == 1
    assert 'what="features"} 1\n' in text
    assert 'what="expected_accuracy"} 0\n' in text


# ---------------------------------------------------------------------- the command


@pytest.fixture
def files(command: Command, grown: Dataset) -> Callable[..., None]:
    def write() -> None:
        model_files.save(taught(ipal.NCM, grown), "m.safetensors")
        for name, nodes in zip(("then", "now"), halves(grown), strict=True):
            graph = part(grown, nodes)
            np.savez(f"{name}.npz", x=graph.x, edge_index=graph.edges)
        np.savez("other.npz", x=graph.x[:, ::-1], edge_index=graph.edges)

    return write


def test_the_command_prints_remembers_and_ends_with_1_on_alarm(command: Command, files: Callable[..., None]) -> None:
    files()
    assert (
        "no limit exceeded; compared with the training nodes"
        in command("watch", "m.safetensors", "--graph", "now.npz").out
    )
    command("watch", "m.safetensors", "--graph", "then.npz", "--remember")
    done = command("watch", "m.safetensors", "--graph", "now.npz", "--json", "--prometheus", "ipal.prom").json
    assert done["since"] == ipal.load("m.safetensors").model_.reference["time"]
    assert done["alarms"] == []
    assert [line["name"] for line in done["lines"]] == list(LINES)
    assert Path("ipal.prom").read_text().count("\n") == 6 + 3 * 5
    drifted = command("watch", "m.safetensors", "--graph", "other.npz")
    assert drifted.code == 1
    assert "ALARM" in drifted.out
    assert "exceeded: class_shares, features" in drifted.out
    printed = command("watch", "m.safetensors", "--graph", "other.npz", "--prometheus", "-").out
    assert printed.startswith("# HELP ipal_watch_value")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--graph", "nowhere.npz"), "nowhere.npz"),
        (("--graph", "now.npz", "--limit", "features"), "as features=0.3"),
        (("--graph", "now.npz", "--limit", "feature=1"), "Did you mean 'features'"),
        (("--graph", "now.npz", "--prometheus", "-", "--json"), "both print"),
        (("--graph", "now.npz", "--false-alarms", "2"), "between 0 and 1"),
    ],
)
def test_misuse_ends_with_2(command: Command, files: Callable[..., None], options: tuple[str, ...], words: str) -> None:
    files()
    assert words in complaint(command("watch", "m.safetensors", *options))
