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
from torch_geometric.data import Data

from ipal.backend.runtime import Runtime
from ipal.learners import NCM, SLDA, Analytic, Learner
from ipal.learners.analytic.left_out import FIRST_RIDGE, FIRST_SCALE
from ipal.learners.draft import drafted
from ipal.learners.from_pyg import task_of
from ipal.learners.state import State
from ipal.system.tracing import Recorder
from tests.closed_form.analytic_support import POOLED_AND_PER_CLASS, Case, assert_same_model, case, cases, few
from tests.learning import NARROW, learn
from tests.learners.test_interrupted import interrupted_everywhere


def small_batches(classes: int = 4, nodes: int = 400, features: int = 12, size: int = 20, seed: int = 0) -> list[Data]:
    """Nodes without edges, around a centre for each class, in random order."""
    random = np.random.default_rng(seed)
    y = random.integers(0, classes, nodes)
    x = np.float32(2 * random.normal(size=(classes, features))[y] + random.normal(size=(nodes, features)))
    parts = np.array_split(np.arange(nodes), nodes // size)
    return [Data(x=torch.from_numpy(x[part]), y=torch.from_numpy(y[part])) for part in parts]


def narrow(method: type[Learner] = Analytic, **options: Any) -> Learner:
    """With few columns, where a method has columns, and else its defaults."""
    return method(**({"width": NARROW} if method is Analytic else {}), **options)


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


@POOLED_AND_PER_CLASS
@few
@given(case=cases, size=st.integers(1, 20))
def test_any_partition_in_any_order_ends_in_the_same_sums_and_weights(case: Case, sums: str, size: int):
    case = replace(case, edges=case.edges[:, :0])
    whole = case.model(sums, *(case.of(*group) for group in np.array_split(case.classes, 2)))
    order = case.random.permutation(case.nodes)
    parts = [order[begin : begin + size] for begin in range(0, len(order), size)]
    assert_same_model(case.model(sums, *parts), whole, case)


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
    learner = learned(narrow(), batches[:1])
    recorder = listened(learner)
    with recorder.listening():
        learned(learner, batches[1:])
        assert times(recorder, "solve") == 0
        assert times(recorder, "ridge") == len(batches) - 1  # some of its rows are left out of every batch
        learner.predict(batches[0])
        learner.predict_proba(batches[1])
        assert learner.solved.ridge > 0
        assert times(recorder, "solve") == 1
        learner.partial_fit(batches[0]).predict(batches[0])
        assert times(recorder, "solve") == 2


def test_what_is_asked_in_between_changes_nothing(tmp_path: Path):
    batches = small_batches()
    asked, left_alone = narrow(), learned(narrow(), batches)
    for number, batch in enumerate(batches):
        asked.partial_fit(batch)
        asked.predict(batch)
        asked.memory_report()
        asked.save(tmp_path / str(number))
    assert equal(asked.state(), left_alone.state())
    assert torch.equal(asked.weights_, left_alone.weights_)
    assert asked.solved.scale == left_alone.solved.scale


@pytest.mark.parametrize("method", [Analytic, NCM, SLDA])
@pytest.mark.parametrize("after", [1, 2, 11])
def test_a_state_between_two_batches_goes_on_to_the_same_bits(method: type[Learner], after: int, tmp_path: Path):
    batches = small_batches()
    straight = learned(narrow(method), batches)
    learned(narrow(method), batches[:after]).state().save(tmp_path / "checkpoint")
    resumed = narrow(method)
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
    before = learned(narrow(method), batches[:3]).state()
    task = task_of(batches[3])
    for learner in interrupted_everywhere(
        lambda: learned(narrow(method), batches[:3]), lambda learner: learn(learner, task), points=20
    ):
        assert equal(learner.state(), before)
    assert equal(learned(learner, batches[4:]).state(), learned(narrow(method), batches[:3] + batches[4:]).state())


# ------------------------------------------------------------------ ridge and scale


def test_a_ridge_and_a_scale_of_many_small_batches_are_about_those_of_one():
    batches = small_batches(nodes=1200, size=40, features=4)  # classes overlap
    x, y = (torch.cat([getattr(batch, name) for batch in batches]) for name in ("x", "y"))
    whole, parts = narrow().partial_fit(Data(x=x, y=y)), learned(narrow(), batches)
    assert parts.left_out_.count.sum() > 1000
    assert 0.09 < parts.solved.ridge / whole.solved.ridge < 11  # a decade, which is two steps
    assert 0.5 < parts.solved.scale / whole.solved.scale < 2
    assert (parts.predict(Data(x=x)) == whole.predict(Data(x=x))).mean() > 0.97


def test_the_only_node_of_a_class_judges_when_others_have_come():
    x = torch.eye(4)
    learner = narrow().partial_fit(Data(x=x[:2], y=torch.tensor([0, 1])))
    assert learner.left_out_.count.tolist() == [0, 0]
    assert (learner.solved.ridge, learner.solved.scale) == (FIRST_RIDGE, FIRST_SCALE)
    learner.partial_fit(Data(x=x[2:], y=torch.tensor([1, 2])))
    assert learner.left_out_.count.tolist() == [0, 1, 0]


# ------------------------------------------------------------------ cheap


@POOLED_AND_PER_CLASS
def test_what_is_kept_does_not_grow_with_the_number_of_batches(sums: str, tmp_path: Path):
    batches = small_batches()
    sizes = []
    for number in (5, 20):
        learner = learned(narrow(sums=sums), batches[:number])
        learner.save(tmp_path / "model")
        saved = State.load(tmp_path / "model").tensors
        kept = {name for name in saved if not name.startswith(("calibration", "generator"))}
        assert kept == {"sums.count", "sums.total", "sums.gram", "left_out.loss", "left_out.count", "weights"}
        assert learner.memory_report()["bytes"] == sum(one.numel() * one.element_size() for one in saved.values())
        assert learner.memory_report()["only_while_learning"] == []
        assert equal(Analytic.load(tmp_path / "model").state(), learner.state())
        sizes.append({name: saved[name].shape for name in kept})
    assert sizes[0] == sizes[1]


def test_sums_of_other_classes_are_shared_and_not_copied():
    one = case(3)
    learner = one.model("per-class", one.nodes)
    before = learner.sums_
    learner.partial_fit(one.data(one.of(0)[:1]))
    place = learner.labels_.index(0)
    for c, gram in enumerate(learner.sums_.gram):
        assert (gram is before.gram[c]) == (c != place)


@pytest.mark.parametrize(
    ("method", "large"), [(Analytic, {"sums_", "left_out_", "solved_", "features_"}), (SLDA, {"within_"})]
)
def test_nothing_large_is_copied_before_a_batch(method: type[Learner], large: set[str]):
    learner = learned(narrow(method), small_batches()[:3])
    learner.predict(small_batches()[0])
    copied, held = drafted(vars(learner)), vars(learner)
    for name in large:
        assert copied[name] is held[name]
    for name in held.keys() - large - {"sums_", "generator_"}:  # in what is copied there is no tensor
        assert not isinstance(held[name], torch.Tensor)


@POOLED_AND_PER_CLASS
def test_any_stream_will_do(sums: str):
    assert not Analytic(sums=sums).needs()


def test_a_first_node_alone_is_learned_and_a_thousandth():
    batches = small_batches(size=1)
    learner = learned(narrow(), batches[:1])
    assert learner.predict(batches[1]).tolist() == batches[0].y.tolist()
    learned(learner, batches[1:])
    x, y = (torch.cat([getattr(batch, name) for batch in batches]) for name in ("x", "y"))
    assert (learner.predict(Data(x=x)) == y.numpy()).mean() > 0.9
