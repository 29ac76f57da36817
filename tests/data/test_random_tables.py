"""Random tables with a known truth, written in many ways: read as they were meant.

`IPAL_RANDOM_TABLES=2000` draws so many instead of a hundred.
"""

import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ipal import graph_from
from ipal.data.datasets import load_to_predict
from ipal.errors import DataError

CASES, GROUPS = int(os.environ.get("IPAL_RANDOM_TABLES", "100")), 20
MISSING = ("", "NaN", "nan", "None", "NA", "N/A", "#N/A", "<NA>", "null", "NULL", "nil", "?", "-", " ")
WORDS = ("DE", "FR", "a b", "x,y", "x;y", 'say "hi"', "été", "1a", "1_0", "0x10", "two\nlines", "unknown", "a\tb")
CLASSES = ("bot", "human being", "1a", "x,y", "Größe", "007", "shop;s", "yes", "3.x", "1E5")
LABEL_NAMES = ("label", "Label", "class", "CLASS", "y", "Y", "target", "Target")
ID_NAMES = ("id", "ID", "node", "node_id", "Node")

Random = np.random.Generator


@dataclass(frozen=True)
class Truth:
    """What is meant."""

    ids: list[Any]
    features: dict[str, list[Any]]
    """Numbers, or texts."""
    labels: list[int | str | None] | None
    facts: dict[str, list[int]]
    ends: list[tuple[int, int]]
    weights: list[float] | None
    names: dict[str, str]
    """Of the columns id, label, source, target, weight, time, …"""

    @property
    def x(self) -> dict[str, NDArray[np.float32]]:
        found: dict[str, Any] = {}
        for name, values in self.features.items():
            if isinstance(values[0], str):
                found |= {f"{name}={word}": [value == word for value in values] for word in sorted({*values})}
            else:
                found[name] = values
        return {name: np.array(values, dtype=np.float32) for name, values in found.items()}

    @property
    def y(self) -> list[int | str | None] | None:
        if self.labels is None or all(label is None for label in self.labels):
            return None
        is_text = any(isinstance(label, str) for label in self.labels)
        return [None if label is None else str(label) if is_text else label for label in self.labels]

    def matrix(self, directed: bool) -> NDArray[np.float64]:
        """A[target, source], the mean over all times that an edge is listed."""
        sums, times = np.zeros((2, len(self.ids), len(self.ids)))
        for (source, target), weight in zip(self.ends, self.weights or [1.0] * len(self.ends), strict=True):
            for a, b in {(target, source)} if directed else {(target, source), (source, target)}:
                sums[a, b] += weight
                times[a, b] += 1
        found = sums / np.maximum(times, 1)
        np.fill_diagonal(found, 0)
        return found


# ---------------------------------------------------------------------- drawn


def drawn(random: Random) -> Truth:
    n = int(random.integers(1, 25))
    features = {
        f"f{place}" if random.random() < 0.8 else f"f, {place}": _feature(random, n)
        for place in range(random.integers(1, 5))
    }
    m = int(random.integers(0, 3 * n))
    ends = [(int(a), int(b)) for a, b in random.integers(0, n, (m, 2))]
    ends += [ends[place] for place in random.integers(0, m, int(random.integers(0, 4)))] if m else []
    weights = [round(float(w), 3) for w in random.uniform(0, 3, len(ends))] if random.random() < 0.5 else None
    names = {
        "id": _one(random, ID_NAMES),
        "label": _one(random, LABEL_NAMES),
        "weight": _one(random, ("weight", "Edge_Weight")),
    }
    names |= dict(
        zip(("source", "target"), _one(random, (("source", "target"), ("src", "dst"), ("From", "To"))), strict=True)
    )
    facts = {fact: random.integers(0, 3, n).tolist() for fact in ("time", "domain", "split") if random.random() < 0.2}
    names |= {fact: _one(random, (fact, fact.upper(), fact.capitalize())) for fact in facts}
    return Truth(_ids(random, n), features, _labels(random, n), facts, ends, weights, names)


def _one(random: Random, some: Any) -> Any:
    return some[int(random.integers(len(some)))]


