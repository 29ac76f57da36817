"""A model: what a learner has learned, as one immutable value, and what it predicts.

Learning gives another model. A thread that predicts with the old one is not affected.
"""

from collections import defaultdict
from collections.abc import Generator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ipal.backend.finite import check_scores
from ipal.backend.runtime import Runtime
from ipal.config import attribute_docs
from ipal.data.feature_names import arranged, kept_names
from ipal.data.graph import Graph
from ipal.data.labels import Label, Labels
from ipal.data.task import Task
from ipal.engine.executors.recorded import Automatic
from ipal.engine.trainer import Epoch, Executor, Setup, begin_task, fit_task, initial_state
from ipal.errors import ConfigError, DataError, shortened
from ipal.estimator.convert.pyg import graph_of
from ipal.estimator.history import Event, fingerprint
from ipal.estimator.open_world.calibration import Calibration, calibrated, sharpened, usual_by_means
from ipal.estimator.settings import LearnerConfig
from ipal.methods.base import Compute, LeavesOneOut, Method, OnePass, Outputs, Remembered, Trained, UsualMargins
from ipal.nn.compute import GraphCompute
from ipal.nn.encoders import ENCODERS
from ipal.nn.margins import log_probabilities, margins
from ipal.nn.network import Network
from ipal.state.value import State, flatten, moment_tensors, network_tensors

KEPT = {
    "encoder": "encoder weights",
    "head": "classifier weights",
    "generator": "random state",
    "calibration": "quantiles of a few scores of training nodes, by class",
}
LEARNING = {"optimizer": "optimiser moments", "teacher": "network before the task"}
"""What is kept only while learning goes on."""


class Prediction(NamedTuple):
    """What a model predicts for the nodes of a graph, or for those that were asked for."""

    labels: Labels
    """The likeliest class of every node."""
    scores: Tensor
    """(nodes, classes), higher is likelier."""


