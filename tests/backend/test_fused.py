"""Fused kernels compute what the lines they stand for say, forward and backward, for one learner and for several."""

from collections.abc import Generator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from ipal.backend import fused
from ipal.backend.batches import distinct_places
from ipal.backend.finite import read_terms
from ipal.backend.runtime import Runtime
from ipal.config import ProtocolConfig
from ipal.data.datasets import load
from ipal.data.streams import TaskStream
from ipal.engine.executors import recorded, stacked
from ipal.engine.trainer import Epoch
from ipal.estimator.model import Learning, Model, begin_learning
from ipal.methods.ipal import IPAL
from ipal.methods.pcl import PCL
from ipal.nn import losses
from ipal.nn.truncated_beta import TruncatedBeta
from ipal.state.value import network_tensors
from tests.backend.cuda_on_cpu import NAMES, Kernels, kernels
from tests.learning import config

__all__ = ["kernels"]
LEARNERS, NODES, WIDTH, CLASSES, OLD = 3, 7, 37, 5, 3


@pytest.fixture
def emulated(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> Kernels:
    """As on a GPU, with kernels that run on the CPU."""
    kernels.started.clear()
    monkeypatch.setattr(fused, "_launch", kernels)
    monkeypatch.setattr(fused, "has_kernels", lambda device: True)
    return kernels


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def both(monkeypatch: pytest.MonkeyPatch, compute: Any, *leaves: Tensor) -> None:
    """A function and its gradients are the same with kernels and without, and for learners side by side."""

    def of(*some: Tensor) -> list[Tensor]:
        some = tuple(one.clone().requires_grad_() for one in some)
        found = compute(*some)
        found.square().sum().backward()
        return [found.detach(), *(one.grad for one in some)]

    def mapped(*some: Tensor) -> list[Tensor]:
        some = tuple(torch.stack([one, 2 * one, one - 1]).requires_grad_() for one in some)
        found = torch.func.vmap(compute, randomness="same")(*some)
        found.square().sum().backward()
        return [found.detach(), *(one.grad for one in some)]

    with monkeypatch.context() as patch:
        patch.setattr(fused, "has_kernels", lambda device: False)
        expected = [of(*leaves), mapped(*leaves)]
    for found, right in zip([of(*leaves), mapped(*leaves)], expected, strict=True):
        for one, other in zip(found, right, strict=True):
            torch.testing.assert_close(one, other, rtol=2e-4, atol=2e-5)


def test_unit_rows(emulated: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = numbers(NODES, WIDTH)
    rows[2] = 0
    both(monkeypatch, lambda rows: losses.unit(rows) * numbers(NODES, WIDTH, seed=1), rows)
    assert {"unit_rows", "unit_rows_backward"} <= set(emulated.started)


def test_a_row_that_is_not_finite_has_no_direction(emulated: Kernels) -> None:
    rows = numbers(2, 40)
    rows[1, 3] = torch.nan
    found = losses.unit(rows)
    assert found[0].isfinite().all()
    assert found[1].isnan().all()


@pytest.mark.parametrize("with_more", [True, False], ids=["all negatives", "prototypes alone"])
@pytest.mark.parametrize("is_absent", [True, False], ids=["some absent", "none absent"])
def test_contrast(with_more: bool, is_absent: bool, emulated: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    labels = torch.tensor([0, 1, 0, 1, 1, 0, 1])
    hard_labels = torch.tensor([0, 0, -1, 1, 1, -1]) if with_more else None
    replayed = numbers(40, WIDTH, seed=2) if with_more else None
    absent = torch.tensor([False, False, True, False, True]) if is_absent else None

    def compute(f: Tensor, mu: Tensor, hard: Tensor) -> Tensor:
        kept = 0 * hard.sum()
        hard_rows = hard if with_more else None
        return kept + losses.prototype_contrast(f, labels, mu, 0.5, hard_rows, hard_labels, replayed, absent)

    both(monkeypatch, compute, 0.3 * numbers(NODES, WIDTH), numbers(CLASSES, WIDTH), numbers(6, WIDTH))
    assert {"contrast", "contrast_backward"} <= set(emulated.started)


def hardest(within: Tensor, k: int) -> tuple[Tensor, Tensor]:
    return losses.hardest(within, torch.ones_like(within, dtype=torch.bool), k)


def test_the_hardest_of_every_class(emulated: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    within = numbers(3, 300)
    within[0, ::2], within[1, 4:] = -torch.inf, -torch.inf  # a class of four nodes
    within[2] = within[2].round()  # equal ones: the first is taken
    compute = partial(hardest, k=6)
    found, mapped = compute(within), torch.func.vmap(compute)(torch.stack([within, -within.clamp_min(-9)]))
    assert set(emulated.started) == {"hardest"}
    monkeypatch.setattr(fused, "has_kernels", lambda device: False)
    for one, rows in ((found, within), *zip(zip(*mapped, strict=True), [within, -within.clamp_min(-9)], strict=True)):
        nodes, labels = compute(rows)
        assert torch.equal(one[1], labels)
        places, right = one[0].view(3, 6), nodes.view(3, 6)
        assert torch.equal(rows.gather(1, places), rows.gather(1, right))
        assert all(len(set(row.tolist())) == 6 for row in places)
    assert sorted(found[0][12:].tolist(), key=lambda node: (-within[2, node], node)) == found[0][12:].tolist()


def test_nodes_without_a_number_are_no_hard_examples(emulated: Kernels) -> None:
    nodes, labels = hardest(torch.tensor([[1.0, torch.nan, 3.0], [torch.nan] * 3]), 2)
    assert nodes.tolist() == [2, 0, 0, 0]
    assert labels.tolist() == [0, 0, -1, -1]


@pytest.mark.parametrize("old", [1, 40])
def test_distillation(old: int, emulated: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    mu, before, chosen = 2 * numbers(old, WIDTH), numbers(NODES, WIDTH, seed=3), torch.tensor([4, 0, 6, 2])
    mu[0] = before[4]
    lam = torch.rand(4, old, generator=torch.Generator().manual_seed(0))
    held = losses.OldPrototypes.of(mu)

    def compute(f: Tensor) -> Tensor:
        found = losses.distillation_by_kernel(f, before, chosen, lam, held)
        if found is not None:
            return found
        then, now = (losses.mixed_affinity(one[chosen], mu, lam) for one in (before, f))
        return losses.affinity_distillation(now, then, losses.keep_consistent(then))

    both(monkeypatch, compute, before + 0.5 * numbers(NODES, WIDTH, seed=4))
    same = before.clone().requires_grad_()
    compute(same).backward()  # type: ignore[no-untyped-call]
    assert compute(before) == 0
    assert {"distilled", "distilled_backward"} <= set(emulated.started)
    assert same.grad is not None
    assert (same.grad == 0).all()


def test_more_classes_than_a_block_holds_are_distilled_without_the_kernel(emulated: Kernels) -> None:
    mu = numbers(2000, 2)
    held = losses.OldPrototypes(mu, mu, mu, mu)
    assert losses.distillation_by_kernel(numbers(3, 2), numbers(3, 2), torch.tensor([0]), mu, held) is None


def test_draws_from_a_table(emulated: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    mixing = TruncatedBeta(9.0, 21.0, 0.4, torch.device("cpu"))
    found = mixing.draw((20, 13), torch.Generator().manual_seed(0))
    monkeypatch.setattr(fused, "has_kernels", lambda device: False)
    torch.testing.assert_close(found, mixing.draw((20, 13), torch.Generator().manual_seed(0)), rtol=0, atol=0)
    assert emulated.started == ["inverted"]


@pytest.mark.parametrize("k", [1, 25])
def test_places_are_the_same_with_the_kernel(k: int, emulated: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    degree = torch.arange(k, k + 200)
    found = distinct_places(degree, k, torch.Generator().manual_seed(0))
    monkeypatch.setattr(fused, "has_kernels", lambda device: False)
    assert torch.equal(found, distinct_places(degree, k, torch.Generator().manual_seed(0)))
    assert emulated.started == ["distinct_places"]


def learned_together(
    method: Any, stream: TaskStream, options: list[dict[str, Any]], device: str = "cpu"
) -> tuple[list[Model], list[float]]:
    """Models after two tasks, having taken turns; and the loss terms of all their steps."""
    stack, terms, is_stacked = stacked.Stack(), list[float](), len(options) > 1
    settings = [config(method, epochs=2, **some) for some in options]
    models: list[Any] = [None for _ in options]

    def epochs(place: int, learning: Learning) -> Generator[Epoch, None, None]:
        models[place] = learning.finish((yield from learning.epochs()))

    for index in range(2):
        task, executor = stack.shared(stream.task(index)), stack if is_stacked else recorded.Automatic()
        learnings = [
            begin_learning(one, model, task, Runtime.of(device), executor)
            for one, model in zip(settings, models, strict=True)
        ]
        for found in zip(*(epochs(*one) for one in enumerate(learnings)), strict=True):
            terms += [term for one in read_terms([one.terms for one in found if one.terms]) for term in one.values()]
    assert stack.largest == (len(options) if is_stacked else 0)
    return models, terms


def parameters(model: Model) -> dict[str, Tensor]:
    return network_tensors(model.network)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        (IPAL, [{"gamma": 0.4, "batch": {"nodes": 7, "fanouts": [2, 2]}}]),
        (IPAL, [{"gamma": 0.4, "tau": 0.1}, {"gamma": 0.9}]),
        (PCL, [{"tau": 0.1}, {"tau": 0.2}]),
    ],
    ids=["mini-batches", "stacked", "without distillation"],
)
def test_tasks_are_learned_the_same_but_for_rounding(
    method: Any, options: list[dict[str, Any]], emulated: Kernels, monkeypatch: Any
) -> None:
    dataset = load("synthetic:nodes=72,classes=6,features=16,signal=3")
    stream = TaskStream(dataset.graph, dataset.y, (2, 2, 2), ProtocolConfig(), seed=0)
    found, _ = learned_together(method, stream, options)
    started = set(emulated.started)
    monkeypatch.setattr(fused, "has_kernels", lambda device: False)
    for one, other in zip(found, learned_together(method, stream, options)[0], strict=True):
        torch.testing.assert_close(parameters(one), parameters(other), rtol=1e-3, atol=1e-4)
    apart = {"distinct_places"} if options[0].get("batch") is None else set()
    of_pcl = {name for name in NAMES if "unit" in name or "contrast" in name}
    assert started == (set(NAMES) - apart if method is IPAL else of_pcl)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_a_gpu_has_the_kernels() -> None:
    assert fused.has_kernels(torch.device("cuda", 0))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("options", [[{"gamma": 0.4}], [{"gamma": 0.4}, {"gamma": 0.9}]], ids=["one", "stacked"])
def test_a_gpu_computes_the_same_loss_with_kernels_but_for_rounding(
    options: list[dict[str, Any]], tiny_stream: TaskStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded, "can_record", lambda device: False)
    found, terms = learned_together(IPAL, tiny_stream, options, "cuda")
    again, _ = learned_together(IPAL, tiny_stream, options, "cuda")
    monkeypatch.setattr(fused, "has_kernels", lambda device: False)
    _, plain = learned_together(IPAL, tiny_stream, options, "cuda")
    # Of the first epoch: Adam moves parameters with hardly any gradient by a whole step, by the sign of rounding.
    first = slice(len(options))
    assert terms[first] == pytest.approx(plain[first], rel=1e-2)
    for one, same in zip(found, again, strict=True):
        torch.testing.assert_close(parameters(one), parameters(same), rtol=0, atol=0)
