"""What IPAL chooses by its rehearsal, what it keeps of that, and what is said of it."""

from pathlib import Path
from typing import Any

import pytest
import torch

from ipal.backend.runtime import Runtime
from ipal.config import EncoderConfig, EncoderSettings, Sampling, TrainConfig, TrainSettings, run_config
from ipal.errors import StoreError
from ipal.learners import IPAL, load_learner
from ipal.learners.rehearsal import (
    Candidate,
    encoders,
)
from ipal.learners.state import State
from ipal.runs import memory_plan
from ipal.runs.resolved import resolve
from ipal.system.tracing import Recorder
from tests.learners.support import learn
from tests.learners.test_rehearsal import GRAPH, NETWORKS, stream


@pytest.mark.parametrize(("homophily", "kind"), [(0.05, "lazy"), (0.95, "linear")])
def test_own_features_stay_where_edges_join_classes(homophily: float, kind: str) -> None:
    graph = f"synthetic:nodes=1200,classes=8,features=12,signal=1,shuffled=true,homophily={homophily}"
    learner = IPAL(seed=3, test_graph="seen")
    learn(learner, stream(dataset=graph).task(0))
    assert learner.encoder_config.kind == kind
    assert "with edges between classes that were learned apart" in learner.choices()["reason"]


def test_what_is_set_is_kept_and_the_rest_is_chosen() -> None:
    task = stream().task(0)
    learner = learn(IPAL(encoder=EncoderSettings(width=7), train=TrainConfig(epochs=2), gamma=0.25), task)
    assert learner.encoder_config.width == learner.memory_.mean.shape[1] == 7
    assert learner.epochs == 2
    assert learner.choices()["chosen"]["gamma"] == 0.25
    assert len({one["encoder"]["kind"] for one in learner.choices()["tried"]}) == 3
    assert not learn(IPAL(encoder=EncoderConfig(), train=TrainConfig(epochs=1), gamma=1), task).choices()


def test_the_choice_is_the_same_for_the_same_seed_and_stays_for_later_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ipal.learners.ipal.SMALL", 1)
    tasks = [stream().task(index) for index in range(3)]
    first, second = (learn(IPAL(seed=5), *tasks) for _ in range(2))
    assert first.choices() == second.choices()
    assert torch.equal(first.memory_.mean, second.memory_.mean)
    assert first.choices() == learn(IPAL(seed=5), tasks[0]).choices()
    by_hand = first.choices()["chosen"]
    epochs, rate = by_hand.pop("epochs"), by_hand.pop("rate")
    assert epochs, "something is trained"
    train = TrainConfig(epochs=epochs, lr_base=rate, lr_next=rate)
    by_hand |= {"encoder": EncoderConfig(**by_hand["encoder"]), "train": train}
    plain = IPAL(seed=5, **by_hand)
    assert torch.equal(learn(plain, *tasks).memory_.mean, first.memory_.mean), "the choice alone makes the difference"


def test_rates_that_are_set_are_kept_and_others_suit_the_weights() -> None:
    tasks = [stream().task(index) for index in range(2)]
    rates = []
    for train in (TrainSettings(), TrainSettings(lr_base=0.5), TrainSettings(lr_next=0.25), TrainSettings(epochs=1)):
        learner = learn(IPAL(seed=5, train=train), tasks[0])
        rates.append((learner.learning_rate_, learn(learner, tasks[1]).learning_rate_))
    small = rates[0][0]
    assert small == pytest.approx(0.001 / 12**0.5), "the identity has 12 of 144 weights"
    assert rates == [(small, small), (0.5, small), (small, 0.25), (small, small)]
    fixed = IPAL(encoder=NETWORKS[1], train=TrainSettings(epochs=1), gamma=1)
    assert (learn(fixed, tasks[0]).learning_rate_, learn(fixed, tasks[1]).learning_rate_) == (1e-3, 1e-4)


def test_a_saved_model_holds_its_choice_and_goes_on(tmp_path: Path) -> None:
    tasks = [stream().task(index) for index in range(2)]
    learner = learn(IPAL(seed=5), tasks[0])
    learner.save(tmp_path / "model", moments=True)
    again: Any = load_learner(tmp_path / "model")
    assert again.choices() == learner.choices()
    assert again.train.epochs == again.gamma == "auto"
    assert again.predict_graph(tasks[0].graph).tolist() == learner.predict_graph(tasks[0].graph).tolist()
    assert torch.equal(learn(again, tasks[1]).memory_.mean, learn(learner, tasks[1]).memory_.mean)


