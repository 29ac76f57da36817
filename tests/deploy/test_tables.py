"""Tables of zeros in JSON are read as any other table, and faster."""

import json
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from ipal.deploy.serving.bodies import JSON
from ipal.deploy.serving.limits import Limits
from ipal.deploy.serving.questions import read_question
from ipal.deploy.serving.tables import mostly_zeros

SHARE = 16


def body(table: str) -> bytes:
    return f'{{"edge_index": [[], []], "x" : {table} }}'.encode()


def written(x: Any, zero: str = "0.0", comma: str = ",") -> str:
    rows = (comma.join(repr(float(v)) if v else zero for v in row) for row in x)
    return "[" + comma.join(f"[{row}]" for row in rows) + "]"


def sparse_table(density: float = 0.02) -> Any:
    random = np.random.default_rng(0)
    x = random.normal(size=(20, 30)) * (random.random((20, 30)) < density)
    x[3, 4], x[19, 29] = 1e-7, -2e30
    return x


@pytest.mark.parametrize("zero", ["0", "0.0", "-0.0", "0e9", " 0.00\n"])
@pytest.mark.parametrize("comma", [",", ", ", " ,\n"])
@pytest.mark.parametrize("density", [0, 0.02, 0.5])
def test_tables_of_zeros_are_read_as_any_other(zero: str, comma: str, density: float) -> None:
    x = sparse_table(density)
    text = body(written(x, zero, comma))
    is_usual = density < 0.1 and zero in ("0", "0.0", "-0.0") and comma in (",", ", ")
    assert (mostly_zeros(text, SHARE) is not None) == is_usual
    found = read_question(text, JSON, Limits()).graph.x
    assert np.array_equal(found.toarray() if isinstance(found, sp.csr_array) else found, x.astype(np.float32))


@pytest.mark.parametrize(
    "table",
    [
        "[]",
        "[[]]",
        "[[0,0,0],[0,0]]",
        "[0,0]",
        "[[[0,0]]]",
        "[[0,0],0]",
        "0",
        "[[0,true]]",
        "[[0,0],[0,0.0]]",
        "[[0,0]",
    ],
)
def test_what_is_no_table_of_zeros_is_left_to_others(table: str) -> None:
    assert mostly_zeros(body(table), 1) is None


@pytest.mark.parametrize(
    "text",
    [
        '{"x": [[0,0,0]], "x": [[1,0,0]]}',
        '{"x": [[0,0,0]], "\\u0078": null}',
        '{"edge_index": "\\"x\\": [[0,0,0]]"}',
        '{"y": [[0,0,0]]}',
    ],
)
def test_a_table_that_may_be_another_is_left_to_others(text: str) -> None:
    assert mostly_zeros(text.encode(), 1) is None


def test_a_table_within_something_else_is_not_the_features() -> None:
    nested = b'{"edge_index": [[], []], "reject": {"x": [[0,0,0]]}}'
    found = mostly_zeros(nested, 1)
    assert found is not None
    with pytest.raises(Exception, match="x is missing"):
        read_question(nested, JSON, Limits())


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_what_is_taken_as_a_table_of_zeros_is_one(data: st.DataObject) -> None:
    """Of a body with any changes: that what is taken is what Python reads, and all is valid if the rest is."""
    sound = bytearray(body(written(sparse_table(), data.draw(st.sampled_from(["0", "0.0"])))))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(sound) - 1))
        some = st.text('0123456789.,-+eE[] x"\\', max_size=3)
        sound[place : place + data.draw(st.integers(0, 3))] = data.draw(some).encode()
    found = mostly_zeros(sound, SHARE)
    if found is None:
        return
    table, rest = found
    try:
        around = json.loads(rest)
    except ValueError:
        return
    x = json.loads(sound)["x"]
    assert around == {**json.loads(sound), "x": None}
    assert np.array_equal(table.toarray(), np.array(x, dtype=np.float64).astype(np.float32))
