"""Models as files: written whole or not at all, and read after everything in them was checked. Nothing is unpickled."""

import copyreg
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ipal.backend.checks import MisfitError, check_same, check_shapes, require
from ipal.backend.finite import not_finite
from ipal.backend.runtime import Runtime
from ipal.data.labels import Label
from ipal.engine.trainer import Setup, fresh_network, space
from ipal.errors import ConfigError, StoreError
from ipal.estimator.facts import Facts, checked_facts
from ipal.estimator.model import Model, Schema, setup
from ipal.estimator.open_world.calibration import Calibration
from ipal.estimator.registry import METHODS
from ipal.estimator.settings import LearnerConfig, learner_config
from ipal.methods.base import Method, Trained
from ipal.nn.encoders import ENCODERS
from ipal.state.snapshot import Snapshot, laid_out
from ipal.state.value import (
    Sizes,
    State,
    flatten,
    load_generator,
    load_network,
    load_optimizer,
    moment_tensors,
    network_tensors,
    unflatten,
)
from ipal.system.plugins import require_packages

WHOLE = "in the middle of a task"


# ---------------------------------------------------------------------- from a model


def snapshot(model: Model, *, moments: bool = False) -> Snapshot:
    """What a model file holds.

    Without the optimiser's moments, the next task starts with fresh ones.
    """
    state = model.state
    more = moment_tensors(state.network, state.optimizer) if moments else {}
    return Snapshot(_kept(state, model.calibration) | more, facts(model))


def checkpoint(model: Model) -> Snapshot:
    """All that is needed to go on, in the middle of a task too."""
    return Snapshot({name: laid_out(tensor) for name, tensor in _every(model).items()}, facts(model))


def _every(model: Model) -> dict[str, Tensor]:
    """All tensors, those that are kept only while learning included."""
    state = model.state
    moments, teacher = moment_tensors(state.network, state.optimizer), network_tensors(state.teacher, "teacher.")
    return _kept(state, model.calibration) | moments | teacher


def _kept(state: State, calibration: Calibration) -> dict[str, Tensor]:
    """The tensors of a model by name."""
    found = {"generator": state.generator.get_state(), **network_tensors(state.network)}
    found |= flatten(state.memory, "memory")
    return found | {f"calibration.{name}": tensor for name, tensor in calibration.tensors().items()}


def facts(model: Model) -> dict[str, Any]:
    """The plain data of a model."""
    schema, state = model.schema, model.state
    encoder = ENCODERS.package(model.config.encoder.kind) if state.network is not None else None
    packages = dict(filter(None, (METHODS.package(model.name), encoder)))
    return {
        "method": model.name,
        "settings": model.config.plain(),
        "num_features": schema.num_features,
        "columns": list(schema.columns),
        "directed": schema.directed,
        "labels": list(model.labels),
        "history": [event.model_dump() for event in model.history],
        "learning_rate": state.learning_rate,
        "identity": model.method.identity(state.memory),
        **({"plugins": packages} if packages else {}),
    }


def save(model: Model, path: str | Path, *, moments: bool = False) -> None:
    """Write a model to one file, whole or not at all."""
    snapshot(model, moments=moments).save(Path(path))


def reduced(model: Model) -> tuple[Any, ...]:
    """A model for Python's own pickle, which hands it to other processes: all that its file would hold."""
    return of_snapshot, (type(model.method), snapshot(model, moments=True), "The pickled model", str(model.device))


copyreg.pickle(Model, reduced)


# ---------------------------------------------------------------------- to a model


def load(path: str | Path, *, device: str = "cpu") -> Model:
    """A saved model of whichever method."""
    return loaded(Snapshot.load(Path(path)), path, device=device)


def loaded(read: Snapshot, path: str | Path, *, device: str = "cpu") -> Model:
    """The model of a file that was read, of whichever method."""
    name = read.facts.get("method")
    named = read.facts.get("plugins")
    require_packages({str(one): str(its) for one, its in named.items()} if isinstance(named, dict) else {}, str(path))
    if not isinstance(name, str) or name not in METHODS:
        raise StoreError(
            f"{path} holds a model of the method '{str(name)[:60]}', which is not known here: install the "
            "package that has it."
        )
    return of_snapshot(METHODS[name], read, path, device)


