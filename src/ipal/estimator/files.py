"""Models as files: written whole or not at all, and read after everything in them was checked. Nothing is unpickled."""

import copyreg
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from torch import Tensor

from ipal.backend.checks import MisfitError, check_same, check_shapes, require
from ipal.backend.finite import not_finite
from ipal.backend.runtime import Runtime
from ipal.config import LARGEST
from ipal.data.labels import Label
from ipal.engine.trainer import Setup, fresh_network, space
from ipal.errors import ConfigError, StoreError
from ipal.estimator.history import Event
from ipal.estimator.model import Model, setup
from ipal.estimator.open_world.calibration import Calibration
from ipal.estimator.registry import METHODS
from ipal.estimator.settings import LearnerConfig, learner_config
from ipal.methods.base import Method, Trained
from ipal.nn.encoders import ENCODERS
from ipal.state.snapshot import Snapshot, laid_out
from ipal.state.value import Sizes, State, load_generator, load_network, load_optimizer, unflatten


def snapshot(model: Model, *, moments: bool = False) -> Snapshot:
    """What a model file holds.

    Without the optimiser's moments, the next task starts with fresh ones.
    """
    found = model.tensors().items()
    parts = ("teacher.",) if moments else ("teacher.", "optimizer.")
    return Snapshot({name: tensor for name, tensor in found if not name.startswith(parts)}, facts(model))


def checkpoint(model: Model) -> Snapshot:
    """All that is needed to go on, in the middle of a task too."""
    return Snapshot({name: laid_out(tensor) for name, tensor in model.tensors().items()}, facts(model))


def facts(model: Model) -> dict[str, Any]:
    state = model.state
    return {
        "method": model.name,
        "settings": model.config.plain(),
        "num_features": model.num_features,
        "columns": list(model.columns),
        "directed": model.directed,
        "labels": list(model.labels),
        "history": [event.model_dump() for event in model.history],
        "learning_rate": state.learning_rate,
        "identity": model.method.identity(state.memory),
    }


def save(model: Model, path: str | Path, *, moments: bool = False) -> None:
    """Write a model to one file, whole or not at all."""
    snapshot(model, moments=moments).save(Path(path))


def reduced(model: Model) -> tuple[Any, ...]:
    """A model for Python's own pickle, which hands it to other processes: all that its file would hold."""
    return loaded, (snapshot(model, moments=True), "The pickled model", str(model.device), type(model.method))


copyreg.pickle(Model, reduced)


def load(path: str | Path, *, device: str = "cpu", method: type[Method] | None = None) -> Model:
    """A saved model, of any method unless one is given."""
    return loaded(Snapshot.load(Path(path)), path, device, method)


def loaded(read: Snapshot, path: str | Path, device: str = "cpu", method: type[Method] | None = None) -> Model:
    """The model of a file that was read, of any method unless one is given."""
    name = read.facts.get("method")
    if method is None:
        if not isinstance(name, str) or name not in METHODS:
            raise StoreError(
                f"{path} holds a model of the method '{str(name)[:60]}', which is not known here: install the "
                "package that has it."
            )
        method = METHODS[name]
    if name != method.name:
        raise StoreError(f"{path} holds a model of the method '{str(name)[:60]}', not '{method.name}': use ipal.load.")
    given = read.facts.get("settings")
    try:
        config = learner_config(method, {**(given if isinstance(given, dict) else {}), "device": device})
    except ConfigError as error:
        raise StoreError(f"{path} is damaged or of another version: {str(error)[:300]}") from error
    return restored(config, read, Runtime.of(device), whole=True, source=str(path))


