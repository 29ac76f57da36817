"""What a method is: frozen settings and pure functions. State is a value, passed in and returned.

A method that trains a network (`Trained`) is called in the order of Algorithm 1 of the IPAL paper:

    init(space)                              the memory before the first task
    prepare(memory, context)                 what the steps of a task need, from memory and task alone
    loss(network, memory, batch, context, rng)   named terms; the engine minimises their sum
    end_task(network, memory, context, rng)  the memory after the task

and `classify` scores embeddings. A method that trains nothing has `end_task` and `forward` alone. Predictions that
use `embeddings`, `products`, `lengths`, `rows` and `by_rows` of `Compute` alone can be exported to ONNX and explained.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, Self, TypeVar, runtime_checkable

import torch
from torch import Tensor

from ipal.config import EncoderConfig, TestGraph, TrainConfig

if TYPE_CHECKING:
    from ipal.backend.batches import Batch as Batch
    from ipal.data.graph import Graph
    from ipal.data.task import Task
    from ipal.nn.compute import GraphCompute
    from ipal.nn.head import Head
    from ipal.nn.network import Network as Network

    Compute = GraphCompute
else:  # types alone: a method computes with what it is handed
    Graph = Task = Compute = Batch = Head = Network = Any

Terms = dict[str, Tensor]
"""Parts of a loss by name."""
Parameters = dict[str, Tensor]
"""Tensors by the names of a network's parameters."""


@dataclass(frozen=True, eq=False)
class Space:
    """What the memory of a method is made for."""

    num_features: int
    width: int
    """Of the embeddings; of a method without a network, that of the features."""
    compute: Compute
    device: torch.device
    seed: int = 0
    test_graph: TestGraph = "both"


@dataclass(frozen=True, eq=False)
class TaskContext:
    """What the steps of one task need. A method may extend it in `prepare`."""

    task: Task
    """With class numbers as labels: places in the order in which classes came."""
    labels: Tensor
    """Class number of each training node."""
    current: Tensor
    """Classes being learned."""
    old: Tensor
    """Known classes that are not being learned."""
    teacher: Network | None
    """The network before the task; None at the first task."""
    compute: Compute
    """Embeds, scores and differentiates whole tasks on the device of the run."""
    before: Tensor | None = None
    """Embeddings of all training nodes by the teacher; None at the first task, and where it is not asked for."""

    @property
    def classes(self) -> int:
        """Number of classes known, those being learned included."""
        return len(self.current) + len(self.old)

    def with_before(self) -> Self:
        """With the teacher's embeddings of the training nodes in `before`.

        Returns
        -------
        TaskContext
        """
        return self if self.teacher is None else replace(self, before=self.compute.embeddings(self.teacher, self.task))

    def before_of(self, batch: Batch) -> Tensor:
        """The teacher's embeddings of a batch's nodes. In a mini-batch both networks see the same sample.

        Parameters
        ----------
        batch : Batch
            As `loss` was given.

        Returns
        -------
        Tensor of shape (n_nodes, width)
        """
        assert self.before is not None, "the method has asked for them"
        assert self.teacher is not None, "likewise"
        if isinstance(batch.positions, slice):
            return self.before
        with torch.no_grad():
            found: Tensor = self.teacher.encoder(batch.graph)
        return found

    def embeddings(self, network: Network) -> Tensor:
        """Embeddings of all training nodes, without gradient.

        Parameters
        ----------
        network : Network
            The network that computes them.

        Returns
        -------
        Tensor of shape (n_nodes, width)
        """
        return self.compute.embeddings(network, self.task)


Extended = TypeVar("Extended", bound=TaskContext)


def extended(kind: type[Extended], context: TaskContext, **more: Any) -> Extended:
    """A context of another kind, by what it adds."""
    return kind(**{field.name: getattr(context, field.name) for field in fields(context)}, **more)


class Outputs(NamedTuple):
    """What a method computes for the nodes of a graph."""

    embeddings: Tensor | None
    """None for methods whose features never move."""
    scores: Tensor
    """(nodes, classes), higher is likelier."""


@runtime_checkable
class ClassStatistics(Protocol):
    """A value that holds the mean and the number of training nodes of every class.

    Where it also has `products_of(row)`, that is the sum of products of a class's rows; where a memory has
    `products_of_all()`, that of all rows.
    """

    @property
    def count(self) -> Tensor: ...

    @property
    def mean(self) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class Remembered:
    """What is kept of the rows of one class, in the space of the embeddings: what an audit tries to invert."""

    count: int
    """Training nodes behind it."""
    mean: Tensor
    second: Callable[[], Tensor] | None = None
    """Gives the sum of products of the class's rows, (width, width); None where it is not kept."""
    shared: Callable[[], Tensor] | None = None
    """Gives such a matrix of all classes together; None where it is not kept."""


class UsualMargins(NamedTuple):
    """How far nodes are usually on their own class's side, by what is kept of the classes; see `nn.margins`."""

    margin: Tensor
    """(classes,): of the class mean, in logarithms of probabilities."""
    spread: Tensor
    """(classes,): how much nodes differ, in the same unit."""


