"""What every method shares: the estimator's face, the labels it knows, and its state as a value.

A method says how it learns a task (`teach`), what it makes of a node (`represent`) and how it scores the classes
(`scores`). Methods that train a network by steps share one loop: see trained.py.
"""

import dataclasses
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ConfigDict, field_validator
from pydantic.dataclasses import dataclass
from torch import Tensor

from ipal.backend.finite import check_scores, check_tensors
from ipal.backend.runtime import Runtime
from ipal.config import Passes, Seed, TestGraph, usable_number
from ipal.data.graph import Graph
from ipal.data.streams import Labels, Task
from ipal.errors import ConfigError, DataError
from ipal.learners import saved, second_pass
from ipal.learners.checks import Shapes
from ipal.learners.draft import drafted
from ipal.learners.facts import Facts
from ipal.learners.from_pyg import graph_of, task_of
from ipal.learners.kept import Kept, Parameters, RandomState, class_statistics, looked_at
from ipal.learners.settings import MethodClass
from ipal.learners.state import State, laid_out
from ipal.learners.values import Extents, HardExamples, Look, Remembered, Terms
from ipal.system.tracing import Tracer

if TYPE_CHECKING:  # for its name alone: importing it takes seconds
    from torch_geometric.data import Data


@dataclass(config=ConfigDict(extra="forbid", allow_inf_nan=False), kw_only=True, eq=False)
class Learner(metaclass=MethodClass):
    """A continual learner on graphs: `partial_fit` one task after the other, `predict` over all classes so far."""

    seed: Seed = 0
    """Decides the initial weights and every random draw."""
    device: str = "cpu"
    """cpu, cuda or cuda:N."""
    passes: Passes = 0
    """Further passes of a prediction, with edges weighed by the agreement of their ends. auto: rehearsed."""
    test_graph: TestGraph = "both"
    """On which graphs it will predict: of one task each, of all nodes so far, or both. What it chooses is for these."""

    name: ClassVar[str]
    title: ClassVar[str]
    """The name as tables, figures and pages write it: of this class, not of those below it."""
    stores_exemplars: ClassVar[bool] = False
    """Whether raw nodes are kept: every table marks such a method."""
    stores_all_tasks: ClassVar[bool] = False
    """Whether all tasks so far are kept and learned from as one: an upper reference, which tables do not rank."""
    forgets: ClassVar[bool] = False
    """Whether it has `merged`, `forget_class`, `forget_rows` and `forget_nodes`."""
    kept: ClassVar[tuple[Kept, ...]] = (RandomState("generator", "random state"),)
    """What a class adds to the state; `declared` has all of it."""
    schema: ClassVar[type[Facts]] = Facts
    """The plain data of the state: what a method adds to `Facts` are attributes of these names with an underscore."""

    _usable = field_validator("*")(usable_number)

    # ------------------------------------------------------------------ the estimator's face

    def partial_fit(self, data: "Data") -> Self:
        """Learn the classes of one more graph: `x`, `edge_index`, `y`; `train_mask` says which labels count.

        A task is learned in whole or not at all: interrupted, the learner is what it was before.
        """
        for _ in self.learn(task_of(data)):
            pass
        return self

    def predict(self, data: "Data") -> Labels:
        """The likeliest of all classes learned so far, for every node, in the user's own labels."""
        return self.predict_graph(graph_of(data))

    def predict_proba(self, data: "Data") -> NDArray[np.float32]:
        """Probability of every class, in the order of `classes_`."""
        with torch.no_grad():
            graph = self.refined(self.checked(graph_of(data)))
            probabilities = self.probabilities(self.scores(graph), graph)
            check_scores(probabilities)
            return probabilities.cpu().numpy()

    def embed(self, data: "Data") -> NDArray[np.float32]:
        """Embedding of every node."""
        with torch.no_grad():
            return np.asarray(self.represent(self.checked(graph_of(data))).cpu().numpy())

    @property
    def classes_(self) -> Labels:
        """Labels of all classes learned so far, in the order in which they came."""
        self._require_fitted()
        return np.asarray(self.labels_)

    def memory_report(self) -> dict[str, Any]:
        """Everything that a saved model holds, in bytes and in words; and what is kept only while learning goes on."""
        self._require_fitted()
        sizes = {
            kept: sum(tensor.numel() * tensor.element_size() for tensor in kept.tensors(self).values())
            for kept in self.declared().values()
        }
        items = {kept: {"kind": kept.name, "what": kept.what, "bytes": size} for kept, size in sizes.items() if size}
        return {
            "items": [item for kept, item in items.items() if not kept.only_while_learning],
            "bytes": sum(size for kept, size in sizes.items() if not kept.only_while_learning),
            "only_while_learning": [item for kept, item in items.items() if kept.only_while_learning],
            "stores_exemplars": self.stores_exemplars,
            "stores_all_tasks": self.stores_all_tasks,
            "nodes_behind_class": self.nodes_behind_class(),
        }

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The hyper-parameters, as scikit-learn asks for them."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

    # ------------------------------------------------------------------ what a method says

    def needs(self) -> Mapping[str, str]:
        """What a stream must give it (boundaries, whole tasks, whole classes), and what else a user can do."""
        return {}

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

    def blank(self) -> Self:
        """A learner of the same settings, what was chosen among them, that has learned nothing."""
        return dataclasses.replace(self)

    def probabilities(self, scores: Tensor, graph: Graph) -> Tensor:
        """The scores of a graph's nodes as probabilities."""
        return scores.softmax(dim=-1)

    def scores_and_probabilities(self, graph: Graph, nodes: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Scores and probabilities of all nodes of a graph, or of some."""
        scores = self.scores(graph)
        probabilities = self.probabilities(scores, graph)
        return (scores, probabilities) if nodes is None else (scores[nodes], probabilities[nodes])

    def nodes_behind_class(self) -> dict[str, int]:
        """How many training nodes stand behind what is kept of each class, where it is known."""
        kept = class_statistics(self)
        return {} if kept is None else dict(zip(map(str, self.labels_), kept.count.tolist(), strict=False))

    def remembered(self) -> dict[str, Remembered]:
        """What is kept of the rows of each class; nothing where only weights are, or the nodes themselves."""
        kept, counts = class_statistics(self), self.nodes_behind_class().items()
        means = () if kept is None else kept.mean
        return {name: Remembered(count, mean) for (name, count), mean in zip(counts, means, strict=True)}

    def exported(self, rows: Any) -> tuple[Any, Any]:
        """Scores and probabilities in the words of an exported program, from the rows of `export.program`.

        Rows are the nodes' features, or their embeddings where an encoder makes them.
        """
        raise ConfigError(f"The method '{self.name}' does not say how it is exported: define `exported`.")

    @property
    def hard_examples(self) -> HardExamples | None:
        """How the method chooses hard examples of a class; None where it chooses none."""
        return None

    @classmethod
    def working_memory(cls, extents: Extents) -> tuple[int, int]:
        """Bytes that learning and predicting take about, besides graphs and weights: at once, and in pieces."""
        columns = 12 * extents.tested_nodes * extents.classes
        return columns + extents.operators, columns + extents.piece

    def choices(self) -> dict[str, Any]:
        """What the method decided by itself (`choices_`), and why; nothing where all is set by hand."""
        further = getattr(self, "second_pass_", None) or {}
        return getattr(self, "choices_", {}) | ({"second_pass": further} if "reason" in further else {})

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
            if first_epoch == 0:
                with self.tracer.span("preparation"):
                    self.start(task)
            elif not set(np.unique(task.labels).tolist()) <= set(self.labels_):
                raise DataError("The state to go on from is not from the middle of this task: it lacks classes of it.")
            yield from self.teach(task, first_epoch)
            self.second_pass_: dict[str, Any] | None = second_pass.settled(self, task)
            check_tensors(looked_at(self), self.meanings())
            del self.__dict__["_before"]
        except BaseException as error:
            if self.__dict__ is draft:
                self.__dict__ = before
            if not isinstance(error, GeneratorExit):  # Ctrl-C in the middle of torch.no_grad() would leave them off
                torch.set_grad_enabled(gradients)
            raise

    @property
    def is_learning(self) -> bool:
        """Whether a task was begun and has not ended."""
        return "_before" in self.__dict__

    def start(self, task: Task) -> None:
        """Check a task, and take its new labels into `classes_`; a method may add what else happens once."""
        if len(task.nodes) == 0:
            raise DataError("No node of this graph has a label to learn from: set train_mask for some.")
        if not self.is_fitted:
            self.initialise(task.graph.num_features)
        self._check_features(task.graph)
        labels = np.unique(task.labels).tolist()
        if self.labels_ and type(labels[0]) is not type(self.labels_[0]):
            raise DataError("The labels of all tasks must be of one kind: all numbers or all strings.")
        known = set(self.labels_)
        self.labels_ += [label for label in labels if label not in known]

    def initialise(self, num_features: int) -> None:
        """The state before the first task."""
        self.num_features_ = num_features
        self.labels_: list[Any] = []
        self.second_pass_ = None  # known when the first task is learned
        self.generator_ = torch.Generator(self.runtime_.device).manual_seed(self.seed)

    @cached_property
    def runtime_(self) -> Runtime:
        """What it computes with: made by itself where nobody has set one."""
        return Runtime.of(self.device)

    @property
    def tracer(self) -> Tracer:
        """Records the parts of its work, or nothing."""
        return self.runtime_.tracer

    # ------------------------------------------------------------------ prediction

    @property
    def is_fitted(self) -> bool:
        return hasattr(self, "labels_")

    def predict_graph(self, graph: Graph) -> Labels:
        """The likeliest class of every node."""
        return self.look(graph).labels

    def look(self, graph: Graph) -> Look:
        """Labels of all nodes, and where they lie; the one way from a graph to labels."""
        with torch.no_grad():
            scores = self.scores(self.refined(self.checked(graph)))
            return Look(self.likeliest(scores), None, scores)

    def refined(self, graph: Graph) -> Graph:
        """The graph that nodes are predicted on: with further passes, its edges are weighed by what the last gave."""
        return second_pass.refined(self, graph)

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
        self._check_features(graph)
        return graph

    def _check_features(self, graph: Graph) -> None:
        if graph.num_features != self.num_features_:
            raise DataError(
                f"This graph has {graph.num_features} features a node, the model was trained on {self.num_features_}."
            )

    def _require_fitted(self) -> None:
        if not self.is_fitted:
            raise ConfigError("This model has learned nothing yet: call partial_fit first.")

    # ------------------------------------------------------------------ state as a value

    @classmethod
    def declared(cls) -> dict[str, Kept]:
        """All that is kept, by name: what every class of the method declares."""
        return {kept.name: kept for base in reversed(cls.__mro__) for kept in vars(base).get("kept", ())}

    @classmethod
    def meanings(cls) -> dict[str, str]:
        """What each group of the state's tensors is, in words."""
        return {name: kept.what for name, kept in cls.declared().items()}

    def tensors(self) -> dict[str, Tensor]:
        """All tensors that make the state, by name."""
        return {name: tensor for kept in self.declared().values() for name, tensor in kept.tensors(self).items()}

    def parameters(self) -> Parameters:
        """Copies of what is trained, by name; nothing where nothing is."""
        return {}

    def facts(self) -> dict[str, Any]:
        """The plain data of the state."""
        own = {name: getattr(self, f"{name}_") for name in self._own_facts()}
        always = {"method": self.name, "settings": self.settings(), "num_features": self.num_features_}
        learned = {"labels": list(self.labels_), "second_pass": self.second_pass_}
        return {**always, **learned, **saved.made_with(self), **own}

    def load_facts(self, facts: Mapping[str, Any]) -> None:
        """Take over what `facts` gave."""
        self.labels_, self.second_pass_ = list(facts["labels"]), facts["second_pass"]
        for name in self._own_facts():
            setattr(self, f"{name}_", facts[name])

    @classmethod
    def _own_facts(cls) -> list[str]:
        return [name for name in cls.schema.model_fields if name not in Facts.model_fields]

    def shapes(self, facts: Mapping[str, Any]) -> Shapes:
        """Tensors whose sizes follow from settings and facts, checked before memory is taken for them."""
        for kept in self.declared().values():
            yield from kept.shapes(self.sizes(facts))

    def sizes(self, facts: Mapping[str, Any]) -> dict[str, int]:
        """What the declared shapes are made of."""
        return {"classes": len(facts["labels"]), "features": facts["num_features"]}

    def renewed(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Tensors of a state that an earlier version wrote, in the form of this one."""
        return tensors

    def state(self) -> State:
        """The learner as a value: enough to go on exactly as if never interrupted."""
        return State({name: laid_out(tensor) for name, tensor in self.tensors().items()}, self.facts())

    def restore(self, state: State, *, whole: bool = False, source: str = "The saved state") -> None:
        """Become the learner that `state` was taken from, or stay as it is where `state` is not sound.

        `whole`: a model, not a checkpoint, which may be in the middle of a task. `source` names it in complaints.
        """
        saved.restore(self, state, whole=whole, source=source)

    def save(self, path: str | Path, *, moments: bool = False) -> None:
        """Write the learner to one file, whole or not at all.

        Without the optimiser's moments: they say much about the last task's nodes, and only who goes on training
        exactly as if never saved needs them. Without them, the next task starts with fresh ones.
        """
        self._require_fitted()
        if self.is_learning:
            raise ConfigError("A task is being learned: a model can be saved when it is done.")
        kept = [one.tensors(self) for one in self.declared().values() if moments or not one.only_while_learning]
        State({name: tensor for one in kept for name, tensor in one.items()}, self.facts()).save(Path(path))

    @classmethod
    def load(cls, path: str | Path, *, device: str = "cpu") -> Self:
        """A learner from a file written by `save`. Nothing is unpickled."""
        return saved.of_state(cls, State.load(Path(path)), path, device)

    # ------------------------------------------------------------------ settings

    def settings(self) -> dict[str, Any]:
        """All hyper-parameters as plain data."""
        return type(self).plain_settings(self)
