"""IPAL: Instance-Prototype Affinity Learning.

Song, Li, Guan & Kong 2025, "Instance-Prototype Affinity Learning for Non-Exemplar Continual Graph Learning".
A class is remembered as a Gaussian over embeddings; nodes are told from prototypes by contrast, hard examples
and replayed features sharpen the contrast, and the affinities of virtual old features are held in place.

Encoder, rates, gamma and node weights have defaults of this package; the presets `paper` and `printed` ask for the
paper's own reading.

Differences from the paper, each measured in docs/results.md:
- every product of embedding and prototype is a cosine (`cosine`); raw products, as printed, are `raw`;
- affinities are distilled towards all old prototypes, as one norm (`ipad`); Eq. 8 as printed is `ipad-printed`;
- drift weights are a softmax of cosines (`softmax`); Eq. 12 as printed is `printed`.
The paper is silent on epochs and on a last ReLU. A class that comes again is learned as a current class and pooled.

Without boundaries (`task_free`) a task is one of many small batches, in which classes come again and again:
- the encoder is a slow mean of the weights that are trained (`fast_`); it predicts, makes the prototypes and teaches;
- in a step, the prototype of a class is the mean of what is remembered and of the batch's nodes;
- the distillation holds all remembered prototypes, weighed by the share of classes that the batch does not show;
- after every batch all remembered prototypes follow the drift in full, then the batch's nodes are pooled in.
With one batch a task and new classes in each, the last two are the paper's, but for beta.
"""

import dataclasses
from collections.abc import Callable
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from ipal.backend.batches import Batch
from ipal.config import Count, Draws, EncoderConfig, TrainConfig
from ipal.data.centrality import NodeWeights, node_weights
from ipal.data.graph import Graph
from ipal.data.streams import Task
from ipal.learners.checks import check_fast
from ipal.learners.gaussian_memory import PROTOTYPES, Episode
from ipal.learners.kept import Kept, Parameters
from ipal.learners.trained import TrainedLearner
from ipal.learners.truncated_beta import TruncatedBeta
from ipal.learners.values import Distances, HardExamples, Terms
from ipal.nn import losses
from ipal.nn.in_pieces import in_pieces
from ipal.nn.prototypes import PrototypeMemory, followed

AFFINITIES_AT_ONCE = 2**20
"""Affinities of pairs of old classes that are there together: with 100 nodes, those of 102 classes."""


