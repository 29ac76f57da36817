"""What every method shares: the estimator's face, the labels it knows, and its state as a value.

A method says how it learns a task (`teach`), what it makes of a node (`represent`) and how it scores the classes
(`scores`). Methods that train a network by steps share one loop: see trained.py.
"""

import dataclasses
from abc import ABCMeta, abstractmethod
from collections.abc import Callable, Iterator
from copy import copy
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ConfigDict, TypeAdapter, ValidationError, field_validator
from pydantic.dataclasses import dataclass
from torch import Tensor

from ipal.backend.distributed import team
from ipal.backend.finite import check_scores, check_tensors
from ipal.config import Seed, explain, usable_number
from ipal.data.graph import Graph
from ipal.data.streams import Labels, Task
from ipal.errors import ConfigError, DataError
from ipal.learners.draft import drafted
from ipal.learners.from_pyg import graph_of, task_of
from ipal.learners.saved import UNFITTED, Saved
from ipal.system.tracing import span

if TYPE_CHECKING:  # for its name alone: importing it takes seconds
    from torch_geometric.data import Data

Terms = dict[str, Tensor]
SHARED_SETTINGS = {"seed", "device", "encoder", "train", "batch"}
"""Fields that are the run's, not one method's own."""


@dataclasses.dataclass(frozen=True, eq=False)
class Remembered:
    """What is kept of the rows of one class, in the space of `represent`: what an audit tries to undo."""

    count: int | None
    """Training nodes behind it, where known."""
    mean: Tensor
    second: Callable[[], Tensor] | None = None
    """Gives the sum of products of the class's rows, (width, width); None where it is not kept. Made when asked for:
    those of all classes at once may not fit into memory."""
    shared: Callable[[], Tensor] | None = None
    """Gives such a matrix of all classes together, each with a weight of its own; None where it is not kept."""


class Look(NamedTuple):
    """What a learner makes of a graph."""

    labels: Labels
    """The likeliest class of every node."""
    embeddings: Tensor | None
    """Where every node lies, of learners that move them; None of those whose features stay where they are."""


class _Explaining(ABCMeta):
    """Makes a learner built by hand complain as one built from a file's settings: as a ConfigError."""

    def __call__(cls, *arguments: Any, **settings: Any) -> Any:
        if arguments:
            raise ConfigError(f"The settings of {cls.__name__} go by name, as {cls.__name__}(seed=1).")
        try:
            return super().__call__(**settings)
        except ValidationError as error:
            raise _explained(cls, error) from error


def _explained(learner: Any, error: ValidationError) -> ConfigError:
    own = [f"{learner.name}.{name}" for name in learner.own_settings()]
    return explain(error, own, prefix=f"{learner.name}.")


