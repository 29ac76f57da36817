"""What every method shares: the estimator's face, the one training loop, and its state as a value.

A method is a subclass that says what it adds through five hooks:

    begin_task(task)          its state changes once, when a task starts
    prepare(task)             what follows from its state and the task alone, and is not kept
    loss(batch, prepared)     named terms; their sum is minimised
    end_task(task, prepared)  its state changes once, when a task is learned
    scores(graph)             nodes x known classes, higher is likelier
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import field
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch_geometric.data import Data

from ipal.config import EncoderConfig, TrainConfig, explain
from ipal.encoder import GCN
from ipal.engine import Operators, operators
from ipal.errors import ConfigError, DataError, StoreError
from ipal.graph import Graph
from ipal.learners.convert import graph_of, task_of
from ipal.state import State
from ipal.streams import Labels, Task

Prepared = TypeVar("Prepared")
Terms = dict[str, Tensor]


@dataclasses.dataclass(frozen=True, eq=False)
class Batch:
    """The nodes one step learns from: a whole task's, or a sample of them with its neighbourhood."""

    graph: Operators
    """Gives the embeddings of these nodes, in order."""
    positions: Tensor | slice
    """Which of the task's training nodes they are; a slice where they are all of them."""


@dataclass(
    config=ConfigDict(extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False), kw_only=True, eq=False
)
class Learner(ABC, Generic[Prepared]):
    """A continual learner on graphs: `partial_fit` one task after the other, `predict` over all classes so far."""

    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    """The network that makes embeddings."""
    train: TrainConfig = field(default_factory=TrainConfig)
    """The optimisation."""
    seed: int = 0
    """Decides the initial weights and every random draw."""
    device: str = "cpu"
    """cpu, cuda or cuda:N."""

    name: ClassVar[str]
    stores_exemplars: ClassVar[bool] = False
    keeps: ClassVar[dict[str, str]] = {
        "encoder": "encoder weights",
        "optimizer": "optimiser moments",
        "generator": "random state",
    }
    """What each group of the state's tensors is, in words."""

    # ------------------------------------------------------------------ the estimator's face

    def partial_fit(self, data: Data) -> Self:
        """Learn the classes of one more graph: `x`, `edge_index`, `y`; `train_mask` says which labels count."""
        for _ in self.learn(task_of(data)):
            pass
        return self

    def predict(self, data: Data) -> Labels:
        """The likeliest of all classes learned so far, for every node, in the user's own labels."""
        return self.predict_graph(graph_of(data))

    def predict_proba(self, data: Data) -> NDArray[np.float32]:
        """Probability of every class, in the order of `classes_`."""
        with torch.no_grad():
            scores = self.scores(self._checked(graph_of(data)))
            return self.probabilities(scores).cpu().numpy()

    def embed(self, data: Data) -> NDArray[np.float32]:
        """Embedding of every node."""
        with torch.no_grad():
            graph = self._checked(graph_of(data))
            embeddings: NDArray[np.float32] = self.network_(graph).cpu().numpy()
        return embeddings

    @property
    def classes_(self) -> Labels:
        """Labels of all classes learned so far, in the order in which they came."""
        self._require_fitted()
        return np.asarray(self.labels_)

    def memory_report(self) -> dict[str, Any]:
        """Everything that is kept after learning, in bytes and in words."""
        self._require_fitted()
        sizes: dict[str, int] = {}
        for key, tensor in self.state().tensors.items():
            group = key.split(".")[0]
            sizes[group] = sizes.get(group, 0) + tensor.numel() * tensor.element_size()
        return {
            "items": [{"kind": group, "what": self.keeps[group], "bytes": size} for group, size in sizes.items()],
            "bytes": sum(sizes.values()),
            "stores_exemplars": self.stores_exemplars,
            "nodes_behind_class": self.nodes_behind_class(),
        }

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The hyper-parameters, as scikit-learn asks for them."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

    def save(self, path: str | Path) -> None:
        """Write the learner to one file, whole or not at all."""
        self._require_fitted()
        self.state().save(Path(path))

    @classmethod
    def load(cls, path: str | Path, *, device: str = "cpu") -> Self:
        """A learner from a file written by `save`. Nothing is unpickled."""
        state = State.load(Path(path))
        facts = state.facts
        if facts.get("method") != cls.name:
            raise StoreError(f"{path} holds a '{facts.get('method')}' model, not '{cls.name}'.")
        learner = cls.from_settings({**facts["settings"], "device": device})
        learner.restore(state)
        return learner

    # ------------------------------------------------------------------ hooks

    def begin_task(self, task: Task) -> None:
        """Change the state once, when a task starts."""

    @abstractmethod
    def prepare(self, task: Task) -> Prepared:
        """What the steps of this task need and what follows from state and task alone."""

    @abstractmethod
    def loss(self, batch: Batch, prepared: Prepared) -> Terms:
        """Named terms whose sum is minimised."""

    def end_task(self, task: Task, prepared: Prepared) -> None:
        """Change the state once, when a task is learned."""

    @abstractmethod
    def scores(self, graph: Operators) -> Tensor:
        """Nodes x known classes, higher is likelier."""

    def probabilities(self, scores: Tensor) -> Tensor:
        """Scores as probabilities."""
        return scores.softmax(dim=-1)

    def nodes_behind_class(self) -> dict[str, int]:
        """How many training nodes stand behind what is kept of each class, where it is known."""
        return {}

    # ------------------------------------------------------------------ the one training loop

    def learn(self, task: Task, first_epoch: int = 0) -> Iterator[dict[str, Tensor]]:
        """Learn a task, one epoch at a time; yields each epoch's named loss terms.

        Between two epochs the state is complete: saved there, restored, and continued with `first_epoch`,
        learning ends in the same numbers.
        """
        if first_epoch == 0:
            self._start(task)
        prepared = self.prepare(task)
        batches = self.batches(task)
        for _ in range(first_epoch, self.train.epochs):
            for batch in batches:
                terms = self.loss(batch, prepared)
                self.optimizer_.zero_grad(set_to_none=True)
                torch.stack(list(terms.values())).sum().backward()  # type: ignore[no-untyped-call]
                self.optimizer_.step()
            yield {name: term.detach() for name, term in terms.items()}
        with torch.no_grad():
            self.end_task(task, prepared)

    def _start(self, task: Task) -> None:
        if len(task.nodes) == 0:
            raise DataError("No node of this graph has a label to learn from: set train_mask for some.")
        if not self.is_fitted:
            self._initialise(task.graph.num_features)
        self._check_features(task.graph)
        first = not self.labels_
        labels = np.unique(task.labels).tolist()
        if not first and type(labels[0]) is not type(self.labels_[0]):
            raise DataError(
                "The labels of earlier tasks and of this one must be of one kind: all numbers or all strings."
            )
        known = set(self.labels_)
        self.labels_ += [label for label in labels if label not in known]
        if self.train.moments == "reset":
            self.optimizer_ = self._new_optimizer()
        for group in self.optimizer_.param_groups:
            group["lr"] = self.train.lr_base if first else self.train.lr_next
        self.begin_task(task)

    def _initialise(self, num_features: int) -> None:
        """Weights, optimiser and random state before the first task."""
        device = usable_device(self.device)
        self.labels_: list[Any] = []
        self.generator_ = torch.Generator(device).manual_seed(self.seed)
        self.network_ = GCN(num_features, self.encoder, self.generator_)
        self.optimizer_ = self._new_optimizer()

    def _new_optimizer(self) -> torch.optim.Adam:
        return torch.optim.Adam(
            self.network_.parameters(), lr=self.train.lr_base, weight_decay=self.train.weight_decay, fused=True
        )

    def batches(self, task: Task) -> Iterable[Batch]:
        """One epoch of a task, each time it is gone through: here all training nodes at once."""
        return [Batch(operators(task, self.generator_.device), slice(None))]

    # ------------------------------------------------------------------ prediction

    @property
    def is_fitted(self) -> bool:
        return hasattr(self, "network_")

    def predict_graph(self, graph: Graph) -> Labels:
        """The likeliest class of every node; the one way from a graph to labels."""
        with torch.no_grad():
            best = self.scores(self._checked(graph)).argmax(dim=-1)
        labels: Labels = np.asarray(self.labels_)[best.cpu().numpy()]
        return labels

    def rows(self, labels: Labels) -> Tensor:
        """The learner's own number of each label: its place in `classes_`."""
        row = {label: index for index, label in enumerate(self.labels_)}
        return torch.tensor([row[label] for label in labels.tolist()], device=self.generator_.device)

    def training_embeddings(self, task: Task, network: GCN) -> Tensor:
        """Embeddings of a task's training nodes by a given network, without gradient."""
        with torch.no_grad():
            embeddings: Tensor = network(operators(task, self.generator_.device))
        return embeddings

    def _checked(self, graph: Graph) -> Operators:
        self._require_fitted()
        self._check_features(graph)
        return operators(graph, self.generator_.device)

    def _check_features(self, graph: Graph) -> None:
        expected = len(self.network_.weights[0])
        if graph.num_features != expected:
            raise DataError(
                f"This graph has {graph.num_features} features a node, the model was trained on {expected}."
            )

    def _require_fitted(self) -> None:
        if not self.is_fitted:
            raise ConfigError("This model has learned nothing yet: call partial_fit first.")

    # ------------------------------------------------------------------ state as a value

    def tensors(self) -> dict[str, Tensor]:
        """All tensors that make the state, named by group; a method adds its own."""
        tensors = {f"encoder.{name}": p.detach() for name, p in self.network_.named_parameters()}
        for name, parameter in self.network_.named_parameters():
            for key, value in self.optimizer_.state.get(parameter, {}).items():
                tensors[f"optimizer.{name}.{key}"] = value
        tensors["generator"] = self.generator_.get_state()
        return tensors

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Take over what `tensors` gave; a method takes its own."""
        device = self.generator_.device
        for name, parameter in self.network_.named_parameters():
            parameter.data.copy_(tensors[f"encoder.{name}"])
            prefix = f"optimizer.{name}."
            moments = {key[len(prefix) :]: value for key, value in tensors.items() if key.startswith(prefix)}
            if moments:
                self.optimizer_.state[parameter] = {k: v.clone().to(device) for k, v in moments.items()}
        self.generator_.set_state(tensors["generator"])

    def state(self) -> State:
        """The learner as a value: enough to go on exactly as if never interrupted."""
        copies = {name: tensor.clone() for name, tensor in self.tensors().items()}
        facts = {
            "method": self.name,
            "settings": self.settings(),
            "num_features": len(self.network_.weights[0]),
            "labels": self.labels_,
            "lr": self.optimizer_.param_groups[0]["lr"],
        }
        return State(copies, facts)

    def restore(self, state: State) -> None:
        """Become the learner that `state` was taken from."""
        self._initialise(state.facts["num_features"])
        self.labels_ = list(state.facts["labels"])
        for group in self.optimizer_.param_groups:
            group["lr"] = state.facts["lr"]
        try:
            self.load_tensors(dict(state.tensors))
        except (KeyError, RuntimeError) as error:
            raise StoreError(f"The saved state does not fit this model: {error}.") from error

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
            own = [f"{cls.name}.{name}" for name in cls.own_settings()]
            raise explain(error, own, prefix=f"{cls.name}.") from error

    @classmethod
    def own_settings(cls) -> dict[str, Any]:
        """The fields that this method adds, with their descriptions."""
        shared = {f.name for f in dataclasses.fields(Learner)}
        described = cls.__pydantic_fields__  # type: ignore[attr-defined]
        return {name: info for name, info in described.items() if name not in shared}

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
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"The device '{name}' is not there ({torch.cuda.device_count()} CUDA device(s) found): use --device cpu."
        )
    return torch.device("cuda", device.index or 0) if device.type == "cuda" else device
