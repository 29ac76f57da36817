"""From bytes to a question: what cannot be meant is refused in a sentence, and costs little."""

import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import ipal
from ipal.data.graph import checked_graph
from ipal.deploy.predict import neighbourhood
from ipal.deploy.serving.bodies import JSON, NPZ, Limits, Question, json_body, npz_body, read_question, table_of_zeros
from ipal.errors import DataError
from ipal.system.arrays import MalformedError, TooLargeError
from tests.deploy.support import archive

LIMITS = Limits(bytes=100_000, nodes=50, edges=200)
FEW = {"x": [[1, 2], [3, 4], [5.5, -6e3]], "edge_index": [[0, 1], [1, 2]]}
EDGES = {"edge_index": [[0, 1], [1, 2]]}
SPARSE = {"x_indices": [1, 0], "x_indptr": [0, 1, 1, 2], "x_values": [0.5, 2], "x_shape": [3, 2], **EDGES}


def asked(content: Any, limits: Limits = LIMITS) -> Question:
    return read_question(content if isinstance(content, bytes) else json.dumps(content).encode(), JSON, limits)


def packed(limits: Limits = LIMITS, **arrays: Any) -> Question:
    return read_question(archive(**arrays), NPZ, limits)


# ---------------------------------------------------------------------- what can be meant


def test_a_question_says_what_its_json_says() -> None:
    question = asked({**FEW, "nodes": [2, 0], "degree": [5, 2, 1], "reject": 0.25, "probabilities": False})
    assert question.graph.x.tolist() == [[1, 2], [3, 4], [5.5, -6e3]]
    assert question.graph.edges.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    assert question.graph.neighbours.degree.tolist() == [5, 2, 1]
    assert question.nodes is not None
    assert question.nodes.tolist() == [2, 0]
    assert question.options.reject == 0.25
    assert question.options.probabilities is False


def test_what_is_missing_or_null_is_as_usual() -> None:
    for question in (asked(FEW), asked({**FEW, "nodes": None, "degree": None, "reject": None, "directed": None})):
        assert question.nodes is None
        assert question.options.reject is None
        assert question.options.probabilities is None
        assert question.graph.symmetric
        assert question.graph.neighbours.degree.tolist() == [1, 2, 1]


def test_sparse_features_stay_sparse() -> None:
    for question in (asked(SPARSE), packed(**SPARSE)):
        assert isinstance(question.graph.x, sp.csr_array)
        assert question.graph.x.dtype == np.float32
        assert question.graph.x.toarray().tolist() == [[0, 0.5], [0, 0], [2, 0]]


def test_dense_features_that_are_mostly_zero_become_sparse() -> None:
    x = np.zeros((3, 40))
    x[1, 7] = 2
    found = packed(x=x, edge_index=np.zeros((2, 0), int)).graph.x
    assert isinstance(found, sp.csr_array)
    assert np.array_equal(found.toarray(), x)


@pytest.mark.parametrize("kind", ["<f8", ">f4", "<i2", "|u1", "|b1", "<f2"])
def test_arrays_of_any_kind_of_number_are_taken(kind: str) -> None:
    x = np.asfortranarray(np.array([[1, 0], [0, 1], [1, 1]]).astype(kind))
    question = packed(x=x, edge_index=np.array([[0], [2]], dtype=">i4"), reject=0.5, directed=True, degree=[0, 0, 9])
    assert question.graph.x.tolist() == [[1, 0], [0, 1], [1, 1]]
    assert question.graph.edges.tolist() == [[0], [2]]
    assert question.graph.neighbours.degree.tolist() == [0, 0, 9]


@pytest.mark.parametrize("make", [npz_body, json_body])
@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_graph_that_is_sent_arrives_as_it_was(
    make: Callable[..., bytes], directed: bool, sparse: bool, weighted: bool
) -> None:
    random = np.random.default_rng(0)
    x = (random.random((30, 4)) * (random.random((30, 4)) < 0.3)).astype(np.float32)
    edges, weights = random.integers(0, 30, (2, 40)), random.uniform(0.1, 3, 40) if weighted else None
    graph = checked_graph(sp.csr_array(x) if sparse else x, edges, undirected=not directed, weights=weights)
    part = neighbourhood(graph, [4, 2], 1)
    kind = JSON if make is json_body else NPZ
    question = read_question(make(part.graph, part.nodes, reject=0.5), kind, LIMITS)
    found, sent = question.graph, part.graph
    assert np.array_equal(found.neighbours.indices, sent.neighbours.indices)
    assert np.array_equal(found.neighbours.indptr, sent.neighbours.indptr)
    assert np.array_equal(found.neighbours.scale, sent.neighbours.scale)
    assert (found.neighbours.weights is not None) == weighted
    assert not weighted or np.array_equal(found.neighbours.weights, sent.neighbours.weights)
    difference = found.x - sent.x
    assert abs(difference).max() == 0
    assert question.nodes is not None
    assert question.nodes.tolist() == part.nodes.tolist()


