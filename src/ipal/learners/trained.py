"""Methods that train a network by steps: the encoder, its optimiser, and the one training loop.

Such a method says what it adds through hooks:

    begin_task(task)          its state changes once, when a task starts
    prepare(task)             what follows from its state and the task alone, and is not kept
    loss(batch, lesson)       named terms; their sum is minimised; only here is the network in training mode
    adjust_gradients(lesson)  changes the gradients before a step
    end_task(task, lesson)    its state changes once, when a task is learned
"""

import copy
import hashlib
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import cached_property, partial
from typing import Any, ClassVar, Generic, Literal, TypeVar, cast

import torch
from pydantic import ValidationInfo, field_validator
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from ipal.backend.adam import Adam
from ipal.backend.batches import Batch, check_fanouts, sampled, whole_task
from ipal.backend.cuda_graphs import Recordings, can_record
from ipal.backend.finite import check_tensors, check_terms, read_terms
from ipal.backend.fixed_batches import FixedBatches
from ipal.backend.operators import operators
from ipal.config import EncoderConfig, Sampling, TrainConfig
from ipal.data.graph import Graph
from ipal.data.streams import Task
from ipal.learners.base import Learner
from ipal.learners.checks import Shapes
from ipal.learners.facts import Facts, TrainedFacts
from ipal.learners.kept import Kept, Parameters
from ipal.learners.lesson import Before, Lesson, balanced_cross_entropy, class_weights
from ipal.learners.mapped import changes
from ipal.learners.network_state import Frozen, Moments, Part
from ipal.learners.stacked import Stack, Waiting
from ipal.learners.steps import Steps
from ipal.learners.values import Look, Terms
from ipal.nn.by_rows import encoded
from ipal.nn.embed import embeddings
from ipal.nn.encoders import ENCODERS, Encoder
from ipal.nn.head import Head
from ipal.nn.losses import unit
from ipal.nn.weight_size import root_mean_square
from ipal.system.tracing import spanned

__all__ = ["Lesson", "Prepared", "TrainedLearner", "balanced_cross_entropy", "class_weights"]

Prepared = TypeVar("Prepared", bound=Lesson)


