"""Untrusted YAML and JSON: documents that are too long, nested too deeply or repeat a key are refused early.

All files of settings and stored records are read here. A `DocumentError` is part of the caller's error message.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict
from pydantic_core import from_json

from ipal.errors import shortened
from ipal.system.files import read_bounded

MOST_YAML = 2**17
"""Most bytes of a file of settings: YAML is slow to parse."""
MOST_JSON = 2**25
MOST_DEPTH = 32
"""Most levels of nesting in YAML; pydantic limits JSON to 200."""
MOST_NODES = 20_000
"""Most values of a YAML document; aliases count each time."""
MOST_DIGITS = 40


class Record(BaseModel):
    """A part of a file; numbers are finite, and strings are not converted to numbers."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False, defer_build=True)


class DocumentError(ValueError):
    """Why a document cannot be read: words that follow its name."""

    def __init__(self, problem: str, mark: yaml.Mark | None = None) -> None:
        super().__init__(problem)
        self.place = f", line {mark.line + 1}" if mark else ""
        """The line, if known, to follow the file's name."""


def read_json(path: Path, most: int = MOST_JSON) -> Any:
    """The content of a JSON file."""
    return parse_json(read_bounded(path, most), most)


def parse_json(content: bytes | str, most: int = MOST_JSON) -> Any:
    """The value of a JSON text: at most `most` long, no repeated key, no NaN, no number with thousands of digits."""
    if len(content) > most:
        raise DocumentError(f"is longer than {most} bytes")
    try:
        from_json(content, allow_inf_nan=False)  # refuses what is nested too deeply
        return json.loads(content, object_pairs_hook=_unique, parse_int=_whole)
    except RecursionError as error:
        raise DocumentError("is nested too deeply") from error
    except DocumentError:
        raise
    except ValueError as error:
        raise DocumentError(f"is no valid JSON: {shortened(str(error))}") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise DocumentError(f"says '{shortened(twice)}' twice")
    return found


def _whole(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise DocumentError(f"holds a number of {len(text)} digits")
    return int(text)


TAG = "tag:yaml.org,2002:"
FORMS = (
    ("bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), "tTfF"),
    ("null", re.compile(r"^(?:~|null|Null|NULL)?$"), "~nN"),
    ("int", re.compile(r"^(?:[-+]?[0-9]+|0x[0-9a-fA-F]+)$"), "-+0123456789"),
    (
        "float",
        re.compile(r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf)|\.(?:nan|NaN))$"),
        "-+.0123456789",
    ),
    ("merge", re.compile(r"^<<$"), "<"),
)
"""What is no text without quotes, as in YAML 1.2, and the letters that it can begin with; the first that fits."""


class _Loader(yaml.SafeLoader):
    """Plain data: 1e5 is a number; yes, 1:30, 1_000 and dates are text. 010 is refused."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        letter: [(TAG + kind, form) for kind, form, letters in FORMS if letter in letters]
        for letter in ["", *"~<tTfFnN-+.0123456789"]
    }

    def construct_number(self, node: yaml.ScalarNode) -> int:
        text: str = node.value
        if len(text) > MOST_DIGITS:
            raise DocumentError(f"holds a number of {len(text)} digits", node.start_mark)
        digits = text.lstrip("+-")
        if digits.startswith("0x"):
            return int(text, 16)
        if digits != "0" and digits.startswith("0"):
            plain = f"write {digits.lstrip('0') or 0}, or quote it if it is text"
            raise DocumentError(f"holds {text}, a number with a leading zero: {plain}", node.start_mark)
        return int(text)


class _Dumper(yaml.SafeDumper):
    """Quotes text that `_Loader`, or a reader of YAML 1.1, would take for something else."""


_Loader.add_constructor(f"{TAG}int", _Loader.construct_number)
for _kind, _form, _letters in FORMS:
    _Dumper.add_implicit_resolver(TAG + _kind, _form, list(_letters))


def read_yaml_node(path: Path) -> yaml.Node | None:
    """The nodes of a YAML file, with their lines; None for an empty file."""
    return compose_yaml(read_bounded(path, MOST_YAML).decode())


def parse_yaml(text: str) -> Any:
    """The value of a YAML text."""
    return yaml_value(compose_yaml(text))


def write_yaml(value: Any, **options: Any) -> str:
    """Plain data as a YAML text that `parse_yaml` reads back."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, **options)
    return text


def compose_yaml(text: str) -> yaml.Node | None:
    """The nodes of a YAML text, within the limits above. `yaml_value` checks for repeated keys."""
    if len(text) > MOST_YAML:
        raise DocumentError(f"is longer than {MOST_YAML} bytes")
    too_many = DocumentError(f"holds more than {MOST_NODES} values, those that aliases repeat counted")
    if text.count(",") + text.count("\n") > MOST_NODES:  # of values that are not inside each other, one lies between
        raise too_many
    try:
        node: yaml.Node | None = yaml.compose(text, _Loader)
    except RecursionError as error:
        raise DocumentError(f"is nested deeper than {MOST_DEPTH} levels") from error
    except yaml.YAMLError as error:
        raise DocumentError("is not valid YAML: quote what is text", getattr(error, "problem_mark", None)) from error
    for count, _ in enumerate(_all_nodes(node), start=1):
        if count > MOST_NODES:
            raise too_many
    return node


def yaml_value(node: yaml.Node | None) -> Any:
    """The value of composed nodes; repeated keys are refused."""
    if node is None:
        return None
    for one in _all_nodes(node):
        if isinstance(one, yaml.MappingNode):
            names = [(key.tag, key.value) for key, _ in one.value if isinstance(key, yaml.ScalarNode)]
            if len(set(names)) < len(names):
                twice = next(name for name in names if names.count(name) > 1)
                raise DocumentError(f"says '{shortened(twice[1])}' twice", one.start_mark)
    try:
        return _Loader("").construct_document(node)
    except DocumentError:
        raise
    except yaml.YAMLError as error:
        raise DocumentError(
            "holds something other than plain data: quote what is text", getattr(error, "problem_mark", None)
        ) from error
    except (ValueError, LookupError, AttributeError, TypeError) as error:  # a value that does not fit its tag
        raise DocumentError("holds a value that is not what its tag says", node.start_mark) from error


def _all_nodes(node: yaml.Node | None) -> Iterator[yaml.Node]:
    """Every node, aliased ones each time, without recursion."""
    waiting = [(node, 1)] if node is not None else []
    while waiting:
        one, depth = waiting.pop()
        if depth > MOST_DEPTH:
            raise DocumentError(f"is nested deeper than {MOST_DEPTH} levels", one.start_mark)
        yield one
        if isinstance(one, yaml.MappingNode):
            waiting += [(part, depth + 1) for pair in one.value for part in pair]
        elif isinstance(one, yaml.SequenceNode):
            waiting += [(part, depth + 1) for part in one.value]