def test_degrees_of_weighted_edges_are_sums_of_weights() -> None:
    question = asked({**FEW, "edge_weight": [0.5, 2], "degree": [0.5, 4.25, 2]})
    assert question.graph.neighbours.degree.tolist() == [0.5, 4.25, 2]
    assert question.graph.edge_weight is not None
    assert question.graph.edge_weight.tolist() == [0.5, 0.5, 2, 2]
    # Of a part whose edges all weigh one, the whole graph may have others.
    ones = packed(x=np.ones((3, 2)), edge_index=np.array(FEW["edge_index"]), edge_weight=np.ones(2), degree=[1.5, 2, 9])
    assert ones.graph.neighbours.weights is None
    assert ones.graph.neighbours.degree.tolist() == [1.5, 2, 9]


# ---------------------------------------------------------------------- JSON that cannot be meant

ZEROS = b",0" * 400
REFUSED: dict[str, tuple[Any, type[DataError], str]] = {
    "no JSON": (b"hello", MalformedError, "no JSON"),
    "deep": (b'{"x":' + b"[" * 60, MalformedError, "no JSON"),
    "very deep": (b"[" * 50_000, TooLargeError, "--max-nodes"),
    "many strings": (b'{"x":["",' + b'"",' * 100 + b'""],"edge_index":[[],[]]}', DataError, "x.0: "),
    "NaN": ({**FEW, "x": [[float("nan"), 1.0]]}, DataError, "finite"),
    "beyond infinity": (b'{"x": [[1e999, 1]], "edge_index": [[], []]}', DataError, "finite"),
    "ragged zeros": (b'{"x": [[0' + ZEROS + b'],[0]], "edge_index": [[], []]}', DataError, "row 1 of x"),
    "a crowd of zeros": (b'{"x": [' + b"[0],[0]," * 25 + b'[0]], "edge_index": [[], []]}', TooLargeError, "51 nodes"),
    "beyond single precision": ({**FEW, "x": [[1e300, 1.0]], "edge_index": [[], []]}, DataError, "infinite"),
    "huge feature": ({**FEW, "x": [[10**400, 1]]}, DataError, "finite"),
    "huge node": ({**FEW, "edge_index": [[10**30], [0]]}, DataError, "64 bits"),
    "a list": ([FEW], DataError, "The body: Input should be"),
    "no features": ({"edge_index": [[], []]}, DataError, "sent were none of them"),
    "too few weights": ({**FEW, "edge_weight": [1.5]}, DataError, "one number for each of 2 edges"),
    "degree below the weights": ({**FEW, "edge_weight": [2, 2], "degree": [1, 4, 2]}, DataError, "as many as here"),
    "infinite degree": ({**FEW, "edge_weight": [2, 2], "degree": [1e300, 4, 2]}, DataError, "none larger than"),
    "fractions of degrees": ({**FEW, "degree": [1.5, 2, 1]}, DataError, "whole numbers"),
    "misspelt": ({**FEW, "edge_idx": []}, DataError, "Did you mean 'edge_index'"),
    "no nodes": ({**FEW, "x": []}, DataError, "empty"),
    "ragged": ({**FEW, "x": [[1, 2], [3, 4], [5]]}, DataError, "row 2 of x has 1 numbers, row 0 has 2"),
    "uneven ends": ({**FEW, "edge_index": [[0, 1], [1]]}, DataError, "two lists"),
    "edge beyond": ({**FEW, "edge_index": [[0], [3]]}, DataError, "node 3, but the nodes are 0 to 2"),
    "too many nodes": ({**FEW, "x": [[1]] * 51}, TooLargeError, "51 nodes; at most 50"),
    "too many edges": ({**FEW, "edge_index": [[0] * 201, [1] * 201]}, TooLargeError, "201 edges; at most 200"),
    "degree too small": ({**FEW, "degree": [1, 1, 1]}, DataError, "at least as many as here"),
    "degree beyond": ({**FEW, "degree": [2**40, 2, 1]}, DataError, "none larger than"),
    "reject beyond": ({**FEW, "reject": 1.5}, DataError, "reject: Input should be less than 1"),
    "twice sparse": ({**SPARSE, "x": [[1, 2]] * 3}, DataError, "sent were"),
    "sparse beyond": ({**SPARSE, "x_indices": [1, 7]}, DataError, "do not fit together"),
    "sparse of a crowd": ({**SPARSE, "x_shape": [10**12, 2]}, TooLargeError, "--max-nodes"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_json_that_cannot_be_meant_is_refused_in_a_sentence(case: str) -> None:
    content, kind, words = REFUSED[case]
    with pytest.raises(DataError) as refusal:
        asked(content)
    assert type(refusal.value) is kind
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


def check(body: bytes, kind: str) -> None:
    refusal = ""
    try:
        question = read_question(body, kind, LIMITS)
    except DataError as error:
        refusal = str(error)
    else:
        x = question.graph.x
        assert np.isfinite(x.data if isinstance(x, sp.csr_array) else x).all()
        return
    assert 0 < len(refusal) < 400


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_any_bytes_are_a_question_or_refused_in_a_sentence(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from([JSON, NPZ]))
    sound = json.dumps(FEW).encode() if kind == JSON else archive(**{name: np.array(v) for name, v in FEW.items()})
    body = bytearray(sound)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(body) - 1))
        body[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    check(bytes(body), kind)


@pytest.mark.parametrize(
    "body",
    [
        json.dumps({"x": [[0.0] * 20_000 + ["a" * 20_000]], "edge_index": [[], []]}).encode(),
        b'{"x":[' + b"[]," * 30_000 + b"[]]}",
    ],
    ids=["one long text", "many lists"],
)
def test_small_bodies_take_little_memory(body: bytes) -> None:
    """Numpy would give every number the length of the longest text: 1.6 GB."""
    tracemalloc.start()
    with pytest.raises(DataError):
        read_question(body, JSON, LIMITS)
    assert tracemalloc.get_traced_memory()[1] < 50 * len(body)
    tracemalloc.stop()


# ---------------------------------------------------------------------- tables of zeros


def written(x: Any, zero: str = "0.0", comma: str = ",") -> bytes:
    rows = (comma.join(repr(float(v)) if v else zero for v in row) for row in x)
    table = comma.join(f"[{row}]" for row in rows)
    return f'{{"edge_index": [[], []], "x" : [{table}] }}'.encode()


def sparse_table(density: float = 0.02) -> Any:
    random = np.random.default_rng(0)
    x = random.normal(size=(20, 200)) * (random.random((20, 200)) < density)
    x[3, 4], x[19, 199] = 1e-7, -2e30
    return x


@pytest.mark.parametrize("zero", ["0", "-0.0", " 0.00\n"])
@pytest.mark.parametrize("comma", [",", ", ", " ,\n"])
@pytest.mark.parametrize("density", [0.02, 0.5])
def test_tables_of_zeros_are_read_as_any_other(zero: str, comma: str, density: float) -> None:
    x = sparse_table(density)
    text = written(x, zero, comma)
    is_usual = density < 0.1 and zero in ("0", "-0.0") and comma in (",", ", ")
    assert (table_of_zeros(text) is not None) == is_usual
    found = read_question(text, JSON, Limits()).graph.x
    assert np.array_equal(found.toarray() if isinstance(found, sp.csr_array) else found, x.astype(np.float32))


TABLE = "[[" + "0," * 400 + "0]]"


@pytest.mark.parametrize(
    ("text", "x"),
    [
        (f'{{"x": {TABLE}, "edge_index": [[], []], "x": [[1, 0]]}}', [[1, 0]]),
        (f'{{"x": {TABLE}, "edge_index": [[], []], "\\u0078": [[1, 0]]}}', [[1, 0]]),
        (f'{{"edge_index": [[], []], "reject": {{"x": {TABLE}}}}}', None),
        (f'{{"edge_index": {{"x": {TABLE}}}, "x": null}}', None),
    ],
)
def test_a_table_that_may_be_another_is_not_taken_for_the_features(text: str, x: Any) -> None:
    if x is None:
        with pytest.raises(DataError):
            asked(text.encode())
    else:
        assert asked(text.encode()).graph.x.tolist() == x


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_what_is_taken_as_a_table_of_zeros_is_one(data: st.DataObject) -> None:
    """Of a body with any changes: that what is taken is what Python reads, and all is valid if the rest is."""
    sound = bytearray(written(sparse_table(), data.draw(st.sampled_from(["0", "0.0"]))))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(sound) - 1))
        some = st.text('0123456789.,-+eE[] x"\\', max_size=3)
        sound[place : place + data.draw(st.integers(0, 3))] = data.draw(some).encode()
    found = table_of_zeros(sound)
    if found is None:
        return
    table, rest = found
    try:
        around = json.loads(rest)
    except ValueError:
        return
    if around.get("x", 0) is not None or list(around).count("x") != 1 or set(around) != {"edge_index", "x"}:
        return  # refused, or not taken
    x = json.loads(sound)["x"]
    assert np.array_equal(table.toarray(), np.array(x, dtype=np.float64).astype(np.float32))


def test_what_graph_from_gives_makes_the_same_request() -> None:
    digits = ipal.load_dataset("digits")
    data, graph = ipal.graph_from(digits), digits.graph
    assert json_body(data, [3]) == json_body(graph, [3])
    assert np.array_equal(neighbourhood(data, [3], 2).origin, neighbourhood(graph, [3], 2).origin)
