"""The page of one run, with its sections on what it cost and how it was made."""

import shlex
from collections.abc import Iterator
from typing import Any

import numpy as np

from ipal.config import RunConfig, Tree
from ipal.report.cells import Cell, CellTable, seconds, signless, table
from ipal.report.collect import Run
from ipal.report.page.plots import Fact, Page, PageSection
from ipal.report.page.sections import accuracy_section, along_section, classes_section, training_section
from ipal.report.tables import as_text, as_yaml
from ipal.system.units import many, size

OPTIONS = ("dataset", "method", "seed", "split", "device", "threads")
FOUND = ("dataset_hash",)
"""What the graph says by itself."""
LEAST = 0.05
"""Points of accuracy that print as more than nothing."""


def one_run(run: Run) -> Page:
    """Everything about a run, what matters most first."""
    result, sizes = run.result, run.result.protocol.split
    split = f"{sizes[0]} classes each" if len({*sizes}) == 1 < len(sizes) else f"{'+'.join(map(str, sizes))} classes"
    sections = (
        accuracy_section, along_section, classes_section, training_section, cost_section, setup_section,
    )  # fmt: skip
    model = f"{result.model}. " if result.model else ""
    return Page(
        title=f"{result.title} on {run.dataset}",
        verdict=verdict(run),
        subtitle=(
            f"{model}{many(len(sizes), 'task')} of {split}, one after the other; seed {run.seed}. Run {run.name}."
        ),
        facts=headline(run),
        warnings=[f"About this graph: {result.data.remark}"] if result.data.remark else [],
        sections=[found for section in sections if (found := section(run))],
        name=run.name,
    )


def headline(run: Run) -> list[Fact]:
    """The headline numbers."""
    why = (
        "it stores raw nodes of earlier tasks"
        if run.result.retained.stores_exemplars
        else "old nodes pass messages again"
    )
    free = Fact("exemplar-free", "no", why, tone="warn")
    if run.result.protocol.exemplar_free:
        free = Fact("exemplar-free", "yes", "no node of an earlier task is kept or seen again", tone="good")
    change = signless(f"{run.scores['AF']:.2f}")
    return [
        Fact("AP", f"{run.scores['AP']:.2f}", "average performance: mean of the accuracy matrix's last row", "%"),
        Fact("AF", change, "average forgetting: mean change of old tasks since learned", "points"),
        Fact("time", seconds(run.costs["time of a run"]), "for all tasks, evaluation included"),
        Fact("retained", size(run.costs["retained"]), "all that the saved model keeps"),
        free,
    ]


def verdict(run: Run) -> str:
    """AP, and the task that lost most since it was learned."""
    score, lost = f"AP {run.scores['AP']:.1f} %", run.matrix.diagonal() - run.matrix[-1]
    task = int(np.argmax(lost))
    if len(lost) == 1:
        return f"{score} on a single task, so nothing could be forgotten."
    if lost[task] < LEAST:
        return f"{score}; no task lost accuracy after it was learned."
    return f"{score}; task {task + 1} lost most since it was learned, {lost[task]:.1f} points."


def cost_section(run: Run) -> PageSection:
    """What is kept, how long it took, how much memory, on what."""
    timing, retained = run.result.timing, run.result.retained
    lead = "By its method the model stores no raw node. What it does keep is all here."
    if retained.stores_exemplars:
        lead = "Raw nodes of earlier tasks are stored: anyone who has the model has them."
    notes = [
        f"An epoch took {seconds(run.costs['an epoch'])}, all tests {seconds(timing.evaluation_seconds)}.",
        f"The process held at most {size(run.costs['peak memory'])}. Measured on: {run.machine}.",
        "'ipal audit RUN' shows what can be reconstructed from the model.",
    ]
    if (turns := timing.runs_taking_turns) > 1:
        notes.append(f"{turns} runs took turns in one process: times are those of this run, memory is that of all.")
    items = sorted(((item.what, item.bytes) for item in retained.items), key=lambda item: -item[1])
    kept = table("All that is kept", ("what", "size"), [(what, Cell(size(count), count)) for what, count in items])
    return PageSection("cost", "Memory and time", lead=lead, content=[kept], notes=notes)


def setup_section(run: Run) -> PageSection:
    """Everything that decided the numbers."""
    data = run.result.data.model_dump()
    notes = [
        "The command makes the same run in a folder of the same name. It looks for the graph under IPAL_DATA, or where "
        "--data-root says."
    ]
    if data.get("preprocessing"):
        notes.append(f"Features: {data['preprocessing']}.")
    if dropped := run.result.protocol.dropped_classes:
        notes.append(f"Classes left out for having too few nodes: {', '.join(map(str, dropped))}.")
    settings = [(name, as_text(value)) for name, value in flat(run.config.to_tree())]
    content = [table("All settings", ("setting", "value"), settings), _software_table(run)]
    return PageSection("setup", "How it was made", code=command(run.config), notes=notes, content=content)


def command(config: RunConfig) -> str:
    """`ipal run …` with all settings."""
    words = ["ipal", "run"]
    for name, value in flat(config.to_tree()):
        if name in OPTIONS:
            words += [f"--{name}", ",".join(map(str, value)) if isinstance(value, list) else str(value)]
        elif name not in FOUND:
            words += ["--set", f"{name}={as_yaml(value)}"]
    return shlex.join(words)


def flat(tree: Tree) -> Iterator[tuple[str, Any]]:
    """Settings by dotted name. Only sections are opened: a value that is a mapping stays one."""
    for name, value in tree.items():
        if isinstance(value, dict) and name not in FOUND:
            yield from ((f"{name}.{inner}", leaf) for inner, leaf in value.items())
        else:
            yield name, value


def _software_table(run: Run) -> CellTable:
    known = run.folder.environment()
    rows = [("run", run.name), ("graph (SHA-256)", run.result.data.hash)]
    rows.append(("split of nodes (SHA-256)", run.result.protocol.split_hash))
    rows += [(name, version) for name, version in (known.get("packages") or {}).items() if version]
    names = ("python", "git_commit", "platform", "processor", "device_name", "cores", "threads")
    rows += [(name.replace("_", " "), str(known[name])) for name in names if known.get(name) is not None]
    return table("Graph, software and machine", ("what", "which"), rows)