@dataclass(kw_only=True, eq=False)
class TrainedLearner(Learner, Generic[Prepared]):
    """A learner with an encoder that is trained by steps, and a head over all classes unless it needs none."""

    encoder: EncoderConfig = EncoderConfig()
    """The network that makes embeddings."""
    train: TrainConfig = TrainConfig()
    """The optimisation."""
    batch: Literal["full"] | Sampling = "full"
    """full: the whole task is one batch. Or mini-batches, as {nodes: 2000, fanouts: [10, 25]}."""
    competing: Literal["seen", "current"] = "seen"
    """Which classes' outputs the cross-entropy of current nodes sets against each other."""

    kept: ClassVar[tuple[Kept, ...]] = (
        Part("encoder", "encoder weights"),
        Part("head", "classifier weights"),
        Moments("optimizer", "optimiser moments", only_while_learning=True),
        Frozen(
            "previous",
            "network as it was before the task, only while a task is being learned",
            only_while_learning=True,
        ),
    )
    schema: ClassVar[type[Facts]] = TrainedFacts
    has_head: ClassVar[bool] = True
    """Whether classes are scored by a head, which grows with them; else `scores_of` says how."""
    temperature: ClassVar[float | None] = None
    """Of the head: cosines divided by it; None for a linear head."""
    looks_back: ClassVar[bool] = False
    """Whether the network before the task is at hand (`lesson.before`) while a later task is learned."""
    looks_at_whole_tasks: ClassVar[bool] = False
    """Whether the end of a task is computed on its graph as a whole, whatever the batches are."""
    ends_for_later_tasks: ClassVar[bool] = False
    """Whether the end of a task changes later training alone, and no prediction: a trial leaves it out."""
    mappable_end: ClassVar[bool] = False
    """Whether `end_task` changes attributes alone, by tensors that are never waited for: it is mapped over a stack."""
    recordable: ClassVar[bool] = False
    """Whether a step never waits for what it computed, as `.item()` does: only then can a GPU repeat it by itself."""
    stackable: ClassVar[frozenset[str]] = frozenset()
    """Numbers among the settings in which learners may differ whose steps are taken as one (see stacked.py)."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if {"loss", "adjust_gradients", "prepare"} & vars(cls).keys():  # another step: both are to be said anew
            cls.recordable = vars(cls).get("recordable", False)
            cls.stackable = vars(cls).get("stackable", frozenset())
        if "end_task" in vars(cls):  # likewise
            cls.ends_for_later_tasks = vars(cls).get("ends_for_later_tasks", False)
            cls.mappable_end = vars(cls).get("mappable_end", False)

    @field_validator("encoder", "train", mode="before")
    @classmethod
    def _with_defaults(cls, given: Any, info: ValidationInfo) -> Any:
        return cls.completed(str(info.field_name), given) if isinstance(given, Mapping) else given

    def __post_init__(self) -> None:
        kind = ENCODERS.find(self.encoder.kind)
        kind.check(self.settled)
        if self.batch != "full" and kind.reads_neighbours:
            check_fanouts(self.batch, self.encoder)

    # ------------------------------------------------------------------ hooks

    def begin_task(self, task: Task) -> None:
        """Change the state once, when a task starts."""

    def prepare(self, task: Task) -> Prepared:
        """What the steps of this task need and what follows from state and task alone; a method may add to it."""
        key = (self.generator_.device, *self.labels_)
        classes = task.derived("classes", key, lambda: self._classes_in(task), most=1)
        network = self.previous_
        before = None if network is None else Before(network, partial(self.training_embeddings, task))
        return cast(Prepared, Lesson(*classes, before))

    def _classes_in(self, task: Task) -> tuple[Tensor, Tensor, Tensor]:
        """Class of each training node, classes being learned, and known ones that are not."""
        labels = self.rows(task.labels)
        current = torch.unique(labels)
        known = torch.arange(len(self.labels_), device=labels.device)
        return labels, current, known[~torch.isin(known, current)]

    def loss(self, batch: Batch, lesson: Prepared) -> Terms:
        """Named terms whose sum is minimised; here the cross-entropy of the head, which is fine-tuning."""
        logits = self.head_(self.encoder_(batch.graph))
        return {"cross_entropy": lesson.cross_entropy(logits, batch.positions, self.competing)}

    def adjust_gradients(self, lesson: Prepared) -> None:
        """Change the gradients of the parameters, between the backward pass and the step."""

    def end_task(self, task: Task, lesson: Prepared) -> None:
        """Change the state once, when a task is learned."""

    # ------------------------------------------------------------------ network and optimiser

    def initialise(self, num_features: int) -> None:
        super().initialise(num_features)
        self.learning_rate_: float | None = None  # none has been needed yet: no task has begun
        self.previous_: nn.ModuleDict | None = None
        self._recordings = Recordings()
        self.renew_network()

    def drawn_encoder(self, generator: torch.Generator) -> Encoder:
        """An encoder with fresh weights."""
        return ENCODERS.find(self.encoder.kind)(self.num_features_, self.settled, generator)

    def renew_network(self) -> None:
        """Fresh weights and a fresh optimiser."""
        self.network_ = nn.ModuleDict({"encoder": self.drawn_encoder(self.generator_)}).eval()
        self.renew_optimizer()
        if self.has_head:
            self.network_["head"] = Head(self.encoder_.width, self.temperature).eval()

    @spanned("optimiser")
    def renew_optimizer(self) -> None:
        """An optimiser of all parameters there are, without moments."""
        rate = self.learning_rate_ or self.rates[0]
        self.optimizer_ = Adam(self.network_.parameters(), rate, self.train.weight_decay)

    def grow_head(self, num_classes: int, generator: torch.Generator) -> None:
        """Rows for so many more classes, trained from here on."""
        rate = self.learning_rate_ or self.rates[0]  # not the rate that the optimiser began with
        self.optimizer_.add_param_group({"params": self.head_.grow(num_classes, generator), "lr": rate})

    def parameters(self) -> Parameters:
        return {name: parameter.detach().clone() for name, parameter in self.network_.named_parameters()}

    # ------------------------------------------------------------------ the one training loop

    @property
    def epochs(self) -> int:
        return self.train.epochs

    @property
    def rates(self) -> tuple[float, float]:
        """Learning rates, as they are set: of the first task, and of later ones."""
        return self.train.lr_base, self.train.lr_next

    def learn(self, task: Task, first_epoch: int = 0) -> Iterator[Terms]:
        stack: Stack | None = vars(self).get("stack_")  # nothing changes before learning begins
        return super().learn(stack.shared(task) if stack else task, first_epoch)

    def teach(self, task: Task, first_epoch: int) -> Iterator[Terms]:
        with self.tracer.span("preparation"):
            lesson = self.prepare(task)
            if lesson.before is not None and self.stack_ is None:  # a stack finds those of all at once
                lesson.before.find()
        unread: list[Terms] = []
        with closing(self._epochs(task, lesson, first_epoch)) as epochs:
            for terms in epochs:
                unread += [terms] if terms else []
                yield terms
        self.runtime_.team.broadcast_tensors(list(self.network_.parameters()))
        # Before anything is remembered of it. Whoever reads the terms meanwhile finds the same, earlier.
        check_terms(read_terms(unread), first_epoch, self.epochs)
        check_tensors(dict(self.network_.named_parameters()), self.meanings(), f"epoch {self.epochs} of {self.epochs}")
        if not (self.is_trial and self.ends_for_later_tasks):
            yield from self._end(task, lesson)
        self.previous_ = None

    def _end(self, task: Task, lesson: Prepared) -> Iterator[Terms]:
        """The end of a task, where it can be with that of others in the stack; empty terms, while they come to it."""
        if self.stack_ is None or not self.is_mappable or not self.mappable_end or self.follows:
            with torch.no_grad(), self.tracer.span("end of task"):
                self.end_task(task, lesson)
            return

        def ended(some: Sequence[Waiting[dict[str, Any]]]) -> list[dict[str, Any]]:
            learners, lessons = [one.learner for one in some], [one.beside for one in some]
            return changes(learners, lessons, lambda one, lesson: one.end_task(task, lesson))

        with self.stack_.waiting(self, ("end", id(task)), lesson) as waiting:
            yield {}
            self.__dict__.update(waiting.together(ended))

    @cached_property
    def stack_(self) -> Stack | None:
        """Where it meets others that take their steps with it; set by whoever drives them."""
        return None

    @property
    def is_mappable(self) -> bool:
        """Whether it can be computed as one with others (see mapped.py): attention is written for one learner."""
        return bool(self.stackable) and "attention" not in self.encoder_.needs and self.runtime_.team.size == 1

    @property
    def follows(self) -> bool:
        """Whether the encoder follows other weights, which are trained: the end of a task then changes it."""
        return False

    def _epochs(self, task: Task, lesson: Prepared, first_epoch: int) -> Generator[Terms, None, None]:
        if self.stack_ is None or not self.is_mappable or self.batch != "full":  # mini-batches differ in shape
            return self.epochs_alone(task, lesson, first_epoch)
        return self.stack_.epochs(self, task, lesson, first_epoch)

    def epochs_alone(self, task: Task, lesson: Prepared, first_epoch: int) -> Generator[Terms, None, None]:
        """The epochs of a task from one on."""
        with closing(Steps(self, task, lesson, self._recordings)) as steps:
            for epoch in range(first_epoch, self.epochs):
                yield steps.epoch(epoch)

    @property
    def is_repetitive(self) -> bool:
        """Whether every step is the same sequence of operations on the same memory of a GPU."""
        if self.tracer.listens or self.runtime_.team.size > 1:  # a recording has no parts, and talks to nobody
            return False
        if not self.recordable or self.generator_.device.type != "cuda" or not can_record():
            return False
        return all(parameter in self.optimizer_.state for parameter in self.network_.parameters())

    def step(self, batch: Batch, lesson: Prepared) -> Terms:
        """One step of the optimiser."""
        if self.generator_.device.type == "cuda":
            self.runtime_.team.barrier()  # GPUs would wait forever for one that is gone
        terms = self.training_loss(batch, lesson)
        self.optimizer_.zero_grad()
        with self.tracer.span("backward"):
            torch.stack(list(terms.values())).sum().backward()  # type: ignore[no-untyped-call]
        with self.tracer.span("adjusting gradients"):
            self.adjust_gradients(lesson)
        with self.tracer.span("optimiser"):
            self.optimizer_.step()
        return {name: term.detach() for name, term in terms.items()}

    @spanned("loss")
    def training_loss(self, batch: Batch, lesson: Prepared) -> Terms:
        """The loss in training mode, which is left even when the loss is interrupted."""
        self.network_.train()
        try:
            return self.loss(batch, lesson)
        finally:
            self.network_.eval()

    def batches(self, task: Task, epoch: int) -> Iterable[Batch]:
        """One epoch of a task."""
        if self.batch == "full":
            return [whole_task(task, self.runtime_, self.encoder_.needs)]
        return sampled(task, self.batch, self.sampling_seed(epoch), self.runtime_, self.encoder_.needs)

    def fixed_batches(self, task: Task) -> FixedBatches | None:
        """Mini-batches in shapes that a GPU can repeat; None elsewhere, where those of `batches` are less work."""
        if self.batch == "full" or self.runtime_.device.type != "cuda":
            return None
        return FixedBatches.of(task, self.batch, self.runtime_, self.encoder_.needs)

    def sampling_seed(self, epoch: int) -> int:
        """Follows from the state between two epochs, and leaves it as it is: batches do not change other draws."""
        parts = (self.generator_.get_state().numpy().tobytes(), f"{len(self.labels_)} {epoch}".encode())
        return int.from_bytes(hashlib.sha256(b"".join(parts)).digest()[:7])

    def start(self, task: Task) -> None:
        super().start(task)
        is_later = self.learning_rate_ is not None
        if self.looks_back and is_later:
            self.previous_ = copy.deepcopy(self.network_).requires_grad_(False)
        if self.train.moments == "reset":
            self.renew_optimizer()
        self.begin_task(task)
        size = root_mean_square(self.encoder_.parameters()) if self.train.relative else 1.0
        self.learning_rate_ = self.rates[is_later] * size
        if self.has_head and len(self.labels_) > self.head_.num_classes:
            self.grow_head(len(self.labels_) - self.head_.num_classes, self.generator_)
        for group in self.optimizer_.param_groups:
            group["lr"] = self.learning_rate_

    # ------------------------------------------------------------------ embeddings

    @property
    def encoder_(self) -> Encoder:
        return cast(Encoder, self.network_["encoder"])

    @property
    def head_(self) -> Head:
        return cast(Head, self.network_["head"])

    @property
    def reach(self) -> int:
        return ENCODERS.find(self.encoder.kind).reach(self.settled)

    def represent(self, graph: Graph) -> Tensor:
        return embeddings(self.encoder_, graph, self.runtime_)

    def scores_of(self, f: Tensor) -> Tensor:
        """Nodes x known classes from the nodes' embeddings, higher is likelier: by the head, if there is one."""
        scores: Tensor = self.head_(f)
        return scores

    def exported(self, rows: Any) -> tuple[Any, Any]:
        head = self.head_
        if head.temperature is None:
            scores = rows @ head.weight.T + head.bias
        else:
            scores = rows.unit() @ unit(head.weight).T / head.temperature
        return scores, scores.softmax()

    def by_rows(self, rows: Any) -> tuple[Any, Any]:
        return self.exported(encoded(self.encoder_, rows))

    def scores(self, graph: Graph) -> Tensor:
        return self.scores_of(self.represent(graph))

    def look(self, graph: Graph, nodes: Tensor | None = None) -> Look:
        with torch.no_grad():
            f, scores = self.seen(self.checked(graph), nodes)
            return Look(self.likeliest(scores), f, scores)

    def seen(self, graph: Graph, nodes: Tensor | None) -> tuple[Tensor, Tensor]:
        """Embeddings and scores of all nodes of a graph, or of some."""
        f = self.represent(graph)
        scores = self.scores_of(f)
        at = slice(None) if nodes is None else nodes.to(f.device)
        return f[at], scores[at]

    def training_embeddings(self, task: Task, network: nn.ModuleDict | None = None) -> Tensor:
        """Embeddings of a task's training nodes, without gradient; by the network itself or by another."""
        return embeddings(cast(Encoder, (network or self.network_)["encoder"]), task, self.runtime_)

    def training_outputs(self, task: Task) -> Tensor:
        """Outputs of the head for a task's training nodes."""
        outputs: Tensor = self.head_(self.encoder_(operators(task, self.runtime_, self.encoder_.needs)))
        return outputs

    # ------------------------------------------------------------------ state as a value

    @property
    def settled(self) -> EncoderConfig:
        """The settings of the encoder, with what the graphs that are predicted decide: these are saved."""
        return ENCODERS.find(self.encoder.kind).settled(self.encoder, self.test_graph)

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "encoder": self.settled.model_dump(mode="json", context="all")}

    def shapes(self, facts: Mapping[str, Any]) -> Shapes:
        yield from super().shapes(facts)
        layers = ENCODERS.find(self.encoder.kind).all_shapes(facts["num_features"], self.settled)
        for number, layer in enumerate(layers):
            yield from ((f"encoder.{name}.{number}", shape) for name, shape in layer.items())

    def sizes(self, facts: Mapping[str, Any]) -> dict[str, int]:
        widths = ENCODERS.find(self.encoder.kind).widths(facts["num_features"], self.settled)
        return {**super().sizes(facts), "width": widths[-1]}

    def load_facts(self, facts: Mapping[str, Any]) -> None:
        super().load_facts(facts)
        for group in self.optimizer_.param_groups:
            group["lr"] = self.learning_rate_