def _ids(random: Random, n: int) -> list[Any]:
    kind = int(random.integers(4))
    if kind == 0:
        return list(range(n))
    if kind == 1:
        return [int(number) for number in random.choice(10**6, n, replace=False)]
    if kind == 2:
        return [2**60 + int(number) for number in random.choice(10**6, n, replace=False)]
    odd = ["NA", "None", "-", "007", "7", "7.0", "a,b", "a;b", 'the "one"', "x y", "1e3", "?"]
    return [odd[place] if place < len(odd) else f"n-{place}" for place in random.permutation(n).tolist()]


def _feature(random: Random, n: int) -> list[Any]:
    kind = int(random.integers(4))
    if kind == 0:
        return [int(value) for value in random.integers(-9, 100, n)]
    if kind == 1:
        return [round(float(value), 3) for value in random.normal(size=n) * 10 ** int(random.integers(-2, 5))]
    if kind == 2:
        return [bool(value) for value in random.random(n) < 0.5]
    return [_one(random, WORDS[: int(random.integers(1, len(WORDS) + 1))]) for _ in range(n)]


def _labels(random: Random, n: int) -> list[int | str | None] | None:
    kind = int(random.integers(5))
    if kind == 0:
        return None
    if kind == 1:
        known: list[Any] = random.integers(0, 4, n).tolist()
    elif kind == 2:
        known = [_one(random, CLASSES) for _ in range(n)]
    elif kind == 3:  # numbers and words
        known = [_one(random, (3, 4, "bot", "1a")) for _ in range(n)]
    else:
        known = [bool(value) for value in random.random(n) < 0.5]
    return [None if random.random() < 0.3 else label for label in known]


# ---------------------------------------------------------------------- written


def columns_of(truth: Truth) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
    """Two tables of plain values; None where there is none."""
    nodes: dict[str, list[Any]] = {truth.names["id"]: truth.ids}
    nodes |= {} if truth.labels is None else {truth.names["label"]: truth.labels}
    nodes |= {truth.names[fact]: values for fact, values in truth.facts.items()}
    nodes |= {name: list(values) for name, values in truth.features.items()}
    source, target = ([truth.ids[pair[end]] for pair in truth.ends] for end in (0, 1))
    edges = {truth.names["source"]: source, truth.names["target"]: target}
    return nodes, edges if truth.weights is None else edges | {truth.names["weight"]: truth.weights}


def as_csv(truth: Truth, folder: Path, random: Random) -> tuple[Any, ...]:
    nodes, edges = columns_of(truth)
    label, ids = (
        truth.names["label"] if truth.labels is not None else None,
        {truth.names[n] for n in ("id", "source", "target")},
    )
    suffix = _one(random, ("csv", "tsv"))
    for name, table in (("nodes", nodes), ("edges", edges)):
        shuffled = {column: table[column] for column in random.permutation(list(table)).tolist()}
        (folder / f"{name}.{suffix}").write_bytes(_csv(shuffled, label, ids, random))
    return folder / f"nodes.{suffix}", folder / f"edges.{suffix}"


def _csv(table: dict[str, list[Any]], label: str | None, ids: set[str], random: Random) -> bytes:
    separator = _one(random, (",", ";", "\t"))
    comma = separator == ";" and random.random() < 0.3
    end, always = _one(random, ("\n", "\r\n")), random.random() < 0.2

    def cell(text: str) -> str:
        quoted = always or any(mark in text for mark in ',;\t"\n\r') or random.random() < 0.05
        pad = " " * int(random.random() < 0.05)
        return pad + ('"' + text.replace('"', '""') + '"' if quoted else text + pad)

    def shown(name: str, value: Any) -> str:
        if name in ids:
            return cell(str(value))
        text = _label(value, random) if name == label else _value(value, random)
        return cell(text.replace(".", ",") if comma and type(value) is float and name != label else text)

    lines = [separator.join(cell(name) for name in table)]
    lines += [
        separator.join(shown(name, value) for name, value in zip(table, row, strict=True))
        for row in zip(*table.values(), strict=True)
    ]
    blank = _one(random, ("", "", "  "))
    spread = [
        line for each in lines for line in [*[blank] * (int(random.integers(0, 40)) * int(random.random() < 0.1)), each]
    ]
    text = end.join(spread) + end * int(random.integers(0, 4))
    return ("\ufeff" if random.random() < 0.2 else "").encode() + text.encode()


