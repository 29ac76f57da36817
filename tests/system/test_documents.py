"""YAML and JSON from anywhere: what is sound is read as ever, the rest is refused before it costs much."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from ipal.system.documents import MOST_YAML, DocumentError, parse_json, parse_yaml, read_json
from tests.hostile_files import ALIASES


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("1", 1),
        ("a: [1, 2.5, true, null, x]", {"a": [1, 2.5, True, None, "x"]}),
        ("a: &x {b: 1}\nc: *x", {"a": {"b": 1}, "c": {"b": 1}}),
        ("base: &x {b: 1}\nc: {<<: *x, d: 2}", {"base": {"b": 1}, "c": {"b": 1, "d": 2}}),
        ("2020-99-99", "2020-99-99"),
        ("2020-01-01", "2020-01-01"),
        ("0x10", 16),
    ],
)
def test_plain_yaml_is_read(text: str, value: Any) -> None:
    assert parse_yaml(text) == value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (ALIASES, "more than 20000 values"),
        ("&a [*a]", "deeper than 32"),
        ("&a {b: *a}", "deeper than 32"),
        ("[" * 10**5, "deeper than 32"),
        ("[" * 40 + "]" * 40, "deeper than 32"),
        ("[1" + ",1" * 30_000 + "]", "more than 20000 values"),
        ("#" * (MOST_YAML + 1), "longer than"),
        ("9" * 10_000, "10000 digits"),
        ("0x" + "f" * 10_000, "10002 digits"),
        ("a: 1\na: 2", "says 'a' twice"),
        ("!!int x", "not what its tag says"),
        ("!!bool x", "not what its tag says"),
        ("!!timestamp x", "not what its tag says"),
        ("!!python/name:os.getcwd", "other than plain data"),
        ("? [a]\n: 1", "other than plain data"),
        ("a: b: c", "not valid YAML"),
        ("a: 1\n---\nb: 2", "not valid YAML"),
    ],
    ids=range(17),
)
def test_other_yaml_is_refused(text: str, words: str) -> None:
    with pytest.raises(DocumentError, match=words):
        parse_yaml(text)


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
        ('{"a": 1, "b": {"c": 1, "c": 2}}', "says 'c' twice"),
        ("NaN", "no valid JSON"),
        ('{"a": Infinity}', "no valid JSON"),
        ("", "no valid JSON"),
        ("{", "no valid JSON"),
        (b"\xff\xfe", "no valid JSON"),
        ("[" + " " * 100 + "]", "longer than 50"),
    ],
    ids=range(10),
)
def test_other_json_is_refused(text: str | bytes, words: str) -> None:
    with pytest.raises(DocumentError, match=words):
        parse_json(text, 50 if "longer" in words else 2**25)


def test_plain_json_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": [1, -2.5e3, null, "\\u00e9"], "b": 12345678901234567890}')
    assert read_json(tmp_path / "a.json") == {"a": [1, -2500.0, None, "é"], "b": 12345678901234567890}