@dataclass(
    config=ConfigDict(extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False), kw_only=True, eq=False
)
class Learner(Saved, metaclass=_Explaining):
    """A continual learner on graphs: `partial_fit` one task after the other, `predict` over all classes so far."""

    seed: Seed = 0
    """Decides the initial weights and every random draw."""
    device: str = "cpu"
    """cpu, cuda or cuda:N."""

    name: ClassVar[str]
    stores_exemplars: ClassVar[bool] = False
    keeps: ClassVar[dict[str, str]] = {"generator": "random state"}
    """What each group of the state's tensors is, in words."""

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
            graph = self.checked(graph_of(data))
            probabilities = self.probabilities(self.scores(graph), graph)
            check_scores(probabilities)
            return probabilities.cpu().numpy()

    def embed(self, data: "Data") -> NDArray[np.float32]:
        """Embedding of every node."""
        with torch.no_grad():
            embeddings: NDArray[np.float32] = self.represent(self.checked(graph_of(data))).cpu().numpy()
        return embeddings

    @property
    def classes_(self) -> Labels:
        """Labels of all classes learned so far, in the order in which they came."""
        self._require_fitted()
        return np.asarray(self.labels_)

    def memory_report(self) -> dict[str, Any]:
        """Everything that a saved model holds, in bytes and in words; and what is kept only while learning goes on."""
        self._require_fitted()
        sizes: dict[str, int] = {}
        for key, tensor in self.tensors().items():
            group = key.split(".")[0]
            sizes[group] = sizes.get(group, 0) + tensor.numel() * tensor.element_size()
        items = [{"kind": group, "what": self.keeps[group], "bytes": size} for group, size in sizes.items()]
        saved = [item for item in items if item["kind"] not in self.only_while_learning]
        return {
            "items": saved,
            "bytes": sum(sizes.values()) - sum(sizes.get(group, 0) for group in self.only_while_learning),
            "only_while_learning": [item for item in items if item not in saved],
            "stores_exemplars": self.stores_exemplars,
            "nodes_behind_class": self.nodes_behind_class(),
        }

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The hyper-parameters, as scikit-learn asks for them."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

    # ------------------------------------------------------------------ what a method says

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
        """How many hops away a node can be and still count in another's prediction; None where that is not known."""
        return None

    def probabilities(self, scores: Tensor, graph: Graph) -> Tensor:
        """The scores of a graph's nodes as probabilities."""
        return scores.softmax(dim=-1)

    def judged(self, graph: Graph, nodes: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Scores and probabilities of all nodes of a graph, or of some."""
        scores = self.scores(graph)
        probabilities = self.probabilities(scores, graph)
        return (scores, probabilities) if nodes is None else (scores[nodes], probabilities[nodes])

    def nodes_behind_class(self) -> dict[str, int]:
        """How many training nodes stand behind what is kept of each class, where it is known."""
        return {}

    def remembered(self) -> dict[str, Remembered]:
        """What is kept of the rows of each class; nothing where only weights are, or the nodes themselves."""
        return {}

    def choices(self) -> dict[str, Any]:
        """What the method decided by itself, and why; nothing where all is set by hand."""
        return {}

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
                with span("preparation"):
                    self.start(task)
            elif not set(np.unique(task.labels).tolist()) <= set(self.labels_):
                raise DataError("The state to go on from is not from the middle of this task: it lacks classes of it.")
            yield from self.teach(task, first_epoch)
            check_tensors(self.tensors(), self.keeps)
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
            raise DataError(
                "The labels of earlier tasks and of this one must be of one kind: all numbers or all strings."
            )
        known = set(self.labels_)
        self.labels_ += [label for label in labels if label not in known]

    def initialise(self, num_features: int) -> None:
        """The state before the first task."""
        self.num_features_ = num_features
        self.labels_: list[Any] = []
        self.generator_ = torch.Generator(usable_device(self.device)).manual_seed(self.seed)

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
            return Look(self.likeliest(self.scores(self.checked(graph))), None)

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
            raise ConfigError(UNFITTED)

    # ------------------------------------------------------------------ settings

    def settings(self) -> dict[str, Any]:
        """All hyper-parameters as plain data."""
        plain: dict[str, Any] = TypeAdapter(type(self)).dump_python(self, mode="json")
        return plain

    @classmethod
    def from_settings(cls, settings: dict[str, Any]) -> Self:
        """A learner from plain data; every complaint names the setting and the closest known one."""
        try:
            return TypeAdapter(cls).validate_python(settings)
        except ValidationError as error:
            raise _explained(cls, error) from error

    @classmethod
    def own_settings(cls) -> dict[str, Any]:
        """The fields that this method adds, with their descriptions."""
        described = cls.__pydantic_fields__  # type: ignore[attr-defined]
        # Copies: pydantic's own record of a class is not ours to change.
        own = {name: copy(info) for name, info in described.items() if name not in SHARED_SETTINGS}
        for name, info in own.items():  # a field taken over from a base class has left its docstring there
            origin = next(base for base in reversed(cls.__mro__) if name in getattr(base, "__pydantic_fields__", {}))
            info.description = info.description or origin.__pydantic_fields__[name].description  # type: ignore[attr-defined]
        return own

    @classmethod
    def shared_settings(cls) -> set[str]:
        """Which of the run's settings this method uses."""
        return SHARED_SETTINGS & cls.__pydantic_fields__.keys()  # type: ignore[attr-defined,no-any-return]

    @classmethod
    def describe(cls) -> dict[str, Any]:
        """The method as plain facts: name, what it is, its settings."""
        settings = [
            {"name": name, "default": info.default, "about": info.description}
            for name, info in cls.own_settings().items()
        ]
        about = (cls.__doc__ or "").strip().splitlines()[0]
        return {
            "name": cls.name,
            "about": about,
            "stores_exemplars": cls.stores_exemplars,
            "settings": settings,
        }


def usable_device(name: str) -> torch.device:
    """A device that is there, or a sentence."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"Unknown device '{name}': use cpu, cuda or cuda:N.") from error
    if device.type not in {"cpu", "cuda"}:
        raise ConfigError(f"Unknown device '{name}': use cpu, cuda or cuda:N.")
    if device.type == "cpu":
        return device
    if team().size > 1 and device.index is not None:
        raise ConfigError(f"The device '{name}' is one GPU for all processes: use --device cuda, each takes its own.")
    number = team().local_rank if device.index is None else device.index
    if number >= torch.cuda.device_count():
        found = f"{torch.cuda.device_count()} CUDA device(s) found"
        fewer = "start no more processes on a machine than it has GPUs, or " * (team().size > 1)
        raise ConfigError(f"The device 'cuda:{number}' is not there ({found}): {fewer}use --device cpu.")
    return torch.device("cuda", number)
