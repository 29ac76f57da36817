"""The command that makes a run again, in the same folder."""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from ipal.config import RunConfig, Tree
from ipal.system.documents import write_yaml

OPTIONS = ("dataset", "method", "seed", "split", "device", "threads")
ALWAYS = ("dataset", "method", "seed", "split")
"""Options that are shown even at their defaults."""
BY_METHOD = ("encoder", "train")
"""Sections whose defaults are the method's."""
FOUND = ("dataset_hash", "plugins")
"""What the graph and the plugins say by themselves."""


def command(config: RunConfig, own_defaults: Mapping[str, Any] | None = None) -> str:
    """`ipal run …` with what differs from the defaults.

    Without the defaults of the method, all settings of it, of the encoder and of the training are named.
    """
    words = ["ipal", "run"]
    for option in OPTIONS:
        value = getattr(config, option)
        if option in ALWAYS or value != RunConfig.model_fields[option].default:
            words += [f"--{option}", ",".join(map(str, value)) if isinstance(value, tuple) else str(value)]
    for name, value in changed_settings(config, own_defaults or {}):
        words += ["--set", f"{name}={as_yaml(value)}"]
    for plugin in config.plugins:
        words += ["--plugin", plugin] if plugin.endswith(".py") else []
    return shlex.join(words)


def changed_settings(config: RunConfig, own_defaults: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Dotted names and values of what differs from the defaults, beside the options."""
    defaults = default_tree(config, own_defaults)
    for name, value in flat(config.to_tree()):
        if name not in (*OPTIONS, *FOUND) and (name not in defaults or defaults[name] != value):
            yield name, value


def default_tree(config: RunConfig, own_defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The default of every setting that has one, by its dotted name; `own_defaults` are sections of the method."""
    plain = RunConfig(dataset=config.dataset, method=config.method).to_tree()
    anyones = {name: value for name, value in plain.items() if name not in BY_METHOD}
    return dict(flat({**anyones, **own_defaults}))


def flat(tree: Tree) -> Iterator[tuple[str, Any]]:
    """Settings by dotted name. Only sections are opened: a value that is a mapping stays one."""
    for name, value in tree.items():
        if isinstance(value, dict) and name not in FOUND:
            yield from ((f"{name}.{inner}", leaf) for inner, leaf in value.items())
        else:
            yield name, value


def as_yaml(value: Any) -> str:
    """A value as `--set` reads it, on one line."""
    return write_yaml(value, default_flow_style=True, width=float("inf")).removesuffix("...\n").strip()
