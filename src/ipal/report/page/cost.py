"""Sections on what a run costs: what it retains, what that reveals, time and memory."""

from collections.abc import Mapping, Sequence
from typing import Any

from ipal.report.page import plots
from ipal.report.page.facts import Facts
from ipal.report.page.parts import (
    Chart,
    Fact,
    Section,
    Table,
    count,
    data_size,
    duration,
    number,
    plural,
    seconds,
    words,
)
from ipal.report.tables import size

NOT_AUDITED = "The model was not audited for this page: 'ipal audit RUN' shows what can be reconstructed from it."


def retained_section(facts: Facts) -> Section:
    """What is kept after learning, and what that says of single nodes."""
    audit = facts.closer.get("audit")
    stores = facts.result["retained"]["stores_exemplars"]
    lead = (
        "Raw nodes of earlier tasks are stored: whoever has the model has them."
        if stores
        else "By its method the model stores no raw node. What it does keep is all here."
    )
    tables = tuple(_audit_tables(audit)) if audit else ()
    notes = tuple(_audit_words(audit)) if audit else (NOT_AUDITED,)
    return Section(
        "retained", "What is retained", lead=lead, charts=(_retained_chart(facts),), tables=tables, notes=notes
    )


def _retained_chart(facts: Facts) -> Chart:
    items = sorted(facts.result["retained"]["items"], key=lambda item: float(item["bytes"]))
    total = facts.result["retained"]["bytes"]
    bars = {
        "type": "bar",
        "orientation": "h",
        "x": [item["bytes"] for item in items],
        "y": [plots.plain(_cut(str(item["what"]))) for item in items],
        "text": [size(item["bytes"]) for item in items],
        "textposition": "auto",
        "customdata": [plots.plain(item["what"]) for item in items],
        "marker": {"color": plots.colour(0)},
        "hovertemplate": "%{customdata}: %{text}<extra></extra>",
    }
    layout = {
        "height": 140 + 44 * len(items),
        "xaxis": {"title": {"text": "bytes"}, "rangemode": "tozero"},
        "yaxis": {"type": "category", "showgrid": False},
        "showlegend": False,
    }
    rows = tuple((words(item["what"]), data_size(item["bytes"])) for item in reversed(items))
    return Chart(
        "retained",
        f"All that is kept: {size(total)}",
        "One bar for each kind of thing that the saved model holds, as large as it is on disk.",
        {"data": [bars], "layout": layout},
        Table("What is kept", ("what", "size"), rows),
    )


def _cut(text: str) -> str:
    return text if len(text) <= 26 else text[:25].rstrip() + "…"


def _audit_tables(audit: Mapping[str, Any]) -> list[Table]:
    tables, counts = [], audit["nodes_behind_class"]
    if audit["flagged"]:
        rows = [
            (words(name), count(int(counts[name])), words("; ".join(reasons.values())))
            for name, reasons in sorted(audit["flagged"].items(), key=lambda item: int(counts[item[0]]))
        ]
        tables.append(Table("Classes that what is kept reveals", ("class", "nodes", "why"), tuple(rows)))
    if classes := audit.get("data", {}).get("attempts", {}).get("classes"):
        columns = (
            "class",
            "nodes taught",
            "compared",
            "cosine to mean",
            "best cosine",
            "tells who taught (AUC)",
            "rebuilt %",
        )
        caption = "Rows of the smallest classes, reconstructed from what is kept (cosine 1 is the row itself)"
        tables.append(Table(caption, columns, tuple(_attempt(name, one) for name, one in classes.items())))
    return tables


def _attempt(name: str, found: Mapping[str, Any]) -> tuple[Any, ...]:
    matrix = found.get("from_matrix", {})
    span, rows = matrix.get("span", {}), matrix.get("rows", {})
    auc = span.get("auc_against_same_class")
    rebuilt = rows.get("recovered_share")
    return (
        words(name),
        count(int(found["taught"])),
        count(int(found["compared"])),
        number(found["from_mean"]["mean_cosine"], 3),
        number(found["from_mean"]["best_cosine"], 3),
        number(span.get("auc_against_others") if auc is None else auc, 3),
        number(None if rebuilt is None else 100 * rebuilt, 0),
    )


def _audit_words(audit: Mapping[str, Any]) -> list[str]:
    counts = audit["nodes_behind_class"]
    said = []
    if counts:
        fewest = min(counts, key=counts.__getitem__)
        said.append(
            f"{sum(counts.values())} training nodes in {plural(len(counts), 'class')}; the fewest, "
            f"{counts[fewest]}, in class {fewest}."
        )
        if not audit["flagged"]:
            said.append("No class is flagged for its number of nodes alone.")
    said += [str(remark) for remark in audit["remarks"]]
    for what, found in audit.get("data", {}).get("stored_rows", {}).items():
        where = ", ".join(found["where"])
        verdict = f"{plural(found['found'], 'node')} found, in {where}" if found["found"] else "none found"
        said.append(f"Rows of {what} were looked for in the model ({plural(found['looked_for'], 'node')}): {verdict}.")
    return said


def cost_section(facts: Facts) -> Section:
    """How long it took, how much memory, on what."""
    timing = facts.result["timing"]
    boxes = [
        Fact("time", seconds(facts.run.seconds), "learning and evaluation together"),
        Fact("evaluation", seconds(timing["evaluation_seconds"]), "of it, testing after every task"),
        Fact("peak memory", size(facts.run.peak_bytes), "the most the process held"),
    ]
    if facts.history.rows:
        boxes.insert(2, Fact("an epoch", seconds(facts.run.seconds_per_epoch), "mean over tasks"))
    notes = [f"Measured on: {facts.run.machine}."]
    turns = timing.get("runs_taking_turns", 1)
    if turns > 1:
        notes.append(f"{turns} runs took turns in one process: times are those of this run, memory is that of all.")
    chart = _time_chart(timing["seconds_per_task"])
    return Section("cost", "Time and memory", facts=tuple(boxes), charts=(chart,), notes=tuple(notes))


def _time_chart(per_task: Sequence[float]) -> Chart:
    names = plots.tasks(len(per_task))
    spec = plots.bars("learning", names, list(per_task), 0, hover="%{x} took %{y:.2f} s to learn")
    layout = {
        "height": 300,
        "xaxis": plots.named_axis("task", names),
        "yaxis": {"title": {"text": "seconds"}, "rangemode": "tozero"},
        "showlegend": False,
        "bargap": 0.35,
    }
    rows = tuple((words(name), duration(value)) for name, value in zip(names, per_task, strict=True))
    return Chart(
        "time",
        "Time to learn each task",
        "Evaluation is not counted here.",
        {"data": [spec], "layout": layout},
        Table("Time by task", ("task", "learning"), rows),
    )
