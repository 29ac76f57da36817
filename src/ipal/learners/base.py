"""What every method shares: the estimator's face, learning and prediction; its state as a value is in stateful.py.

A method says how it learns a task (`teach`), what it makes of a node (`represent`) and how it scores the classes
(`scores`). Methods that train a network by steps share one loop: see trained.py.
"""

import dataclasses
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ConfigDict, field_validator
from pydantic.dataclasses import dataclass
from torch import Tensor

from ipal.backend.finite import check_scores, check_tensors
from ipal.config import Seed, Share, TestGraph, usable_number
from ipal.data.feature_names import arranged
from ipal.data.graph import Graph
from ipal.data.streams import Labels, Task
from ipal.errors import ConfigError, DataError
from ipal.learners import class_changes, history
from ipal.learners.draft import drafted
from ipal.learners.explain import Explanation, explained
from ipal.learners.from_hetero import check_types, graph_of, task_of
from ipal.learners.from_pyg import answers_of, correction_of
from ipal.learners.kept import looked_at
from ipal.learners.open_world import unknown
from ipal.learners.open_world.calibration import calibrated, sharpened
from ipal.learners.open_world.discover import Candidate, discover
from ipal.learners.stateful import Stateful
from ipal.learners.values import Distances, Extents, HardExamples, Look, Terms
from ipal.system.tracing import Tracer

if TYPE_CHECKING:  # for their names alone: importing them takes seconds
    from torch_geometric.data import Data, HeteroData