def with_middle(means: Tensor) -> Tensor:
    """Directions of class means, and that of their middle as the last row."""
    directions = torch.nn.functional.normalize(means, dim=1)
    return torch.cat([directions, torch.nn.functional.normalize(directions.mean(dim=0, keepdim=True), dim=1)])


def relative_distance(cosines: Tensor) -> Tensor:
    r"""Squared distance to the nearest class mean, as a share of that to the middle of all means.

    .. math:: r_i = \min_c \frac{1 - \cos(x_i, \mu_c)}{1 - \cos(x_i, \mu_0)}

    Source: Ren et al. 2021, "A Simple Fix to Mahalanobis Distance for Improving Near-OOD Detection", Eq. 4, with a
    quotient in place of the difference, and distances of directions. `cosines` (nodes x classes + 1) are those of nodes
    with class means and, last, with their middle.
    """
    return (1 - cosines[:, :-1].amax(dim=1)) / (1 - cosines[:, -1]).clamp_min(1e-6)


@dataclass(frozen=True)
class Method(ABC):
    """A continual learning method. A subclass is a frozen dataclass whose fields are its settings."""

    name: ClassVar[str]
    """What `--method` calls it."""
    title: ClassVar[str]
    """The name in tables and figures."""
    keeps: ClassVar[Literal["statistics", "nodes", "everything"]] = "statistics"
    """What survives a task: statistics and weights, some raw nodes (exemplars), or all tasks."""

    @abstractmethod
    def init(self, space: Space) -> Any:
        """The memory before the first task.

        Parameters
        ----------
        space : Space
            Sizes and device: `num_features`, `width` of the embeddings, `device`, `seed`.

        Returns
        -------
        object
            A frozen dataclass of tensors, or None where nothing is remembered but the network.
        """

    def prepare(self, memory: Any, context: TaskContext) -> Any:
        """What the steps of a task need.

        Parameters
        ----------
        memory : object
            What the method keeps.
        context : TaskContext
            The task.

        Returns
        -------
        TaskContext
            The context, or an extension of it.
        """
        return context

    @abstractmethod
    def end_task(self, network: Any, memory: Any, context: Any, rng: torch.Generator) -> Any:
        """The memory after a task.

        Parameters
        ----------
        network : Network
            As trained; None of a method that trains none.
        memory : object
            What the method kept before the task.
        context : TaskContext
            As `prepare` made it.
        rng : torch.Generator
            The only source of random numbers.

        Returns
        -------
        object
            The memory, of the type that `init` gives.
        """

    def probabilities(
        self, memory: Any, scores: Tensor, graph: Graph, compute: Compute, nodes: Tensor | None = None
    ) -> Tensor:
        """The scores of a graph's nodes, or of some, as probabilities, before calibration."""
        return scores.softmax(dim=-1)

    def chosen(self, memory: Any) -> dict[str, Any]:
        """Settings that were left open, as they are."""
        return {}

    def identity(self, memory: Any) -> str:
        """Identifies what the memory rests on besides the settings; two memories can be added where it agrees."""
        return ""

    # ------------------------------------------------------------------ what is known of a method's memory

    def statistics(self, memory: Any) -> ClassStatistics | None:
        """Means and counts of the classes, where they are kept."""
        return memory if isinstance(memory, ClassStatistics) else None

    def mean_logs(self, memory: Any) -> Tensor | None:
        """Logarithms of probabilities of class means, up to a constant, (classes, classes); None where not kept."""
        return None

    def usual_margins(self, memory: Any) -> UsualMargins | None:
        """Margins of nodes by what is kept, where that says more than the margins of class means."""
        return None

    def novelty(
        self, memory: Any, scores: Tensor, graph: Graph, rows: Tensor | None, compute: Compute
    ) -> Tensor | None:
        """How unlike all known classes nodes are, on a scale that does not change as classes come.

        None: by how little the likeliest class is ahead, compared with what is usual for nodes of that class. `rows`
        are embeddings of all nodes of the graph, for a method that trains a network.
        """
        return None

    # ------------------------------------------------------------------ what a stream or a machine must offer

    def needs(self) -> Mapping[str, str]:
        """What a stream must give (boundaries, whole tasks), and what else a user can do.

        Returns
        -------
        mapping of str to str
        """
        return {}

    def check_classes(self, classes: int) -> None:  # noqa: B027
        """Refuse so many classes where the settings do not allow them."""

    def check_setup(self, test_graph: TestGraph) -> None:  # noqa: B027
        """Refuse settings that do not fit the graphs that are predicted."""

    def working_memory(self, features: int, classes: int, nodes: int, piece: int) -> int:
        """Bytes that learning and predicting take about at least, besides graphs and weights.

        `nodes` are those of the largest graph that is predicted on, of whose propagation matrix `piece` bytes are held.
        """
        return 12 * nodes * classes + piece