@dataclass(frozen=True, eq=False)
class Model:
    """What was learned, and what it was learned with."""

    config: LearnerConfig
    runtime: Runtime
    state: State
    calibration: Calibration
    num_features: int
    columns: tuple[str, ...] = ()
    """Names of the features, where they have any."""
    directed: bool = False
    """Whether an edge may run one way: files of graphs are then read so, too."""
    history: tuple[Event, ...] = ()

    # ------------------------------------------------------------------ what it is

    @property
    def method(self) -> Method:
        return self.config.method

    @property
    def name(self) -> str:
        return self.config.method.name

    @property
    def labels(self) -> tuple[Label, ...]:
        """Labels of all classes, in the order in which they came."""
        return self.state.classes

    @property
    def classes_(self) -> Labels:
        """The same as an array."""
        return np.asarray(self.state.classes)

    @property
    def device(self) -> torch.device:
        return self.runtime.device

    @cached_property
    def lessons(self) -> tuple[Event, ...]:
        """The graphs that it learned, in their order."""
        return tuple(event for event in self.history if event.fingerprint)

    @cached_property
    def compute(self) -> GraphCompute:
        return GraphCompute(self.runtime)

    @cached_property
    def network(self) -> Network | None:
        """The network that predicts; None where nothing is trained."""
        if self.state.network is None or not isinstance(self.method, Trained):
            return None
        return self.method.predictor(self.state.network, self.state.memory)

    @property
    def setup(self) -> Setup:
        return setup(self.config, self.num_features, self.runtime)

    @property
    def reach(self) -> int:
        """How many hops away a node can be and still count in another's scores."""
        if isinstance(self.method, OnePass):
            return self.method.reach(self.state.memory)
        return ENCODERS.find(self.config.encoder.kind).reach(self.config.encoder)

    # ------------------------------------------------------------------ prediction

    def checked(self, data: Any) -> Graph:
        """A graph that this model can predict on, or a sentence."""
        graph = arranged(data if isinstance(data, Graph) else graph_of(data), self.columns)
        if graph.num_features != self.num_features:
            named = f": {shortened(', '.join(self.columns), 300)}" if self.columns else ""
            raise DataError(
                f"This graph has {graph.num_features} features a node, the model was trained on "
                f"{self.num_features}{named}."
            )
        return graph

    def forward(self, graph: Graph, nodes: Tensor | None = None, compute: Compute | None = None) -> Outputs:
        """Embeddings and scores of all nodes of a graph, or of some.

        `compute` is what the method is handed: that of the model's device, of an export, or of an explanation.
        """
        memory, compute = self.state.memory, compute or self.compute
        if isinstance(self.method, OnePass):
            return Outputs(None, self.method.forward(memory, graph, compute, nodes))
        assert isinstance(self.method, Trained), "the other kind of method"
        assert self.network is not None, "it has been trained"
        f = compute.embeddings(self.network, graph)
        scores = self.method.classify(self.network, memory, f)
        at = slice(None) if nodes is None else nodes.to(f.device)
        return Outputs(f[at], scores[at])

    @torch.no_grad()
    def predict_graph(self, data: Any, nodes: Tensor | None = None) -> Prediction:
        """The one way from a graph to labels."""
        scores = self.forward(self.checked(data), nodes).scores
        return Prediction(self.likeliest(scores), scores)

    def likeliest(self, scores: Tensor) -> Labels:
        """The label with the highest score, row by row."""
        check_scores(scores)
        return np.asarray(self.classes_[scores.argmax(dim=-1).cpu().numpy()])

    def probabilities(
        self, scores: Tensor, graph: Graph, nodes: Tensor | None = None, compute: Compute | None = None
    ) -> Tensor:
        """The scores of a graph's nodes, or of some, as probabilities, before calibration."""
        return self.method.probabilities(self.state.memory, scores, graph, compute or self.compute, nodes)

    def scores_and_probabilities(self, graph: Graph, nodes: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Scores and calibrated probabilities of all nodes of a graph, or of some."""
        scores = self.forward(graph, nodes).scores
        return scores, self.calibrated(self.probabilities(scores, graph, nodes))

    @torch.no_grad()
    def predict_proba(self, data: Any) -> NDArray[np.float32]:
        """Calibrated probabilities of every class, for every node."""
        _, found = self.scores_and_probabilities(self.checked(data))
        check_scores(found)
        return found.cpu().numpy()

    def calibrated(self, probabilities: Tensor) -> Tensor:
        """Probabilities that say how often they are right, as far as held-out nodes can show."""
        power = self.calibrating_power
        return probabilities if power == 1 else sharpened(probabilities, power)

    @property
    def calibrating_power(self) -> float:
        """The power that probabilities are raised to."""
        known = self.usable_calibration
        return 1.0 if isinstance(self.method, LeavesOneOut) or not known else known.power(self.nodes_of_classes())

    @property
    def usable_calibration(self) -> Calibration:
        """What calibration says of the model as it is: of the last task alone, where nothing is kept of classes."""
        known = self.calibration.padded(len(self.labels))
        return known if self.keeps_classes else known.where(known.task == len(self.lessons) - 1)

    @property
    def keeps_classes(self) -> bool:
        """Whether something is kept of every class, so that nodes of earlier tasks are known to lie where they did."""
        return self.method.statistics(self.state.memory) is not None

    def usual_margins(self) -> UsualMargins:
        """Margins of nodes of each class by what is kept of it."""
        if (known := self.method.usual_margins(self.state.memory)) is not None:
            return known
        logs, classes = self.method.mean_logs(self.state.memory), len(self.labels)
        return UsualMargins(torch.zeros(classes), torch.ones(classes)) if logs is None else usual_by_means(logs)

    def novelty(self, scores: Tensor, graph: Graph, rows: Tensor | None = None) -> Tensor:
        """How unlike all known classes nodes are, by their scores (see `Method.novelty`).

        Where a method does not say: how little the likeliest class is ahead, compared with what is usual for its nodes.
        """
        found = self.method.novelty(self.state.memory, scores, graph, rows, self.compute)
        if found is None:
            logs = log_probabilities(self.probabilities(scores, graph))
            best = logs.argmax(dim=1)
            margin, spread = (part.to(logs)[best] for part in self.usual_margins())
            found = (margin - margins(logs).gather(1, best[:, None])[:, 0]) / spread
        return found.double().cpu()

    def scores_and_novelty(self, graph: Graph) -> tuple[Tensor, Tensor]:
        """Scores of all nodes of a graph, and how unlike all known classes each is."""
        rows, scores = self.forward(graph)
        return scores, self.novelty(scores, graph, rows)

    def nodes_of_classes(self) -> Tensor:
        """(classes,): training nodes behind each, where that is kept, or how many of the last task were asked."""
        kept = self.method.statistics(self.state.memory)
        return self.usable_calibration.count.sum(dim=0) if kept is None else kept.count.cpu()

    def embed(self, graph: Graph) -> Tensor:
        if isinstance(self.method, OnePass):
            return self.method.embed(self.state.memory, graph, self.compute)
        assert self.network is not None, "it has been trained"
        return self.compute.embeddings(self.network, graph)

    # ------------------------------------------------------------------ what it keeps

    def nodes_behind_class(self) -> dict[str, int]:
        """How many training nodes stand behind what is kept of each class, where it is known."""
        kept = self.method.statistics(self.state.memory)
        return {} if kept is None else dict(zip(map(str, self.labels), kept.count.tolist(), strict=False))

    def remembered(self) -> dict[str, Remembered]:
        """What is kept of the rows of each class; nothing where only weights are, or the nodes themselves."""
        kept, memory = self.method.statistics(self.state.memory), self.state.memory
        if kept is None:
            return {}
        second, shared = getattr(kept, "products_of", None), getattr(memory, "products_of_all", None)
        rows = zip(self.labels, kept.count.tolist(), kept.mean, strict=False)
        return {
            str(label): Remembered(count, mean, second and partial(second, row), shared)
            for row, (label, count, mean) in enumerate(rows)
        }

    def tensors(self) -> dict[str, Tensor]:
        """All that is kept, also only while learning, by name."""
        state = self.state
        found = {"generator": state.generator.get_state(), **network_tensors(state.network)}
        found |= flatten(state.memory, "memory")
        found |= flatten(self.calibration or None, "calibration")
        return found | moment_tensors(state.network, state.optimizer) | network_tensors(state.teacher, "teacher.")

    def memory_report(self) -> dict[str, Any]:
        """Everything that a saved model holds, in bytes and described; and what is kept only while learning goes on."""
        sizes: dict[str, int] = defaultdict(int)
        for name, tensor in self.tensors().items():
            sizes[name.removeprefix("memory.").split(".")[0]] += tensor.numel() * tensor.element_size()
        words = attribute_docs(type(self.state.memory)) | KEPT | LEARNING
        items: list[dict[str, Any]] = [
            {"kind": kind, "what": words.get(kind, kind), "bytes": size} for kind, size in sizes.items() if size
        ]
        always = [item for item in items if item["kind"] not in LEARNING]
        return {
            "items": always,
            "bytes": sum(item["bytes"] for item in always),
            "only_while_learning": [item for item in items if item["kind"] in LEARNING],
            "stores_exemplars": self.method.keeps != "statistics",
            "stores_all_tasks": self.method.keeps == "everything",
            "nodes_behind_class": self.nodes_behind_class(),
        }


def setup(config: LearnerConfig, num_features: int, runtime: Runtime) -> Setup:
    return Setup(runtime, num_features, config.seed, config.encoder, config.train, config.batch, config.test_graph)


def empty_model(config: LearnerConfig, graph: Graph, runtime: Runtime) -> Model:
    """A model that has learned nothing, for graphs like this one."""
    state = initial_state(config.method, setup(config, graph.num_features, runtime))
    return Model(config, runtime, state, Calibration.empty(), graph.num_features, kept_names(graph.columns))


@dataclass(frozen=True, eq=False)
class Learning:
    """A task being learned: `epochs` pauses after every epoch and returns a state, of which `finish` makes a model."""

    model: Model
    """As the task begins: new classes are known."""
    task: Task
    executor: Executor
    first_epoch: int = 0
    time: str | None = None
    """When it is learned, as the history says."""

    def epochs(self) -> Generator[Epoch, None, State]:
        """The epochs of the task that are left."""
        model = self.model
        return fit_task(model.method, model.state, self.task, model.setup, self.executor, self.first_epoch)

    def finish(self, state: State) -> Model:
        names, nodes, mark = np.unique(self.task.labels), len(self.task.nodes), fingerprint(self.task)
        event = Event.of("learned", names, nodes=nodes, time=self.time, fingerprint=mark, directed=self.model.directed)
        model = replace(self.model, state=state, history=(*self.model.history, event))
        if not isinstance(model.method, LeavesOneOut):  # calibrated as the task began
            return model
        return replace(model, calibration=calibrated(model, self.task, len(self.model.lessons)))


def begin_learning(
    config: LearnerConfig,
    model: Model | None,
    task: Task,
    runtime: Runtime,
    executor: Executor | None = None,
    first_epoch: int = 0,
    *,
    directed: bool | None = None,
    time: str | None = None,
) -> Learning:
    """Begin a task, or go on with one from an epoch on. The model stays as it is.

    `directed` says whether edges may run one way; None where the task's graph says it.
    """
    if len(task.nodes) == 0:
        raise DataError("No node of this graph has a label to learn from: set train_mask for some.")
    model = model or empty_model(config, task.graph, runtime)
    if (graph := model.checked(task.graph)) is not task.graph:
        task = replace(task, graph=graph)
    if model.labels and type(np.unique(task.labels).tolist()[0]) is not type(model.labels[0]):
        raise DataError("The labels of all tasks must be of one kind: all numbers or all strings.")
    if not model.directed and (not task.graph.symmetric if directed is None else directed):
        model = replace(model, directed=True)
    if first_epoch:
        if not set(np.unique(task.labels).tolist()) <= set(model.labels):
            raise DataError("The state to go on from is not from the middle of this task: it lacks classes of it.")
    else:
        model = replace(model, state=begin_task(model.method, model.state, task, model.setup))
        model.method.check_classes(len(model.labels))
        if not isinstance(model.method, LeavesOneOut):
            model = replace(model, calibration=calibrated(model, task, len(model.lessons)))
    return Learning(model, task, executor or Automatic(), first_epoch, time)


class Fitted(Protocol):
    """A learner that has learned."""

    @property
    def model_(self) -> Model: ...


def model_of(fitted: Fitted | Model) -> Model:
    """What was learned: by a learner, or the model itself."""
    if isinstance(fitted, Model):
        return fitted
    if not hasattr(type(fitted), "model_"):
        raise ConfigError(f"A fitted learner is needed, as ipal.IPAL().partial_fit(data), not {shortened(fitted)}.")
    return fitted.model_
