"""YAML and JSON from anywhere: what is sound is read as ever, the rest is refused before it costs much."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from ipal.system.documents import MOST_YAML, DocumentError, parse_json, parse_yaml, read_json, write_yaml
from tests.hostile_files import ALIASES


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("1", 1),
        ("a: [1, 2.5, true, null, x]", {"a": [1, 2.5, True, None, "x"]}),
        ("2020-99-99", "2020-99-99"),
        ("2020-01-01", "2020-01-01"),
        ("0x10", 16),
        ("[0, -7, +7, 10]", [0, -7, 7, 10]),
        ("[1e5, 1e-4, .5, 5., 1.5e3, -2E+3, 01.5]", [1e5, 1e-4, 0.5, 5.0, 1500.0, -2000.0, 1.5]),
        ("[yes, no, on, off, y]", ["yes", "no", "on", "off", "y"]),
        ("on: 1", {"on": 1}),
        ("[1:30, 1:30.5, 1_000, 0b11, 0o17, =]", ["1:30", "1:30.5", "1_000", "0b11", "0o17", "="]),
        ("[True, FALSE, ~, Null, ]", [True, False, None, None]),
        ("['010', \"1e5\"]", ["010", "1e5"]),
    ],
)
def test_plain_yaml_is_read(text: str, value: Any) -> None:
    assert parse_yaml(text) == value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (ALIASES, "refers to another value by .*: write it out"),
        ("&a [*a]", "refers to another value"),
        ("[" * 10**5, "nested too deeply"),
        ("#" * (MOST_YAML + 1), "longer than"),
        ("9" * 10_000, "10000 digits"),
        ("a: 1\na: 2", "says 'a' twice"),
        ("010", "holds 010, a number with a leading zero: write 10, or quote it"),
        ("a: [-007]", "holds -007, .* write 7,"),
        ("!!int 010", "leading zero"),
        ("!!int 1:30", "not what its tag says"),
        ("!!timestamp x", "not what its tag says"),
        ("!!python/name:os.getcwd", "other than plain data"),
        ("? [a]\n: 1", "other than plain data"),
        ("a: b: c", "not valid YAML"),
        ("a: 1\n---\nb: 2", "not valid YAML"),
    ],
    ids=range(15),
)
def test_other_yaml_is_refused(text: str, words: str) -> None:
    with pytest.raises(DocumentError, match=words):
        parse_yaml(text)


@pytest.mark.parametrize("text", ["1e5", "010", "yes", "1:30", "1_000", "2020-01-01", "", "null", "~", ".5", "=", "x"])
def test_text_that_looks_like_something_else_is_written_so_that_it_is_read_back(text: str) -> None:
    for value in (text, [text], {"a": text}):
        assert parse_yaml(write_yaml(value)) == value
        assert yaml.safe_load(write_yaml(value)) == value


def test_the_line_is_named() -> None:
    with pytest.raises(DocumentError) as caught:
        parse_yaml("a: 1\nb: " + "9" * 100)
    assert caught.value.place == ", line 2"


def test_dates_of_others_are_dates_still() -> None:
    # The loader of this package has its own table of what a word may be.
    assert yaml.safe_load("2020-01-01").year == 2020


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 10**5, "recursion limit|nested"),
        ('{"a": ' * 10**4 + "1" + "}" * 10**4, "recursion limit|nested"),
        ("9" * 10_000, "digits|number"),
        ("NaN", "no valid JSON"),
        ('{"a": Infinity}', "no valid JSON"),
        ("", "no valid JSON"),
        ("{", "no valid JSON"),
        (b"\xff\xfe", "no valid JSON"),
        ("[" + " " * 100 + "]", "longer than 50"),
    ],
    ids=range(9),
)
def test_other_json_is_refused(text: str | bytes, words: str) -> None:
    with pytest.raises(DocumentError, match=words):
        parse_json(text, 50 if "longer" in words else 2**25)


def test_plain_json_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": [1, -2.5e3, null, "\\u00e9"], "b": 12345678901234567890}')
    assert read_json(tmp_path / "a.json") == {"a": [1, -2500.0, None, "é"], "b": 12345678901234567890}
