"""A learner's state as a value: what it keeps, declared once, in a file or a checkpoint, and described."""

import dataclasses
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ipal.backend.runtime import Runtime
from ipal.data.relations import Types
from ipal.errors import ConfigError, NotFittedError
from ipal.learners import saved, shown
from ipal.learners.checks import Shapes
from ipal.learners.facts import Facts
from ipal.learners.kept import Kept, Parameters, RandomState, class_statistics
from ipal.learners.open_world.calibration import Calibration
from ipal.learners.settings import MethodClass
from ipal.learners.state import State, laid_out
from ipal.learners.values import Remembered


class Stateful(metaclass=MethodClass):
    """What every learner keeps. A method declares what it adds (`kept`, `schema`), and writes none of this itself."""

    name: ClassVar[str]
    title: ClassVar[str]
    """The name as tables, figures and pages write it: of this class, not of those below it."""
    stores_exemplars: ClassVar[bool] = False
    """Whether raw nodes are kept: every table marks such a method."""
    stores_all_tasks: ClassVar[bool] = False
    """Whether all tasks so far are kept and learned from as one: an upper reference, which tables do not rank."""
    kept: ClassVar[tuple[Kept, ...]] = (
        RandomState("generator", "random state"),
        Kept(
            "calibration",
            "quantiles of a few scores of training nodes, by class: how sure predictions may be",
            check=lambda learner, calibration, whole: calibration.check(len(learner.labels_)),
        ),
    )
    """What a class adds to the state; `declared` has all of it."""
    schema: ClassVar[type[Facts]] = Facts
    """The plain data of the state: what a method adds to `Facts` are attributes of these names with an underscore."""

    free: ClassVar[frozenset[str]] = frozenset({"device", "train", "batch"})
    """Settings that nothing learned rests on: `set_params` changes them at any time."""

    seed: int
    device: str

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__repr__" not in vars(cls):  # a dataclass would write one of its own, with all settings
            cls.__repr__ = Stateful.__repr__  # type: ignore[method-assign]

    @cached_property
    def runtime_(self) -> Runtime:
        """What it computes with: made by itself where nobody has set one."""
        return Runtime.of(self.device)

    def initialise(self, num_features: int) -> None:
        """The state before the first task."""
        self.num_features_ = num_features
        self.types_: Types | None = None  # of the graph that the first task is learned in
        self.columns_: tuple[str, ...] = ()
        self.labels_: list[Any] = []
        self.history_: list[dict[str, Any]] = []
        self.reference_: dict[str, Any] | None = None
        self.calibration_ = Calibration.empty()
        self.generator_ = torch.Generator(self.runtime_.device).manual_seed(self.seed)

    # ------------------------------------------------------------------ in words

    @property
    def is_fitted(self) -> bool:
        return hasattr(self, "labels_")

    @property
    def is_learning(self) -> bool:
        """Whether a task was begun and has not ended."""
        return "_before" in self.__dict__

    def _require_fitted(self) -> None:
        if not self.is_fitted:
            raise NotFittedError("This model has learned nothing yet: call partial_fit first.")

    def nodes_behind_class(self) -> dict[str, int]:
        """How many training nodes stand behind what is kept of each class, where it is known."""
        kept = class_statistics(self)
        return {} if kept is None else dict(zip(map(str, self.labels_), kept.count.tolist(), strict=False))

    def remembered(self) -> dict[str, Remembered]:
        """What is kept of the rows of each class; nothing where only weights are, or the nodes themselves."""
        kept, counts = class_statistics(self), self.nodes_behind_class().items()
        means = () if kept is None else kept.mean
        return {name: Remembered(count, mean) for (name, count), mean in zip(counts, means, strict=True)}

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

    # ------------------------------------------------------------------ as tensors and plain data

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
        types = None if self.types_ is None else self.types_.plain
        learned = {"types": types, "labels": list(self.labels_), "history": self.history_, "reference": self.reference_}
        always["columns"] = list(self.columns_)
        return {**always, **learned, **saved.made_with(self), **own}

    def load_facts(self, facts: Mapping[str, Any]) -> None:
        """Take over what `facts` gave."""
        self.labels_ = list(facts["labels"])
        self.types_ = None if facts["types"] is None else Types.of_plain(facts["types"])
        self.history_, self.reference_ = list(facts["history"]), facts["reference"]
        self.columns_ = tuple(facts["columns"])
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
        self.model(moments=moments).save(Path(path))

    def model(self, *, moments: bool = False) -> State:
        """What `save` writes."""
        self._require_fitted()
        if self.is_learning:
            raise ConfigError("A task is being learned: a model can be saved when it is done.")
        kept = [one.tensors(self) for one in self.declared().values() if moments or not one.only_while_learning]
        return State({name: tensor for one in kept for name, tensor in one.items()}, self.facts())

    @classmethod
    def load(cls, path: str | Path, *, device: str = "cpu") -> Self:
        """A learner from a file written by `save`. Nothing is unpickled."""
        return saved.of_state(cls, State.load(Path(path)), path, device)

    def settings(self) -> dict[str, Any]:
        """All hyper-parameters as plain data."""
        return type(self).plain_settings(self)

    # ------------------------------------------------------------------ as scikit-learn asks for it

    _estimator_type: ClassVar[str] = "classifier"
    """What scikit-learn before 1.6 reads instead of tags."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The hyper-parameters."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}  # type: ignore[arg-type]

    def set_params(self, **settings: Any) -> Self:
        """Change settings, checked as those of a new learner; of a fitted one, only those that fit what it learned."""
        if self.is_learning:
            raise ConfigError("A task is being learned: settings can be changed when it is done.")
        other = self.anew(**settings)
        changed = [name for name in settings if getattr(self, name) != getattr(other, name)]
        if self.is_fitted and (fixed := set(changed) - self.free):
            raise ConfigError(
                f"What this model has learned rests on its {', '.join(sorted(fixed))}: change the settings of one that "
                "has learned nothing, which clone(model) of sklearn.base makes."
            )
        if self.is_fitted:
            other.restore(self.state())
        self.__dict__ = other.__dict__
        return self

    def anew(self, **settings: Any) -> Self:
        """A learner that has learned nothing, of the same settings but these."""
        other = type(self)(**{**self.get_params(), **settings})
        if other.device == self.device and "runtime_" in self.__dict__:
            other.runtime_ = self.runtime_
        return other

    @property
    def n_features_in_(self) -> int:
        """How many features a node has."""
        self._require_fitted()
        return self.num_features_

    def __sklearn_is_fitted__(self) -> bool:
        return self.is_fitted

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags  # it takes a second to import

        return Tags(
            estimator_type="classifier",
            target_tags=TargetTags(required=True),
            classifier_tags=ClassifierTags(),
            input_tags=InputTags(two_d_array=False),
        )

    def __repr__(self) -> str:
        return shown.as_text(self)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return shown.as_html(self)
