"""The page that compares runs: those that differ in the seed alone make one row, rows of one protocol one section."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ipal.report import paper, tables
from ipal.report.cells import count, number, signless, table
from ipal.report.collect import Comparison, ReportRow, Run
from ipal.report.page import plots
from ipal.report.page.plots import Chart, Fact, Page, PageSection, Spec
from ipal.report.page.sections import matrix_spec
from ipal.report.page.single import flat
from ipal.report.statistics import paired_interval, spread


def several_runs(benches: Sequence[Comparison], runs: Sequence[Run], unread: Sequence[str] = ()) -> Page:
    """A comparison of benches, as they are, and of runs; `unread` are remarks on runs that are missing."""
    grouped, clashes = comparisons(runs)
    found = [*benches, *grouped]
    every = [run for one in found for run in one.runs]
    datasets = sorted({one.title.partition(":")[0] for one in found})
    about_data = {run.dataset: f"{run.dataset}: {run.data_remark}" for run in runs if run.data_remark}
    return Page(
        title=f"{len(every)} runs compared",
        verdict=_verdict(found),
        subtitle=f"{', '.join(datasets)}. Runs that differ in the seed alone are one row.",
        facts=[
            Fact("runs", str(len(every)), "finished, each with its own folder"),
            Fact("rows", str(sum(len(one.rows) for one in found)), "methods and settings, over seeds"),
            Fact("graphs", str(len(datasets)), ", ".join(datasets)),
            Fact("tables", str(len(found)), "numbers are compared within one only", tone="warn" * bool(clashes)),
        ],
        warnings=[
            *clashes,
            *about_data.values(),
            *unread,
            *(told for bench in benches for told in tables.remarks([bench])),
        ],
        sections=[*(_section(one, with_verdict=len(found) > 1) for one in found), _runs_section(found)],
        download={"runs": [{"run": run.name, "result": dict(run.result)} for run in every]},
        name="runs",
    )


def _verdict(found: Sequence[Comparison]) -> str:
    """Of the one comparison, or how often which method is best."""
    if len(found) == 1:
        return verdict(found[0])
    wins = Counter(one.best.title for one in found if one.best).most_common()
    said = ", ".join(f"{title} in {number}" for title, number in wins)
    return f"Of {len(found)} comparisons, best in AP: {said}." if said else "No comparison has a best row."


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


# ---------------------------------------------------------------------- runs as comparisons


def comparisons(runs: Sequence[Run]) -> tuple[list[Comparison], list[str]]:
    """Rows by graph and protocol; and warnings where runs on one graph have several protocols."""
    found: dict[str, list[ReportRow]] = {}
    for row in _rows(runs):
        config = row.runs[0].config
        same = [config.dataset, config.dataset_hash, row.runs[0].rules]
        found.setdefault(json.dumps(same, sort_keys=True), []).append(row)
    made, clashes = [], dict[str, None]()
    for index, rows in enumerate(found.values(), start=1):
        run, title = rows[0].runs[0], rows[0].runs[0].dataset
        rivals = [one[0].runs[0] for one in found.values() if one[0].runs[0].config.dataset == run.config.dataset]
        odd = [name for name in run.rules if any(other.rules[name] != run.rules[name] for other in rivals)]
        if len(rivals) > 1:
            own = ", ".join(f"{name} {tables.rule_in_words(name, run.rules[name])}" for name in odd)
            title += f": {own or 'another graph'}"
            clashes[
                f"{run.dataset} has runs under {len(rivals)} protocols, which "
                + (f"differ in {', '.join(odd)}" if odd else "are on different graphs of this name")
                + ". Their numbers do not mean the same: each protocol has a section of its own."
            ] = None
        seeds = Counter(tuple(run.seed for run in row.runs) for row in rows).most_common(1)[0][0]
        made.append(Comparison(f"comparison{index}", run.config.dataset, title, rows, seeds))
    return made, list(clashes)


def _rows(runs: Sequence[Run]) -> list[ReportRow]:
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(json.dumps({**run.config.to_tree(), "seed": None}, sort_keys=True), []).append(run)
    by_seed = [sorted(members, key=lambda run: run.seed) for members in found.values()]
    firsts = [members[0] for members in by_seed]
    rows = [
        ReportRow(_label(first, firsts), first.config.method, members, first.stores_exemplars)
        for first, members in zip(firsts, by_seed, strict=True)
    ]
    return sorted(rows, key=lambda row: (paper.place(row.method), row.title))


def _label(run: Run, others: Sequence[Run]) -> str:
    """The method, and where one graph has it more than once, the settings in which its rows differ."""
    config = run.config
    same = [one.config for one in others if (one.config.method, one.config.dataset) == (config.method, config.dataset)]
    rivals = [dict(flat(other.to_tree())) for other in same]
    # Protocol, split and graph have sections of their own.
    settings = [
        f"{name.rpartition('.')[2]}={tables.as_text(value)}"
        for name, value in flat(config.to_tree())
        if not name.startswith(("protocol.", "split", "dataset", "seed"))
        and any(other.get(name) != value for other in rivals)
    ]
    return ", ".join([run.result["title"], *settings])


# ---------------------------------------------------------------------- one comparison


def _section(found: Comparison, with_verdict: bool) -> PageSection:
    measured = tables.machines(found)
    shown = [
        replace(tables.details(found), caption=f"Comparison on {found.title}"),
        replace(tables.further(found), caption=f"Further metrics, time and memory on {found.title}"),
    ]
    return PageSection(
        found.name,
        found.title,
        lead=" ".join([verdict(found)] * with_verdict + ["AP and AF on test nodes in %, mean ± standard deviation."]),
        content=[*shown, *([_dynamics(found), _matrices(found)] if found.runs else ())],
        notes=[
            tables.legend([found], compared=True),
            f"Protocol: {tables.rules_in_words(found.protocol)}.",
            f"Time and memory were measured on {'different machines' if len(measured) > 1 else 'one machine'}: "
            f"{'; '.join(measured)}.",
        ],
    )


def _dynamics(found: Comparison) -> Chart:
    names, lines = plots.tasks(len(found.runs[0].split)), list[Spec]()
    for index, row in enumerate(row for row in found.rows if row.runs):
        summaries = [one for after in zip(*(run.curve for run in row.runs), strict=True) if (one := spread(after))]
        means, hover = [one.mean for one in summaries], "{y:.2f} % after {x}"
        lines.append(plots.line(row.title, names, means, index, hover, is_main=row is found.best))
        if len(row.runs) > 1:
            low, high = ([one.mean + sign * (one.deviation or 0.0) for one in summaries] for sign in (-1, 1))
            lines[-1] |= {"low": low, "high": high}
    down = plots.percent_axis("AP", [value for line in lines for value in line["y"]])
    return Chart(
        f"{found.name}-dynamics",
        "AP after each task",
        "A line is the mean over seeds, its band one standard deviation to each side; the thick line is the best. "
        "Click a name to hide it, twice to see it alone.",
        plots.spec(lines, 440, plots.axis("after learning", names=names), down),
    )


def _matrices(found: Comparison) -> Chart:
    rows = [row for row in found.rows if row.runs]
    return Chart(
        f"{found.name}-matrix",
        "Accuracy matrix",
        "Mean over seeds: a row is a moment, a column a task that is tested.",
        {},
        [row.title for row in rows],
        [matrix_spec(np.mean([run.matrix for run in row.runs], axis=0)) for row in rows],
        next((index for index, row in enumerate(rows) if row is found.best), 0),
    )


def _runs_section(found: Sequence[Comparison]) -> PageSection:
    rows = [
        (run.name, row.title, run.dataset, count(run.seed), *(number(run.scores[score]) for score in tables.SCORES))
        for one in found
        for row in one.rows
        for run in row.runs
    ]
    lead = "Every run by the name of its folder, which holds its configuration."
    shown = table("Runs", ("run", "method", "graph", "seed", "AP %", "AF"), rows)
    return PageSection("runs", "All runs", lead=lead, content=[shown])
