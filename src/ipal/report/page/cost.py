"""Sections on what a run costs: what it retains, what that reveals, time and memory."""

from collections.abc import Mapping
from typing import Any

from ipal.report.cells import CellTable, table
from ipal.report.collect import Run
from ipal.report.page import plots
from ipal.report.page.parts import Chart, Fact, PageSection, count, number, plural, seconds
from ipal.report.tables import size

NOT_AUDITED = "The model was not audited for this page: 'ipal audit RUN' shows what can be reconstructed from it."


def retained_section(run: Run) -> PageSection:
    """What is kept after learning, and what that says of single nodes."""
    audit, tables = run.closer.get("audit"), []
    lead = "By its method the model stores no raw node. What it does keep is all here."
    if run.stores_exemplars:
        lead = "Raw nodes of earlier tasks are stored: whoever has the model has them."
    if audit:
        classes = audit.get("data", {}).get("attempts", {}).get("classes")
        tables = [flagged_table(audit)] * bool(audit["flagged"]) + ([attempts_table(classes)] if classes else [])
    items = sorted(run.result["retained"]["items"], key=lambda item: -float(item["bytes"]))
    names, sizes = [item["what"] for item in items], [item["bytes"] for item in items]
    bars = plots.bars("kept", sizes, names, 0, "{y}: {about}", about=list(map(size, sizes)))
    chart = Chart(
        "retained",
        f"All that is kept: {size(run.costs['retained_bytes'])}",
        "One bar for each kind of thing that the saved model holds, as large as it is on disk.",
        plots.spec([bars], 100 + 44 * len(items), plots.axis("bytes", low=0), plots.axis("", names=names)),
    )
    notes = _audit_words(audit) if audit else [NOT_AUDITED]
    return PageSection("retained", "What is retained", lead=lead, charts=[chart], tables=tables, notes=notes)


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
    rows = []
    for name, found in classes.items():
        matrix, mean = found.get("from_matrix", {}), found["from_mean"]
        span, rebuilt = matrix.get("span", {}), matrix.get("rows", {})
        auc, share = span.get("auc_against_same_class"), rebuilt.get("recovered_share")
        auc = span.get("auc_against_others") if auc is None else auc
        counts = (count(int(found[what])) for what in ("taught", "compared"))
        cosines = (mean["mean_cosine"], mean["best_cosine"], auc, rebuilt.get("mean_cosine"))
        last = number(None if share is None else 100 * share, 0)
        rows.append((name, *counts, *(number(one, 3) for one in cosines), last))
    return table(caption, (*known, "cosine of rebuilt rows", "rebuilt (≥ 0.99) %"), rows)


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


def cost_section(run: Run) -> PageSection:
    """How long it took, how much memory, on what."""
    timing, costs = run.result["timing"], run.costs
    boxes = [
        Fact("time", seconds(costs["seconds"]), "learning and evaluation together"),
        Fact("evaluation", seconds(timing["evaluation_seconds"]), "of it, testing after every task"),
        Fact("peak memory", size(costs["peak_bytes"]), "the most the process held"),
    ]
    if run.history:
        boxes.insert(2, Fact("an epoch", seconds(costs["seconds_per_epoch"]), "mean over tasks"))
    notes = [f"Measured on: {run.machine}."]
    turns = timing["runs_taking_turns"]
    if turns > 1:
        notes.append(f"{turns} runs took turns in one process: times are those of this run, memory is that of all.")
    names = plots.tasks(len(run.split))
    bars = plots.bars("learning", names, timing["seconds_per_task"], 0, "{x} took {y:.2f} s to learn")
    spec = plots.spec([bars], 300, plots.axis("task", names=names), plots.axis("seconds", low=0))
    chart = Chart("time", "Time to learn each task", "Evaluation is not counted here.", spec)
    return PageSection("cost", "Time and memory", facts=boxes, charts=[chart], notes=notes)
