"""Runs that differ in numbers alone take their steps as one: each ends as it does alone, but for rounding."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ipal.backend.sparse import SparsePair, sparse_matmul
from ipal.bench.interleave import Run, run_interleaved
from ipal.bench.jobs import JobGroup, perform
from ipal.config import EncoderConfig, TrainConfig, run_config
from ipal.data.datasets import Dataset, load
from ipal.engine.executors.stacked import _Group, float_settings
from ipal.errors import DataError
from ipal.estimator.registry import METHODS
from ipal.methods.base import Trained
from ipal.methods.ipal import IPAL
from ipal.runs import runner
from ipal.runs.resolved import Resolver
from ipal.runs.run_folder import RunFolder, RunStore
from ipal.state.snapshot import Snapshot
from tests.bench.support import plan, write
from tests.bench.test_interleave import DEVICES

NAME = "synthetic:nodes=240,classes=6,features=12"
GAMMAS = (0.1, 0.4, 0.9)


@pytest.fixture(scope="module")
def data() -> Dataset:
    return load(NAME)


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many runs were stacked, in the order in which they met."""
    found, stack = list[int](), _Group.stack

    def noted(self: Any) -> None:
        found.append(len(self.seats))
        stack(self)

    monkeypatch.setattr(_Group, "stack", noted)
    return found


def planned(data: Dataset, folder: Path, trees: list[dict[str, Any]], **common: Any) -> list[Run]:
    resolver, store = Resolver(), RunStore(folder)
    fixed = {"dataset": data.name, "encoder": {**dict(EncoderConfig()), **common.pop("encoder", {})}}
    fixed |= {"protocol": {"calibration": 0.0}}
    trained = {**dict(TrainConfig(epochs=6)), **common.pop("train", {})}
    runs = []
    for tree in trees:
        tree["train"] = {**trained, **tree.get("train", {})}
        own = {**common.get("ipal", {}), **tree.pop("ipal", {})}
        settings = {} if "method" in tree else {"ipal": own}
        resolved = resolver.resolve(run_config({**fixed, **common, **tree, **settings}), data)
        runs.append((resolved, store.folder_for(resolved.config)))
    return runs


def step_checked(self: Any, step: Any = _Group.stacked_step) -> Any:
    """A step of all, compared with what each would compute by itself from the same parameters."""
    alone = []
    for seat in self.seats:
        generator = seat.training.state.generator
        drawn = generator.get_state()
        terms = seat.training.loss(seat.batch)
        generator.set_state(drawn)
        total = torch.stack(list(terms.values())).sum()
        alone.append((terms, torch.autograd.grad(total, list(seat.training.network.parameters()))))
    found = step(self)
    for place, (terms, gradients) in enumerate(alone):
        for name, term in terms.items():
            ours = found.values[found.names.index(name), place]
            torch.testing.assert_close(ours, term.detach(), rtol=1e-4, atol=1e-5)
        stacked = [one.grad.select(self._mapped.dims[name], place) for name, one in self._weights.items()]
        largest = max(float(gradient.abs().max()) for gradient in gradients)
        for ours, theirs in zip(stacked, gradients, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4 * largest + 1e-6)
    return found


def gammas(**tree: Any) -> list[dict[str, Any]]:
    return [{"ipal": {"gamma": gamma}, **tree} for gamma in GAMMAS]


