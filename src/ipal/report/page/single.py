"""The page of one run."""

from ipal.report.collect import Run
from ipal.report.page import verdict
from ipal.report.page.cost import cost_section, retained_section
from ipal.report.page.parts import Fact, Page, plural, seconds, sentence, signless
from ipal.report.page.scores import accuracy_section, classes_section, confusion_section
from ipal.report.page.setup import setup_section
from ipal.report.page.training import along_section, drift_section, losses_section, plane_section
from ipal.report.tables import size

SECTIONS = (
    accuracy_section,
    along_section,
    classes_section,
    confusion_section,
    losses_section,
    plane_section,
    drift_section,
    retained_section,
    cost_section,
    setup_section,
)


def one_run(run: Run) -> Page:
    """Everything about a run, what matters most first."""
    sizes = run.split
    split = f"{sizes[0]} classes each" if len({*sizes}) == 1 < len(sizes) else f"{'+'.join(map(str, sizes))} classes"
    model = f"{run.result['model']}. " if "model" in run.result else ""
    warnings = [str(remark) for remark in run.closer.get("remarks", ())]
    if remark := run.data_remark:
        warnings.insert(0, sentence(f"About this graph: {remark}"))
    return Page(
        title=f"{run.result['title']} on {run.dataset}",
        verdict=verdict.of_run(run),
        subtitle=(
            f"{model}{plural(len(sizes), 'task')} of {split}, one after the other; seed {run.seed}. Run {run.name}."
        ),
        facts=headline(run),
        warnings=warnings,
        sections=[found for section in SECTIONS if (found := section(run))],
        download=run.as_plain(),
        name=run.name,
    )


def headline(run: Run) -> list[Fact]:
    """The headline numbers."""
    why = "it stores raw nodes of earlier tasks" if run.stores_exemplars else "old nodes pass messages again"
    free = Fact("exemplar-free", "no", why, tone="warn")
    if run.is_exemplar_free:
        free = Fact("exemplar-free", "yes", "no node of an earlier task is kept or seen again", tone="good")
    change = signless(f"{run.scores['AF']:.2f}")
    return [
        Fact("AP", f"{run.scores['AP']:.2f}", "average performance: mean of the accuracy matrix's last row", "%"),
        Fact("AF", change, "average forgetting: mean change of old tasks since learned", "points"),
        Fact("time", seconds(run.costs["seconds"]), "for all tasks, evaluation included"),
        Fact("retained", size(run.costs["retained_bytes"]), "all that the saved model keeps"),
        free,
    ]
