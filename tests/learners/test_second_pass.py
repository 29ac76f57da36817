"""The second pass: edges weighed by the agreement of their ends, and how many passes there are."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ipal.config import EncoderConfig, run_config
from ipal.data.graph import Graph
from ipal.data.streams import Task
from ipal.evaluation.evaluate import evaluate
from ipal.learners import IPAL, METHODS, NCM, Analytic, Learner, load_learner, second_pass
from ipal.learners.second_pass import FAILED, LEAST, TOO_FEW, agreement, choose, passed, sharpened, weighed, whole_reach
from ipal.runs.resolved import resolve
from ipal.system.memory_budget import Budget
from tests.data.test_edge_weights import weighed_graph
from tests.learners.support import learn, learned, make
from tests.support import Command

MIXED = "synthetic:nodes=1200,classes=12,features=32,homophily=0.3,signal=3"
"""Most edges lead to other classes, which features tell apart."""
BUDGET = Budget(None)


def stream(graph: str = MIXED, **protocol: Any) -> Any:
    return resolve(run_config({"dataset": graph, "method": "ncm", "seed": 1001, "protocol": protocol})).stream


# ---------------------------------------------------------------------- what is computed


def test_agreement_by_hand() -> None:
    one, other = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]), torch.tensor([[0.2, 0.3, 0.5], [0.0, 1.0, 0.0]])
    # 0.5 * 0.2 + 0.5 * 0.3 = 0.25; the second pair is of different classes for sure
    assert agreement(one, other).tolist() == pytest.approx([0.25, 0.0])


def test_sharpened_by_hand() -> None:
    p = torch.tensor([[0.6, 0.3, 0.1]])
    # squares 0.36, 0.09, 0.01 of sum 0.46
    assert sharpened(p, 2.0)[0].tolist() == pytest.approx([0.36 / 0.46, 0.09 / 0.46, 0.01 / 0.46], rel=1e-5)
    assert sharpened(p, 1.0)[0].tolist() == pytest.approx(p[0].tolist(), rel=1e-5)
    assert sharpened(torch.tensor([[1.0, 0.0]]), 0.5)[0].tolist() == pytest.approx([1.0, 0.0], abs=1e-6)


def test_a_weighed_graph_by_hand() -> None:
    path = Graph(np.eye(3, dtype=np.float32), np.array([[0, 1, 1, 2], [1, 0, 2, 1]]))
    p = torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]])
    found = weighed(path, p, BUDGET)
    assert found.aggregation("sum").toarray().tolist() == [[0, 0.5, 0], [0.5, 0, 0.5], [0, 0.5, 0]]
    assert found.neighbours.degree.tolist() == [0.5, 1.0, 0.5]
    again = weighed(found, p, BUDGET)
    assert again.aggregation("sum").toarray()[0].tolist() == [0, 0.25, 0]
    none = weighed(path, torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]), BUDGET)
    assert none.aggregation("sum").toarray()[0, 1] == np.float32(LEAST)


def test_edges_are_weighed_in_pieces_as_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, _ = weighed_graph()
    probabilities = torch.rand(graph.num_nodes, 3, generator=torch.Generator().manual_seed(1)).softmax(dim=1)
    whole = weighed(graph, probabilities, BUDGET).neighbours.weights
    for values in (1, 7):  # less than one edge has, and enough for two
        monkeypatch.setattr(second_pass, "VALUES_AT_ONCE", values)
        np.testing.assert_array_equal(weighed(graph, probabilities, BUDGET).neighbours.weights, whole)


def test_of_a_part_of_a_graph_degrees_follow_from_the_weights() -> None:
    path = Graph(np.eye(2, dtype=np.float32), np.array([[0, 1], [1, 0]]))
    part = Graph.of(path.x, replace(path.neighbours, whole_degree=np.array([7, 7])))
    assert weighed(part, torch.ones(2, 1), BUDGET).neighbours.degree.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("kind", ["gcn", "linear", "lazy", "sage", "gat", "gin", "skip"])
def test_every_encoder_counts_the_weights_at_once_and_in_pieces(kind: str) -> None:
    plain = stream().task(0)
    graph, _ = weighed_graph()
    x = np.random.default_rng(3).standard_normal((40, plain.graph.num_features)).astype(np.float32)
    faint = np.full(graph.num_edges, 1e-9, dtype=np.float32)
    weighted, unweighted, barely = (
        Graph.of(x, replace(graph.neighbours, weights=weights)) for weights in (graph.neighbours.weights, None, faint)
    )
    learner = learn(make(METHODS["bare"], epochs=1, encoder=EncoderConfig(kind=kind, hidden=8, width=8)), plain)
    whole = learner.represent(weighted)
    assert not torch.allclose(whole, learner.represent(unweighted), atol=1e-3)
    limited = make(METHODS["bare"], epochs=1, encoder=EncoderConfig(kind=kind, hidden=8, width=8))
    limited.runtime_ = replace(limited.runtime_, budget=Budget(1))
    limited.restore(learner.state())
    torch.testing.assert_close(limited.represent(weighted), whole, atol=1e-5, rtol=1e-4)
    # A mean does not depend on the scale of weights; other sums over neighbours fade with them.
    alone = Graph.of(x, type(graph.neighbours).none(40))
    faded = learner.represent(unweighted if kind == "sage" else alone)
    torch.testing.assert_close(learner.represent(barely), faded, atol=1e-4, rtol=1e-3)


# ---------------------------------------------------------------------- how many


def test_where_edges_mix_classes_it_is_chosen_and_helps() -> None:
    tasks = stream()
    learner = learn(NCM(seed=1), *(tasks.task(index) for index in range(len(tasks))))
    found = learner.second_pass_
    assert found["passes"] > 0
    assert found["accuracy_with_edges_between"][1] > found["accuracy_with_edges_between"][0]
    exams = stream(test_graph="seen").exams(len(tasks) - 1)
    better = np.mean(evaluate(learner, exams, "micro").row.test)
    learner.second_pass_ = {"passes": 0, "sharpness": 1.0}
    assert better > np.mean(evaluate(learner, exams, "micro").row.test) + 3


def test_where_nothing_is_gained_there_is_none() -> None:
    task = stream("synthetic:nodes=600,classes=6,features=16,homophily=0.95,signal=0.3").task(0)
    assert learn(NCM(), task).second_pass_["passes"] == 0


@pytest.mark.parametrize("method", ["ncm", "slda", "analytic", "joint", "ipal"])
def test_it_is_rehearsed_by_default_and_said_in_the_choices(method: str) -> None:
    usual = METHODS[method]().passes
    assert usual == "auto"
    learner = learned(METHODS[method], stream(), 1, epochs=1, passes=usual)
    found = learner.choices()["second_pass"]
    assert set(found) > {"passes", "sharpness", "reason"}
    # Twice so many lines for each of the passes that were tried.
    assert len(found["accuracy_without_edges_between"]) == len(found["accuracy_with_edges_between"]) >= 2
    assert learn(make(METHODS[method], epochs=1, passes=usual), stream().task(0)).second_pass_ == found


def test_other_methods_have_none_unless_asked() -> None:
    task = stream().task(0)
    assert "second_pass" not in learn(make(METHODS["ewc"], epochs=1), task).choices()
    asked = learn(make(METHODS["ewc"], epochs=1, passes=2), task).choices()["second_pass"]
    assert asked["passes"] == 2
    assert asked["sharpness"] > 0


def test_it_stays_as_it_is_for_later_tasks_and_in_a_file(tmp_path: Path) -> None:
    tasks = stream()
    learner = learn(NCM(), tasks.task(0))
    first = learner.second_pass_
    assert first["passes"] > 0
    learner.save(tmp_path / "model.safetensors")
    again = learn(load_learner(tmp_path / "model.safetensors"), tasks.task(1))
    assert learn(learner, tasks.task(1)).second_pass_ == first == again.second_pass_
    graph = tasks.exams(1)[0].graph
    assert torch.equal(again.look(graph).scores, learner.look(graph).scores)
    assert not torch.equal(learner.look(graph).scores, learner.scores(graph))


def test_the_choice_leaves_what_is_learned_as_it_is() -> None:
    tasks = stream()
    with_it, without = (learned(IPAL, tasks, 2, epochs=2, passes=passes, calibration=0) for passes in ("auto", 0))
    for name, tensor in without.tensors().items():
        assert torch.equal(with_it.tensors()[name], tensor), name


@pytest.mark.parametrize(("sizes", "passes"), [((40,), "auto"), ((40, 5), "auto"), ((40,), 2)])
def test_with_too_little_to_rehearse_there_is_none_and_the_reason_is_said(sizes: tuple[int, ...], passes: Any) -> None:
    labels = np.repeat(np.arange(len(sizes)), sizes)
    x = np.random.default_rng(0).standard_normal((len(labels), 4)).astype(np.float32)
    learner = learn(
        NCM(passes=passes), Task(Graph(x, np.zeros((2, 0), dtype=np.int64)), np.arange(len(labels)), labels)
    )
    assert learner.second_pass_ == {"passes": 0 if passes == "auto" else 2, "sharpness": 1.0, "reason": TOO_FEW}


def test_a_rehearsal_that_fails_leaves_none() -> None:
    class Failing(NCM):
        name = "failing"

        def scores(self, graph: Graph) -> torch.Tensor:
            return super().scores(graph) * torch.nan

    found = choose(stream().task(0), None, Failing, 0)
    assert found.pop("reason").startswith(FAILED)
    assert found == {"passes": 0, "sharpness": 1.0}
    assert choose(stream().task(0), 2, Failing, 0)["passes"] == 2


def test_a_prediction_reaches_as_far_as_its_passes() -> None:
    learner = Analytic(hops=(0, 2), expansion=0, passes=2)
    learn(learner, stream().task(0))
    assert (learner.reach, whole_reach(learner)) == (2, 8)  # 2, and twice 2 and one more
    unknown: Learner = NCM(passes=1)
    learn(unknown, stream().task(0))
    assert whole_reach(unknown) == 5


def test_passes_weigh_what_the_ones_before_have_weighed() -> None:
    tasks = stream()
    learner = learn(NCM(passes=0), tasks.task(0))
    graph = tasks.exams(0)[0].graph
    once, twice = (passed(learner, graph, passes, 1.0).neighbours.weights for passes in (1, 2))
    assert once is not None
    assert twice is not None
    assert (twice <= once * 1.000001).all()
    assert (twice < once).any()


def test_merged_models_take_the_fewer_passes_whichever_comes_first() -> None:
    tasks = stream()
    one, other = (learn(Analytic(hops=(2,), expansion=0), tasks.task(index)) for index in (0, 1))
    one.second_pass_, other.second_pass_ = {"passes": 2, "sharpness": 0.5}, {"passes": 1, "sharpness": 3.0}
    assert one.merged(other).second_pass_ == other.merged(one).second_pass_ == {"passes": 1, "sharpness": 3.0}


def test_a_run_says_how_many_there_were(command: Command, tmp_path: Path) -> None:
    done = command("run", "--dataset", MIXED, "--method", "ncm", "--set", "ncm.passes=2", "--seed", 1001)
    assert "2 further passes over edges weighed by agreement" in done.out
    (result,) = (json.loads(path.read_text()) for path in tmp_path.glob("runs/*/result.json"))
    assert result["protocol"]["further_passes"] == 2 == result["choices"]["second_pass"]["passes"]
    none = command("run", "--dataset", MIXED, "--method", "ncm", "--set", "ncm.passes=0", "--seed", 1001)
    assert "further pass" not in none.out


def test_only_the_graphs_of_the_prediction_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def hits(rehearsed: Any, passes: int) -> torch.Tensor:
        """A pass helps with edges between, alone."""
        return torch.tensor([0.0, min(passes, 1)]).expand(sum(len(one.labels) for one in rehearsed), 2).T

    monkeypatch.setattr("ipal.learners.second_pass._tried", hits)
    found = {where: choose(stream().task(0), None, NCM, 0, where) for where in ("isolated", "seen", "both")}
    assert {where: one["passes"] for where, one in found.items()} == {"isolated": 0, "seen": 1, "both": 1}
    assert "without edges" in found["isolated"]["reason"]
    assert "with edges" in found["seen"]["reason"]


@pytest.mark.parametrize("where", ["isolated", "seen"])
def test_a_run_says_on_which_graphs_it_is_tested(where: str) -> None:
    tree = {"dataset": MIXED, "method": "ncm", "protocol": {"test_graph": where}}
    assert resolve(run_config(tree)).learner().test_graph == where
    assert NCM().test_graph == "both"
