"""Sections on what a run costs: what it retains, what that reveals, time and memory."""

from collections.abc import Mapping, Sequence
from typing import Any

from ipal.report.cells import Cell, CellTable, Row, table
from ipal.report.page import plots
from ipal.report.page.facts import RunFacts
from ipal.report.page.parts import Chart, Fact, PageSection, count, number, plural, seconds
from ipal.report.tables import size

NOT_AUDITED = "The model was not audited for this page: 'ipal audit RUN' shows what can be reconstructed from it."


def retained_section(facts: RunFacts) -> PageSection:
    """What is kept after learning, and what that says of single nodes."""
    audit = facts.closer.get("audit")
    lead = (
        "Raw nodes of earlier tasks are stored: whoever has the model has them."
        if facts.stores_exemplars
        else "By its method the model stores no raw node. What it does keep is all here."
    )
    tables = _audit_tables(audit) if audit else []
    notes = _audit_words(audit) if audit else [NOT_AUDITED]
    return PageSection(
        "retained", "What is retained", lead=lead, charts=[_retained_chart(facts)], tables=tables, notes=notes
    )


def _retained_chart(facts: RunFacts) -> Chart:
    items = sorted(facts.result["retained"]["items"], key=lambda item: -float(item["bytes"]))
    names, sizes = [item["what"] for item in items], [item["bytes"] for item in items]
    bars = plots.bars("kept", sizes, names, 0, "{y}: {about}", about=list(map(size, sizes)))
    return Chart(
        "retained",
        f"All that is kept: {size(facts.result['retained']['bytes'])}",
        "One bar for each kind of thing that the saved model holds, as large as it is on disk.",
        plots.spec([bars], 100 + 44 * len(items), plots.axis_from_zero("bytes"), plots.named_axis("", names)),
        table("What is kept", ("what", "size"), [(one["what"], _sized(one["bytes"])) for one in items]),
    )


def _sized(value: float) -> Cell:
    return Cell(size(value), value)


def _audit_tables(audit: Mapping[str, Any]) -> list[CellTable]:
    flagged = flagged_table(audit)
    classes = audit.get("data", {}).get("attempts", {}).get("classes")
    return [flagged] * bool(flagged.rows) + ([attempts_table(classes)] if classes else [])


def flagged_table(audit: Mapping[str, Any]) -> CellTable:
    """Classes of few nodes, the smallest first."""
    counts = audit["nodes_behind_class"]
    rows = [
        (name, count(int(counts[name])), "; ".join(reasons.values()))
        for name, reasons in sorted(audit["flagged"].items(), key=lambda item: int(counts[item[0]]))
    ]
    return table("Classes that what is kept reveals", ("class", "nodes", "why"), rows)


def attempts_table(classes: Mapping[str, Mapping[str, Any]]) -> CellTable:
    """How well rows of the smallest classes were reconstructed."""
    known = ("class", "nodes taught", "compared", "cosine to mean", "best cosine", "tells who taught (AUC)")
    caption = "Rows of the smallest classes, reconstructed from what is kept (cosine 1 is the row itself)"
    rows = [_attempt(name, one) for name, one in classes.items()]
    return table(caption, (*known, "cosine of rebuilt rows", "rebuilt (≥ 0.99) %"), rows)


def _attempt(name: str, found: Mapping[str, Any]) -> Row:
    matrix, mean = found.get("from_matrix", {}), found["from_mean"]
    span, rows = matrix.get("span", {}), matrix.get("rows", {})
    auc, rebuilt = span.get("auc_against_same_class"), rows.get("recovered_share")
    if auc is None:
        auc = span.get("auc_against_others")
    counts = (count(int(found[what])) for what in ("taught", "compared"))
    cosines = (mean["mean_cosine"], mean["best_cosine"], auc, rows.get("mean_cosine"))
    return name, *counts, *(number(one, 3) for one in cosines), number(None if rebuilt is None else 100 * rebuilt, 0)


def counts_in_words(audit: Mapping[str, Any]) -> list[str]:
    """How many nodes taught the classes that a model keeps."""
    counts = audit["nodes_behind_class"]
    if not counts:
        return []
    fewest = min(counts, key=counts.__getitem__)
    total = f"{sum(counts.values())} training nodes in {plural(len(counts), 'class')}"
    said = [f"{total}; the fewest, {counts[fewest]}, in class {fewest}."]
    return said if audit["flagged"] else [*said, "No class is flagged for its number of nodes alone."]


def _audit_words(audit: Mapping[str, Any]) -> list[str]:
    said = counts_in_words(audit)
    said += [str(remark) for remark in audit["remarks"]]
    for what, found in audit.get("data", {}).get("stored_rows", {}).items():
        where = ", ".join(found["where"])
        verdict = f"{plural(found['found'], 'node')} found, in {where}" if found["found"] else "none found"
        said.append(f"Rows of {what} were looked for in the model ({plural(found['looked_for'], 'node')}): {verdict}.")
    return said


def cost_section(facts: RunFacts) -> PageSection:
    """How long it took, how much memory, on what."""
    timing = facts.result["timing"]
    boxes = [
        Fact("time", seconds(facts.seconds), "learning and evaluation together"),
        Fact("evaluation", seconds(timing["evaluation_seconds"]), "of it, testing after every task"),
        Fact("peak memory", size(facts.peak_bytes), "the most the process held"),
    ]
    if facts.history:
        boxes.insert(2, Fact("an epoch", seconds(facts.seconds_per_epoch), "mean over tasks"))
    notes = [f"Measured on: {facts.machine}."]
    turns = timing["runs_taking_turns"]
    if turns > 1:
        notes.append(f"{turns} runs took turns in one process: times are those of this run, memory is that of all.")
    chart = _time_chart(timing["seconds_per_task"])
    return PageSection("cost", "Time and memory", facts=boxes, charts=[chart], notes=notes)


def _time_chart(per_task: Sequence[float]) -> Chart:
    names = plots.tasks(len(per_task))
    bars = plots.bars("learning", names, per_task, 0, "{x} took {y:.2f} s to learn")
    across, down = plots.named_axis("task", names), plots.axis_from_zero("seconds")
    rows = [(name, Cell(seconds(value), value)) for name, value in zip(names, per_task, strict=True)]
    return Chart(
        "time",
        "Time to learn each task",
        "Evaluation is not counted here.",
        plots.spec([bars], 300, across, down),
        table("Time by task", ("task", "learning"), rows),
    )
