"""The page that compares runs: those that differ in the seed alone make one row, rows of one protocol one section."""

import json
from collections.abc import Sequence
from dataclasses import replace
from statistics import mode

import numpy as np

from ipal.report import paper, tables
from ipal.report.cells import signless
from ipal.report.collect import Comparison, ReportRow, Run
from ipal.report.page import plots
from ipal.report.page.plots import Chart, Page, PageSection, Spec
from ipal.report.statistics import paired_interval


def several_runs(benches: Sequence[Comparison], runs: Sequence[Run], unread: Sequence[str] = ()) -> Page:
    """A comparison of benches, as they are, and of runs; `unread` are remarks on runs that are missing."""
    found = [*benches, *comparisons(runs)]
    datasets = sorted({one.title.partition(":")[0] for one in found})
    about_data = {f"{run.dataset}: {run.result.data.remark}": None for run in runs if run.result.data.remark}
    return Page(
        title=f"{sum(len(one.runs) for one in found)} runs compared",
        verdict=verdict(found[0]) if len(found) == 1 else f"{len(found)} comparisons, each with its best method.",
        subtitle=f"{', '.join(datasets)}. Runs that differ in the seed alone are one row.",
        warnings=[*about_data, *unread, *tables.remarks(benches)],
        sections=[_section(one, with_verdict=len(found) > 1) for one in found],
        name="runs",
    )


def verdict(found: Comparison) -> str:
    """The best method, by how much, and whether seeds alone could explain it."""
    if not found.ranked:
        return f"{found.title}: fewer than two rows have the same seeds, so none is called best."
    best, second, *_ = found.ranked
    ahead = signless(f"{best.mean('AP') - second.mean('AP'):.1f}")
    said = f"{found.title}: {best.title} is best with AP {best.mean('AP'):.1f} %, {ahead} points before {second.title}"
    interval = paired_interval(best.by_seed("AP"), second.by_seed("AP"), len(found.ranked) - 1)
    if interval is None:
        return f"{said}; fewer than five seeds cannot tell whether that is chance."
    bounds = signless(f"{interval.low:.1f}") + " to " + signless(f"{interval.high:.1f}")
    zero = "excludes zero" if interval.low > 0 else "includes zero, so it may be chance"
    return f"{said}; the 95 % interval of the difference, {bounds}, {zero}."


def comparisons(runs: Sequence[Run]) -> list[Comparison]:
    """Runs by graph and protocol."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        same = [run.config.dataset, run.config.dataset_hash, run.rules]
        groups.setdefault(json.dumps(same, sort_keys=True), []).append(run)
    made = []
    for index, (first, *others) in enumerate(groups.values(), start=1):
        title, rivals = first.dataset, [one[0].rules for one in groups.values() if one[0].dataset == first.dataset]
        if len(rivals) > 1:
            odd = {name: rule for name, rule in first.rules.items() if any(other[name] != rule for other in rivals)}
            title += f": {tables.rules_in_words(odd) or 'another graph'}"
        rows = _rows([first, *others])
        seeds = mode(tuple(run.result.seed for run in row.runs) for row in rows)
        made.append(Comparison(f"comparison{index}", first.config.dataset, title, rows, seeds))
    return made


def _rows(runs: Sequence[Run]) -> list[ReportRow]:
    """By method, and where settings differ by those that do."""
    found: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.result.seed):
        found.setdefault(json.dumps(run.settings, sort_keys=True), []).append(run)
    rows = []
    for run, *others in found.values():
        rivals = [first.settings for first, *_ in found.values() if first.config.method == run.config.method]
        odd = [
            f"{name.rpartition('.')[2]}={tables.as_text(value)}"
            for name, value in run.settings.items()
            if any(rival.get(name) != value for rival in rivals)
        ]
        stores = run.result.retained.stores_exemplars
        rows.append(ReportRow(", ".join([run.result.title, *odd]), run.config.method, [run, *others], stores))
    return sorted(rows, key=lambda row: (paper.place(row.method), row.title))


def _section(found: Comparison, with_verdict: bool) -> PageSection:
    measured, details = tables.machines(found), tables.details(found)
    shown = [
        replace(details, caption=f"Comparison on {found.title}"),
        replace(tables.further(found), caption=f"Further metrics, time and memory on {found.title}"),
    ]
    return PageSection(
        found.name,
        found.title,
        lead=" ".join([verdict(found)] * with_verdict + ["AP and AF on test nodes in %, mean ± standard deviation."]),
        content=[*shown, *([_dynamics(found)] if found.runs else ())],
        notes=[
            tables.legend([found], details),
            f"Protocol: {tables.rules_in_words(found.protocol)}.",
            f"Time and memory were measured on {'different machines' if len(measured) > 1 else 'one machine'}: "
            f"{'; '.join(measured)}.",
        ],
    )


def _dynamics(found: Comparison) -> Chart:
    names, lines = plots.tasks(len(found.runs[0].matrix)), list[Spec]()
    for index, row in enumerate(row for row in found.rows if row.runs):
        curves = np.array([run.result.average_performance_curve for run in row.runs])
        means, hover = curves.mean(axis=0), "{y:.2f} % after {x}"
        lines.append(plots.line(row.title, names, means.tolist(), index, hover, is_main=row is found.best))
        if len(curves) > 1:
            deviation = curves.std(axis=0, ddof=1)
            lines[-1] |= {"low": (means - deviation).tolist(), "high": (means + deviation).tolist()}
    return Chart(
        f"{found.name}-dynamics",
        "AP after each task",
        "A line is the mean over seeds, its band one standard deviation to each side; the thick line is the best. "
        "Click a name to hide it, twice to see it alone.",
        plots.curves(lines, {"title": "after learning", "names": names}, "AP", height=440),
    )
