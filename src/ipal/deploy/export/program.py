"""Operations on node features that are added to an ONNX graph instead of being computed.

    rows @ W    rows + b    rows * c    rows / c    rows.relu()    rows.unit()    rows.spread()    …

A layer of an encoder takes `Rows` in place of tensors: torch's functions and operators add nodes to the graph then
(`FUNCTIONS` has those that are known).

The ONNX graph reads edges as the library does: self-loops and repeats are removed (the mean of their weights
stays), then every node gets a self-loop, scaled by the roots of the in-degrees.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ipal.backend.attention import SLOPE
from ipal.data.csr import Norm
from ipal.errors import ConfigError

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto

OPSET = 18
INT64 = 7
"""What ONNX calls whole numbers of 64 bits."""
IR_VERSION = 8
"""As old as the opset allows: older runtimes read it too."""
COLUMNS_AT_ONCE = 128
"""Columns that are sent along the edges at a time: each takes 4 bytes per edge."""


class ProgramEdges(NamedTuple):
    """Names of the arrays that describe the edges."""

    source: str
    """(edges,)"""
    target: str
    """(edges, 1)"""
    degree: str
    """(nodes, 1), the sum of the weights"""
    weight: str | None = None
    """(edges, 1); None where all are one."""


@dataclass(frozen=True, eq=False)
class ProgramRows:
    """A value of the ONNX graph with one row per node."""

    program: "Program"
    name: str
    width: int

    def __matmul__(self, weights: Tensor | NDArray[Any]) -> "ProgramRows":
        return self._made("MatMul", self.program.constant(weights), width=int(weights.shape[1]))

    def __add__(self, other: "Tensor | ProgramRows") -> "ProgramRows":
        return self._made("Add", self._operand(other))

    add_ = __add__

    def __sub__(self, other: "Tensor | ProgramRows") -> "ProgramRows":
        return self._made("Sub", self._operand(other))

    def __mul__(self, other: "float | Tensor | ProgramRows") -> "ProgramRows":
        return self._made("Mul", self._operand(other))

    def __truediv__(self, other: "float | ProgramRows") -> "ProgramRows":
        return self._made("Div", self._operand(other))

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> "ProgramRows":
        if function.__name__ not in FUNCTIONS:
            raise ConfigError(f"The export knows no torch function '{function.__name__}', which the encoder uses.")
        return FUNCTIONS[function.__name__](*args, **(kwargs or {}))

    def _operand(self, other: "float | Tensor | ProgramRows") -> str:
        return other.name if isinstance(other, ProgramRows) else self.program.constant(other)

    def relu(self) -> "ProgramRows":
        return self._made("Relu")

    def softmax(self) -> "ProgramRows":
        return self._made("Softmax", axis=-1)

    def lengths(self, least: float = 1e-12) -> "ProgramRows":
        """Norms of the rows, (nodes, 1), at least `least`."""
        made = self._made("ReduceL2", self.program.whole([-1]), keepdims=1, width=1)
        return made._made("Max", self.program.constant(least))

    def unit(self) -> "ProgramRows":
        """Rows of norm one; a row of zeros stays."""
        return self / self.lengths()

    def within_one(self) -> "ProgramRows":
        """Rows whose largest absolute value is one: squares of them neither overflow nor vanish."""
        size = self._made("Abs")
        largest = size._made("ReduceMax", self.program.whole([-1]), keepdims=1, width=1)
        return self / largest._made("Max", self.program.constant(np.finfo(np.float32).tiny))

    def beside(self, *others: "ProgramRows") -> "ProgramRows":
        """Concatenated columns."""
        if not others:
            return self
        width = self.width + sum(other.width for other in others)
        return self._made("Concat", *(other.name for other in others), axis=1, width=width)

    def normalised(self, shape: Any, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> "ProgramRows":
        """Layer norm of every row."""
        operands = self.program.constant(weight), self.program.constant(bias)
        return self._made("LayerNormalization", *operands, epsilon=eps)

    def spread(self, norm: Norm = "symmetric") -> "ProgramRows":
        """One propagation step: sums over neighbours."""
        program = self.program
        if norm != "symmetric":
            sums = self._summed(program.edges)
            return sums._made("Div", program.edges.degree) if norm == "mean" else sums
        scale = program.scale
        return self._made("Mul", scale)._summed(program.loops)._made("Mul", scale)

    def attended(self, query: Tensor, key: Tensor) -> "ProgramRows":
        """Means over a node and its neighbours, by one head of attention."""
        edges = self.program.loops
        target = self.program.op("Squeeze", edges.target, self.program.whole([1]))
        to, by = (self @ a[:, None] for a in (query, key))
        e = (to._picked(target) + by._picked(edges.source))._made("LeakyRelu", alpha=SLOPE)
        highest = self.program.op("ScatterND", to._filled(-np.inf), edges.target, e.name, reduction="max")
        top = ProgramRows(self.program, highest, 1)._picked(target)
        raised = (e - top)._made("Exp")
        if edges.weight is not None:
            raised = raised._made("Mul", edges.weight)
        return self._sent(edges, raised) / raised._scattered(edges, to)

    def _summed(self, edges: ProgramEdges) -> "ProgramRows":
        weight = None if edges.weight is None else ProgramRows(self.program, edges.weight, 1)
        parts = [part._sent(edges, weight) for part in self._columns()]
        return parts[0].beside(*parts[1:])

    def _columns(self) -> list["ProgramRows"]:
        """Split into blocks of at most `COLUMNS_AT_ONCE` columns."""
        if self.width <= COLUMNS_AT_ONCE:
            return [self]
        widths = [min(COLUMNS_AT_ONCE, self.width - begin) for begin in range(0, self.width, COLUMNS_AT_ONCE)]
        names = self.program.several("Split", self.name, self.program.whole(widths), results=len(widths), axis=1)
        return [ProgramRows(self.program, name, width) for name, width in zip(names, widths, strict=True)]

    def _sent(self, edges: ProgramEdges, weight: "ProgramRows | None") -> "ProgramRows":
        """Every node's sum over the sources of its edges, weighted per edge if there are weights."""
        sent = self._picked(edges.source)
        return (sent if weight is None else sent * weight)._scattered(edges, self)

    def sharpened(self, sharpness: float) -> "ProgramRows":
        """Probabilities raised to a power; see `calibration.sharpened`."""
        least = self.program.constant(np.finfo(np.float32).tiny)
        return (self._made("Max", least)._made("Log") * sharpness).softmax()

    def _picked(self, places: str) -> "ProgramRows":
        return ProgramRows(self.program, self.program.op("Gather", self.name, places, axis=0), self.width)

    def _scattered(self, edges: ProgramEdges, like: "ProgramRows") -> "ProgramRows":
        """Rows of edges, summed at the edges' targets; `like` has a row for every node."""
        added = self.program.op("ScatterND", like._filled(0.0), edges.target, self.name, reduction="add")
        return ProgramRows(self.program, added, self.width)

    def _filled(self, value: float) -> str:
        return self.program.filled(self.program.op("Shape", self.name), value)

    def _made(self, kind: str, *inputs: str, width: int | None = None, **attributes: Any) -> "ProgramRows":
        name = self.program.op(kind, self.name, *inputs, **attributes)
        return ProgramRows(self.program, name, self.width if width is None else width)


