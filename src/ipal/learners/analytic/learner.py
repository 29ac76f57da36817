"""Analytic: the closed form. Its memory is a set of sums over nodes, so that nothing is forgotten, in any order.

A fixed map of propagated features (feature_map.py), sums over rows (sums.py), and a class-balanced ridge regression
solved from them. One pass, no gradient, nothing chosen but the ridge. What adds up can also be merged and taken away:
`merged`, `forget_class`, `forget_rows`, `forget_nodes` are exact, each in its own sense.

Related: McDonnell et al. 2023 (RanPAC: random projections and a ridge from sums, for images), Zhuang et al. 2022
(ACIL: recursive least squares), Gasteiger et al. 2019 (APPNP: propagation with restart).
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from ipal.backend.propagated import DEFAULTS
from ipal.config import MOST_LAYERS
from ipal.data.graph import Graph
from ipal.data.relations import Types, num_edge_types
from ipal.data.streams import Task
from ipal.errors import CapacityError, ConfigError, DataError, StoreError
from ipal.learners.analytic import operations
from ipal.learners.analytic.feature_map import FeatureMap, pieces, take
from ipal.learners.analytic.left_out import RIDGES, SCALES, LeftOut
from ipal.learners.analytic.metric import Metric
from ipal.learners.analytic.ridge import factorise, ridge_weights
from ipal.learners.analytic.rows import Rows, rounded
from ipal.learners.analytic.sums import Kind, Sums
from ipal.learners.base import Learner
from ipal.learners.checks import Shapes, check_counts, check_shapes, require
from ipal.learners.facts import SumsFacts
from ipal.learners.kept import Kept
from ipal.learners.state import laid_out
from ipal.learners.values import Distances, Extents, Remembered, Terms
from ipal.system.tracing import spanned

if TYPE_CHECKING:  # for their names alone: importing them takes seconds
    from torch_geometric.data import Data, HeteroData

GIB = 2**30
MEASURED = 1024
"""Distances are measured with about so many columns."""
LEAST_RIDGE = 0.1
"""Of the mean diagonal, where distances are measured: directions in which few rows, by chance, hardly vary."""
SQUARES = 4
"""Square matrices of the width that are there at once, at most, besides the sums."""

Restart = Annotated[float, Field(ge=0, lt=1)]


@dataclasses.dataclass(frozen=True, eq=False)
class Solved:
    """What follows from the sums."""

    weights: Tensor
    """(width, classes)"""
    ridge: float
    scale: float
    """Of scores before the softmax."""


@dataclasses.dataclass(frozen=True, eq=False)
class Weights(Kept):
    """The weights of a closed form, which are solved when they are asked for."""

    def looked_at(self, learner: Any) -> dict[str, Tensor]:
        return {} if learner.solved_ is None else {self.name: learner.weights_}

    def restore(self, learner: Any, tensors: Mapping[str, Tensor]) -> None:
        check_shapes(tensors, [(self.name, (learner.sums_.width, len(learner.labels_)))])
        weights = tensors[self.name].to(learner.generator_.device)
        require(weights.dtype == torch.float64, f"'{self.name}' holds {weights.dtype} instead of {torch.float64}")
        learner.solved_ = Solved(weights, *learner.left_out_.best(learner.ridges))


@dataclass(kw_only=True, eq=False)
class Analytic(Learner):
    """The closed form: class-balanced ridge regression on propagated features, from sums, exact in any order."""

    width: int = Field(4096, ge=4, le=2**17)
    """Columns of the feature map. More columns are more accurate where features are many; sums grow with the square."""
    steps: Annotated[int, Field(ge=0, le=MOST_LAYERS)] | None = None
    """Steps of propagation. None: 16 where each task is tested on a graph of its own, else 10."""
    restart: Restart | Annotated[tuple[Restart, ...], Field(min_length=1, max_length=8)] | None = None
    """Share of a node's own features that returns at every step; several share the columns. None: 0.02 and 0.3 where
    each task is tested on a graph of its own, else 0.2."""
    ridge: Annotated[float, Field(gt=0)] | None = None
    """None: by leave-one-out log-loss over all that was learned."""
    sums: Kind = "pooled"
    """pooled: one matrix for all classes. per-class: one for each: a class can be forgotten without its nodes."""
    memory: float = Field(1.0, gt=0)
    """Most that the sums may take in a saved model, in GiB."""

    name = "analytic"
    forgets = True
    calibrates_itself = True  # by leaving out one node at a time
    schema = SumsFacts
    kept: ClassVar[tuple[Kept, ...]] = (
        Kept(
            "sums",
            "per class: number of nodes and sum of their rows; sums of products of rows",
            check=lambda learner, sums, whole: check_counts(sums.count, "sums.count"),
            look=lambda learner: {"sums.total": learner.sums_.total},  # rows on a grid have finite products
        ),
        Kept("left_out", "leave-one-out log-losses, summed by class, ridge and scale"),
        Weights("weights", "weights of every class, solved from the sums"),
    )

    # ------------------------------------------------------------------ learning

    def initialise(self, num_features: int) -> None:
        super().initialise(num_features)
        device = self.generator_.device
        self.features_: FeatureMap | None = None
        self.sums_ = Sums.empty(self.sums, self.width, device)
        self.left_out_ = LeftOut.empty(len(self.ridges), device)
        self.solved_: Solved | None = None  # until it is asked for

    def start(self, task: Task) -> None:
        known = set(self.labels_) if self.is_fitted else set()
        self._check_width(num_edge_types(task.graph.types))
        self.check_classes(len(known | set(np.unique(task.labels).tolist())))
        super().start(task)
        if self.features_ is None:
            self.features_ = self._made_map()

    def check_classes(self, classes: int) -> None:
        """Refuse so many classes where they do not fit the width or the memory."""
        self._check_width(edge_types=1)
        if classes > self.width:
            raise ConfigError(
                f"analytic.width={self.width} is too few columns for {classes} classes: set at least {classes}.",
                "analytic.width",
            )
        needed = 4 * int(np.prod(Sums.saved_shape(self.sums, self.width, classes)))
        if needed > self.memory * GIB:
            per_class = self.sums == "per-class"
            fits = int((self.memory * GIB / (classes if per_class else 1) / 2.2) ** 0.5)
            instead = ["raise it", *["set analytic.sums=pooled"] * per_class]
            instead += [f"set a width of at most {fits}"] * (fits >= classes)
            raise CapacityError(
                f"Sums of {self.width} columns for {classes} classes take {needed / GIB:.2g} GiB, and "
                f"analytic.memory={self.memory:g} allows less: {', or '.join(instead)}."
            )

    def _check_width(self, edge_types: int) -> None:
        parts = len(self._walk[1]) * edge_types
        if self.width < 4 * parts:
            raise ConfigError(
                f"analytic.width={self.width} is too few columns for {parts} restarts and types of edges: set at least "
                f"{4 * parts}.",
                "analytic.width",
            )

    @property
    def ridges(self) -> Sequence[float]:
        """Ridges that are compared."""
        return RIDGES if self.ridge is None else (self.ridge,)

    @property
    def _walk(self) -> tuple[int, tuple[float, ...]]:
        """Steps and restarts."""
        steps, restarts = DEFAULTS[self.test_graph]
        given = (self.restart,) if isinstance(self.restart, float | int) else self.restart
        return steps if self.steps is None else self.steps, restarts if given is None else given

    def _made_map(self) -> FeatureMap:
        types = num_edge_types(self.types_)
        return FeatureMap(self.num_features_, self.width, *self._walk, self.seed, self.runtime_, types)

    @property
    def map(self) -> FeatureMap:
        """The feature map of a model that has learned something."""
        assert self.features_ is not None, "nothing was learned yet"
        return self.features_

    def teach(self, task: Task, first_epoch: int) -> Iterator[Terms]:
        rows = self.rows_of(task.graph, task.nodes, self.rows(task.labels))
        self.sums_ = self.exchanged(self.sums_.grown(len(self.labels_)), None, rows)
        with self.tracer.span("ridge"):
            self.left_out_ = self.left_out_.plus(self.sums_, rows, self.ridges)
        self.solved_ = None
        yield from ()

    def rows_of(self, graph: Graph, nodes: Any, labels: Tensor) -> Rows:
        """Rows of some nodes to be added or taken away."""
        at = torch.from_numpy(np.asarray(nodes)).to(labels.device)
        return Rows(self.map.propagated(graph), labels, self.map.expanded, at)

    @spanned("sums")
    def exchanged(self, sums: Sums, old: Rows | None, new: Rows | None) -> Sums:
        return sums.exchanged(old, new, self.names, self.runtime_.team)

    @property
    def solved(self) -> Solved:
        """Solved when it is asked for, and kept until something is learned. Asking changes nothing."""
        if self.solved_ is None:
            with self.tracer.span("solve"):
                normal, (ridge, scale) = self.sums_.normal(), self.left_out_.best(self.ridges)
                factor = factorise(normal.gram, ridge)
                self.solved_ = Solved(laid_out(ridge_weights(factor, normal.mean)), factor.ridge, scale)
        return self.solved_

    @property
    def weights_(self) -> Tensor:
        """(width, classes)"""
        return self.solved.weights

    # ------------------------------------------------------------------ prediction

    @property
    def reach(self) -> int:
        return self.map.steps

    def represent(self, graph: Graph) -> Tensor:
        # As they are added up: an audit looks for these rows in the sums.
        return torch.cat([rounded(self.map.expanded(some)).float() for some in pieces(self.map.propagated(graph))])

    def scores(self, graph: Graph) -> Tensor:
        return self._shared(self.map.propagated(graph))

    def scores_at(self, graph: Graph, nodes: Tensor) -> Tensor:
        return self._shared(take(self.map.propagated(graph), nodes))

    def _shared(self, propagated: Tensor) -> Tensor:
        """Scores, of which each process finds its share."""
        team = self.runtime_.team
        share = team.share(len(propagated))
        return team.gathered(self._scored(share.of(propagated)), share)

    def _scored(self, propagated: Tensor) -> Tensor:
        weights = self.weights_.float()
        return torch.cat([self.map.expanded(piece, torch.float32) @ weights for piece in pieces(propagated)])

    def scores_and_probabilities(self, graph: Graph, nodes: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if nodes is None:
            return super().scores_and_probabilities(graph)
        # To expand a row costs most: only those asked for.
        scores = self._scored(self.map.propagated_at(graph, nodes))
        return scores, self.calibrated(self.probabilities(scores, graph))

    def distances(self, graph: Graph) -> Distances:
        step = max(1, self.width // MEASURED)
        metric = Metric.of(self.sums_.normal(step), LEAST_RIDGE, self.solved.ridge)
        rows = pieces(self.map.propagated(graph))
        products = [metric.products(self.map.expanded(some, torch.float32)[:, ::step] * step**0.5) for some in rows]
        return partial(metric.distances, torch.cat(products))

    def probabilities(self, scores: Tensor, graph: Graph) -> Tensor:
        return (self.solved.scale * scores).softmax(dim=-1)

    @property
    def separation(self) -> float:
        return self.solved.scale

    def mean_scores(self) -> Tensor:
        return self.separation * (self.sums_.mean @ self.weights_)

    def exported(self, rows: Any) -> tuple[Any, Any]:
        scores = self.map.exported(rows) @ self.weights_
        return scores, (scores * self.solved.scale).softmax()

    @classmethod
    def working_memory(cls, extents: Extents) -> tuple[int, int]:
        width = cls.__dataclass_fields__["width"].default.default
        # With two restarts, each has half of the width, and half of that is linear.
        columns = 2 * extents.features if extents.features <= width // 4 else width
        rows = 4 * extents.tested_nodes * columns
        sums = 8 * SQUARES * width**2
        return 2 * rows + sums, rows // 4 + sums

    # ------------------------------------------------------------------ what sums allow (see operations.py)

    def merged(self, other: "Analytic") -> Self:
        """The model that learned what both learned: their sums, added. Both must map nodes to rows alike."""
        if not isinstance(other, Analytic):
            raise DataError(f"Only models of the closed form can be merged, not one of '{other.name}'.")
        return operations.merged(self, other)

    def forget_class(self, label: Any) -> Self:
        """Exact for the class's own rows: as if they had not taught. Other nodes' features stay as they were."""
        return operations.forget_class(self, label)

    def forget_rows(self, data: "Data | HeteroData") -> Self:
        """Nodes no longer teach, the graph stays: exact for a model that never learned from these nodes' labels.

        `forget_mask` says which nodes; the graph must be the one they were learned in.
        """
        return operations.forget_rows(self, data)

    def forget_nodes(self, data: "Data | HeteroData") -> Self:
        """As if the nodes had never been in the graph: the rows of all nodes that they reached are redone.

        `forget_mask` says which nodes, `train_mask` all that taught in this graph.
        """
        return operations.forget_nodes(self, data)

    def without_nodes(self, task: Task, leaving: NDArray[np.bool_]) -> Self:
        """A copy that some training nodes of the task just learned did not teach."""
        return operations.without_nodes(self, task, leaving)

    def without_class(self, label: Any) -> Self:
        """A copy that knows nothing of a class, to try out; exact with sums by class."""
        return operations.without_class(self, label)

    def unite(self, places: Tensor, classes: int) -> None:
        operations.unite(self, places, classes)

    def correct(self, task: Task, labels: Tensor) -> None:
        operations.correct(self, task, labels)

    @property
    def names(self) -> list[str]:
        """Of the classes, as messages write them."""
        return list(map(str, self.labels_))

    # ------------------------------------------------------------------ state as a value

    def remembered(self) -> dict[str, Remembered]:
        sums, kept = self.sums_, super().remembered()
        if sums.kind == "per-class":
            return {n: replace(one, second=partial(sums.products, c)) for c, (n, one) in enumerate(kept.items())}
        return {name: replace(one, shared=partial(sums.products, 0)) for name, one in kept.items()}

    def __sklearn_clone__(self) -> Self:
        # scikit-learn's own way asks that a parameter is the very object that was given: a checked tuple is a copy.
        return type(self)(**self.get_params())

    @property
    def map_(self) -> str:
        """Identifies the feature map."""
        return self.map.fingerprint

    @map_.setter
    def map_(self, fingerprint: str) -> None:
        self.features_ = self._made_map()
        if self.features_.fingerprint != fingerprint:
            raise StoreError(
                "This installation draws other random directions than the one that made the model: "
                "use the version of numpy that it was made with."
            )

    def shapes(self, facts: Mapping[str, Any]) -> Shapes:
        yield from super().shapes(facts)
        classes = len(facts["labels"])
        types = facts["types"] and Types.of_plain(facts["types"])
        require(self.width >= 4 * len(self._walk[1]) * num_edge_types(types), "it has too many types of edges")
        yield from [("sums.count", (classes,)), ("sums.total", (classes, self.width))]
        yield "sums.gram", Sums.saved_shape(self.sums, self.width, classes)
        yield from [("left_out.count", (classes,)), ("left_out.loss", (classes, len(self.ridges), len(SCALES)))]