def _label(value: Any, random: Random) -> str:
    if value is None:
        return str(_one(random, (*MISSING, "-1", "-1.0")))
    if type(value) is int:
        return str(_one(random, (f"{value}", f"{value}.0", f"{value}.", f"{value:+d}", f"{value:.6e}")))
    return (
        str(_one(random, (str(value), str(value).lower(), str(value).upper()))) if type(value) is bool else str(value)
    )


def _value(value: Any, random: Random) -> str:
    if value is None:
        return str(_one(random, MISSING))
    if type(value) is float:
        return str(_one(random, (repr(value), f"{value:.3f}", f"{value:.12e}")))
    return str(_one(random, (str(value), str(value).lower()))) if type(value) is bool else str(value)


def as_parquet(truth: Truth, folder: Path, random: Random) -> tuple[Any, ...]:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    for name, table in zip(("nodes", "edges"), columns_of(truth), strict=True):
        parquet.write_table(
            arrow.table({key: _one_kind(values) for key, values in table.items()}), folder / f"{name}.parquet"
        )
    return folder / "nodes.parquet", folder / "edges.parquet"


def as_columns(truth: Truth, folder: Path, random: Random) -> tuple[Any, ...]:
    return columns_of(truth)


def as_pandas(truth: Truth, folder: Path, random: Random) -> tuple[Any, ...]:
    pandas = pytest.importorskip("pandas")
    nodes, edges = (
        pandas.DataFrame({name: _one_kind(values) for name, values in table.items()}) for table in columns_of(truth)
    )
    if random.random() < 0.3:
        nodes = nodes.convert_dtypes()
    return (nodes.set_index(truth.names["id"]) if random.random() < 0.3 else nodes), edges


def _one_kind(values: list[Any]) -> list[Any]:
    """As a column of a type has them: strings where one is."""
    if any(isinstance(value, str) for value in values):
        return [None if value is None else str(value) for value in values]
    return [float(value) if value is not None and any(type(v) is float for v in values) else value for value in values]


ROUTES = (as_csv, as_csv, as_csv, as_parquet, as_columns, as_pandas)

# ---------------------------------------------------------------------- compared


def differences(truth: Truth, given: tuple[Any, ...], directed: bool) -> list[str]:
    """What was read otherwise than meant."""
    data, x = graph_from(*given, directed=directed), truth.x
    wrong = [] if data.nodes(truth.ids).tolist() == list(range(len(truth.ids))) else ["ids"]
    wrong += [] if _labels_read(data) == truth.y else [f"labels {_labels_read(data)} for {truth.y}"]
    a = np.zeros((len(truth.ids), len(truth.ids)))
    a[data.edge_index[1], data.edge_index[0]] = 1 if data.edge_weight is None else data.edge_weight
    wrong += [] if np.allclose(a, truth.matrix(directed), rtol=1e-6) else ["edges"]
    read = dict(zip(data.columns, np.asarray(data.x).T, strict=True))
    wrong += [] if read.keys() == x.keys() else [f"columns {data.columns} for {tuple(x)}"]
    wrong += [name for name in read.keys() & x.keys() if not np.array_equal(read[name], x[name])]
    if all(isinstance(one, Path) for one in given):
        dataset = load_to_predict(",".join(map(str, given)))
        facts = {name: values.tolist() for name, values in dataset.facts.items()}
        wrong += [] if facts == truth.facts else ["facts"]
    return wrong


def _labels_read(data: Any) -> list[int | str | None] | None:
    if data.y is None:
        return None
    return [
        label if is_there else None for label, is_there in zip(data.y.tolist(), data.train_mask.tolist(), strict=True)
    ]


def outcome(case: int, folder: Path) -> str | None:
    """None where a table was read as it was meant."""
    random = np.random.default_rng([33, case])
    truth, route = drawn(random), _one(random, ROUTES)
    try:
        wrong = differences(truth, route(truth, folder, random), directed=bool(random.random() < 0.3))
    except DataError as error:
        wrong = [f"refused ({error})"]
    return f"case {case}, {route.__name__}: {'; '.join(wrong)}" if wrong else None


@pytest.mark.parametrize("group", range(GROUPS))
def test_random_tables_are_read_as_they_were_meant(group: int, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [outcome(case, tmp_path) for case in range(group, CASES, GROUPS)]
    assert [one for one in found if one] == []