@dataclass(frozen=True)
class OnePass(Method):
    """A method that trains nothing: what it keeps follows from one pass over a task's nodes."""

    @abstractmethod
    def forward(self, memory: Any, graph: Graph, compute: Compute, nodes: Tensor | None = None) -> Tensor:
        """Scores of all nodes of a graph, or of some; the highest is the class that is predicted.

        Parameters
        ----------
        memory : object
            What the method keeps.
        graph : Graph
            The graph.
        compute : Compute
            Embeds and multiplies on the device of the run.
        nodes : Tensor of shape (n_nodes,), optional
            The nodes. Default: all.

        Returns
        -------
        Tensor of shape (n_nodes, n_classes)
        """

    @abstractmethod
    def embed(self, memory: Any, graph: Graph, compute: Compute) -> Tensor:
        """Representation of every node.

        Parameters
        ----------
        memory : object
            What the method keeps.
        graph : Graph
            The graph.
        compute : Compute
            Embeds and multiplies on the device of the run.

        Returns
        -------
        Tensor of shape (n_nodes, width)
        """

    @abstractmethod
    def reach(self, memory: Any) -> int:
        """How many hops away a node can be and still count in another's scores.

        Parameters
        ----------
        memory : object
            What the method keeps.

        Returns
        -------
        int
        """


@dataclass(frozen=True)
class Trained(Method):
    """A method that trains a network by steps."""

    default_encoder: ClassVar[EncoderConfig] = EncoderConfig()
    """The encoder, where no other is asked for."""
    default_train: ClassVar[TrainConfig] = TrainConfig()
    """How it is trained, where nothing else is asked for."""

    def init(self, space: Space) -> Any:
        return None

    def end_task(self, network: Any, memory: Any, context: Any, rng: torch.Generator) -> Any:
        return memory

    def head(self, width: int) -> Head | None:
        """An empty head; None where classes are scored without one.

        Parameters
        ----------
        width : int
            Of the embeddings.

        Returns
        -------
        Head or None
        """
        return None

    @abstractmethod
    def loss(self, network: Network, memory: Any, batch: Batch, context: Any, rng: torch.Generator) -> Terms:
        """Named terms whose sum is minimised.

        Parameters
        ----------
        network : Network
            `network.encoder(batch.graph)` gives embeddings, `network.classifier` of them scores.
        memory : object
            What the method keeps.
        batch : Batch
            `batch.graph`, and `batch.positions`: which of the task's training nodes it has.
        context : TaskContext
            As `prepare` made it.
        rng : torch.Generator
            The only source of random numbers.

        Returns
        -------
        dict of str to Tensor
        """

    @abstractmethod
    def classify(self, network: Network, memory: Any, f: Tensor) -> Tensor:
        """Scores of the classes from embeddings.

        Parameters
        ----------
        network : Network
            The network that predicts.
        memory : object
            What the method keeps.
        f : Tensor of shape (n_nodes, width)
            Embeddings.

        Returns
        -------
        Tensor of shape (n_nodes, n_classes)
        """

    def adjust_gradients(self, network: Network, memory: Any, context: Any) -> None:
        """Change the gradients of the parameters, between the backward pass and the step.

        Parameters
        ----------
        network : Network
            With gradients.
        memory : object
            What the method keeps.
        context : TaskContext
            As `prepare` made it.
        """

    # ------------------------------------------------------------------ how a task begins, and what predicts

    def training_task(self, memory: Any, task: Task) -> Task:
        """What is learned when a task comes: the task itself, or more."""
        return task

    def starts_afresh(self) -> bool:
        """Whether every task is learned from fresh weights, as the first one is."""
        return False

    def learning_rate(self, train: TrainConfig, *, is_first: bool) -> float:
        """The learning rate of a task."""
        return train.lr_base if is_first else train.lr_next

    def predictor(self, network: Network, memory: Any) -> Network:
        """The network that predicts, and is the teacher of the next task."""
        return network

    def ends_on_whole_graph(self) -> bool:
        """Whether the end of a task is computed on its whole graph at once, whatever the batches are."""
        return False


# ---------------------------------------------------------------------- what some methods can do besides


@runtime_checkable
class MergesClasses(Protocol):
    """A method that can merge classes in its memory."""

    def merge_classes(self, memory: Any, places: Tensor, classes: int) -> Any:
        """What is kept of class i belongs to class `places[i]` of so many."""


@runtime_checkable
class LeavesOneOut(Protocol):
    """A method that knows the scores of a training node as if it were none: it is calibrated without a copy."""

    def left_out(self, memory: Any, task: Task, some: Tensor, compute: Compute) -> Tensor:
        """Scores of some training nodes (places in the task, just learned), each without its own: (some, classes)."""


@runtime_checkable
class Forgets(Protocol):
    """A method whose memory is a sum over nodes: tasks can be taken away again."""

    def without_tasks(self, memory: Any, tasks: Sequence[Task], first: int, compute: Compute) -> Any:
        """As if the last tasks, from number `first` on, had not been learned. Classes may be left empty.

        What is given has `of_classes(classes)`: some classes, in this order, where the others are empty.
        """
