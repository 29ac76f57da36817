"""A finished run looked at closely."""

import numpy as np
import pytest

from ipal.analysis import run_view
from ipal.config import run_config
from ipal.runs import runner
from ipal.runs.run_folder import RunFolder, RunStore
from tests.support import Watcher

TINY = "synthetic:nodes=240,classes=6,features=16,signal=3,seed=1"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    def run(method: str) -> RunFolder:
        own = {"analytic": {"width": 64}} if method == "analytic" else {"train": {"epochs": 10}}
        resolved = runner.resolve(run_config({"dataset": TINY, "method": method, **own}))
        folder = RunStore(tmp_path_factory.mktemp("runs")).folder_for(resolved.config)
        runner.run(resolved, folder, Watcher())
        return folder

    return run


@pytest.mark.parametrize("method", ["ipal", "bare", "analytic"])
def test_nodes_lie_around_the_prototype_of_their_class(method, finished):
    closer = run_view.look_closely(finished(method))
    assert closer["remarks"] == []
    plane = closer["plane"]
    points, prototypes = plane["points"], plane["prototypes"]
    assert len({len(part) for part in points.values()}) == 1
    assert prototypes["class"] == list("012345")
    assert ("stores none" in plane["prototypes_are"]) == (method == "bare")
    of_class = np.array(points["class"])
    assert all(np.sum(np.array(points["hard"])[of_class == name]) == 10 for name in "012345")
    at = np.stack([points["x"], points["y"]], axis=1)
    centres = np.stack([prototypes["x"], prototypes["y"]], axis=1)
    nearest = np.linalg.norm(at[:, None] - centres, axis=2).argmin(axis=1).astype(str)
    # 24 training nodes a class, told apart easily: a view in which they are mixed up would show nothing.
    assert (nearest == of_class).mean() > 0.8
    assert closer["audit"]["classes"] == 6


def test_hard_examples_are_the_hardest_of_their_class():
    difficulty = np.array([5.0, 1, 4, 2, 9, 3])
    labels = np.array([0, 0, 0, 0, 1, 1])
    chosen, hard = run_view._choose(difficulty, labels, k=1, most=2, random=np.random.default_rng(0))
    assert chosen[hard].tolist() == [0, 4]
    assert len(chosen) == 4
    assert set(labels[chosen].tolist()) == {0, 1}


def test_without_its_graph_a_run_is_shown_without_nodes(finished, monkeypatch):
    folder = finished("bare")

    def gone(*_: object) -> None:
        raise run_view.IpalError("The graph is not here: fetch it.")

    monkeypatch.setattr(run_view, "resolve", gone)
    closer = run_view.look_closely(folder)
    assert "plane" not in closer
    assert closer["remarks"] == ["Nodes cannot be shown without the graph. The graph is not here: fetch it."]
    assert "retained" in closer["audit"]


def test_a_graph_too_large_to_embed_at_once_is_not_drawn(finished, monkeypatch):
    monkeypatch.setattr(run_view, "MOST_BYTES", 1000)
    closer = run_view.look_closely(finished("ipal"))
    assert "plane" not in closer
    assert "not drawn" in closer["remarks"][0]


def test_nodes_are_left_out_and_searched_for_when_asked(finished):
    closer = run_view.look_closely(finished("ipal"), nodes=False, search=True)
    assert "plane" not in closer
    assert closer["audit"]["data"]["as_taught"]