def both(
    data: Dataset, folder: Path, trees: list[dict[str, Any]], **common: Any
) -> Iterator[tuple[RunFolder, RunFolder]]:
    """Every run as it ends stacked, and alone."""
    for name, stacked in (("stacked", 64), ("alone", 1)):
        runs = planned(data, folder / name, [{**tree} for tree in trees], **common)
        assert sorted(run_interleaved(runs, stacked)) == [(index, None) for index in range(len(runs))]
    stored = [
        [made for _, made in planned(data, folder / name, [{**tree} for tree in trees], **common)]
        for name in ("stacked", "alone")
    ]
    return zip(*stored, strict=True)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "common",
    [
        {},
        {"encoder": {"dropout": 0.3}},
        {"ipal": {"distillation": "fd", "hardness": "margin"}},
        {"encoder": {"kind": "sage"}, "train": {"epochs": 6, "moments": "reset"}},
        {"encoder": {"kind": "appnp", "layers": 1, "restart": [0.1, 0.3]}},
    ],
    ids=str,
)
def test_stacked_runs_give_what_each_gives_alone(
    common: dict[str, Any],
    device: str,
    data: Dataset,
    tmp_path: Path,
    sizes: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if device == "cpu":  # a recorded step leaves no gradients to look at
        monkeypatch.setattr(_Group, "stacked_step", step_checked)
    seeds = (0,) if common else (0, 1)
    trees = [tree for seed in seeds for tree in gammas(seed=seed)]
    for stacked, alone in both(data, tmp_path, trees, device=device, **common):
        found = [np.array(made.result()["accuracy_matrix"], dtype=float) for made in (stacked, alone)]
        np.testing.assert_allclose(*found, rtol=0, atol=0 if device == "cpu" else 5)
        first = [[row for row in made.history() if row["task"] == 0] for made in (stacked, alone)]
        assert first[0] == first[1]  # computed once for all, as alone
        one, other = (Snapshot.load(run.model) for run in (stacked, alone))
        assert one.facts == other.facts
        assert {name: tensor.shape for name, tensor in one.tensors.items()} == {
            name: tensor.shape for name, tensor in other.tensors.items()
        }
        assert torch.equal(one.tensors["generator"], other.tensors["generator"])
    assert sizes == [3, 3] * len(seeds)  # of three tasks; in the first, gamma has no effect


NUMBERS = [
    (method.name, name)
    for method in METHODS.values()
    if issubclass(method, Trained) and not issubclass(method, IPAL)
    for name in [*float_settings(method())][:1]
]
NUMBERS += [("adagauss", "shrinkage")]
ALONE = {"twp", "er-gnn", "gem", "joint"}
"""They ask whether a number is zero, keep other nodes each, change gradients, or hand a number on as one."""
ONCE = {("adagauss", "shrinkage")}
"""It decides how nodes are classified alone: what is learned is learned once for all runs."""
QUICK = {"adagauss": {"adapter_steps": 10}}


@pytest.mark.parametrize(("method", "setting"), NUMBERS)
def test_runs_of_any_method_that_differ_in_a_number(
    method: str, setting: str, data: Dataset, tmp_path: Path, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Group, "stacked_step", step_checked)
    quick = QUICK.get(method, {})
    trees = [{"method": method, method: {**quick, setting: one}} for one in (0.1, 0.4, 0.9)]
    for stacked, alone in both(data, tmp_path, trees):
        assert stacked.result()["accuracy_matrix"] == alone.result()["accuracy_matrix"]
    assert (3 in sizes) == (method not in ALONE and (method, setting) not in ONCE)


def test_numbers_that_may_differ(data: Dataset, tmp_path: Path, sizes: list[int]) -> None:
    trees = [{"ipal": {"gamma": 0.4, **one}} for one in ({}, {"tau": 0.2}, {"alpha": 0.5}, {"beta": 0.7})]
    for stacked, alone in both(data, tmp_path, trees):
        assert stacked.result()["accuracy_matrix"] == alone.result()["accuracy_matrix"]
        timing = [made.result()["timing"].get("runs_stacked") for made in (stacked, alone)]
        assert timing == [4, None]
    assert sizes == [4] * 3


def test_what_differs_in_more_is_not_stacked(data: Dataset, tmp_path: Path, sizes: list[int]) -> None:
    trees = [
        *({"seed": seed, "ipal": {"gamma": 0.4}} for seed in (0, 1)),
        {"ipal": {"gamma": 0.4, "k": 3}},
        {"ipal": {"gamma": 0.4}, "train": {"epochs": 5}},
        {"ipal": {"gamma": 0.3}, "train": {"relative": True}},
        {"ipal": {"gamma": 0.4}, "protocol": {"calibration": 0.0, "batch": {"nodes": 10}}},
        {"ipal": {"gamma": 0.3}, "protocol": {"calibration": 0.0, "batch": {"nodes": 10}}},
        *({"ipal": {"gamma": gamma}, "encoder": {"kind": "gat", "hidden": 8, "width": 8}} for gamma in (0.3, 0.4)),
        {"method": "ewc"},
        {"method": "ncm"},
    ]
    runs = planned(data, tmp_path, trees)
    assert sorted(run_interleaved(runs, 64)) == [(index, None) for index in range(len(runs))]
    assert sizes == []


def test_one_that_fails_leaves_the_others(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: list[int]
) -> None:
    epoch, calls = runner._Watch.epoch, []

    def fails(self: Any, terms: Any) -> None:
        epoch(self, terms)
        if self.fitted.method.gamma == GAMMAS[1]:
            calls.append(1)
            if len(calls) == 9:  # in the second task
                raise DataError("broken")

    monkeypatch.setattr(runner._Watch, "epoch", fails)
    runs = planned(data, tmp_path / "stacked", gammas())
    assert sorted(run_interleaved(runs, 3)) == [(0, None), (1, "broken"), (2, None)]
    assert sizes == [3, 2, 2]
    monkeypatch.undo()
    alone = planned(data, tmp_path / "alone", gammas())
    assert all(reason is None for _, reason in run_interleaved(alone))
    for place in (0, 2):
        assert runs[place][1].result()["accuracy_matrix"] == alone[place][1].result()["accuracy_matrix"]


def test_stacked_runs_go_on_from_their_checkpoints(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: list[int]
) -> None:
    by_epochs = runner.run_by_epochs
    monkeypatch.setattr(runner, "run_by_epochs", lambda *all, **options: by_epochs(*all, checkpoint_every=4, **options))
    epoch, calls = runner._Watch.epoch, []

    def killed(self: Any, terms: Any) -> None:
        epoch(self, terms)
        calls.append(1)
        if len(calls) == 3 * (6 + 5) - 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(runner._Watch, "epoch", killed)
        with pytest.raises(KeyboardInterrupt):
            list(run_interleaved(planned(data, tmp_path / "stacked", gammas()), 3))
    again = planned(data, tmp_path / "stacked", gammas())
    assert sorted(run_interleaved(again, 3)) == [(index, None) for index in range(3)]
    assert sizes == [3] * 3  # the second task twice
    assert all("resumed at task 1, epoch 4" in (made.path / "log.txt").read_text() for _, made in again)
    alone = planned(data, tmp_path / "alone", gammas())
    list(run_interleaved(alone))
    for (_, one), (_, other) in zip(again, alone, strict=True):
        assert one.result()["accuracy_matrix"] == other.result()["accuracy_matrix"]


def test_sparse_products_side_by_side_have_the_same_bits() -> None:
    import scipy.sparse as sp

    matrix = sp.random_array((30, 20), density=0.2, dtype=np.float32, format="csr", rng=np.random.default_rng(0))
    pair = SparsePair.of(sp.csr_array(matrix), torch.device("cpu"))
    dense = torch.randn(5, 20, 8, generator=torch.Generator().manual_seed(0)).requires_grad_()
    together = torch.func.vmap(lambda one: sparse_matmul(pair, one))(dense)
    together.square().sum().backward()  # type: ignore[no-untyped-call]
    for place in range(5):
        one = dense.detach()[place].clone().requires_grad_()
        alone = sparse_matmul(pair, one)
        alone.square().sum().backward()  # type: ignore[no-untyped-call]
        assert torch.equal(together[place], alone)
        assert dense.grad is not None
        assert one.grad is not None
        assert torch.equal(dense.grad[place], one.grad)


def test_a_bench_stacks_where_it_is_asked_to(tmp_path: Path, sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY"):
        monkeypatch.setenv(name, "1")
    entry = """
    ipal:
      encoder: {kind: gcn, layers: 2, hidden: 16, width: 16}
      train.relative: false
      protocol.calibration: 0
      grid: {ipal.gamma: [0.1, 0.4]}
    """
    suites = [plan(write(tmp_path, entry), **options) for options in ({}, {"stack": 8})]
    for suite, expected in zip(suites, ([], [2, 2] * 2), strict=True):
        sizes.clear()
        jobs = tuple(replace(job, runs=tmp_path / f"{len(expected)}") for job in suite.jobs.values())
        assert list(perform(JobGroup(jobs), {}).values()) == [None] * 4
        assert sizes == expected
    assert [suite.benches[0].command.partition("x.yaml")[2] for suite in suites] == ["", " --stack 8"]
