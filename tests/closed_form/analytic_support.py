"""Small labelled graphs for the closed form, models of them, and whether two are the same or one stayed as it was."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch_geometric.data import Data

from ipal import Analytic
from ipal.closed_form.method import Solved, SumsMemory
from ipal.errors import DataError
from ipal.estimator import files
from ipal.state.snapshot import Snapshot

few = settings(deadline=None, max_examples=8)


@dataclass(frozen=True, eq=False)
class Case:
    """A small labelled graph, and settings that leave nothing to choose."""

    x: Any
    edges: np.ndarray
    y: np.ndarray
    options: dict[str, Any]
    random: np.random.Generator

    @property
    def nodes(self) -> np.ndarray:
        return np.arange(len(self.y))

    @property
    def classes(self) -> np.ndarray:
        return np.unique(self.y)

    def of(self, *labels: int) -> np.ndarray:
        """All nodes of some classes."""
        return np.flatnonzero(np.isin(self.y, labels))

    def model(self, *parts: Iterable[int]) -> Analytic:
        """A model that learned these nodes, part by part, in the one graph."""
        learner = Analytic(**self.options)
        for part in parts:
            learner.partial_fit(self.data(part))
        return learner

    def data(self, train: Iterable[int], forget: Iterable[int] | None = None) -> Data:
        more = {} if forget is None else {"forget_mask": self.mask(forget)}
        edges = torch.from_numpy(self.edges)
        return Data(x=self.x, edge_index=edges, y=torch.from_numpy(self.y), train_mask=self.mask(train), **more)

    def mask(self, nodes: Iterable[int]) -> torch.Tensor:
        mask = torch.zeros(len(self.y), dtype=torch.bool)
        mask[torch.as_tensor(np.asarray(nodes, dtype=np.int64))] = True
        return mask

    def without(self, gone: np.ndarray) -> "Case":
        """The graph from which some nodes were taken, the others numbered anew."""
        stay = np.setdiff1d(self.nodes, gone)
        place = np.full(len(self.y), -1)
        place[stay] = np.arange(len(stay))
        edges = place[self.edges]
        return replace(self, x=self.x[stay], y=self.y[stay], edges=edges[:, (edges >= 0).all(axis=0)])


def case(seed: int = 0, sparse: bool = False, **options: Any) -> Case:
    """By the seed: 30 to 80 nodes, 4 to 6 classes, none with less than three nodes."""
    random = np.random.default_rng(seed)
    n, classes, features = random.integers(30, 81), random.integers(4, 7), random.integers(6, 21)
    y = random.permutation(np.concatenate([np.repeat(np.arange(classes), 3), random.integers(0, classes, n)])[:n])
    x = random.normal(size=(n, features)) + 2 * random.normal(size=(classes, features))[y]
    x = np.float32(np.where(random.random(x.shape) < 0.5, 0, x))
    edges = random.integers(0, n, (2, 3 * n))
    edges = edges[:, (y[edges[0]] == y[edges[1]]) | (random.random(3 * n) < 0.4)]
    edges[0, : n // 3] = random.integers(0, n)  # a hub
    both = np.concatenate([edges, edges[::-1]], axis=1)
    fixed = {"width": 32, "steps": 2, "restart": 0.2, "ridge": 0.01, "calibration": 0.0, **options}
    return Case(sp.csr_array(x) if sparse else x, both, y, fixed, random)


cases = st.builds(
    case,
    seed=st.integers(0, 10**6),
    sparse=st.booleans(),
    width=st.sampled_from([11, 32, 64]),  # features are wide, either, or narrow
    steps=st.sampled_from([0, 1, 3]),
    restart=st.sampled_from([0.0, 0.3, (0.1, 0.5)]),
    ridge=st.sampled_from([1e-3, 0.1, 1.0]),
)


def memory(learner: Analytic) -> SumsMemory:
    """What a model keeps."""
    return learner.model_.state.memory


def solved(learner: Analytic) -> Solved:
    """What follows from it."""
    return learner.model_.method.solved(memory(learner))


def by_label(learner: Analytic) -> np.ndarray:
    """Weights of the classes, in the order of labels."""
    return solved(learner).weights.numpy()[:, np.argsort(learner.classes_)]


def sums_by_label(learner: Analytic) -> tuple[torch.Tensor, ...]:
    """Number of rows and their sum of every class, in the order of labels, and products."""
    order, sums = np.argsort(learner.classes_), memory(learner).sums
    return sums.count[order], sums.total[order], sums.gram


def assert_same_sums(a: Analytic, b: Analytic) -> None:
    """To the bit."""
    assert sorted(a.classes_) == sorted(b.classes_)
    for one, other in zip(sums_by_label(a), sums_by_label(b), strict=True):
        assert torch.equal(one, other)


def assert_same_model(a: Analytic, b: Analytic, case: Case) -> None:
    """Sums to the bit, weights to rounding, and all that follows from them."""
    assert_same_sums(a, b)
    expected = by_label(b)
    assert np.linalg.norm(by_label(a) - expected) <= 1e-6 * np.linalg.norm(expected)
    data = case.data(case.nodes)
    scores = np.sort(b.predict_proba(data), axis=1)
    clear = scores[:, -1] - scores[:, -2] > 1e-5 if scores.shape[1] > 1 else np.full(len(scores), True)
    assert np.array_equal(a.predict(data)[clear], b.predict(data)[clear])


def equal(one: Snapshot, other: Snapshot) -> bool:
    """To the bit."""
    same = one.facts == other.facts and one.tensors.keys() == other.tensors.keys()
    return same and all(torch.equal(tensor, other.tensors[name]) for name, tensor in one.tensors.items())


class Refused:
    """Something is refused with these words, and the model stays as it was."""

    def __init__(self, learner: Analytic, *words: str, error: type[Exception] = DataError) -> None:
        self.learner, self.words, self.error = learner, words, error

    def __enter__(self) -> None:
        self.before = files.checkpoint(self.learner.model_)

    def __exit__(self, kind: Any, value: Any, trace: Any) -> bool:
        assert kind is not None, "it was not refused"
        if not issubclass(kind, self.error):
            return False
        for word in self.words:
            assert word in str(value), str(value)
        assert equal(files.checkpoint(self.learner.model_), self.before)
        return True
