"""IPAL: Instance-Prototype Affinity Learning.

Song, Li, Guan & Kong 2025, "Instance-Prototype Affinity Learning for Non-Exemplar Continual Graph Learning".
A class is remembered as a Gaussian over embeddings; nodes are told from prototypes by contrast, hard examples
and replayed features sharpen the contrast, and the affinities of virtual old features are held in place.

With nothing set, encoder, node weights, epochs and gamma are chosen on the first task by a rehearsal (see
rehearsal.py). The presets `paper` and `printed` ask for the paper's own reading.

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
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from ipal.backend.batches import Batch
from ipal.backend.distributed import ONE_PROCESS
from ipal.config import (
    Auto,
    Count,
    Draws,
    EncoderConfig,
    EncoderSettings,
    Sampling,
    TrainConfig,
    TrainSettings,
    without_auto,
)
from ipal.data.centrality import NodeWeights, node_weights
from ipal.data.graph import Graph
from ipal.data.streams import Task
from ipal.learners import held_back, rehearsal
from ipal.learners.checks import Shapes, check_fast, require
from ipal.learners.draft import drafted
from ipal.learners.facts import RehearsedFacts
from ipal.learners.gaussian_memory import PROTOTYPES, Episode
from ipal.learners.kept import Kept, Parameters
from ipal.learners.trained import TrainedLearner
from ipal.learners.truncated_beta import TruncatedBeta
from ipal.learners.values import Distances, HardExamples, Terms
from ipal.nn import losses
from ipal.nn.encoders import ENCODERS
from ipal.nn.in_pieces import in_pieces
from ipal.nn.prototypes import PrototypeMemory, followed
from ipal.system.tracing import spanned

EPOCHS, GAMMAS = (10, 0), (3.0, 10.0, 1.0, 0.3)
"""What is rehearsed where nothing is set; what is usual comes first."""
PAPER_WEIGHTS: NodeWeights = "pagerank"
NODE_WEIGHTS: tuple[NodeWeights, ...] = ("uniform", PAPER_WEIGHTS)
FEWEST, SMALL = 100, 256
"""Least nodes of a mini-batch in a rehearsal, and of a first task that is trained unless that does harm."""
AFFINITIES_AT_ONCE = 2**20
"""Affinities of pairs of old classes that are there together: with 100 nodes, those of 102 classes."""


@dataclass(kw_only=True, eq=False)
class IPAL(TrainedLearner[Episode]):
    """Prototype contrast with affinity distillation, boundary perception and topology-weighted prototypes."""

    encoder: EncoderSettings = dataclasses.field(default_factory=EncoderSettings)  # type: ignore[assignment]
    """The network that makes embeddings; what is auto is chosen on the first task."""
    train: TrainSettings = dataclasses.field(default_factory=TrainSettings)  # type: ignore[assignment]
    """The optimisation; epochs and rates that are auto are chosen on the first task."""
    tau: float = Field(0.07, gt=0)
    """Temperature of the contrast."""
    gamma: Auto | Annotated[float, Field(ge=0)] = "auto"
    """Weight of the distillation (Eq. 13); the paper's grid is 0.1 to 1.0. auto: chosen on the first task."""
    products: Literal["cosine", "raw"] = "cosine"
    """Products of embeddings and prototypes: cosines, or raw as printed."""
    distillation: Literal["ipad", "ipad-printed", "fd", "none"] = "ipad"
    """What holds old knowledge in place: affinities (Eq. 8), its printed form, features (Eq. 5), nothing."""
    node_weights: Auto | NodeWeights = "auto"
    """How nodes weigh in prototypes (Eq. 3, 4); uniform gives plain means. auto: chosen on the first task, or PageRank
    where encoder, epochs and gamma are set."""
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
    momentum: Auto | Annotated[float, Field(ge=0, lt=1)] = "auto"
    """Share of the encoder that stays at each batch, without boundaries. auto: the mean over all nodes so far."""

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
    schema = RehearsedFacts
    added = MappingProxyType({"task_free": False, "momentum": "auto"})

    # ------------------------------------------------------------------ what is left open

    @property
    def is_open(self) -> bool:
        """Whether something is left to choose. With nothing but node weights open, they are the paper's."""
        return "auto" in (self.encoder.kind, self.encoder.hidden, self.encoder.width, self.train.epochs, self.gamma)

    def start(self, task: Task) -> None:
        if self.is_open and not self.is_fitted:
            self._choose(task)
        super().start(task)

    @spanned("choice")
    def _choose(self, task: Task) -> None:
        """Encoder, node weights, epochs and gamma, as far as they are open; from here on they are part of the model."""
        options = self.options(task)
        batch = self.batch
        if isinstance(batch, Sampling):  # an epoch of fewer nodes has as many steps
            nodes = batch.nodes * held_back.share(task)
            batch = batch.model_copy(update={"nodes": max(min(batch.nodes, FEWEST), int(nodes))})
        made = partial(rehearsal.choose, task, options, partial(self._rehearsing, batch), self.seed, self.test_graph)
        self.choices_ = self.runtime_.team.broadcast(made)

    def options(self, task: Task) -> rehearsal.Options:
        """What is rehearsed: what is set stays as it is."""
        small = self.task_free or len(task.nodes) < SMALL  # perhaps of many: trained only where that helps
        epochs = (self.train.epochs,) if self.train.epochs != "auto" else sorted(EPOCHS) if small else EPOCHS
        gammas = GAMMAS if self.gamma == "auto" else (self.gamma,)
        weights = NODE_WEIGHTS if self.node_weights == "auto" else (self.node_weights,)
        return rehearsal.Options(self.encoders(task.graph.num_features), epochs, gammas, weights)

    def encoders(self, num_features: int) -> list[EncoderConfig]:
        return rehearsal.encoders(self._network, num_features, isolated=self.test_graph == "isolated")

    @property
    def _network(self) -> EncoderSettings:
        """The encoder as far as it is set: mini-batches have as many layers as fan-outs."""
        fixed = {} if self.batch == "full" else {"layers": len(self.batch.fanouts)}
        return self.encoder.model_copy(update=fixed)

    def _rehearsing(
        self, batch: Literal["full"] | Sampling, candidate: rehearsal.Candidate, like: "IPAL | None" = None
    ) -> "IPAL":
        """A learner of these settings that has learned what another has, or nothing, in one process."""
        encoder, epochs, gamma, weights = candidate
        rates = rehearsal.rates(self.train, rehearsal.rate_for(like.parameters().values()) if like else None)
        fixed = dict(like.train) if like and like.labels_ else {**dict(self.train), "epochs": epochs, **rates}
        train: dict[str, Any] = {"train": TrainConfig(**fixed), "gamma": gamma, "node_weights": weights}
        learner = dataclasses.replace(self, encoder=encoder, **train, batch=batch, calibration=0.0)
        learner.runtime_ = dataclasses.replace(self.runtime_, team=ONE_PROCESS)
        learner.__dict__ = {**drafted(vars(like) if like else {}), **vars(learner)}
        return learner

    @property
    def choices_(self) -> dict[str, Any]:
        """What was chosen and tried; nothing where all is set."""
        return dict(vars(self).get("_choices", {}))

    @choices_.setter
    def choices_(self, choices: dict[str, Any]) -> None:
        self._choices = choices
        if choices and self.is_fitted:  # restored
            self.renew_network()

    @property
    def chosen(self) -> Mapping[str, Any]:
        return dict(self.choices().get("chosen", {}))

    def encoder_of(self, choices: Mapping[str, Any]) -> EncoderConfig:
        return EncoderConfig(**{**choices.get("chosen", {}).get("encoder", {}), **without_auto(self._network)})

    def largest_encoder(self, num_features: int) -> EncoderConfig:
        return max(self.encoders(num_features), key=lambda one: one.layers * one.hidden + one.width)

    def check_encoder(self) -> None:
        if self.encoder.kind != "auto":
            ENCODERS.find(self.encoder.kind).check(self.encoder_of({}))

    @property
    def epochs(self) -> int:
        return int(self.chosen.get("epochs", 0)) if self.train.epochs == "auto" else self.train.epochs

    def decided(self, section: str) -> dict[str, Any]:
        found: dict[str, Any] = {"encoder": {"layers": self.encoder_of({}).layers}}
        return {} if self.is_open else found.get(section, rehearsal.rates(self.train, None))

    @property
    def rates(self) -> tuple[float, float]:
        first, later = rehearsal.rates(self.train, self.chosen.get("rate")).values()
        return first, later

    @property
    def _distillation_weight(self) -> float:
        return float(self.chosen["gamma"]) if self.gamma == "auto" else self.gamma

    @property
    def _weighing(self) -> NodeWeights:
        chosen: NodeWeights = self.chosen.get("node_weights", PAPER_WEIGHTS)
        return chosen if self.node_weights == "auto" else self.node_weights

    def shapes(self, facts: Mapping[str, Any]) -> Shapes:
        require(not self.is_open or bool(facts.get("choices")), "it does not say what was chosen")
        yield from super().shapes(facts)

    # ------------------------------------------------------------------ learning

    def initialise(self, num_features: int) -> None:
        super().initialise(num_features)
        self._mixing = TruncatedBeta(9.0, 21.0, 0.4, self.generator_.device)
        self.fast_: Parameters = {}

    def renew_network(self) -> None:
        if self.is_open and not self.choices_:  # it is about to be restored, and not known yet
            return
        super().renew_network()
        self.memory_ = PrototypeMemory.empty(self.encoder_config.width, self.generator_.device)

    @property
    def hard_examples(self) -> HardExamples:
        return HardExamples(self.k, self.hardness)

    def prepare(self, task: Task) -> Episode:
        rule = self._weighing, self.alpha
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
            gamma = self._distillation_weight
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

    def begin_task(self, task: Task) -> None:
        """The weights to be trained take the place of the slow ones, which are at hand as the network before."""
        if self.task_free:  # a first batch is no first task: a high rate would bend the network to its few nodes
            self.learning_rate_ = self.rates[1]
        self._set_weights(self.fast_)
        self.fast_ = {}

    def _follow(self, nodes: int) -> None:
        """The encoder of the batches so far moves towards the weights that this one, of so many nodes, gave."""
        self.fast_ = self.parameters()
        if self.previous_ is not None:
            so_far = int(self.memory_.count.sum())
            momentum = so_far / (so_far + nodes) if self.momentum == "auto" else self.momentum
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