@dataclass(eq=False)
class Program:
    """An ONNX graph under construction; its inputs are `x` (nodes, features), `edge_index` (2, edges) and, where edges
    have weights, `edge_weight` (edges)."""

    num_features: int
    weighted: bool = False
    """Whether weights of edges are an input; all are one otherwise."""
    _nodes: list["NodeProto"] = field(default_factory=list)
    _constants: dict[bytes, "TensorProto"] = field(default_factory=dict)
    """By what they hold: what is used twice is stored once."""

    @property
    def features(self) -> ProgramRows:
        return ProgramRows(self, "x", self.num_features)

    @property
    def bytes(self) -> int:
        """Size of the constants."""
        return sum(len(constant.raw_data) for constant in self._constants.values())

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add a node; returns the name of its result."""
        (name,) = self.several(kind, *inputs, results=1, **attributes)
        return name

    def several(self, kind: str, *inputs: str, results: int, **attributes: Any) -> list[str]:
        """Add a node with several results; returns their names."""
        from onnx.helper import make_node

        number = len(self._nodes)
        names = [f"{kind}_{number}_{place}" for place in range(results)]
        self._nodes.append(make_node(kind, inputs, names, name=f"{kind}_{number}", **attributes))
        return names

    def constant(self, value: Any) -> str:
        """Add a constant in single precision; returns its name."""
        return self._kept(value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value), np.float32)

    def whole(self, value: Any) -> str:
        """Add a constant of whole numbers; returns its name."""
        return self._kept(np.asarray(value), np.int64)

    def _kept(self, array: NDArray[Any], kind: type) -> str:
        from onnx.numpy_helper import from_array

        values: NDArray[Any] = np.asarray(array, dtype=kind, order="C")
        key = hashlib.sha256(f"{values.dtype} {values.shape}".encode() + values.tobytes()).digest()
        if key not in self._constants:
            self._constants[key] = from_array(values, f"constant_{len(self._constants)}")
        return str(self._constants[key].name)

    def filled(self, shape: str, value: float) -> str:
        """An array of one value."""
        from onnx.numpy_helper import from_array

        return self.op("ConstantOfShape", shape, value=from_array(np.array([value], dtype=np.float32)))

    @cached_property
    def loops(self) -> ProgramEdges:
        """`edge_index` as the library reads it, with a self-loop at every node."""
        source, target, weights = self._pairs
        return ProgramEdges(source, target, self._degree(target, weights), weights)

    def _degree(self, target: str, weights: str | None) -> str:
        """The sum of the weights of every node's edges, (nodes, 1)."""
        x_rows = self.op("Slice", self.op("Shape", "x"), self.whole([0]), self.whole([1]))
        shape = self.op("Concat", x_rows, self.whole([1]), axis=0)
        ones = weights or self.filled(self.op("Shape", target), 1.0)
        return self.op("ScatterND", self.filled(shape, 0.0), target, ones, reduction="add")

    @cached_property
    def _pairs(self) -> tuple[str, str, str | None]:
        """Sources and targets of edges and loops, each once, and their weights as given; None where all are one."""
        zero, one = self.whole(0), self.whole(1)
        n = self.op("Gather", self.op("Shape", "x"), zero, axis=0)
        nodes = self.op("Range", zero, n, one)
        # Looking up every end refuses an edge to a missing node; negative numbers would count from the end.
        ends = self.op("Where", self.op("Less", "edge_index", zero), n, "edge_index")
        source, target = (
            self.op("Concat", self.op("Gather", self.op("Gather", nodes, ends), row, axis=0), nodes, axis=0)
            for row in (zero, one)
        )
        pairs, weights = self._each_once(self.op("Add", self.op("Mul", target, n), source), source, target)
        return self.op("Mod", pairs, n), self.op("Unsqueeze", self.op("Div", pairs, n), self.whole([1])), weights

    @cached_property
    def scale(self) -> str:
        """1 / sqrt(degree), with the self-loop."""
        return self.op("Reciprocal", self.op("Sqrt", self.loops.degree))

    @cached_property
    def edges(self) -> ProgramEdges:
        """Without self-loops; a node without edges has degree one, so that it can be divided by."""
        source, target, weights = self._pairs
        both = self.op("Concat", self.op("Unsqueeze", source, self.whole([1])), target, axis=1)
        apart = self.op("Not", self.op("Equal", source, self.op("Squeeze", target, self.whole([1]))))
        source, target = self.several(
            "Split", self.op("Compress", both, apart, axis=0), self.whole([1, 1]), results=2, axis=1
        )
        weights = weights and self.op("Compress", weights, apart, axis=0)
        sums = self._degree(target, weights)
        degree = self.op("Where", self.op("Greater", sums, self.constant(0.0)), sums, self.constant(1.0))
        return ProgramEdges(self.op("Squeeze", source, self.whole([1])), target, degree, weights)

    def _each_once(self, numbers: str, source: str, target: str) -> tuple[str, str | None]:
        """Sorted, without repeats, and their weights; none may be negative. (`Unique` is several times slower.)"""
        ordered, order = self.several("TopK", numbers, self.op("Shape", numbers), results=2, largest=0, sorted=1)
        before_all, first = self.whole([-1]), self.whole([0])
        previous = self.op("Concat", before_all, self.op("Slice", ordered, first, before_all), axis=0)
        is_new = self.op("Not", self.op("Equal", ordered, previous))
        found = self.op("Compress", ordered, is_new)
        if not self.weighted:
            return found, None
        # A pair has the mean of its weights; what weighs nothing is left out.
        place = self.op("Sub", self.op("CumSum", self.op("Cast", is_new, to=INT64), self.whole(0)), self.whole(1))
        place = self.op("Unsqueeze", place, self.whole([1]))
        sums, times = (
            self.op(
                "ScatterND",
                self.filled(self.op("Shape", found), 0.0),
                place,
                self.op("Gather", self._without_loops(given, source, target), order, axis=0),
                reduction="add",
            )
            for given in (self._weights_given, self.filled(self.op("Shape", "edge_weight"), 1.0))
        )
        means = self.op("Div", sums, times)
        is_edge = self.op("GreaterOrEqual", means, self.constant(np.finfo(np.float32).tiny))
        weights = self.op("Unsqueeze", self.op("Compress", means, is_edge), self.whole([1]))
        return self.op("Compress", found, is_edge), weights

    @property
    def _weights_given(self) -> str:
        """Of the edges as given, none negative or infinite."""
        given, least = "edge_weight", self.constant(0.0)
        is_sound = self.op("And", self.op("GreaterOrEqual", given, least), self.op("Not", self.op("IsInf", given)))
        # Looking up place 1 of one number refuses what is no weight.
        place = self.op("Where", is_sound, self.whole(0), self.whole(1))
        return self.op("Add", given, self.op("Gather", self.constant([0.0]), place))

    def _without_loops(self, given: str, source: str, target: str) -> str:
        """Numbers of the edges as given, 0 for loops among them, and then 1 for the loop of every node."""
        number = self.op("Slice", self.op("Shape", "edge_index"), self.whole([1]), self.whole([2]))
        ends = (self.op("Slice", end, self.whole([0]), number) for end in (source, target))
        given = self.op("Where", self.op("Equal", *ends), self.constant(0.0), given)
        loops = self.filled(self.op("Sub", self.op("Shape", source), number), 1.0)
        return self.op("Concat", given, loops, axis=0)

    def model(
        self, scores: ProgramRows, probabilities: ProgramRows, version: str, about: dict[str, str]
    ) -> "ModelProto":
        """The finished ONNX model; `about` becomes its metadata."""
        from onnx import TensorProto, helper

        predicted = self.op("ArgMax", scores.name, axis=1, keepdims=0)
        outputs = {"scores": scores.name, "probabilities": probabilities.name, "predicted": predicted}
        ends = [helper.make_node("Identity", [name], [output], name=output) for output, name in outputs.items()]
        tensor = helper.make_tensor_value_info
        inputs = [
            tensor("x", TensorProto.FLOAT, ["nodes", self.num_features]),
            tensor("edge_index", TensorProto.INT64, [2, "edges"]),
        ]
        inputs += [tensor("edge_weight", TensorProto.FLOAT, ["edges"])] if self.weighted else []
        graph = helper.make_graph(
            [*self._nodes, *ends],
            "ipal",
            inputs,
            [
                tensor("scores", TensorProto.FLOAT, ["nodes", scores.width]),
                tensor("probabilities", TensorProto.FLOAT, ["nodes", scores.width]),
                tensor("predicted", TensorProto.INT64, ["nodes"]),
            ],
            list(self._constants.values()),
        )
        opset = helper.make_opsetid("", OPSET)
        made = helper.make_model(
            graph, opset_imports=[opset], ir_version=IR_VERSION, producer_name="ipal", producer_version=version
        )
        helper.set_model_props(made, about)
        return made


FUNCTIONS: Mapping[str, Callable[..., ProgramRows]] = MappingProxyType(
    {
        "relu_": ProgramRows.relu,
        "elu_": lambda rows: rows._made("Elu"),
        "leaky_relu_": lambda rows: rows._made("LeakyRelu", alpha=0.01),
        "tanh_": lambda rows: rows._made("Tanh"),
        "layer_norm": ProgramRows.normalised,
    }
)
"""Functions of torch by name, for `Rows`."""
