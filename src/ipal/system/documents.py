"""Untrusted YAML and JSON: documents that are too long, nested too deeply or repeat a key are refused early.

All files of settings and stored records are read here. A `DocumentError` is part of the caller's error message.
"""

import re
from collections import Counter
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


def read_json(path: Path) -> Any:
    return parse_json(read_bounded(path, MOST_JSON))


def parse_json(content: bytes | str, most: int = MOST_JSON) -> Any:
    """The value of a JSON text: at most `most` long, no NaN, nothing nested too deeply, no number of endless digits."""
    if len(content) > most:
        raise DocumentError(f"is longer than {most} bytes")
    try:
        return from_json(content, allow_inf_nan=False)
    except ValueError as error:
        raise DocumentError(f"is no valid JSON: {shortened(str(error))}") from error


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
)
"""What is no text without quotes, as in YAML 1.2, and the letters that it can begin with; the first that fits."""


class _Loader(yaml.SafeLoader):
    """Plain data: 1e5 is a number; yes, 1:30, 1_000 and dates are text. 010, aliases and repeated keys are refused."""

    yaml_implicit_resolvers = {}  # noqa: RUF012  # of YAML 1.1

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise DocumentError("refers to another value by *: write it out", mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [(key.tag, key.value) for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for (_, name), count in Counter(names).items():
            if count > 1:
                raise DocumentError(f"says '{shortened(name)}' twice", node.start_mark)
        return super().construct_mapping(node, deep)

    def construct_number(self, node: yaml.ScalarNode) -> int:
        text: str = node.value
        if len(text) > MOST_DIGITS:
            raise DocumentError(f"holds a number of {len(text)} digits", node.start_mark)
        digits = text.lstrip("+-")
        if digits.isdecimal() and digits != "0" and digits.startswith("0"):
            plain = f"write {digits.lstrip('0') or 0}, or quote it if it is text"
            raise DocumentError(f"holds {text}, a number with a leading zero: {plain}", node.start_mark)
        return int(text, 0)


class _Dumper(yaml.SafeDumper):
    """Quotes text that `_Loader`, or a reader of YAML 1.1, would take for something else."""


_Loader.add_constructor(f"{TAG}int", _Loader.construct_number)
for _kind, _form, _letters in FORMS:
    for _language in (_Loader, _Dumper):
        _language.add_implicit_resolver(TAG + _kind, _form, ["", *_letters])


def write_yaml(value: Any, **options: Any) -> str:
    """Plain data as a YAML text that `parse_yaml` reads back."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, **options)
    return text


def parse_yaml(text: str) -> Any:
    """The value of a YAML text; None for an empty one."""
    if len(text) > MOST_YAML:
        raise DocumentError(f"is longer than {MOST_YAML} bytes")
    try:
        return yaml.load(text, _Loader)
    except DocumentError:
        raise
    except RecursionError as error:
        raise DocumentError("is nested too deeply") from error
    except yaml.constructor.ConstructorError as error:
        raise DocumentError("holds something other than plain data: quote what is text", error.problem_mark) from error
    except yaml.YAMLError as error:
        raise DocumentError("is not valid YAML: quote what is text", getattr(error, "problem_mark", None)) from error
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        raise DocumentError("holds a value that is not what its tag says") from error
