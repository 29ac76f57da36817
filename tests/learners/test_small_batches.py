"""Streams of small batches, whose classes return: cheap, solved when asked, the same whatever came in which batch."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ipal.learners.analytic.selection import LEFT_OUT_ROWS, still_spoken_for
from ipal.learners.analytic.solved import ENOUGH_ROWS, Waiting
from torch_geometric.data import Data

from ipal.backend.runtime import Runtime
from ipal.errors import StoreError
from ipal.learners import NCM, SLDA, Analytic, Learner
from ipal.learners.analytic.lower_half import packed, unpacked
from ipal.learners.analytic.rows import Rows
from ipal.learners.draft import drafted
from ipal.learners.from_pyg import task_of
from ipal.learners.state import State
from ipal.system.tracing import Recorder
from tests.learners.analytic_support import Case, assert_same_model, case, cases, few
from tests.learners.support import learn
from tests.learners.test_interrupted import interrupted_everywhere


def small_batches(classes: int = 4, nodes: int = 400, features: int = 12, size: int = 20, seed: int = 0) -> list[Data]:
    """Nodes without edges, around a centre for each class, in random order."""
    random = np.random.default_rng(seed)
    y = random.integers(0, classes, nodes)
    x = np.float32(2 * random.normal(size=(classes, features))[y] + random.normal(size=(nodes, features)))
    parts = np.array_split(np.arange(nodes), nodes // size)
    return [Data(x=torch.from_numpy(x[part]), y=torch.from_numpy(y[part])) for part in parts]


def learned(learner: Learner, batches: Sequence[Data]) -> Any:
    for batch in batches:
        learner.partial_fit(batch)
    return learner


def equal(one: State, other: State) -> bool:
    same = one.facts == other.facts and one.tensors.keys() == other.tensors.keys()
    return same and all(torch.equal(tensor, other.tensors[name]) for name, tensor in one.tensors.items())


def listened(learner: Learner) -> Recorder:
    recorder = Recorder()
    learner.runtime_ = replace(Runtime.of(), tracer=recorder)
    return recorder


def times(recorder: Recorder, name: str) -> int:
    """How often a part was entered."""
    return sum(account.times for path, account in recorder.laps[-1].parts.items() if path[-1:] == (name,))


# ------------------------------------------------------------------ the same, whatever came in which batch


@few
@given(case=cases, size=st.integers(1, 20), options=st.sampled_from([{"hops": (0,)}, {"expansion": 0}]))
def test_any_partition_in_any_order_ends_in_the_same_sums_and_weights(case: Case, size: int, options: dict[str, Any]):
    case = replace(case, edges=case.edges[:, :0], options={**case.options, **options})
    whole = case.model("auto", *(case.of(*group) for group in np.array_split(case.classes, 2)))
    order = case.random.permutation(case.nodes)
    parts = [order[begin : begin + size] for begin in range(0, len(order), size)]
    batches = case.model("auto", *parts)
    for c, label in enumerate(batches.labels_):
        place = whole.labels_.index(label)
        assert torch.equal(batches.sums_.total[c], whole.sums_.total[place])
        assert torch.equal(batches.sums_.gram[c], whole.sums_.gram[place])
    assert_same_model(batches, whole, case)


@pytest.mark.parametrize("method", [NCM, SLDA])
def test_small_batches_and_one_large_one_make_the_same_statistics(method: type[Learner]):
    batches = small_batches()
    x, y = (torch.cat([getattr(batch, name) for batch in batches]) for name in ("x", "y"))
    whole, parts = method().partial_fit(Data(x=x, y=y)), learned(method(), batches)
    order = [parts.labels_.index(label) for label in whole.labels_]
    torch.testing.assert_close(parts.sums_.sum[order], whole.sums_.sum, rtol=1e-4, atol=1e-3)
    if method is SLDA:
        torch.testing.assert_close(parts.scatter_, whole.scatter_, rtol=1e-4, atol=1e-2)
    assert (parts.predict(Data(x=x)) == whole.predict(Data(x=x))).mean() > 0.99


# ------------------------------------------------------------------ solved when asked


def test_batches_are_not_solved_before_something_is_asked_and_then_once():
    batches = small_batches()
    learner = learned(Analytic(), batches[:1])  # all classes are new: judged at its end, as a task is
    recorder = listened(learner)
    with recorder.listening():
        learned(learner, batches[1:])
        assert times(recorder, "solve") == times(recorder, "choice") == 0
        learner.predict(batches[0])
        learner.predict_proba(batches[1])
        learner.choices()
        assert times(recorder, "solve") == times(recorder, "choice") == 1
        learner.partial_fit(batches[0]).predict(batches[0])
        assert times(recorder, "solve") == 2


def test_what_is_asked_in_between_changes_nothing(tmp_path: Path):
    batches = small_batches()
    asked, left_alone = Analytic(), learned(Analytic(), batches)
    for number, batch in enumerate(batches):
        asked.partial_fit(batch)
        asked.predict(batch)
        asked.memory_report()
        asked.save(tmp_path / str(number))
    assert equal(asked.state(), left_alone.state())
    assert torch.equal(asked.weights_, left_alone.weights_)
    assert asked.choices() == left_alone.choices()


@pytest.mark.parametrize("method", [Analytic, NCM, SLDA])
@pytest.mark.parametrize("after", [1, 2, 11])
def test_a_state_between_two_batches_goes_on_to_the_same_bits(method: type[Learner], after: int, tmp_path: Path):
    batches = small_batches()
    straight = learned(method(), batches)
    learned(method(), batches[:after]).state().save(tmp_path / "checkpoint")
    resumed = method()
    resumed.restore(State.load(tmp_path / "checkpoint"))
    learned(resumed, batches[after:])
    for one in (straight, resumed):
        one.predict(batches[0])
    assert equal(straight.state(), resumed.state())
    straight.save(tmp_path / "straight")
    resumed.save(tmp_path / "resumed")
    assert (tmp_path / "straight").read_bytes() == (tmp_path / "resumed").read_bytes()


@pytest.mark.parametrize("method", [Analytic, NCM, SLDA])
def test_a_batch_interrupted_at_any_line_was_never_begun(method: type[Learner]):
    batches = small_batches()
    before = learned(method(), batches[:3]).state()
    task = task_of(batches[3])
    for learner in interrupted_everywhere(
        lambda: learned(method(), batches[:3]), lambda learner: learn(learner, task), points=20
    ):
        assert equal(learner.state(), before)
    assert equal(learned(learner, batches[4:]).state(), learned(method(), batches[:3] + batches[4:]).state())


# ------------------------------------------------------------------ rows that wait


def waiting(*labels: int, inputs: float = 0.0) -> Waiting:
    return Waiting(torch.full((len(labels), 2), inputs), torch.tensor(labels))


def test_the_newest_rows_wait_and_those_that_can_be_left_out_alone():
    generator = torch.Generator()
    first = Waiting.none(torch.device("cpu")).then(
        Rows(torch.zeros(3, 2), torch.tensor([0, 1, 1]), torch.Tensor.double), torch.tensor([1, 2]), generator
    )
    assert first.labels.tolist() == [1, 1]  # the only node of class 0 cannot judge
    many = Rows(torch.ones(LEFT_OUT_ROWS - 1, 2), torch.zeros(LEFT_OUT_ROWS - 1).long(), torch.Tensor.double)
    then = first.then(many, torch.tensor([LEFT_OUT_ROWS, 2]), generator)
    assert len(then) == LEFT_OUT_ROWS
    assert then.labels.tolist() == [1] + [0] * (LEFT_OUT_ROWS - 1)
    assert then.inputs.sum().item() == 2 * (LEFT_OUT_ROWS - 1)


def test_a_batch_with_enough_rows_of_its_own_leaves_no_older_ones():
    n = LEFT_OUT_ROWS
    rows = Rows(torch.ones(n, 2), torch.arange(n) % 2, torch.Tensor.double)
    then = waiting(0, 1, 0).then(rows, torch.tensor([n, n]), torch.Generator())
    assert len(then) == n
    assert bool((then.inputs == 1).all())


def test_rows_judge_when_there_are_enough_of_them_by_the_number_behind_their_class():
    count = torch.tensor([40, 80])
    assert waiting(*[0] * (ENOUGH_ROWS - 1)).judges(torch.Tensor.double, count) is None
    judges = waiting(*[0, 1] * (ENOUGH_ROWS // 2)).judges(torch.Tensor.double, count)
    assert judges is not None
    assert judges.weights.tolist() == [1 / 40, 1 / 80] * (ENOUGH_ROWS // 2)
    assert judges.rows.dtype == torch.float64


def test_a_class_that_comes_again_to_judge_speaks_for_itself():
    assert still_spoken_for(judged=6, known=8, judging=2) == 6  # a task of two new classes
    assert still_spoken_for(judged=8, known=8, judging=2) == 6  # two of them again
    assert still_spoken_for(judged=8, known=8, judging=8) == 0
    assert still_spoken_for(judged=0, known=8, judging=3) == 0


def test_a_poor_judgement_of_the_first_batch_is_replaced_when_its_classes_return():
    batches = small_batches(nodes=1200, size=40)
    learner = learned(Analytic(ridge=0.1, hops=(0,)), batches)
    x, y = (torch.cat([getattr(batch, name) for batch in batches]) for name in ("x", "y"))
    whole = Analytic(ridge=0.1, hops=(0,), expansion=0).partial_fit(Data(x=x, y=y))
    assert learner.scale_ == learned(Analytic(ridge=0.1, hops=(0,)), batches[:1]).scale_
    loaded = learner._settled()
    assert loaded.scale_[0] == pytest.approx(whole.scale_[0], rel=0.1)
    assert loaded.scale_[1] == 4


def test_no_model_holds_rows_that_wait_and_a_checkpoint_holds_no_more_than_it_says(tmp_path: Path):
    batches = small_batches(nodes=LEFT_OUT_ROWS + 400, size=50)
    learner = learned(Analytic(), batches)
    state, report = learner.state(), learner.memory_report()
    assert state.tensors["waiting.inputs"].shape == (LEFT_OUT_ROWS, 12)
    assert "weights" not in state.tensors  # to be solved anew
    assert [item["kind"] for item in report["only_while_learning"]] == ["waiting"]
    learner.save(tmp_path / "model")
    saved = State.load(tmp_path / "model").tensors
    assert saved.keys() == {"generator", "sums.count", "sums.total", "sums.gram", "weights"}
    assert report["bytes"] == sum(tensor.numel() * tensor.element_size() for tensor in saved.values())
    loaded = Analytic.load(tmp_path / "model")
    assert torch.equal(loaded.weights_, learner.weights_)
    assert loaded.choices() == learner.choices()
    np.testing.assert_array_equal(loaded.predict_proba(batches[0]), learner.predict_proba(batches[0]))
    learner.save(tmp_path / "all", moments=True)
    assert equal(Analytic.load(tmp_path / "all").state(), state)


def test_rows_that_wait_are_gone_after_forgetting_merging_and_classes_that_are_all_new():
    batches = small_batches()
    learner = learned(Analytic(hops=(0,), expansion=0), batches)
    assert len(learner.waiting_)
    merged = learner.merged(learned(Analytic(hops=(0,), expansion=0), batches[:3]))
    assert len(learner.waiting_)
    assert not len(merged.waiting_)
    new = batches[0].clone()
    new.y += 10
    learner.partial_fit(new)
    assert not len(learner.waiting_)
    # What waited has judged; the rows of the first batch, and of the new one, are too few.
    assert [record["classes"] for record in learner.choices()["ridge"]] == [4]
    learner.partial_fit(batches[0]).forget_class(11)
    assert not len(learner.waiting_)
    assert 11 not in learner.predict(batches[0])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"waiting.labels": None}, "labels"),
        ({"waiting.inputs": torch.zeros(380, 5)}, r"'inputs' has the shape \(380, 5\)"),
        ({"waiting.labels": torch.full((380,), 4)}, "no known classes"),
        ({"weights": torch.zeros(12, 4, dtype=torch.float64)}, "'weights' is not part of it"),
    ],
)
def test_rows_that_no_learner_can_have_waiting_are_refused(change: dict[str, Any], words: str):
    learner = learned(Analytic(), small_batches())
    state = learner.state()
    assert len(state.tensors["waiting.labels"]) == 380
    tensors = {name: tensor for name, tensor in {**state.tensors, **change}.items() if tensor is not None}
    with pytest.raises(StoreError, match=words):
        learner.restore(State(tensors, state.facts))
    assert equal(learner.state(), state)


# ------------------------------------------------------------------ cheap


def test_sums_of_other_classes_are_shared_and_not_copied():
    one = case(3)
    learner = one.model("per-class", one.nodes)
    before = learner.sums_
    learner.partial_fit(one.data(one.of(0)[:1]))
    place = learner.labels_.index(0)
    for c, gram in enumerate(learner.sums_.gram):
        assert (gram is before.gram[c]) == (c != place)


@pytest.mark.parametrize(
    ("method", "large"), [(Analytic, {"sums_", "waiting_", "solved_", "features_"}), (SLDA, {"within_"})]
)
def test_nothing_large_is_copied_before_a_batch(method: type[Learner], large: set[str]):
    learner = learned(method(), small_batches()[:3])
    learner.predict(small_batches()[0])
    copied, held = drafted(vars(learner)), vars(learner)
    for name in large:
        assert copied[name] is held[name]
    for name in held.keys() - large - {"sums_", "generator_"}:  # in what is copied there is no tensor
        assert not isinstance(held[name], torch.Tensor)


def test_pooled_sums_need_streams_of_whole_classes():
    assert Analytic(sums="pooled").needs().keys() == {"whole classes"}
    assert not Analytic().needs()


def test_packed_and_unpacked_by_hand():
    lower = torch.tensor([[1.0, 9.0, 9.0], [2.0, 3.0, 9.0], [4.0, 5.0, 6.0]])
    assert packed(lower).tolist() == [1, 2, 3, 4, 5, 6]
    assert unpacked(packed(lower), 3).tolist() == lower.tril().tolist()


# ------------------------------------------------------------------ what a small first batch decides


@pytest.mark.parametrize("size", [1, 10, 50])
def test_a_small_first_batch_leaves_the_defaults_and_says_why(size: int):
    batches = small_batches(classes=10, features=600, size=size)
    learner = learned(Analytic(), batches[:3])
    told = learner.choices()
    assert (told["hops"], told["restart"], told["expansion"], told["sketch"]) == ([3], 0.1, 0, 768)
    assert ("one class" if size == 1 else "fewer than 64 training nodes") in told["reason"]


def test_few_training_nodes_leave_the_default_unless_others_are_clearly_better():
    random = np.random.default_rng(0)
    y = np.arange(120) % 2
    x = np.float32(np.eye(2, 8)[y] + 0.05 * random.normal(size=(120, 8)))
    none, any_two = np.zeros((2, 0), dtype=np.int64), random.integers(0, 120, (2, 600))
    told = []
    for edges in (none, any_two):  # hops do nothing, or mix the classes
        both = torch.from_numpy(np.concatenate([edges, edges[::-1]], axis=1))
        data = Data(x=torch.from_numpy(x), edge_index=both, y=torch.from_numpy(y))
        told.append(Analytic().partial_fit(data).choices())
    assert [one["hops"] for one in told] == [[3], [0]]
    assert "2 standard error(s)" in told[0]["reason"]