def test_a_model_that_does_not_say_what_was_chosen_is_refused(tmp_path: Path) -> None:
    learn(IPAL(), stream().task(0)).save(tmp_path / "model.safetensors")
    state = State.load(tmp_path / "model.safetensors")
    for facts in ({**state.facts, "choices": {}}, {k: v for k, v in state.facts.items() if k != "choices"}):
        State(state.tensors, facts).save(tmp_path / "other.safetensors")
        with pytest.raises(StoreError, match="does not say what was chosen"):
            load_learner(tmp_path / "other.safetensors")


def test_mini_batches_are_rehearsed_as_such() -> None:
    learner = learn(IPAL(batch=Sampling(nodes=20, fanouts=(3, 3)), train=TrainConfig(epochs=1)), stream().task(0))
    assert learner.choices()["chosen"]["epochs"] == 1


def test_a_rehearsing_learner_takes_smaller_batches_and_the_weights_of_the_blank_one() -> None:
    learner = IPAL(batch=Sampling(nodes=500, fanouts=(3, 3)))
    fewer, candidate = Sampling(nodes=20, fanouts=(3, 3)), Candidate(NETWORKS[1], 2, 0.25)
    blank = learner._rehearsing(fewer, candidate)
    assert (blank.batch, blank.epochs, blank.gamma) == (fewer, 2, 0.25)
    blank.initialise(12)
    for parameter in blank.network_.parameters():
        torch.nn.init.constant_(parameter, 0.5)
    made = learner._rehearsing(fewer, candidate, blank)
    for mine, theirs in zip(made.network_.parameters(), blank.network_.parameters(), strict=True):
        assert torch.equal(mine, theirs)
        assert mine is not theirs


def test_the_time_of_a_rehearsal_is_that_of_a_choice() -> None:
    recorder = Recorder()
    learner = IPAL(encoder=NETWORKS[1], train=TrainConfig(epochs=0))  # type: ignore[arg-type]
    learner.runtime_ = Runtime.of(tracer=recorder)
    with recorder.listening():
        learn(learner, stream().task(0))
    assert any("choice" in path for lap in recorder.laps for path in lap.parts)


def test_no_encoder_is_larger_than_it_need_be() -> None:
    wide = [(one.kind, one.hidden, one.width) for one in encoders(EncoderSettings(), 5000)]
    linear = [("linear", 1024, 1024)] * 2  # near and far
    assert wide == [*linear, ("lazy", 1024, 1024), ("gcn", 1024, 512), ("gcn", 128, 128)]
    for isolated, near in ((True, 4), (False, 2)):
        found = encoders(EncoderSettings(), 30, isolated=isolated)
        assert [one.layers for one in found if one.kind == "linear"] == [near, 8]
        assert {one.layers for one in found if one.kind != "linear"} == {2}
    assert {one.layers for one in encoders(EncoderSettings(layers=3), 30, isolated=True)} == {3}
    assert {one.layers for one in encoders(EncoderSettings(kind="sage"), 30, isolated=True)} == {2}
    assert [one.hidden for one in encoders(EncoderSettings(), 30)] == [30, 30, 30, 1024, 128]
    assert max(one.hidden for one in encoders(EncoderSettings(), 10**6)) == 128
    assert [one.hidden for one in encoders(EncoderSettings(kind="gat"), 30)] == [1024, 128], "30 has no 4 heads"
    assert encoders(EncoderSettings(kind="gcn", hidden=5, width=3), 30) == [EncoderConfig(hidden=5, width=3)]


def test_the_memory_plan_counts_on_the_largest_encoder() -> None:
    def needed(**settings: Any) -> int:
        config = run_config({"dataset": GRAPH, **settings})
        return memory_plan.ways(resolve(config))[0].bytes

    assert needed() == needed(encoder={"kind": "gcn", "hidden": 1024, "width": 512})
    assert needed() > needed(encoder={"kind": "gcn", "hidden": 128, "width": 128})
