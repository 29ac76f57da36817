"""The rehearsal: what is left open is chosen on the first task, from training nodes alone."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from ipal.config import EncoderConfig, TestGraph, TrainConfig, run_config
from ipal.data.graph import Graph
from ipal.data.streams import Task
from ipal.learners import IPAL, Learner, held_back
from ipal.learners.held_back import Rehearsal, cut
from ipal.learners.rehearsal import (
    Candidate,
    Options,
    Shown,
    Stage,
    choose,
    learned,
    mean_and_error,
    rate_for,
    rehearsed,
)
from ipal.runs.resolved import resolve
from tests.learners.support import learn

GRAPH = "synthetic:nodes=600,classes=8,features=12,signal=3,seed=2"
NETWORKS = [EncoderConfig(kind="linear", hidden=4, width=4), EncoderConfig(hidden=8, width=8)]


def stream(**settings: Any) -> Any:
    return resolve(run_config({"dataset": GRAPH, "split": [4, 2, 2], "seed": 1001, **settings})).stream


def numbered(sizes: dict[Any, int], *, edges: bool = True) -> Task:
    """A task whose nodes carry their own numbers, with so many nodes of each class."""
    labels = np.repeat(list(sizes), list(sizes.values()))
    n = len(labels)
    ring = np.array([np.arange(n), (np.arange(n) + 1) % n])
    graph = Graph(np.arange(n, dtype=np.float32)[:, None], np.concatenate([ring, ring[::-1]], axis=1))
    return Task(graph, np.arange(n), labels)


# ---------------------------------------------------------------------- how it is rehearsed


@pytest.mark.parametrize(
    ("classes", "sizes"),
    [
        (2, [[2]]),
        (3, [[3], [2, 1]]),
        (4, [[2, 2], [2, 1, 1]]),
        (5, [[3, 2], [3, 1, 1]]),
        (8, [[4, 2, 2], [4, 1, 1, 1, 1]]),
        (30, [[10, 10, 10], [26, 1, 1, 1, 1]]),
    ],
)
def test_classes_are_held_back_several_at_once_and_one_by_one(classes: int, sizes: list[list[int]]) -> None:
    ways = cut(list(range(classes)))
    assert [[len(group) for group in groups] for groups in ways] == sizes
    for groups in ways:
        assert [name for group in groups for name in group] == list(range(classes))


def test_two_classes_are_learned_one_by_one_where_edges_between_them_count() -> None:
    assert cut(["a", "b"], isolated=False) == [[["a"], ["b"]]]


@pytest.mark.parametrize(
    ("test_graph", "edges"), [("isolated", [[20, 18]]), ("seen", [[42]]), ("both", [[20, 18], [42]])]
)
def test_held_out_nodes_are_predicted_on_the_kind_of_graph_that_is_tested(
    test_graph: TestGraph, edges: list[list[int]]
) -> None:
    # A ring of eleven nodes of one class and ten of another: a path of each, and two edges between them, both ways.
    task = numbered({"a": 11, "b": 10})
    members = {"a": np.arange(11), "b": np.arange(11, 21)}
    parts = list(held_back.parts(task, members, [["a"], ["b"]], np.random.default_rng(0)))
    found = Rehearsal.of(task.graph, parts, test_graph)
    assert [[graph.num_edges for graph, _ in exam] for exam in found.exams] == edges
    aside = np.concatenate([part.nodes[part.aside] for part in parts])
    for exam in found.exams:  # nodes carry their own numbers
        assert np.concatenate([graph.x[nodes, 0] for graph, nodes in exam]).tolist() == aside.tolist()
    assert found.truth.tolist() == np.where(aside < 11, "a", "b").tolist()


def test_half_of_the_nodes_are_set_aside_and_no_edge_leads_to_another_part() -> None:
    task = numbered({"a": 11, "b": 20, "c": 30})
    members = {"a": np.arange(11), "b": np.arange(11, 31), "c": np.arange(31, 61)}
    first, second = held_back.parts(task, members, [["b", "a"], ["c"]], np.random.default_rng(0))
    for part, names in ((first, "ab"), (second, "c")):
        own = np.concatenate([members[name] for name in names])
        assert part.task.graph.x[:, 0].tolist() == own.tolist(), "the nodes of its classes, and no others"
        learned, aside = (set(part.task.graph.x[at, 0].astype(int).tolist()) for at in (part.task.nodes, part.aside))
        assert learned.isdisjoint(aside)
        assert learned | aside == set(own.tolist())
        for nodes, labels in ((part.task.nodes, part.task.labels), (part.aside, part.truth)):
            assert task.labels[part.task.graph.x[nodes, 0].astype(int)].tolist() == labels.tolist()
    assert len(first.aside) == 5 + 10


def test_of_many_nodes_some_are_drawn_with_neighbours_of_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_back, "LEARNED", 40)
    task = numbered({0: 500, 1: 500})
    members = {0: np.arange(500), 1: np.arange(500, 1000)}
    for part in held_back.parts(task, members, [[0], [1]], np.random.default_rng(0)):
        assert len(part.task.nodes) == len(part.aside) == 10
        assert 40 < part.task.graph.num_nodes <= 60, "both neighbours of nearly all of them"
        assert part.task.graph.num_edges >= 40


def test_mean_and_error_by_hand() -> None:
    # Two values of weight a quarter, one of a half: mean 1/4 + 1/2, squares 1/16 (1/4)^2, 1/16 (3/4)^2, 1/4 (1/4)^2.
    mean, error = mean_and_error(np.array([1.0, 0.0, 1.0]), np.array([0.25, 0.25, 0.5]))
    assert mean == 0.75
    assert error == pytest.approx(((1 / 16) * (1 / 16) + (1 / 16) * (9 / 16) + (1 / 4) * (1 / 16)) ** 0.5)


# ---------------------------------------------------------------------- what is chosen from it


class Stub(Learner):
    """Recognises a share of the nodes that depends on its settings alone."""

    name = "stub"

    def __init__(self, *, right: float) -> None:
        self.right = right

    def initialise(self, num_features: int) -> None: ...

    def learn(self, task: Task, first_epoch: int = 0) -> Iterator[Any]:
        yield from ()

    def predict_graph(self, graph: Graph) -> Any:
        nodes = graph.x[:, 0].astype(int)
        return np.where(nodes % 100 < 100 * self.right, nodes // 100, -1)

    def teach(self, task: Task, first_epoch: int) -> Any: ...
    def represent(self, graph: Graph) -> Any: ...
    def scores(self, graph: Graph) -> Any: ...


def chosen_where(
    shares: dict[tuple[str, int, float], float], epochs: tuple[int, ...] = (10, 0, 30)
) -> tuple[Any, list[Any]]:
    """What is chosen, and what was tried, where candidates recognise these shares of all nodes; others none."""
    task = numbered(dict.fromkeys(range(4), 100))

    def make(candidate: Candidate, blank: Any = None) -> Learner:
        return Stub(right=shares.get((candidate.encoder.kind, candidate.epochs, candidate.gamma), 0.0))

    told = choose(task, Options(NETWORKS, epochs, (3.0, 0.4)), make, 0)
    found = [told["chosen"], *told["tried"]]
    chosen, *tried = ((one["encoder"]["kind"], one["epochs"], one["gamma"]) for one in found)
    return chosen, tried


def test_the_simpler_encoder_is_taken_where_both_are_as_good() -> None:
    assert chosen_where({("linear", 0, 3.0): 0.8, ("gcn", 0, 3.0): 0.804})[0] == ("linear", 0, 3.0)
    assert chosen_where({("linear", 0, 3.0): 0.6, ("gcn", 0, 3.0): 0.9})[0] == ("gcn", 0, 3.0)


def test_training_is_usual_unless_it_does_harm() -> None:
    start = {("linear", 0, 3.0): 0.5}
    assert chosen_where(start | {("linear", 10, 3.0): 0.5})[0] == ("linear", 10, 3.0)
    chosen, tried = chosen_where(start | {("linear", 10, 3.0): 0.4, ("linear", 10, 0.4): 0.9})
    assert chosen == ("linear", 0, 3.0)
    assert ("linear", 10, 0.4) not in tried, "what holds less is not tried after what did harm"
    assert not any(kind == "gcn" and epochs for kind, epochs, _ in tried), "what is worse untrained is not trained"


def test_where_none_is_usual_training_must_be_better_by_more_than_chance() -> None:
    start = {("linear", 0, 3.0): 0.5}
    assert chosen_where(start | {("linear", 10, 3.0): 0.504}, epochs=(0, 10))[0] == ("linear", 0, 3.0)
    assert chosen_where(start | {("linear", 10, 3.0): 0.7}, epochs=(0, 10))[0] == ("linear", 10, 3.0)


def test_what_holds_old_knowledge_weighs_little_but_stays_one_step_from_harm() -> None:
    options, task = Options(NETWORKS[:1], (10, 0), (3.0, 10.0, 1.0, 0.3)), numbered(dict.fromkeys(range(4), 100))

    def gamma(*shares: float) -> tuple[int, float]:
        """What is chosen where with 10, 3, 1 and 0.3 such shares are recognised, and 0.6 untrained."""
        known = dict(zip((10.0, 3.0, 1.0, 0.3), shares, strict=True))

        def make(candidate: Candidate, blank: Any = None) -> Learner:
            return Stub(right=known[candidate.gamma] if candidate.epochs else 0.6)

        chosen = choose(task, options, make, 0)["chosen"]
        return chosen["epochs"], chosen["gamma"]

    assert gamma(0.6, 0.6, 0.6, 0.6) == (10, 1.0)
    assert gamma(0.6, 0.7, 0.7, 0.3) == (10, 3.0)
    assert gamma(0.6, 0.7, 0.3, 0.9) == (10, 10.0), "nothing is tried beyond harm"
    assert gamma(0.6, 0.3, 0.9, 0.9) == (10, 10.0), "one step from harm would be no training"
    assert gamma(0.3, 0.9, 0.9, 0.9) == (0, 3.0)


def staged(shown: dict[Candidate, list[float]], test_graph: TestGraph = "both") -> Stage:
    """What candidates have shown in rehearsals of 100 nodes: which share was recognised, the first of them."""
    weights, number = np.full(100, 0.01), max(map(len, shown.values()))
    tried = {
        one: [Shown((np.arange(100) < round(100 * hit)).astype(float), weights) for hit in hits]
        for one, hits in shown.items()
    }
    never = partial(pytest.fail, "not run again")
    return Stage([Rehearsal([], [])] * number, never, test_graph, tried=tried)  # type: ignore[arg-type]


@pytest.mark.parametrize(("second", "harm"), [(0.5, False), (0.47, False), (0.45, True)])
def test_harm_in_one_rehearsal_is_harm_by_hand(second: float, harm: bool) -> None:
    # Less by p of 100 nodes: a standard error of sqrt(p (1 - p) / 100), 0.0171 of 0.03 and 0.0218 of 0.05.
    one, other = (Candidate(NETWORKS[0], epochs, 1.0) for epochs in (10, 0))
    assert staged({one: [0.9, second], other: [0.5, 0.5]}).does_harm(one, other) is harm


def test_the_first_part_is_trained_once_for_all_gammas_and_the_rest_is_as_if_it_were_not() -> None:
    task = stream().task(0)
    members = held_back.members(task)
    groups = [list(members)[:3], list(members)[3:]]
    parts = list(held_back.parts(task, members, groups, np.random.default_rng(0)))
    learner, trained = IPAL(seed=3), list[int]()
    stage = Stage([Rehearsal.of(task.graph, parts, "seen")], partial(learner._rehearsing, "full"), "seen")
    for epochs, gamma in ((0, 3.0), (20, 3.0), (20, 0.0), (20, 10.0)):
        candidate = Candidate(NETWORKS[0].model_copy(update={"width": 12, "hidden": 12}), epochs, gamma)
        shown = stage.shown(candidate, 0)
        trained.append(len(stage.begun))
        alone = learner._rehearsing("full", candidate, stage.blanks[candidate.encoder])
        direct = rehearsed(stage.rehearsals[0], learned(alone, [parts[0].task]))
        assert shown is not None
        assert np.array_equal(shown.hits, direct.hits)
        assert stage.beginner(candidate, 0).train == alone.train
        assert alone.epochs == epochs
    assert trained == [0, 1, 1, 1]


def test_rate_for_by_hand() -> None:
    # Squares 9 + 16 + 0 + 0 of four weights; the vector is no matrix, and does not count.
    assert rate_for([torch.tensor([[3.0, 0.0], [0.0, 4.0]]), torch.ones(7)]) == pytest.approx(0.001 * 2.5)
    assert rate_for([torch.zeros(2, 2)]) == 0.001, "something, where all weights are zero"


def test_epochs_that_are_set_are_kept_even_where_none_were_better() -> None:
    shares = {("linear", 0, 3.0): 0.9, ("linear", 5, 3.0): 0.3, ("linear", 5, 0.4): 0.6}
    chosen, tried = chosen_where(shares, epochs=(5,))
    assert chosen == ("linear", 5, 3.0)
    assert ("linear", 5, 0.4) in tried


@pytest.mark.parametrize("sizes", [{0: 50}, {0: 50, 1: 9}, {}])
def test_with_too_little_to_rehearse_the_first_is_taken_and_the_reason_is_said(sizes: dict[int, int]) -> None:
    def make(candidate: Candidate, blank: Any = None) -> Learner:
        raise AssertionError("nothing is tried")

    task = numbered(sizes) if sizes else Task(numbered({0: 3}).graph, np.arange(0), np.arange(0))
    told = choose(task, Options(NETWORKS, (3, 0), (3.0,)), make, 0)
    assert told["chosen"] == Candidate(NETWORKS[0], 0, 3.0).plain()
    assert "needs two classes of 10 training nodes" in told["reason"]


def test_of_two_classes_encoders_are_compared_and_training_is_not_rehearsed(monkeypatch: pytest.MonkeyPatch) -> None:
    small = learn(IPAL(seed=3), stream(split=[2, 4, 2]).task(0))
    assert small.epochs == 0, "few nodes, perhaps of many batches"
    monkeypatch.setattr("ipal.learners.ipal.SMALL", 1)
    learner = learn(IPAL(seed=3), stream(split=[2, 4, 2]).task(0))
    assert learner.choices()["rehearsed"] == ["1+1 classes"], "edges between them count"
    assert "too few to hold some back" in learner.choices()["reason"]
    assert {one["epochs"] for one in learner.choices()["tried"]} == {0}
    assert learner.epochs == learner.choices()["chosen"]["epochs"] == 10
    assert learner.choices()["chosen"]["gamma"] == 10, "what holds most of what was learned"
    assert learn(IPAL(seed=3, task_free=True), stream(split=[2, 4, 2]).task(0)).epochs == 0


@pytest.mark.parametrize(("weighed", "chosen"), [(0.5, "uniform"), (0.9, "pagerank")])
def test_nodes_weigh_alike_unless_other_weights_are_better(weighed: float, chosen: str) -> None:
    def make(candidate: Candidate, blank: Any = None) -> Learner:
        return Stub(right=weighed if candidate.node_weights == "pagerank" else 0.5)

    task = numbered(dict.fromkeys(range(4), 100))
    told = choose(task, Options(NETWORKS, (0, 3), (3.0,), ("uniform", "pagerank")), make, 0)
    assert told["chosen"]["node_weights"] == chosen
    assert told["chosen"]["encoder"]["kind"] == "linear"


def test_with_all_else_set_nodes_weigh_as_in_the_paper() -> None:
    fixed = {"encoder": NETWORKS[1], "train": TrainConfig(epochs=0), "gamma": 1.0}
    left, paper, alike = (
        learn(IPAL(**fixed, **weights), stream().task(0)).memory_.mean  # type: ignore[arg-type]
        for weights in ({}, {"node_weights": "pagerank"}, {"node_weights": "uniform"})
    )
    assert torch.equal(left, paper)
    assert not torch.equal(left, alike)


def test_better_in_one_of_two_rehearsals_is_not_better() -> None:
    one, other = (Candidate(network, 0, 1.0) for network in NETWORKS)
    stage = staged({one: [1.0, 0.0], other: [0.0, 1.0]})
    assert not stage.is_better(one, other)
    assert not stage.is_better(other, one)


@pytest.mark.parametrize(
    ("more", "better"), [((3,), False), ((5,), True), ((2, 8), True), ((2, 4), False), ((0, 9), False)]
)
def test_better_is_by_more_than_two_standard_errors_in_the_mean_by_hand(more: tuple[int, ...], better: bool) -> None:
    # More by p of 100 nodes: a standard error of sqrt(p (1 - p) / 100), 0.014, 0.0171, 0.0196, 0.0218 and 0.0271 of
    # 0.02, 0.03, 0.04, 0.05 and 0.08. In the mean 0.05 by 0.0206, and 0.03 by 0.0168.
    one, other = (Candidate(network, 0, 1.0) for network in NETWORKS)
    stage = staged({one: [0.5 + n / 100 for n in more], other: [0.5] * len(more)})
    assert stage.is_better(one, other) is better
    assert stage.accuracies(one) == pytest.approx([50.0 + n for n in more])


@pytest.mark.parametrize(("more", "better"), [((1, 1), True), ((5, 0), False), ((5, -1), False)])
def test_of_two_networks_of_one_size_the_second_is_taken_if_it_is_better_every_time(
    more: tuple[int, int], better: bool
) -> None:
    one, other = (Candidate(NETWORKS[0].model_copy(update={"kind": kind}), 0, 1.0) for kind in ("linear", "lazy"))
    shown = {other: [0.5 + n / 100 for n in more], one: [0.5, 0.5]}
    assert staged(shown, "seen").simplest([one, other]) == (other if better else one)
    assert staged(shown, "isolated").simplest([one, other]) == one, "by chance"


def test_a_later_network_has_to_be_better_than_all_before_it() -> None:
    shares = {("linear", 4): 0.5, ("linear", 8): 0.65, ("lazy", 2): 0.66, ("gcn", 2): 0.9}
    networks = {
        Candidate(EncoderConfig(kind=kind, layers=layers, hidden=4, width=4), 0, 1.0): [share]
        for (kind, layers), share in shares.items()
    }
    four, eight, lazy, gcn = networks
    stage = staged(networks, "isolated")
    assert stage.simplest([four, eight, lazy]) == eight, "lazy is better than the first, but not than the second"
    assert stage.simplest([four, lazy]) == lazy
    assert stage.simplest([four, eight, lazy, gcn]) == gcn
    assert stage.simplest([gcn, four, eight]) == gcn