class Facts(BaseModel):
    """What the plain data of a model must be: a file may come from anywhere."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False, extra="forbid")

    method: str
    settings: dict[str, Any]
    num_features: int = Field(ge=1, lt=2**31)
    labels: Annotated[list[Annotated[int, Field(ge=-(2**63), lt=2**63)]] | list[str], Field(min_length=1)]
    columns: list[str] = []
    """Names of the features, where they have any."""
    directed: bool = False
    """Whether an edge may run one way."""
    history: Annotated[list[Event], Field(max_length=2**20)] = []
    learning_rate: Annotated[float, Field(gt=0, le=LARGEST)] | None = None
    """Of the last task, where a network is trained."""
    identity: str = Field("", max_length=64)
    """Fingerprint of what the memory rests on, where it rests on more than the settings."""

    @model_validator(mode="after")
    def _check_labels(self) -> Self:
        if self.columns and len(self.columns) != self.num_features:
            raise ValueError("the columns are not as many as the features")
        if len(set(self.labels)) < len(self.labels):
            raise ValueError("the labels name a class twice")
        letters = max(len(label) if isinstance(label, str) else 1 for label in self.labels)
        if len(self.labels) * letters > 2**26:  # in an array each is as long as the longest, four bytes a letter
            raise ValueError("the labels are too long")
        return self


def restored(config: LearnerConfig, read: Snapshot, runtime: Runtime, *, whole: bool, source: str) -> Model:
    """The model that a snapshot was taken from, or a sentence where it is not sound.

    `whole`: no task is in progress. `source` names the snapshot in complaints.
    """
    tensors = {name: laid_out(tensor) for name, tensor in read.tensors.items()}
    try:
        found = Facts.model_validate(read.facts)
        require(found.method == config.method.name, f"it is of the method '{found.method[:60]}'")
        for name in not_finite(tensors):
            raise MisfitError(f"'{name}' holds NaN or infinite numbers")
        return _restored(config, tensors, found, runtime, whole)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))[:80]
        wrong = f"its facts are wrong{place and f' at {place!r}'} ({first['msg'].lower()})"
        raise StoreError(f"{source} does not fit this model: {wrong}.") from error
    except KeyError as error:
        raise StoreError(f"{source} does not fit this model: {error} is missing.") from error
    except (MisfitError, RuntimeError, ConfigError) as error:  # of facts that are nested too deeply, too
        reason = (str(error).splitlines() or ["it cannot be restored"])[0][:200].rstrip(".")
        raise StoreError(f"{source} does not fit this model: {reason}.") from error


def _restored(config: LearnerConfig, tensors: dict[str, Tensor], found: Facts, runtime: Runtime, whole: bool) -> Model:
    method, width = config.method, found.num_features
    made_with = setup(config, width, runtime)
    classes: tuple[Label, ...] = tuple(found.labels)
    rate, generator = found.learning_rate, torch.Generator(runtime.device)
    network = optimizer = teacher = None
    require((rate is not None) == isinstance(method, Trained), "a learning rate goes with a network")
    if isinstance(method, Trained) and rate is not None:
        network = _network(method, made_with, tensors, "", generator)
        width = network.encoder.width
        require(network.head is None or network.head.num_classes == len(classes), "its head has not one row a class")
        optimizer = load_optimizer(network, tensors, rate, config.train.weight_decay)
        if any(name.startswith("teacher.") for name in tensors):
            require(not whole, "it stopped in the middle of a task")
            teacher = _network(method, made_with, tensors, "teacher.", torch.Generator(runtime.device))
            teacher.requires_grad_(False)
            known = 0 if teacher.head is None else teacher.head.num_classes
            require(known <= len(classes), "its teacher knows more classes")
    # On the meta device a template takes no memory, whatever sizes a file claims.
    template = method.init(space(made_with, width, torch.device("meta")))
    here = {name: tensor.to(runtime.device) for name, tensor in tensors.items() if name.startswith("memory.")}
    parameters = {} if network is None else dict(network.named_parameters())
    sizes = Sizes(len(classes), found.num_features, tuple(parameters))
    memory = None if template is None else unflatten(template, type(template), "memory", here, sizes)
    if memory is not None and hasattr(memory, "check"):
        memory.check(len(classes), parameters, whole)
    empty = Calibration.empty()
    calibration = unflatten(empty, Calibration | None, "calibration", tensors, sizes) or empty
    calibration.check(len(classes), sum(event.fingerprint is not None for event in found.history) + (not whole))
    load_generator(generator.manual_seed(config.seed), tensors["generator"])  # weights were drawn with it meanwhile
    state = State(classes, memory, generator, network, optimizer, rate, teacher)
    known = (found.num_features, tuple(found.columns), found.directed, tuple(found.history))
    model = Model(config, runtime, state, calibration, *known)
    check_same(tensors, {**model.tensors(), "generator": tensors["generator"]})
    if method.identity(memory) != found.identity:
        raise StoreError(
            "This installation draws other random directions than the one that made the model: "
            "use the version of numpy that it was made with."
        )
    return model


def _network(
    method: Trained, made_with: Setup, tensors: Mapping[str, Tensor], prefix: str, generator: torch.Generator
) -> Any:
    """A network of saved parameters; their sizes are checked before memory is taken for them."""
    layers = ENCODERS.find(made_with.encoder.kind).all_shapes(made_with.num_features, made_with.encoder)
    for number, layer in enumerate(layers):
        check_shapes(tensors, ((f"{prefix}encoder.{name}.{number}", shape) for name, shape in layer.items()))
    # Any weights are drawn: others are put in their place.
    return load_network(fresh_network(method, made_with, generator), tensors, prefix)