@dataclass(config=ConfigDict(extra="forbid", allow_inf_nan=False), kw_only=True, eq=False)
class Learner(Stateful):
    """A continual learner on graphs: `partial_fit` one task after the other, `predict` over all classes so far."""

    seed: Seed = 0
    """Decides the initial weights and every random draw."""
    device: str = "cpu"
    """cpu, cuda or cuda:N."""
    test_graph: TestGraph = "both"
    """On which graphs it will predict: of one task each, of all nodes so far, or both. What it chooses is for these."""
    calibration: Share = 0.2
    """Share of training nodes by which it is calibrated: a copy learns without them. 0: not, in half the time."""

    forgets: ClassVar[bool] = False
    """Whether it has `merged`, `forget_class`, `forget_rows`, `forget_nodes`, `without_nodes` and `without_class`."""
    is_trial: ClassVar[bool] = False
    """Whether this is a copy that learns one task, is asked about it, and is then dropped."""
    calibrates_itself: ClassVar[bool] = False
    """Whether its probabilities are calibrated by better means than some held-out nodes."""

    _usable = field_validator("*")(usable_number)

    # ------------------------------------------------------------------ the estimator's face

    def partial_fit(self, data: "Data | HeteroData") -> Self:
        """Learn the classes of one more graph: `x`, `edge_index`, `y`; `train_mask` says which labels count.

        A task is learned in whole or not at all: interrupted, the learner is what it was before.
        """
        time = history.now()
        for _ in self.learn(task_of(data, self.types_ if self.is_fitted else None)):
            pass
        self.history_ = history.stamped(self.history_, time)
        return self

    def fit(self, data: "Data | HeteroData") -> Self:
        """Learn one graph from the beginning: what was learned before is lost, unlike with `partial_fit`."""
        self.__dict__ = self.anew().partial_fit(data).__dict__
        return self

    def predict(self, data: "Data | HeteroData", *, reject: float | None = None) -> Labels:
        """The likeliest of all classes learned so far, for every node, in the user's own labels.

        With `reject`, None where a node seems to be of no known class, so that about this share of known nodes is lost.
        """
        graph = self.read(data)
        labels = self.predict_graph(graph)
        if reject is not None:
            labels = unknown.masked(labels, self.rejected(graph, reject))
        return graph.at_targets(labels)

    def rejected(self, graph: Graph, share: float) -> NDArray[np.bool_]:
        """Which nodes seem to be of no known class, so that about this share of known nodes is lost."""
        return unknown.rejected(self, graph, share)

    def score_unknown(self, data: "Data | HeteroData") -> NDArray[np.float64]:
        """Novelty score of every node: higher for nodes of classes that were never learned."""
        graph = self.read(data)
        return graph.at_targets(unknown.scored(self, graph))

    def predict_sets(self, data: "Data | HeteroData", coverage: float = 0.9) -> NDArray[np.bool_]:
        """Which classes every node may be of, (nodes, classes): its own among them for about this share of nodes."""
        return unknown.sets(self, self.predict_proba(data), coverage)

    def discover(self, data: "Data | HeteroData", reject: float = 0.05, classes: int | None = None) -> list[Candidate]:
        """Rejected nodes in groups, each perhaps a new class; how many is chosen unless given."""
        return discover(self, self.read(data), reject, classes)

    def predict_proba(self, data: "Data | HeteroData") -> NDArray[np.float32]:
        """Probability of every class, in the order of `classes_`."""
        with torch.no_grad():
            graph = self.read(data)
            _, probabilities = self.scores_and_probabilities(graph)
            check_scores(probabilities)
            return graph.at_targets(probabilities.cpu().numpy())

    def decision_function(self, data: "Data | HeteroData") -> NDArray[np.float32]:
        """Score of every class, in the order of `classes_`: `predict` gives the class of the highest."""
        graph = self.read(data)
        return graph.at_targets(self.look(graph).scores.cpu().numpy())

    def score(self, data: "Data | HeteroData", mask: Any = None) -> float:
        """Share of nodes whose class is predicted rightly, among those with a label.

        `mask` says which nodes count, one True or False per node; else `data.test_mask` does, if set. A class that
        was never learned counts as missed.
        """
        predicted = self.predict(data)
        labelled: Any = data if self.types_ is None else data[self.types_.target]
        return answers_of(labelled, len(predicted), mask).share_right(predicted)

    def embed(self, data: "Data | HeteroData") -> NDArray[np.float32]:
        """Embedding of every node."""
        with torch.no_grad():
            graph = self.read(data)
            return graph.at_targets(self.represent(graph).cpu().numpy())

    def read(self, data: "Data | HeteroData") -> Graph:
        """What is passed to be predicted, as this model reads it: `graph.targets` are the nodes in question."""
        self._require_fitted()
        return self.checked(graph_of(data, self.types_))

    def explain(self, data: "Data | HeteroData", node: int, *, against: Any = None) -> Explanation:
        """Which neighbours and features spoke for the class of a node, rather than for the next best or another."""
        return explained(self, self.read(data), node, against)

    @property
    def classes_(self) -> Labels:
        """Labels of all classes learned so far, in the order in which they came."""
        self._require_fitted()
        return np.asarray(self.labels_)

    # ------------------------------------------------------------------ classes that change (see class_changes.py)

    def rename_class(self, old: Any, new: Any) -> Self:
        """Give a class another label; nothing else changes."""
        class_changes.rename(self, old, new)
        return self

    def merge_classes(self, labels: Iterable[Any], into: Any) -> Self:
        """Make one class of several: a new one, or one of them. Refused where it cannot be done exactly."""
        class_changes.merge(self, labels, into)
        return self

    def split_class(self, label: Any, data: "Data | HeteroData") -> Self:
        """Move nodes of a class to new classes: `train_mask` says which, `y` where to; the others stay.

        The graph must be the one that they were learned in. Refused where it cannot be done exactly.
        """
        self._require_fitted()
        class_changes.split(self, label, task_of(data, self.types_))
        return self

    def relabel(self, data: "Data") -> Self:
        """Correct labels: nodes in `train_mask` that were learned as `y` are as if learned as `new_y`.

        The graph must be the one that they were learned in. Refused where it cannot be done exactly.
        """
        class_changes.relabel(self, *correction_of(data))
        return self

    # ------------------------------------------------------------------ what a method says

    def needs(self) -> Mapping[str, str]:
        """What a stream must give it (boundaries, whole tasks, whole classes), and what else a user can do."""
        return {}

    def check_classes(self, classes: int) -> None:
        """Refuse so many classes where the settings do not allow them."""

    @property
    def epochs(self) -> int:
        """How many epochs a task takes; none where nothing is trained by steps."""
        return 0

    @abstractmethod
    def teach(self, task: Task, first_epoch: int) -> Iterator[Terms]:
        """Learn a task whose labels are known already, one epoch at a time, from `first_epoch` on."""

    @abstractmethod
    def represent(self, graph: Graph) -> Tensor:
        """Embedding of every node."""

    @abstractmethod
    def scores(self, graph: Graph) -> Tensor:
        """Nodes x known classes, higher is likelier."""

    @property
    def reach(self) -> int | None:
        """How many hops away a node can be and still count in another's scores; None where that is not known."""
        return None

    def unite(self, places: Tensor, classes: int) -> None:
        """Draw classes together: what is kept of class i belongs to class `places[i]` of so many."""
        raise class_changes.inexact(self, "merge classes")

    def correct(self, task: Task, labels: Tensor) -> None:
        """Let training nodes of a task, which taught its labels, teach these, in the learner's own numbers."""
        raise class_changes.inexact(self, "correct labels")

    def probabilities(self, scores: Tensor, graph: Graph) -> Tensor:
        """The scores of a graph's nodes as probabilities, before they are calibrated."""
        return scores.softmax(dim=-1)

    def scores_at(self, graph: Graph, nodes: Tensor) -> Tensor:
        """Scores of some nodes of a graph."""
        scores = self.scores(graph)
        return scores[nodes.to(scores.device)]

    def scores_and_probabilities(self, graph: Graph, nodes: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Scores and calibrated probabilities of all nodes of a graph, or of some."""
        scores = self.scores(graph)
        probabilities = self.probabilities(scores, graph)
        if nodes is not None:
            scores, probabilities = scores[nodes], probabilities[nodes]
        return scores, self.calibrated(probabilities)

    def calibrated(self, probabilities: Tensor) -> Tensor:
        """Probabilities that say how often they are right, as far as held-out nodes can show."""
        power = self.calibrating_power
        return probabilities if power == 1 else sharpened(probabilities, power)

    @property
    def calibrating_power(self) -> float:
        """The power that probabilities are raised to."""
        return 1.0 if self.calibrates_itself or not self.calibration_ else self.calibration_.power / self.separation

    @property
    def separation(self) -> float:
        """What margins between classes grow with, where that changes as more is learned."""
        return 1.0

    def distances(self, graph: Graph) -> Distances | None:
        """Squared distances of nodes to class means, given which classes are known; None where no means are kept."""
        return None

    def mean_scores(self) -> Tensor | None:
        """Scores of class means, as a softmax would have them: (classes, classes); None where none are kept."""
        return None

    def exported(self, rows: Any) -> tuple[Any, Any]:
        """Scores and probabilities in the words of rows: those of an exported program, or those of `nn.evidence`.

        Rows are the nodes' features, or their embeddings where an encoder makes them.
        """
        raise ConfigError(f"The method '{self.name}' does not say how it is exported or explained: define `exported`.")

    def by_rows(self, rows: Any) -> tuple[Any, Any]:
        """The same from the features of nodes on."""
        return self.exported(rows)

    @property
    def hard_examples(self) -> HardExamples | None:
        """How the method chooses hard examples of a class; None where it chooses none."""
        return None

    @classmethod
    def working_memory(cls, extents: Extents) -> tuple[int, int]:
        """Bytes that learning and predicting take about, besides graphs and weights: at once, and in pieces."""
        columns = 12 * extents.tested_nodes * extents.classes
        return columns + extents.operators, columns + extents.piece

    # ------------------------------------------------------------------ learning

    def learn(self, task: Task, first_epoch: int = 0) -> Iterator[Terms]:
        """Learn a task, one epoch at a time; yields each epoch's named loss terms.

        Between two epochs the state is complete: saved there, restored, and continued with `first_epoch`,
        learning ends in the same numbers. Interrupted or closed, the learner is what it was before.
        """
        before, gradients = self.__dict__, torch.is_grad_enabled()
        if first_epoch == 0:
            before = before.get("_before", before)  # another task was begun and never ended: as if it never had been
        draft: dict[str, Any] = {"_before": before}
        try:
            draft.update(drafted({name: value for name, value in before.items() if name != "_before"}))
            # All attributes are exchanged at once: here for copies, and back where learning does not come to its end.
            self.__dict__ = draft
            if self.is_fitted and (graph := arranged(task.graph, self.columns_)) is not task.graph:
                task = dataclasses.replace(task, graph=graph)
            if first_epoch == 0:
                with self.tracer.span("preparation"):
                    self.start(task)
                if not self.forgets:
                    self.calibration_ = calibrated(self, task)
            elif not set(np.unique(task.labels).tolist()) <= set(self.labels_):
                raise DataError("The state to go on from is not from the middle of this task: it lacks classes of it.")
            yield from self.teach(task, first_epoch)
            if self.forgets:
                self.calibration_ = calibrated(self, task)
            check_tensors(looked_at(self), self.meanings())
            self.history_ = history.extended(self.history_, history.learned(task))
            self.reference_ = None  # of the model as it was
            del self.__dict__["_before"]
        except BaseException as error:
            if self.__dict__ is draft:
                self.__dict__ = before
            if not isinstance(error, GeneratorExit):  # Ctrl-C in the middle of torch.no_grad() would leave them off
                torch.set_grad_enabled(gradients)
            raise

    def start(self, task: Task) -> None:
        """Check a task, and take its new labels into `classes_`; a method may add what else happens once."""
        if len(task.nodes) == 0:
            raise DataError("No node of this graph has a label to learn from: set train_mask for some.")
        if not self.is_fitted:
            self.initialise(task.graph.num_features)
        if not self.labels_:
            self.types_, self.columns_ = task.graph.types, task.graph.columns
        self._check_features(task.graph)
        if self.stores_exemplars and self.types_ is not None:
            raise DataError(
                f"The method '{self.name}' keeps nodes, and cannot keep those of several types: take one that keeps "
                "none, as analytic or ipal."
            )
        labels = np.unique(task.labels).tolist()
        if self.labels_ and type(labels[0]) is not type(self.labels_[0]):
            raise DataError("The labels of all tasks must be of one kind: all numbers or all strings.")
        known = set(self.labels_)
        self.labels_ += [label for label in labels if label not in known]

    @property
    def tracer(self) -> Tracer:
        """Records the parts of its work, or nothing."""
        return self.runtime_.tracer

    # ------------------------------------------------------------------ prediction

    def predict_graph(self, graph: Graph) -> Labels:
        """The likeliest class of every node."""
        return self.look(graph).labels

    def look(self, graph: Graph, nodes: Tensor | None = None) -> Look:
        """Labels of all nodes, or of some, and where they lie; the one way from a graph to labels."""
        with torch.no_grad():
            graph = self.checked(graph)
            scores = self.scores(graph) if nodes is None else self.scores_at(graph, nodes)
            return Look(self.likeliest(scores), None, scores)

    def likeliest(self, scores: Tensor) -> Labels:
        """The label with the highest score, row by row."""
        check_scores(scores)
        labels: Labels = np.asarray(self.labels_)[scores.argmax(dim=-1).cpu().numpy()]
        return labels

    def rows(self, labels: Labels) -> Tensor:
        """The learner's own number of each label: its place in `classes_`."""
        row = {label: index for index, label in enumerate(self.labels_)}
        names, place = np.unique(labels, return_inverse=True)  # there may be millions of labels, but few names
        numbers = np.array([row[name] for name in names.tolist()], dtype=np.int64)
        return torch.from_numpy(numbers[place]).to(self.generator_.device)

    def checked(self, graph: Graph) -> Graph:
        """A graph that this model can look at, or a sentence."""
        self._require_fitted()
        graph = arranged(graph, self.columns_)
        self._check_features(graph)
        return graph

    def _check_features(self, graph: Graph) -> None:
        check_types(graph.types, self.types_)
        if graph.num_features != self.num_features_:
            raise DataError(
                f"This graph has {graph.num_features} features a node, the model was trained on {self.num_features_}."
            )
