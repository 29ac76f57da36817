"""The section on how a run was made: protocol, configuration, software, and the command that makes it again."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from ipal.config import (
    EncoderConfig,
    ProtocolConfig,
    RunConfig,
    TrainConfig,
    attribute_docs,
)
from ipal.report.cells import Cell, CellTable, table
from ipal.report.page.command import as_yaml, command, default_tree, flat
from ipal.report.page.facts import RunFacts
from ipal.report.page.parts import PageSection
from ipal.runs.records import batch_in_words, stream_in_words
from ipal.system.documents import write_yaml

WHERE = (
    "The command makes the same run in a folder of the same name. It looks for the graph under IPAL_DATA, or where "
    "--data-root says."
)


def setup_section(facts: RunFacts) -> PageSection:
    """Everything that decided the numbers."""
    own_defaults = facts.closer.get("defaults")
    data = facts.result["data"]
    notes = [WHERE]
    if data.get("preprocessing"):
        notes.append(f"Features: {data['preprocessing']}.")
    if data.get("features_looked_beyond_task"):
        notes.append("Features of this graph were computed from all of it, not from one task at a time.")
    if dropped := facts.protocol.get("dropped_classes"):
        notes.append(f"Classes left out for having too few nodes: {', '.join(map(str, dropped))}.")
    return PageSection(
        "setup",
        "How it was made",
        codes=[("The command that makes this run again", command(facts.config, own_defaults))],
        notes=notes,
        tables=[_protocol_table(facts), _settings_table(facts.config, own_defaults or {}), _software_table(facts)],
        folded=[("config.yaml", write_yaml(facts.config.to_tree(), allow_unicode=True))],
    )


def _protocol_table(facts: RunFacts) -> CellTable:
    protocol = facts.protocol
    values = {
        "split": "+".join(map(str, facts.split)) + " classes",
        **{name: protocol[name] for name in ProtocolConfig.model_fields if name in protocol},
    }
    values["batch"] = batch_in_words(protocol["batch"])
    values["stream"] = stream_in_words(protocol["stream"])
    meaning = {"split": "Number of classes of each task.", **_meanings(ProtocolConfig)}
    rows = [(name, _shown(value), meaning[name]) for name, value in values.items()]
    caption = "Protocol: how the graph became tasks, and how predictions were scored"
    return table(caption, ("field", "value", "meaning"), rows)


def _settings_table(config: RunConfig, own_defaults: Mapping[str, Any]) -> CellTable:
    defaults = default_tree(config, own_defaults)
    meanings = _meanings(RunConfig)
    for name, section in (("encoder", EncoderConfig), ("train", TrainConfig)):
        meanings |= {f"{name}.{setting}": text for setting, text in _meanings(section).items()}
    rows = []
    for name, value in flat(config.to_tree()):
        if not name.startswith("protocol."):
            text, default = _shown(value), _shown(defaults.get(name))
            mark = "best" if default and default != text else ""
            rows.append((name, Cell(text, text, mark), default, meanings.get(name, "")))
    columns = ("setting", "value", "default", "meaning")
    return table("Configuration: all settings; bold differs from the default", columns, rows)


def _software_table(facts: RunFacts) -> CellTable:
    known = facts.environment
    rows = [("run", facts.name), ("graph (SHA-256)", facts.result["data"]["hash"])]
    rows.append(("split of nodes (SHA-256)", facts.protocol.get("split_hash", "")))
    rows += [(name, version) for name, version in (known.get("packages") or {}).items() if version]
    names = ("python", "git_commit", "platform", "processor", "device_name", "cores", "threads", "processes")
    rows += [(name.replace("_", " "), known[name]) for name in names if known.get(name) is not None]
    return table("Graph, software and machine", ("what", "which"), [(name, str(value)) for name, value in rows])


def _meanings(kind: type[BaseModel]) -> dict[str, str]:
    docs = attribute_docs(kind)
    return {name: docs.get(name, "") for name in kind.model_fields}


def _shown(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else as_yaml(value)
