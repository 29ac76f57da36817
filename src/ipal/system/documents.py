"""YAML and JSON from anywhere: what is too long, too deep or says a name twice is refused before it costs much.

Every file of settings and every stored record is read here. What is wrong is a `DocumentError`, whose text goes into
the sentence of whoever knows what the file is for.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict
from pydantic_core import from_json

from ipal.errors import shortened
from ipal.system.files import read_bounded

MOST_YAML = 2**17
"""Bytes of a file of settings: YAML is slow to read, and a thousand settings take less."""
MOST_JSON = 2**25
MOST_DEPTH = 32
"""Levels of lists and names inside each other, in YAML; in JSON, pydantic's own limit of 200 holds."""
MOST_NODES = 20_000
"""Values of a YAML document, those that are repeated by aliases counted each time."""
MOST_DIGITS = 40


class Record(BaseModel):
    """A part of a file: numbers are finite numbers, never words that look like one."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)


class DocumentError(ValueError):
    """Why a document cannot be read: words to stand behind its name."""

    def __init__(self, problem: str, mark: yaml.Mark | None = None) -> None:
        super().__init__(problem)
        self.place = f", line {mark.line + 1}" if mark else ""
        """What to put behind the name of the file, where the line is known."""


# ---------------------------------------------------------------------- JSON


def read_json(path: Path, most: int = MOST_JSON) -> Any:
    """What a JSON file holds."""
    return parse_json(read_bounded(path, most), most)


def parse_json(content: bytes | str, most: int = MOST_JSON) -> Any:
    """What a JSON text says: at most `most` long, no name twice in an object, no NaN, no number of endless digits."""
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


# ---------------------------------------------------------------------- YAML


class _Loader(yaml.SafeLoader):
    """Plain data only: a date is text, and a number has few digits."""

    def construct_number(self, node: yaml.ScalarNode) -> int:
        if len(node.value) > MOST_DIGITS:
            raise DocumentError(f"holds a number of {len(node.value)} digits", node.start_mark)
        number: int = self.construct_yaml_int(node)
        return number


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_number)
_Loader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_yaml_node(path: Path) -> yaml.Node | None:
    """The nodes of a YAML file, which know their lines; None of an empty one."""
    return compose_yaml(read_bounded(path, MOST_YAML).decode())


def parse_yaml(text: str) -> Any:
    """What a YAML text says."""
    return yaml_value(compose_yaml(text))


def compose_yaml(text: str) -> yaml.Node | None:
    """The nodes of a YAML text, within the limits above. Names that are there twice are left to `yaml_value`."""
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
        raise DocumentError("is not valid YAML", getattr(error, "problem_mark", None)) from error
    for count, _ in enumerate(_all_nodes(node), start=1):
        if count > MOST_NODES:
            raise too_many
    return node


def yaml_value(node: yaml.Node | None) -> Any:
    """What composed nodes say; a name that is there twice is refused."""
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
        raise DocumentError("holds something other than plain data", getattr(error, "problem_mark", None)) from error
    except (ValueError, LookupError, AttributeError, TypeError) as error:  # of a value that its tag does not fit
        raise DocumentError("holds a value that is not what its tag says", node.start_mark) from error


def _all_nodes(node: yaml.Node | None) -> Iterator[yaml.Node]:
    """Every node, repeated ones each time; not by recursion, which the document could exhaust."""
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
