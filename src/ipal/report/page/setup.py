"""The section on how a run was made: protocol, configuration, software, and the command that makes it again."""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from ipal.config import EncoderConfig, ProtocolConfig, RunConfig, TrainConfig, Tree, attribute_docs
from ipal.report.cells import Cell, CellTable, table
from ipal.report.collect import Run
from ipal.report.page.parts import PageSection
from ipal.runs.records import batch_in_words, stream_in_words
from ipal.system.documents import write_yaml

OPTIONS = ("dataset", "method", "seed", "split", "device", "threads")
ALWAYS = ("dataset", "method", "seed", "split")
"""Options that are shown even at their defaults."""
BY_METHOD = ("encoder", "train")
"""Sections whose defaults are the method's."""
FOUND = ("dataset_hash", "plugins")
"""What the graph and installed packages say by themselves."""
WHERE = (
    "The command makes the same run in a folder of the same name. It looks for the graph under IPAL_DATA, or where "
    "--data-root says."
)

# ---------------------------------------------------------------------- the command


def command(config: RunConfig, own_defaults: Mapping[str, Any] | None = None) -> str:
    """`ipal run …` with what differs from the defaults.

    Without the defaults of the method, all settings of it, of the encoder and of the training are named.
    """
    words = ["ipal", "run"]
    for option in OPTIONS:
        value = getattr(config, option)
        if option in ALWAYS or value != RunConfig.model_fields[option].default:
            words += [f"--{option}", ",".join(map(str, value)) if isinstance(value, tuple) else str(value)]
    defaults = default_tree(config, own_defaults or {})
    for name, value in flat(config.to_tree()):
        if name not in (*OPTIONS, *FOUND) and (name not in defaults or defaults[name] != value):
            words += ["--set", f"{name}={as_yaml(value)}"]
    return shlex.join(words)


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


def in_words(value: Any) -> str:
    """A value as it is read: a text as it is, nothing for None."""
    return as_yaml(value) if not isinstance(value, str | None) else value or ""


# ---------------------------------------------------------------------- the section


def setup_section(run: Run) -> PageSection:
    """Everything that decided the numbers."""
    own_defaults, data = run.closer.get("defaults"), run.result["data"]
    notes = [WHERE]
    if data.get("preprocessing"):
        notes.append(f"Features: {data['preprocessing']}.")
    if data.get("features_looked_beyond_task"):
        notes.append("Features of this graph were computed from all of it, not from one task at a time.")
    if dropped := run.protocol.get("dropped_classes"):
        notes.append(f"Classes left out for having too few nodes: {', '.join(map(str, dropped))}.")
    return PageSection(
        "setup",
        "How it was made",
        codes=[("The command that makes this run again", command(run.config, own_defaults))],
        notes=notes,
        tables=[_protocol_table(run), _settings_table(run.config, own_defaults or {}), _software_table(run)],
    )


def _protocol_table(run: Run) -> CellTable:
    protocol, meaning = run.protocol, _meanings(ProtocolConfig)
    values = {name: protocol[name] for name in meaning if name in protocol}
    values |= {"batch": batch_in_words(protocol["batch"]), "stream": stream_in_words(protocol["stream"])}
    rows = [("split", "+".join(map(str, run.split)) + " classes", "Number of classes of each task.")]
    rows += [(name, in_words(value), meaning[name]) for name, value in values.items()]
    caption = "Protocol: how the graph became tasks, and how predictions were scored"
    return table(caption, ("field", "value", "meaning"), rows)


def _settings_table(config: RunConfig, own_defaults: Mapping[str, Any]) -> CellTable:
    defaults = default_tree(config, own_defaults)
    meanings = {**_meanings(RunConfig), **_meanings(EncoderConfig, "encoder."), **_meanings(TrainConfig, "train.")}
    rows = []
    for name, value in flat(config.to_tree()):
        if not name.startswith("protocol."):
            text, default = in_words(value), in_words(defaults.get(name))
            mark = "best" if default and default != text else ""
            rows.append((name, Cell(text, text, mark), default, meanings.get(name, "")))
    columns = ("setting", "value", "default", "meaning")
    return table("Configuration: all settings; bold differs from the default", columns, rows)


def _software_table(run: Run) -> CellTable:
    known = run.environment
    rows = [("run", run.name), ("graph (SHA-256)", run.result["data"]["hash"])]
    rows.append(("split of nodes (SHA-256)", run.protocol.get("split_hash", "")))
    rows += [(name, version) for name, version in (known.get("packages") or {}).items() if version]
    names = ("python", "git_commit", "platform", "processor", "device_name", "cores", "threads")
    rows += [(name.replace("_", " "), str(known[name])) for name in names if known.get(name) is not None]
    return table("Graph, software and machine", ("what", "which"), rows)


def _meanings(kind: type[BaseModel], before: str = "") -> dict[str, str]:
    docs = attribute_docs(kind)
    return {f"{before}{name}": docs.get(name, "") for name in kind.model_fields}
