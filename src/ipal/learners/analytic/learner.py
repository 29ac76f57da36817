"""Analytic: the closed form. Its memory is a set of sums over nodes, so that nothing is forgotten, in any order.

Propagated features, expanded by fixed random ReLU directions; class-balanced ridge regression from accumulated sums.
One pass, no gradient. What adds up can also be merged and taken away: `merged`, `forget_class`, `forget_rows`,
`forget_nodes` are exact, each in its own sense.

Related: McDonnell et al. 2023 (RanPAC: random projections and a ridge from sums, for images), Zhuang et al. 2022
(ACIL: recursive least squares). Here on graphs, with classes balanced, and with hops, expansion and ridge chosen by
leave-one-out error in closed form (see selection.py): no validation node is looked at.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from ipal.config import MOST_LAYERS, Count, Hops
from ipal.data.graph import Graph
from ipal.data.relations import Types, num_edge_types
from ipal.data.streams import Task
from ipal.errors import DataError, StoreError
from ipal.learners.analytic import operations
from ipal.learners.analytic.class_sums import SUMS, PerClassSums, Sums
from ipal.learners.analytic.feature_map import FeatureMap, Propagation, pieces, take
from ipal.learners.analytic.lower_half import mirrored, packed
from ipal.learners.analytic.metric import Metric
from ipal.learners.analytic.room import EXPANSIONS, GIB, WIDEST_SKETCH, Room
from ipal.learners.analytic.rows import Rows, rounded
from ipal.learners.analytic.selection import choose_features
from ipal.learners.analytic.solved import SolvedLater
from ipal.learners.analytic.spread import Spread, places
from ipal.learners.checks import Shapes
from ipal.learners.facts import SumsFacts
from ipal.learners.values import Distances, Extents, Remembered, Terms
from ipal.system.tracing import spanned

if TYPE_CHECKING:  # for their names alone: importing them takes seconds
    from torch_geometric.data import Data, HeteroData

FIRST_RIDGE = 0.1
MEASURED = 1024
"""Distances are measured with at most so many random features."""
SQUARES = 7
"""Square matrices of the width that are there at once, at most, besides the sums: where ridges are chosen."""
NAMES = {kind: name for name, kind in SUMS.items()}


@dataclass(kw_only=True, eq=False)
class Analytic(SolvedLater):
    """The closed form: class-balanced ridge regression on propagated features, from sums, exact in any order."""

    hops: Literal["auto"] | Annotated[tuple[Hops, ...], Field(min_length=1, max_length=MOST_LAYERS)] = "auto"
    """How often features are propagated; several stand side by side. auto: chosen on the first task."""
    restart: Literal["auto"] | Annotated[float, Field(ge=0, lt=1)] = "auto"
    """The share of a node's own features that returns at every hop. auto: chosen with hops; 0 where these are set."""
    expansion: Literal["auto"] | Annotated[int, Field(ge=0, le=2**20)] = "auto"
    """Number of random ReLU features, 0 for none. auto: chosen on the first task, within `memory`."""
    ridge: Literal["auto"] | Annotated[float, Field(ge=0)] = "auto"
    """Of the mean diagonal. auto: chosen anew by the nodes of every task, or of the latest batches."""
    sums: Literal["auto", "pooled", "per-class"] = "auto"
    """per-class: one matrix a class; in parts, mergeable, forgettable. pooled: one; a class comes whole. auto: by class
    as long as `memory` allows, then pooled, with a warning."""
    memory: float = Field(1.0, gt=0)
    """Most that the sums may take, in GiB."""
    expected_classes: Count = 100
    """How many classes per-class sums are to leave room for, where the expansion is chosen."""
    sketch: Literal["auto"] | Annotated[int, Field(ge=1, le=2**20)] = "auto"
    """Features wider than this are projected to so many columns before they are propagated. auto: as many as
    the first task has rows, in steps of 256, from 768 to 1024."""

    name = "analytic"
    forgets = True
    calibrates_itself = True  # by leaving out one node at a time
    schema = SumsFacts

    def needs(self) -> dict[str, str]:
        return {"whole classes": "set analytic.sums=per-class"} if self.sums == "pooled" else {}

    # ------------------------------------------------------------------ learning

    def initialise(self, num_features: int) -> None:
        super().initialise(num_features)
        self.ridge_ = FIRST_RIDGE if self.ridge == "auto" else self.ridge
        self.sketch_ = WIDEST_SKETCH if self.sketch == "auto" else self.sketch

    def start(self, task: Task) -> None:
        known, new = set(self.labels_) if self.is_fitted else set(), set(np.unique(task.labels).tolist())
        width = self.features_.width if self.is_fitted and self.features_ else None
        room = replace(self.room, edge_types=num_edge_types(task.graph.types))
        room.check(len(known | new), task.graph.num_features, width)
        if known & new and not self._per_class(len(known | new)):
            more = " and raise analytic.memory" * self._per_class()
            raise DataError(
                f"Class {min(known & new)} was learned before, and pooled sums cannot take in a class in parts exactly:"
                f" give all its nodes at once, or set analytic.sums=per-class{more}."
            )
        super().start(task)
        if self.features_ is None:
            self._choose(task)

    def teach(self, task: Task, first_epoch: int) -> Iterator[Terms]:
        rows = self.rows_of(task.graph, task.nodes, self.rows(task.labels))
        all_new = int(rows.labels.min()) >= len(self.sums_.count)
        if all_new and len(self.waiting_):  # what waits is about classes before these
            self._settle()
        self.sums_ = self.exchanged(self.room.within(self.sums_, len(self.labels_)), None, rows)
        self.waiting_, self.solved_ = self.waiting_.then(rows, self.sums_.count, self.generator_), None
        if all_new:
            self._settle()
        yield from ()

    @property
    def chooses_ridge(self) -> bool:
        return self.ridge == "auto"

    @spanned("choice")
    def _choose(self, task: Task) -> None:
        """Hops and expansion, once; from here on they are part of the model."""
        self.sketch_ = self.room.columns(len(task.nodes))
        propagation = self._propagation()
        options = self.room.options(self.num_features_, len(self.labels_), len(task.nodes))
        labels, divided = self.rows(task.labels), self.sketch == "auto"
        found = choose_features(
            task, labels, propagation, options, self.generator_, divided=divided, test_graph=self.test_graph
        )
        choice = self.runtime_.team.broadcast(lambda: found)  # all found the same but for rounding
        self.choices_, self.sketch_ = {**asdict(choice), "ridge": []}, choice.sketch
        self._use(Spread(tuple(choice.hops), choice.restart), choice.expansion)

    def _use(self, spread: Spread, expansion: int) -> None:
        self.features_ = FeatureMap(self._propagation(), spread, expansion)
        self.sums_ = self.room.first.empty(self.features_.width, self.generator_.device)

    def _propagation(self) -> Propagation:
        return Propagation(self.num_features_, self.sketch_, self.seed, self.runtime_, num_edge_types(self.types_))

    @property
    def room(self) -> Room:
        known = num_edge_types(self.types_) if self.is_fitted else 1
        hops, restart = self.hops, self.restart
        return Room(hops, restart, self.expansion, self.sums, self.memory, self.expected_classes, self.sketch, known)

    def _per_class(self, classes: int = 0) -> bool:
        """Whether sums are kept by class, and will be with so many classes."""
        if not self.is_fitted or self.features_ is None:
            return self.sums != "pooled"
        return isinstance(self.sums_, PerClassSums) and not self.room.is_pooled_with(self.sums_, classes)

    def rows_of(self, graph: Graph, nodes: Any, labels: Tensor) -> Rows:
        at = torch.from_numpy(np.asarray(nodes)).to(labels.device)
        return Rows(self._map.propagated(graph), labels, self._map.expanded, at)

    @spanned("sums")
    def exchanged(self, sums: Sums, old: Rows | None, new: Rows | None) -> Sums:
        return sums.exchanged(old, new, self.names, self.runtime_.team)

    # ------------------------------------------------------------------ prediction

    @property
    def reach(self) -> int:
        return self._map.reach

    def represent(self, graph: Graph) -> Tensor:
        # As they are added up: an audit looks for these rows in the sums.
        return torch.cat([rounded(self._map.expanded(some)).float() for some in pieces(self._map.propagated(graph))])

    def scores(self, graph: Graph) -> Tensor:
        return self._shared(self._map.propagated(graph))

    def scores_at(self, graph: Graph, nodes: Tensor) -> Tensor:
        return self._shared(take(self._map.propagated(graph), nodes))

    def _shared(self, propagated: Tensor) -> Tensor:
        """Scores, of which each process finds its share."""
        team = self.runtime_.team
        share = team.share(len(propagated))
        return team.gathered(self._scored(share.of(propagated)), share)

    def _scored(self, propagated: Tensor) -> Tensor:
        weights = self.weights_.float()
        return torch.cat([self._map.expanded(piece, torch.float32) @ weights for piece in pieces(propagated)])

    def scores_and_probabilities(self, graph: Graph, nodes: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if nodes is None:
            return super().scores_and_probabilities(graph)
        # To expand a row costs most: only those asked for.
        scores = self._scored(self._map.propagation.rows(graph, self._map.places, nodes))
        return scores, self.calibrated(self.probabilities(scores, graph))

    def distances(self, graph: Graph) -> Distances:
        # Of random features some are enough: their sums are exactly those of a narrower model.
        columns = min(self._map.width, MEASURED) if self._map.expansion else self._map.width
        gram, means = (part[..., :columns] for part in (self.sums_.balanced_gram()[:columns], self.sums_.mean))
        # A ridge that is small enough to predict with leaves directions in which few rows, by chance, hardly vary.
        metric = Metric.of(gram, means, max(FIRST_RIDGE, self._solved.ridge))
        rows = pieces(self._map.propagated(graph))
        products = [metric.products(self._map.expanded(some, torch.float32, columns)) for some in rows]
        return partial(metric.distances, torch.cat(products))

    def probabilities(self, scores: Tensor, graph: Graph) -> Tensor:
        return (self._solved.scale[0] * scores).softmax(dim=-1)

    @property
    def separation(self) -> float:
        return self._solved.scale[0]

    def mean_scores(self) -> Tensor:
        return self.separation * (self.sums_.mean @ self.weights_)

    def exported(self, rows: Any) -> tuple[Any, Any]:
        expansion = self._map.expansion
        scores = self._map.exported(rows) @ (self.weights_ * ((2 / expansion) ** 0.5 if expansion else 1))
        return scores, (scores * self._solved.scale[0]).softmax()

    @classmethod
    def working_memory(cls, extents: Extents) -> tuple[int, int]:
        rows = 4 * extents.tested_nodes * min(extents.features, 1024)
        width = max(one for one in EXPANSIONS if one <= max(extents.task_nodes, EXPANSIONS[1]))
        sums = min(PerClassSums.bytes_for(width, extents.classes) + SQUARES * 8 * width**2, int(2.5 * GIB))
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

        `forget_mask` says which nodes; the graph must be the one they were learned in. With pooled sums every node
        of their classes must be in `train_mask`.
        """
        return operations.forget_rows(self, data)

    def forget_nodes(self, data: "Data | HeteroData") -> Self:
        """As if the nodes had never been in the graph: the rows of all nodes that they reached are redone.

        `forget_mask` says which nodes, `train_mask` all that taught in this graph.
        """
        return operations.forget_nodes(self, data)

    def without_nodes(self, task: Task, leaving: NDArray[np.bool_]) -> Self:
        """A copy that some training nodes of the task just learned did not teach; what was chosen stays."""
        return operations.without_nodes(self, task, leaving)

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
        if isinstance(sums, PerClassSums):
            return {n: replace(one, second=partial(sums.class_gram, c)) for c, (n, one) in enumerate(kept.items())}
        return {name: replace(one, shared=partial(mirrored, sums.gram)) for name, one in kept.items()}

    def __sklearn_clone__(self) -> Self:
        # scikit-learn's own way asks that a parameter is the very object that was given: a checked tuple is a copy.
        return type(self)(**self.get_params())

    @property
    def map_(self) -> dict[str, Any]:
        """What the feature map is made from, as plain data."""
        found = self._map
        return {
            "hops": list(found.spread.hops),
            "restart": found.spread.restart,
            "expansion": found.expansion,
            "sketch": self.sketch_,
            "sums": NAMES[type(self.sums_)],
            "fingerprint": found.fingerprint,
        }

    @map_.setter
    def map_(self, facts: Mapping[str, Any]) -> None:
        self.sketch_ = facts.get("sketch") or self.sketch_
        self._use(Spread(tuple(facts["hops"]), facts.get("restart", 0.0)), facts["expansion"])
        self.sums_ = SUMS[facts.get("sums") or self.sums].empty(self._map.width, self.generator_.device)
        if self._map.fingerprint != facts["fingerprint"]:
            raise StoreError(
                "This installation draws other random directions than the one that made the model: "
                "use the version of numpy that it was made with."
            )

    def renewed(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        gram = tensors.get("sums.gram")
        if self.sums == "pooled" and gram is not None and gram.dim() == 2 and gram.shape[0] == gram.shape[1]:
            return {**tensors, "sums.gram": packed(gram)}
        return tensors

    def shapes(self, facts: Mapping[str, Any]) -> Shapes:
        yield from super().shapes(facts)
        classes, mapped = len(facts["labels"]), facts["map"]
        columns = min(facts["num_features"], mapped.get("sketch") or self.room.columns(WIDEST_SKETCH))
        types = facts["types"] and Types.of_plain(facts["types"])
        width = mapped["expansion"] or columns * len(places(Spread(mapped["hops"]), num_edge_types(types)))
        yield from [("sums.count", (classes,)), ("sums.total", (classes, width))]
        yield "sums.gram", SUMS[mapped.get("sums") or self.sums].saved_shape(width, classes)