def of_snapshot(method: type[Method], read: Snapshot, path: str | Path, device: str) -> Model:
    """The model of a file that was read."""
    given = read.facts.get("settings")
    if not isinstance(given, dict):
        raise StoreError(f"{path} is no model: it has no settings.")
    try:
        config = learner_config(method, {**given, "device": device})
    except ConfigError as error:
        raise StoreError(f"{path} is damaged or of another version: {str(error)[:300]}") from error
    return restored(config, read, Runtime.of(device), whole=True, source=str(path))


def restored(config: LearnerConfig, read: Snapshot, runtime: Runtime, *, whole: bool, source: str) -> Model:
    """The model that a snapshot was taken from, or a sentence where it is not sound.

    `whole`: no task is in progress. `source` names the snapshot in complaints.
    """
    tensors = {name: laid_out(tensor) for name, tensor in read.tensors.items()}
    try:
        found = checked_facts(read.facts)
        require(found.method == config.name, f"it is of the method '{found.method[:60]}'")
        for name in not_finite(tensors):
            raise MisfitError(f"'{name}' holds NaN or infinite numbers")
        schema = Schema(found.num_features, tuple(found.columns), found.directed)
        model = _restored(config, tensors, found, schema, runtime, whole)
    except KeyError as error:
        raise StoreError(f"{source} does not fit this model: {error} is missing.") from error
    except (MisfitError, RuntimeError, ConfigError) as error:
        reason = (str(error).splitlines() or ["it cannot be restored"])[0][:200].rstrip(".")
        raise StoreError(f"{source} does not fit this model: {reason}.") from error
    if model.method.identity(model.state.memory) != found.identity:
        raise StoreError(
            "This installation draws other random directions than the one that made the model: "
            "use the version of numpy that it was made with."
        )
    return model


def _restored(
    config: LearnerConfig,
    tensors: Mapping[str, Tensor],
    found: Facts,
    schema: Schema,
    runtime: Runtime,
    whole: bool,
) -> Model:
    method, made_with = config.method, setup(config, schema, runtime)
    classes: tuple[Label, ...] = tuple(found.labels)
    rate, generator = found.learning_rate, torch.Generator(runtime.device)
    network = optimizer = teacher = None
    width = schema.num_features
    if isinstance(method, Trained):
        if rate is None:
            raise MisfitError("its learning rate is missing")
        network = _network(method, made_with, tensors, "", generator)
        width = network.encoder.width
        require(network.head is None or network.head.num_classes == len(classes), "its head has not one row a class")
        optimizer = load_optimizer(network, tensors, rate, config.train.weight_decay)
        if any(name.startswith("teacher.") for name in tensors):
            require(not whole, f"it stopped {WHOLE}")
            drawn = torch.Generator(runtime.device)
            teacher = _network(method, made_with, tensors, "teacher.", drawn).requires_grad_(False)
            known = 0 if teacher.head is None else teacher.head.num_classes
            require(known <= len(classes), "its teacher knows more classes")
    else:
        require(rate is None, "it has a learning rate, and trains nothing")
    # On the meta device a template takes no memory, whatever sizes a file claims.
    template = method.init(space(made_with, width, torch.device("meta")))
    here = {name: tensor.to(runtime.device) for name, tensor in tensors.items() if name.startswith("memory.")}
    parameters = {} if network is None else dict(network.named_parameters())
    sizes = Sizes(len(classes), schema.num_features, tuple(parameters))
    memory = None if template is None else unflatten(template, type(template), "memory", here, sizes)
    if memory is not None and hasattr(memory, "check"):
        memory.check(len(classes), parameters, whole)
    own = {name[12:]: tensor for name, tensor in tensors.items() if name.startswith("calibration.")}
    calibration = Calibration.of_tensors(own)
    calibration.check(len(classes), sum(event.fingerprint is not None for event in found.history) + (not whole))
    load_generator(generator.manual_seed(config.seed), tensors["generator"])  # weights were drawn with it meanwhile
    state = State(classes, memory, generator, network, optimizer, rate, teacher)
    model = Model(config, runtime, schema, state, calibration, tuple(found.history))
    check_same(tensors, {**_every(model), "generator": tensors["generator"]})
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
