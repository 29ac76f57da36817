"""The full configuration of a run: frozen, complete, hashable. Independent of methods.

A configuration is built in layers, each holding only what differs from the one below: defaults, a YAML
file, command-line options, `--set a.b=c`. The method's own settings are under the method's name.
"""

import ast
import hashlib
import inspect
import json
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import pairwise
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from ipal.errors import ConfigError, did_you_mean, shortened
from ipal.system.documents import DocumentError, parse_yaml

Tree = dict[str, Any]

# Limits beyond any useful run, checked where a setting is read.
MOST_LAYERS, MOST_WIDTH, MOST_THREADS, MOST_EPOCHS, MOST_TASKS, MOST_PARTS = 256, 2**17, 1024, 10**9, 4096, 8
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Count = Annotated[int, Field(ge=1, lt=2**31)]
"""Of nodes or classes."""
Draws = Annotated[int, Field(ge=1, le=10_000)]
"""Samples of every class, in every step."""
Width = Annotated[int, Field(ge=1, le=MOST_WIDTH)]
Epochs = Annotated[int, Field(ge=0, le=MOST_EPOCHS)]
Hops = Annotated[int, Field(ge=0, le=MOST_LAYERS)]
Restart = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
TestGraph = Literal["isolated", "seen", "both"]
Share = Annotated[float, Field(ge=0, le=0.5)]
"""Of training nodes."""
Label = Annotated[int, Field(ge=-(2**63), lt=2**63)] | Annotated[str, Field(max_length=1000)]

SMALLEST, LARGEST = 2.0**-126, (2 - 2.0**-23) * 2.0**127
"""Smallest and largest normal float32 numbers."""


def _takes_truth(hint: Any) -> bool:
    return hint in (bool, Any) or any(map(_takes_truth, get_args(hint)))


