"""Sections on what a run costs: what it retains, what that reveals, time and memory."""

from ipal.report.audit import attempts_table, audit_in_words, flagged_table
from ipal.report.collect import Run
from ipal.report.page import plots
from ipal.report.page.parts import Chart, Fact, PageSection, seconds
from ipal.report.tables import size

NOT_AUDITED = "The model was not audited for this page: 'ipal audit RUN' shows what can be reconstructed from it."


def retained_section(run: Run) -> PageSection:
    """What is kept after learning, and what that says of single nodes."""
    audit, tables = run.closer.get("audit"), []
    lead = "By its method the model stores no raw node. What it does keep is all here."
    if run.stores_exemplars:
        lead = "Raw nodes of earlier tasks are stored: anyone who has the model has them."
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
    notes = audit_in_words(audit) if audit else [NOT_AUDITED]
    return PageSection("retained", "What is retained", lead=lead, charts=[chart], tables=tables, notes=notes)


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
