"""Methods whose memory is a sum over nodes: tasks are taken away as if they had never been learned."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from ipal.closed_form.method import Analytic
from ipal.data.streams import TaskStream
from ipal.data.task import Task
from ipal.engine.trainer import numbered
from ipal.estimator.model import Model
from ipal.methods.base import Forgets, Method
from ipal.methods.ncm import NCM
from ipal.methods.shared.propagated_features import FeatureSums
from ipal.methods.shared.scatter import ScatterMemory
from ipal.methods.slda import SLDA
from ipal.state.value import flatten
from tests.learning import config, learn

KINDS = pytest.mark.parametrize(("method", "options"), [(Analytic, {}), (NCM, {}), (SLDA, {})], ids=str)


def after(model: Model, tasks: Sequence[Task], first: int) -> tuple[list[int], dict[str, Tensor]]:
    """Labels and memory once the last tasks are taken away, without classes that are left empty."""
    method = model.method
    assert isinstance(method, Forgets)
    memory = method.without_tasks(
        model.state.memory, [numbered(task, model.labels) for task in tasks], first, model.compute
    )
    kept = method.statistics(memory)
    assert len(kept.count) == len(model.labels), "classes are left empty, not dropped"
    left = torch.nonzero(kept.count).flatten().tolist()
    return [model.labels[c] for c in left], flatten(memory.of_classes(left), "memory")


def assert_as_never(method: type[Method], found: dict[str, Tensor], never: Model) -> None:
    """To the bit where sums are exact, else to rounding."""
    expected = flatten(never.state.memory, "memory")
    assert found.keys() == expected.keys()
    exact = {"rtol": 0, "atol": 0} if method is Analytic else {"rtol": 1e-4, "atol": 1e-4}
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, **exact, msg=name)


@KINDS
def test_the_last_tasks_taken_away_were_never_learned(method, options, tiny_stream: TaskStream) -> None:
    tasks = [tiny_stream.task(index) for index in range(3)]
    model = learn(config(method, **options), *tasks)
    before = {name: tensor.clone() for name, tensor in flatten(model.state.memory, "memory").items()}
    for first in (2, 1):
        never = learn(config(method, **options), *tasks[:first])
        labels, found = after(model, tasks[first:], first)
        assert labels == list(never.labels)
        assert_as_never(method, found, never)
        if method is Analytic:
            assert int(found["memory.tasks"]) == first
            assert set(found["memory.left_out.task"].tolist()) == set(range(first))
    for name, tensor in flatten(model.state.memory, "memory").items():
        assert torch.equal(tensor, before[name]), f"{name} was changed in place"


@KINDS
def test_a_class_that_came_again_keeps_what_came_first(method, options, tiny_stream: TaskStream) -> None:
    whole, other = tiny_stream.task(0), tiny_stream.task(1)
    some = np.arange(len(whole.nodes)) % 2 == 0
    early, late = (Task(whole.graph, whole.nodes[part], whole.labels[part]) for part in (some, ~some))
    model, never = learn(config(method, **options), early, other, late), learn(config(method, **options), early, other)
    labels, found = after(model, [late], 2)
    assert labels == list(never.labels)
    assert_as_never(method, found, never)


def test_the_number_of_tasks_of_the_closed_form_grows_and_is_merged(tiny_stream: TaskStream) -> None:
    tasks = [tiny_stream.task(index) for index in range(3)]
    model = learn(config(Analytic), tasks[0])
    assert model.state.memory.tasks == 1
    model = learn(model, tasks[1])
    assert model.state.memory.tasks == 2
    other = learn(config(Analytic), tasks[2])
    method, classes = model.method, len(model.labels) + len(other.labels)
    both = method.merged(model.state.memory, other.state.memory, torch.arange(len(model.labels), classes), classes)
    assert both.tasks == 3
    assert sorted(set(both.left_out.task.tolist())) == [0, 1, 2]
    # Tasks of the other come last: they can be told from one's own.
    assert torch.equal(both.left_out.before(2).loss, model.state.memory.left_out.loss)


def test_scatter_without_rows_by_hand() -> None:
    # On a line: class 0 at 0, 2 and 4, class 1 at 5 and 7. Around their means 8 + 2; without the 4 and the 7: 2 + 0.
    sums = FeatureSums(torch.tensor([[6.0], [12.0]]), torch.tensor([3, 2]))
    fewer = FeatureSums(torch.tensor([[2.0], [5.0]]), torch.tensor([2, 1]))
    memory = ScatterMemory(sums, torch.tensor([[10.0]]))
    left = memory.without(fewer, [torch.tensor([[4.0]]), torch.tensor([[7.0]])])
    torch.testing.assert_close(left.scatter, torch.tensor([[2.0]]))
    assert left.sums is fewer
    assert memory.scatter.tolist() == [[10.0]], "and what was before stays"
    # Without class 1, which is left empty: 8.
    empty = FeatureSums(torch.tensor([[6.0], [0.0]]), torch.tensor([3, 0]))
    torch.testing.assert_close(memory.without(empty, [torch.tensor([[5.0], [7.0]])]).scatter, torch.tensor([[8.0]]))
