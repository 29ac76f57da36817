"""The page of one run."""

from ipal.report.page import verdict
from ipal.report.page.along import along_sections
from ipal.report.page.cost import cost_section, retained_section
from ipal.report.page.facts import RunFacts
from ipal.report.page.parts import Fact, Page, plural, seconds, sentence, signless
from ipal.report.page.scores import accuracy_section, classes_section, confusion_section
from ipal.report.page.setup import setup_section
from ipal.report.page.training import drift_section, losses_section, plane_section
from ipal.report.tables import size

SECTIONS = (
    accuracy_section,
    classes_section,
    confusion_section,
    losses_section,
    plane_section,
    drift_section,
    retained_section,
    cost_section,
    setup_section,
)


def one_run(facts: RunFacts) -> Page:
    """Everything about a run, what matters most first."""
    sizes = facts.split
    split = f"{sizes[0]} classes each" if len({*sizes}) == 1 < len(sizes) else f"{'+'.join(map(str, sizes))} classes"
    model = f"{facts.result['model']}. " if "model" in facts.result else ""
    warnings = [str(remark) for remark in facts.closer.get("remarks", ())]
    if remark := facts.data_remark:
        warnings.insert(0, sentence(f"About this graph: {remark}"))
    return Page(
        title=f"{facts.title} on {facts.dataset}",
        verdict=verdict.of_run(facts),
        subtitle=(
            f"{model}{plural(len(facts.split), 'task')} of {split}, one after the other; seed {facts.config.seed}. "
            f"Run {facts.name}."
        ),
        facts=headline(facts),
        warnings=warnings,
        sections=[SECTIONS[0](facts), *along_sections(facts), *(section(facts) for section in SECTIONS[1:])],
        download=facts.as_plain(),
        name=facts.name,
    )


def headline(facts: RunFacts) -> list[Fact]:
    """The headline numbers."""
    free = facts.is_exemplar_free
    why = (
        "no node of an earlier task is kept or seen again"
        if free
        else "it stores raw nodes of earlier tasks"
        if facts.stores_exemplars
        else "old nodes pass messages again"
    )
    change = facts.scores["AF"]
    return [
        Fact("AP", f"{facts.scores['AP']:.2f}", "average performance: mean of the accuracy matrix's last row", "%"),
        Fact("AF", signless(f"{change:.2f}"), "average forgetting: mean change of old tasks since learned", "points"),
        Fact("time", seconds(facts.seconds), "for all tasks, evaluation included"),
        Fact("retained", size(facts.retained_bytes), "all that the saved model keeps"),
        Fact("exemplar-free", "yes" if free else "no", why, tone="good" if free else "warn"),
    ]