def attribute_docs(kind: type) -> dict[str, str]:
    """The docstrings below the attributes of a class and its bases, read from the source when asked for."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not (hasattr(base, "__pydantic_fields__") or hasattr(base, "__dataclass_fields__")):
            continue
        with suppress(OSError, TypeError, KeyError):  # typed into an interpreter
            body: list[Any] = ast.parse(inspect.getsource(sys.modules[base.__module__])).body
            for part in base.__qualname__.replace("<locals>.", "").split("."):
                body = next((node.body for node in body if getattr(node, "name", None) == part), [])
            for before, after in pairwise(body):
                match before, after:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                        found[name] = inspect.cleandoc(text)
    return found


def first_paragraph(doc: str | None) -> str:
    """What a docstring begins with, on one line."""
    return " ".join(inspect.cleandoc(doc or "").partition("\n\n")[0].split())


class Section(BaseModel):
    """A frozen group of settings: unknown names are refused and values are checked."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)

    def __init__(self, **settings: Any) -> None:
        try:
            super().__init__(**settings)
        except ValidationError as error:
            raise explain(error, known_settings(type(self))) from error

    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]  # inside another section, that one explains

    def __repr_args__(self) -> list[tuple[str | None, Any]]:
        """What differs from the defaults."""
        fields = type(self).model_fields
        return [(name, value) for name, value in self if name not in fields or value != fields[name].default]

    @field_validator("*", mode="wrap")
    @classmethod
    def _usable(cls, value: Any, checked: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        """Refuse true and false for a number (they count as 1 and 0), and what is infinite or zero in float32."""
        given = value if isinstance(value, list | tuple) else [value]
        hint = cls.model_fields[str(info.field_name)].annotation
        if any(isinstance(one, bool) for one in given) and not _takes_truth(hint):
            raise ValueError("true and false are no numbers")
        found = checked(value)
        if isinstance(found, float) and found and not SMALLEST <= abs(found) <= LARGEST:
            raise ValueError("it is too large or too small to compute with")
        return found


class StreamConfig(Section):
    """Which stream, by its name, and the stream's own settings beside it."""

    model_config = ConfigDict(extra="allow")

    name: str = "class"
    """Name of the stream."""

    @model_validator(mode="before")
    @classmethod
    def _named(cls, given: Any) -> Any:
        return {"name": given} if isinstance(given, str) else given

    @model_serializer(mode="wrap")
    def _serialised(self, plain: SerializerFunctionWrapHandler) -> Any:
        return {"name": self.name, **self.settings} if self.settings else self.name

    @property
    def settings(self) -> Tree:
        """The stream's own settings, as far as they are given."""
        return self.model_extra or {}


class Sampling(Section):
    """Mini-batches: some training nodes per step, each with a sample of its neighbourhood."""

    nodes: Count = 2000
    """Training nodes of one step."""
    fanouts: Annotated[tuple[Count | Literal["all"], ...], Field(max_length=MOST_LAYERS)] = (10, 25)
    """Most neighbours sampled per node, one number per layer, from the training nodes outwards; or all."""


class Counts(Section):
    """So many nodes of every class for each part. Its other nodes stay in the graph without a role: they pass messages,
    and are neither labels nor tested."""

    train: Count
    """Labelled nodes of a class."""
    validation: Count
    """Nodes of a class kept for choosing settings."""
    test: Count
    """Nodes of a class for the test."""
    fewer: Literal["error", "shares"] = "error"
    """A class with fewer nodes than all three. error: see `small_classes`. shares: it is split by the shares."""


class ProtocolConfig(Section):
    """How a graph becomes tasks, and how predictions are scored."""

    stream: StreamConfig = StreamConfig()
    """What arrives one after the other: class, task (known at test time), time, domain, graphs, returning, online;
    one with settings of its own as {name: NAME, setting: value}."""
    train_graph: Literal["isolated", "seen"] = "isolated"
    """isolated: the current task's nodes only. seen: all nodes seen so far pass messages (not exemplar-free)."""
    test_graph: Literal["isolated", "seen"] = "isolated"
    """isolated: each task is tested on its own subgraph. seen: on the union of all seen nodes and edges."""
    visibility: Literal["transductive", "inductive"] = "transductive"
    """inductive: validation and test nodes, with their edges, are absent while training."""
    accuracy: Literal["balanced", "micro"] = "balanced"
    """balanced: mean of per-class accuracy over the task's classes. micro: share of nodes."""
    batch: Literal["full"] | Sampling = "full"
    """full: the whole task graph is one batch. Or mini-batches, as {nodes: 2000, fanouts: [10, 25]}."""
    class_order: Literal["size", "label", "shuffled"] | Annotated[tuple[Label, ...], Field(max_length=MOST_TASKS)] = (
        "label"
    )
    """label: ascending. shuffled: by the run's seed. size: most nodes first, of equal ones the smaller label. Or the
    labels themselves, in the order to learn them."""
    small_classes: Literal["error", "drop"] = "error"
    """What to do with a class that cannot give every part of the split at least one node."""
    edges: Literal["undirected", "directed"] = "undirected"
    """undirected: every edge is added in both directions. directed: as in the file."""
    parts: Literal["drawn", "given"] | Counts = "drawn"
    """drawn: training, validation and test nodes are drawn by the run's seed, as the shares say. given: they are as the
    dataset says. Or drawn by number, as {train: 100, validation: 50, test: 100}."""
    calibration: Share = 0.2
    """Share of training nodes by which a model is calibrated: a copy learns without them. 0: not, in half the time."""
    train_share: Annotated[float, Field(gt=0, lt=1)] = 0.6
    """Share of each class's nodes that are labelled for training."""
    validation_share: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Share of each class's nodes kept for choosing settings; the rest is for the test."""


class EncoderConfig(Section):
    """The network that turns nodes into embeddings.

    Defaults are those of the method, which are listed with it where they differ from these. Where a run names another
    kind of network than the method's own, the rest is as here.
    """

    kind: str = "gcn"
    """Which network: gcn, appnp, sage, gat or skip, or one of an installed package."""
    layers: Annotated[int, Field(ge=1, le=MOST_LAYERS)] = 2
    """Number of layers: two or more, of appnp one or more."""
    hidden: Width = 128
    """Width of the inner layers; also of propagated features (appnp), which are projected where they are wider."""
    width: Width = 128
    """Width of the embeddings; of appnp with one layer at most that of the propagated features."""
    last_activation: Literal["none", "relu"] = "none"
    """Of the embeddings themselves; between layers it is a ReLU."""
    heads: Annotated[int, Field(ge=1, le=MOST_WIDTH)] = 4
    """Attention heads of every layer, where the network has any (gat); widths are divided among them."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of hidden activations that are zeroed in a training step."""
    steps: Hops | None = None
    """How often features are propagated; appnp alone. Left open: 16 times for isolated test graphs, 10 for others."""
    restart: Restart | Annotated[tuple[Restart, ...], Field(min_length=1, max_length=MOST_PARTS)] | None = None
    """Share of a node's own features in every step; several side by side; appnp alone. Left open: 0.02 and 0.3 for
    isolated test graphs, 0.2 for others."""


class TrainConfig(Section):
    """The optimisation.

    Defaults are those of the method, which are listed with it where they differ from these.
    """

    epochs: Epochs = 10
    """Passes over each task's training nodes."""
    lr_base: Annotated[float, Field(gt=0)] = 1e-3
    """Learning rate on the first task."""
    lr_next: Annotated[float, Field(gt=0)] = 1e-4
    """Learning rate on every later task."""
    relative: bool = False
    """Learning rates are multiplied by the root mean square of the encoder's weights as a task begins; wide networks
    need small steps."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """L2 penalty inside Adam."""
    moments: Literal["keep", "reset"] = "keep"
    """keep: one Adam for the whole stream. reset: its moments are reset at every task."""


class RunConfig(Section):
    """Everything that decides the numbers of a run."""

    dataset: Annotated[str, Field(max_length=4096)]
    """Name of a graph, or the path of an .npz file; several graphs with commas."""
    dataset_hash: str | None = None
    """SHA-256 of the graph's content; filled in when the graph is read."""
    split: Annotated[tuple[Count, ...], Field(max_length=MOST_TASKS)] | None = None
    """Number of classes of each task; filled in from the benchmark where it is not given."""
    method: str = "ipal"
    """Name of the learner."""
    seed: Seed = 0
    """Decides the split of nodes, the initial weights and every random draw."""
    device: str = "cpu"
    """cpu, cuda or cuda:N."""
    threads: Annotated[int, Field(ge=1, le=MOST_THREADS)] = 1
    """CPU threads; part of the configuration because the order of sums changes the rounding."""
    protocol: ProtocolConfig = ProtocolConfig()
    """How the graph is cut into tasks and tested."""
    encoder: EncoderConfig = EncoderConfig()
    """The network that is trained."""
    train: TrainConfig = TrainConfig()
    """How it is trained."""
    settings: Tree = {}
    """The method's own settings (under the method's name in files and on the command line)."""

    def to_tree(self) -> Tree:
        """Plain data, the method's settings under its name: what config.yaml holds.

        Returns
        -------
        dict
        """
        tree: Tree = self.model_dump(mode="json")
        tree[self.method] = tree.pop("settings")
        return tree

    @property
    def digest(self) -> str:
        """Hash of the full configuration: same digest, same numbers."""
        canonical = json.dumps(self.to_tree(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def run_config(tree: Mapping[str, Any], methods_settings: Iterable[str] = ()) -> RunConfig:
    """A configuration from plain data. Errors name the dotted setting and the closest known name."""
    method = tree.get("method", RunConfig.model_fields["method"].default)
    renamed = {"settings" if key == method else key: value for key, value in tree.items()}
    if "settings" in tree:
        raise ConfigError(f"Unknown setting 'settings': the method's settings are under '{method}'.")
    try:
        return RunConfig.model_validate(renamed)
    except ValidationError as error:
        known = [name for name in known_settings(RunConfig) if name != "settings"]
        methods = sorted(methods_settings, key=lambda name: not name.startswith(f"{method}."))
        for other in sorted(tree.keys() & {name.partition(".")[0] for name in methods} - {str(method)}):
            message = f"The settings '{other}' are of another method than '{method}': add --method {other}."
            raise ConfigError(message) from error
        raise explain(error, [*known, str(method), *methods], settings=str(method)) from error


def explain(error: ValidationError, known: Iterable[str], prefix: str = "", settings: str = "settings") -> ConfigError:
    """The first error of pydantic as one sentence; `settings` is what the user calls the section of that name."""
    first = error.errors()[0]
    if isinstance(first["input"], dict):
        # For a section in a union, the error inside it is more helpful than that another branch was possible.
        inside = [one for one in error.errors() if len(_keys(one["loc"])) > len(_keys(first["loc"]))]
        first = inside[0] if inside else first
    parts = _keys(first["loc"])
    path = prefix + ".".join(settings if part == "settings" else part for part in parts)
    if first["type"] in {"extra_forbidden", "unexpected_keyword_argument"}:
        return ConfigError(f"Unknown setting '{path}'.{did_you_mean(path, known)}")
    if first["type"] == "missing":
        return ConfigError(f"The setting '{path}' is missing.")
    # For a union, the messages of all branches.
    same = [one["msg"] for one in error.errors() if _keys(one["loc"])[: len(parts)] == parts]
    said = [message.removeprefix("Value error, ") for message in same]
    problem = ", or ".join(message[0].lower() + message[1:] for message in said)
    given = first["input"]
    shown = f"'{shortened(given)}'" if isinstance(given, str) else shortened(given)
    return ConfigError(f"The setting '{path}' cannot be {shown}: {problem}.")


def _keys(location: tuple[int | str, ...]) -> list[str]:
    """The dotted path of a setting; type names of union branches (`class_order`) are left out."""
    branches = {section.__name__ for section in Section.__subclasses__()} | {"bool", "int", "float", "str"}
    return [str(part) for part in location if str(part).replace("_", "").isalnum() and part not in branches]


def known_settings(model: type[BaseModel], prefix: str = "") -> list[str]:
    """Dotted names of all fields, also within sections."""
    names = []
    for name, field in model.model_fields.items():
        kinds = get_args(field.annotation) or (field.annotation,)  # of a union, its branches
        sections = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        for section in sections:
            names += known_settings(section, f"{prefix}{name}.")
        if len(sections) < len(kinds):
            names.append(prefix + name)
    return names


def override(tree: Mapping[str, Any], other: Mapping[str, Any]) -> Tree:
    """`tree` with the leaves of `other` in place of its own."""
    merged = dict(tree)
    for key, value in other.items():
        below = merged.get(key)
        merged[key] = override(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def flat(tree: Mapping[str, Any], prefix: str = "") -> Tree:
    """Values by dotted name, whether they were written nested or dotted."""
    found: Tree = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        below = flat(value, f"{name}.") if isinstance(value, dict) else {name: value}
        if twice := below.keys() & found.keys():
            raise ConfigError(f"'{shortened(min(twice))}' is given twice.")
        found |= below
    return found


def parse_assignment(text: str) -> Tree:
    """`ipal.gamma=0.7` as `{"ipal": {"gamma": 0.7}}`; values are read as YAML 1.2."""
    path, equals, value = text.partition("=")
    if not equals or not path.strip():
        raise ConfigError(f"--set takes NAME=VALUE, for example --set ipal.gamma=0.7; got '{shortened(text)}'.")
    if path.count(".") > MOST_PARTS:
        raise ConfigError(f"Unknown setting '{shortened(path)}': no setting has so many dots in its name.")
    try:
        leaf: Any = parse_yaml(value)
    except DocumentError as error:
        raise ConfigError(f"The value in --set {shortened(text)} {error}.") from error
    return nested(path.strip(), leaf)


def nested(path: str, value: Any) -> Tree:
    """The dotted name `a.b` and its value as `{"a": {"b": value}}`."""
    name, dot, below = path.partition(".")
    return {name: nested(below, value) if dot else value}