@dataclass(kw_only=True, eq=False)
class IPAL(TrainedLearner[Episode]):
    """Prototype contrast with affinity distillation, boundary perception and topology-weighted prototypes."""

    encoder: EncoderConfig = EncoderConfig(kind="appnp", layers=1, hidden=2048, width=2048)
    """The network that makes embeddings."""
    train: TrainConfig = TrainConfig(epochs=5, lr_base=2e-3, lr_next=2e-3, relative=True)
    """The optimisation."""
    tau: float = Field(0.07, gt=0)
    """Temperature of the contrast."""
    gamma: float = Field(3.0, ge=0)
    """Weight of the distillation (Eq. 13); the paper's grid is 0.1 to 1.0."""
    products: Literal["cosine", "raw"] = "cosine"
    """Products of embeddings and prototypes: cosines, or raw as printed."""
    distillation: Literal["ipad", "ipad-printed", "fd", "none"] = "ipad"
    """What holds old knowledge in place: affinities (Eq. 8), its printed form, features (Eq. 5), nothing."""
    node_weights: NodeWeights = "uniform"
    """How nodes weigh in prototypes (Eq. 3, 4); uniform gives plain means, pagerank is the paper's."""
    boundary: bool = True
    """Decision boundary perception: hard examples as negatives (Eq. 9, 10)."""
    hardness: Literal["entropy", "margin", "energy"] = "entropy"
    """What makes an example hard."""
    replay: bool = True
    """Samples from old classes' Gaussians as negatives."""
    compensation: Literal["softmax", "printed", "none"] = "softmax"
    """How old prototypes follow the drift of the current nodes (Eq. 11, 12)."""
    alpha: float = Field(0.85, ge=0, lt=1)
    """Damping of PageRank (Eq. 3)."""
    beta: float = 0.1
    """Strength of drift compensation (Eq. 11); without boundaries it is always in full."""
    k: Draws = 10
    """Hard examples per current class, and replayed samples per old class (the paper's K)."""
    subset: Count = 100
    """Training nodes mixed with old prototypes at each step (the paper's |S_t|)."""
    task_free: bool = False
    """For streams of small batches without task boundaries. lr_next is then the rate of all of them."""
    momentum: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Share of the encoder that stays at each batch, without boundaries. None: the mean over all nodes so far."""

    competing: ClassVar[Literal["seen"]] = "seen"  # type: ignore[misc]  # no setting: there is no head
    name = "ipal"
    title = "IPAL"
    has_head = False
    looks_back = True
    recordable = True
    mappable_end = True
    stackable = frozenset({"gamma", "tau", "alpha", "beta"})
    kept = (
        PROTOTYPES,
        Kept("fast", "weights being trained, which the encoder follows; without boundaries alone", check=check_fast),
    )
    added = MappingProxyType({"task_free": False, "momentum": None})

    # ------------------------------------------------------------------ learning

    def initialise(self, num_features: int) -> None:
        super().initialise(num_features)
        self._mixing = TruncatedBeta(9.0, 21.0, 0.4, self.generator_.device)
        self.fast_: Parameters = {}

    def renew_network(self) -> None:
        super().renew_network()
        self.memory_ = PrototypeMemory.empty(self.encoder_.width, self.generator_.device)

    @property
    def hard_examples(self) -> HardExamples:
        return HardExamples(self.k, self.hardness)

    def prepare(self, task: Task) -> Episode:
        rule = self.node_weights, self.alpha
        lesson = super().prepare(task)
        lesson = Episode.of_task(task, lesson, rule, lambda: node_weights(task.graph, *rule)[task.nodes])
        old = self.memory_.of(lesson.old)
        held = losses.OldPrototypes.of(self.memory_.mean if self.task_free else old.mean)
        known = self.memory_.padded(len(self.labels_)).of(lesson.current) if self.task_free else None
        return dataclasses.replace(lesson, known=known, remembered=old, held=held)

    def loss(self, batch: Batch, lesson: Episode) -> Terms:
        """Eq. 13: the contrast of Eq. 10 and gamma times the distillation."""
        here = batch.positions
        labels, members = lesson.places[here], lesson.members[:, here]
        f, directed = self.encoder_(batch.graph), self._directed
        directions = directed(f)
        online, absent = lesson.prototypes(f, here)
        remembered, held = lesson.remembered, lesson.held
        assert remembered is not None, "it has been prepared"
        assert held is not None, "likewise"
        mu = directed(torch.cat([online, remembered.mean]))
        hard = hard_labels = replayed = None
        if self.boundary:
            affinity = mu.detach() @ directions.detach().T
            if absent is not None:
                affinity.masked_fill_(absent[:, None], -torch.inf)
            within = losses.hardness_by_class(affinity, members, self.hardness)
            nodes, hard_labels = losses.hardest_within(within, self.k)
            hard = directions.index_select(0, nodes)
        if self.replay and len(lesson.old):
            draw = remembered.directions_drawn if self.products == "cosine" else remembered.drawn
            replayed = draw(self.k, self.generator_)
        contrast = losses.prototype_contrast(directions, labels, mu, self.tau, hard, hard_labels, replayed, absent)
        terms = {"contrast": contrast}
        if lesson.before is not None and len(lesson.old) and self.distillation != "none":
            gamma = self.gamma
            if self.task_free:
                gamma = gamma * losses.unseen_share(len(self.memory_), len(lesson.old))
            terms["distillation"] = gamma * self._distill(f, lesson.before.of(batch), held)
        return terms

    def _distill(self, f: Tensor, before: Tensor, held: losses.OldPrototypes) -> Tensor:
        if self.distillation == "fd":
            return losses.feature_distillation(f, before)
        mu = held.mean
        chosen = torch.randperm(len(f), generator=self.generator_, device=f.device)[: self.subset]
        lam = self._mixing.draw((len(chosen), len(mu)), self.generator_)
        if self.distillation == "ipad" and self.products == "cosine":
            found = losses.distillation_by_kernel(f, before, chosen, lam, held)
            if found is not None:
                return found
        mixed = losses.mixed_affinity if self.products == "cosine" else losses.mixed_affinity_printed
        before, f = before[chosen], f.index_select(0, chosen)

        def of_classes(f: Tensor, some: slice) -> Tensor:
            then, now = mixed(before, mu, lam, some), mixed(f, mu, lam, some)
            keep = losses.keep_consistent(then, some)
            if self.distillation == "ipad-printed":
                return losses.affinity_distillation_printed(now, then, keep, some)
            return losses.affinity_distillation(now, then, keep)

        step = max(1, AFFINITIES_AT_ONCE // max(1, lam.numel()))
        if step >= len(mu) or self.stack_ is not None:  # pieces are made one by one, and cannot be mapped
            return of_classes(f, losses.ALL)
        # All pairs of old classes at once would be quadratic in memory.
        parts = in_pieces(of_classes, f, [slice(first, first + step) for first in range(0, len(mu), step)])
        return parts.sum() if self.distillation == "ipad-printed" else torch.linalg.vector_norm(parts)

    def end_task(self, task: Task, lesson: Episode) -> None:
        """Compensate old prototypes, then remember the new classes."""
        if self.follows:
            self._follow(len(task.nodes))
        f = self.training_embeddings(task)
        rows = torch.arange(len(self.memory_), device=f.device) if self.task_free else lesson.old
        if lesson.before is not None and len(rows) and self.compensation != "none":
            before = lesson.before.embeddings
            proximity = losses.proximity_printed if self.compensation == "printed" else losses.proximity_softmax
            mu = self.memory_.mean[rows]
            w = proximity(self._product(before, mu))
            w, beta = (lesson.drift_weights(w), 1.0) if self.task_free else (w, self.beta)
            self.memory_ = self.memory_.moved(rows, losses.compensate(mu, f, before, w, beta))
        self.memory_ = lesson.learned(self.memory_, f)

    # ------------------------------------------------------------------ without boundaries

    @property
    def follows(self) -> bool:
        return self.task_free and self.epochs > 0

    @property
    def rates(self) -> tuple[float, float]:
        first, later = super().rates
        return (later if self.task_free else first), later  # a high rate would bend the network to a few nodes

    def begin_task(self, task: Task) -> None:
        """The weights to be trained take the place of the slow ones, which are at hand as the network before."""
        self._set_weights(self.fast_)
        self.fast_ = {}

    def _follow(self, nodes: int) -> None:
        """The encoder of the batches so far moves towards the weights that this one, of so many nodes, gave."""
        self.fast_ = self.parameters()
        if self.previous_ is not None:
            so_far = int(self.memory_.count.sum())
            momentum = so_far / (so_far + nodes) if self.momentum is None else self.momentum
            slow = dict(self.previous_.named_parameters())
            self._set_weights({name: followed(slow[name], theta, momentum) for name, theta in self.fast_.items()})

    def _set_weights(self, weights: Parameters) -> None:
        """In place: the optimiser knows parameters by their memory."""
        named = dict(self.network_.named_parameters())
        for name, tensor in weights.items():
            named[name].data.copy_(tensor)

    # ------------------------------------------------------------------ prediction

    def unite(self, places: Tensor, classes: int) -> None:
        # As where a class returns, in the embeddings of the encoder as it is.
        self.memory_ = self.memory_.united(places, classes)

    def scores_of(self, f: Tensor) -> Tensor:
        """Product with every stored prototype."""
        return self._product(f, self.memory_.mean)

    @property
    def _directed(self) -> Callable[[Tensor], Tensor]:
        """What is done to rows before they are multiplied: scaled to length one, or nothing."""
        return losses.unit if self.products == "cosine" else lambda rows: rows

    def _product(self, a: Tensor, b: Tensor) -> Tensor:
        return self._directed(a) @ self._directed(b).T

    def probabilities(self, scores: Tensor, graph: Graph) -> Tensor:
        return (scores / self.tau).softmax(dim=-1)

    def distances(self, graph: Graph) -> Distances:
        rows, means = losses.unit(self.represent(graph)), self.memory_.mean
        return lambda classes: 2 - 2 * rows @ losses.with_middle(means, classes).T

    def exported(self, rows: Any) -> tuple[Any, Any]:
        rows = rows.unit() if self.products == "cosine" else rows
        scores = rows @ self._directed(self.memory_.mean).T
        return scores, (scores / self.tau).softmax()
