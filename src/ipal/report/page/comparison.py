"""The page that compares runs: those that differ in the seed alone make one row, rows of one protocol one table."""

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ipal.report import paper
from ipal.report.cells import Cell, CellTable, count, number, signless, table
from ipal.report.collect import ReportRow, Run
from ipal.report.page import plots
from ipal.report.page.parts import Chart, Fact, Page, PageSection, Spec, seconds
from ipal.report.page.scores import matrix_spec
from ipal.report.page.setup import flat, in_words
from ipal.report.statistics import listed, paired_interval, spread
from ipal.report.tables import EXEMPLARS, SCORES, arrowed, cost_cell, score_cells, size


@dataclass(frozen=True)
class Comparison:
    """Rows that can be compared: the same graph under the same protocol."""

    key: str
    title: str
    rows: Sequence[ReportRow]
    clash: str
    """A warning where runs on a graph of this name have several protocols."""

    @property
    def first(self) -> Run:
        return self.rows[0].runs[0]

    @property
    def ranked(self) -> list[ReportRow]:
        """Rows with the seeds that most have, without upper references; none if that is one row."""
        usual = Counter(row.seeds for row in self.rows).most_common(1)[0][0]
        found = [row for row in self.rows if row.seeds == usual and not row.is_upper_reference]
        return found if len(found) > 1 else []

    @property
    def best(self) -> ReportRow | None:
        """By mean AP."""
        return max(self.ranked, key=lambda row: row.mean("AP"), default=None)

    @property
    def verdict(self) -> str:
        """The best method, by how much, and whether seeds alone could explain it."""
        if not self.ranked:
            return f"{self.title}: fewer than two rows have the same seeds, so none is called best."
        best, second, *_ = sorted(self.ranked, key=lambda row: -row.mean("AP"))
        score, before = best.mean("AP"), signless(f"{best.mean('AP') - second.mean('AP'):.1f}")
        said = f"{self.title}: {best.title} is best with AP {score:.1f} %, {before} points before {second.title}"
        interval = paired_interval(best.by_seed("AP"), second.by_seed("AP"), len(self.ranked) - 1)
        if interval is None:
            return f"{said}; fewer than five seeds cannot tell whether that is chance."
        bounds = signless(f"{interval.low:.1f}") + " to " + signless(f"{interval.high:.1f}")
        zero = "excludes zero" if interval.low > 0 else "includes zero, so it may be chance"
        return f"{said}; the 95 % interval of the difference, {bounds}, {zero}."


def several_runs(runs: Sequence[Run], remarks: Sequence[str] = ()) -> Page:
    """A comparison of runs; `remarks` are on runs that are missing."""
    comparisons = _comparisons(_rows(runs))
    clashes = list(dict.fromkeys(one.clash for one in comparisons if one.clash))
    about_data = {run.dataset: run.data_remark for run in runs if run.data_remark}
    datasets = sorted({one.first.dataset for one in comparisons})
    rows = [row for one in comparisons for row in one.rows]
    tone = "warn" if clashes else ""
    return Page(
        title=f"{len(runs)} runs compared",
        verdict=_verdict(comparisons),
        subtitle=f"{', '.join(datasets)}. Runs that differ in the seed alone are one row.",
        facts=[
            Fact("runs", str(len(runs)), "finished, each with its own folder"),
            Fact("rows", str(len(rows)), "methods and settings, over seeds"),
            Fact("graphs", str(len(datasets)), ", ".join(datasets)),
            Fact("protocols", str(len(comparisons)), "numbers are compared within one only", tone=tone),
        ],
        warnings=[*clashes, *(f"{name}: {text}" for name, text in about_data.items()), *remarks],
        sections=[*(_comparison_section(one, len(comparisons) > 1) for one in comparisons), _runs_section(rows)],
        download={"runs": [run.as_plain() for run in runs]},
        name="runs",
    )


def _verdict(comparisons: Sequence[Comparison]) -> str:
    """Of the one comparison, or how often which method is best."""
    if len(comparisons) == 1:
        return comparisons[0].verdict
    wins = Counter(one.best.title for one in comparisons if one.best).most_common()
    said = ", ".join(f"{title} in {number}" for title, number in wins)
    return f"Of {len(comparisons)} comparisons, best in AP: {said}." if said else "No comparison has a best row."


# ---------------------------------------------------------------------- rows


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
    """As in a bench; else the method, and where one graph has it more than once, the settings in which rows differ."""
    if run.label:
        return run.label
    config = run.config
    same = [one.config for one in others if (one.config.method, one.config.dataset) == (config.method, config.dataset)]
    rivals = [dict(flat(other.to_tree())) for other in same]
    # Protocol, split and graph have sections of their own.
    settings = [
        f"{name.rpartition('.')[2]}={in_words(value)}"
        for name, value in flat(config.to_tree())
        if not name.startswith(("protocol.", "split", "dataset", "seed"))
        and any(other.get(name) != value for other in rivals)
    ]
    return ", ".join([run.result["title"], *settings])


def _comparisons(rows: Sequence[ReportRow]) -> list[Comparison]:
    found: dict[str, list[ReportRow]] = {}
    for row in rows:
        config = row.runs[0].config
        same = [config.dataset, config.dataset_hash, row.runs[0].rules]
        found.setdefault(json.dumps(same, sort_keys=True), []).append(row)
    comparisons = []
    for index, members in enumerate(found.values(), start=1):
        run = members[0].runs[0]
        rivals = [one[0].runs[0] for one in found.values() if one[0].runs[0].config.dataset == run.config.dataset]
        odd = [name for name in run.rules if any(other.rules[name] != run.rules[name] for other in rivals)]
        title, clash = run.dataset, ""
        if len(rivals) > 1:
            title += ": " + (", ".join(f"{name} {_value(run.rules[name])}" for name in odd) or "another graph")
            differ = f"differ in {', '.join(odd)}" if odd else "are on different graphs of this name"
            clash = (
                f"{run.dataset} has runs under {len(rivals)} protocols, which {differ}. Their numbers do not mean the "
                "same: each protocol has a section of its own, and nothing is ranked across them."
            )
        comparisons.append(Comparison(f"comparison{index}", title, members, clash))
    return comparisons


def _value(value: object) -> str:
    return "+".join(map(str, value)) if isinstance(value, list) else in_words(value)


# ---------------------------------------------------------------------- one protocol


def _comparison_section(comparison: Comparison, with_verdict: bool) -> PageSection:
    machines = sorted({run.machine for row in comparison.rows for run in row.runs})
    rules = ", ".join(f"{name.replace('_', ' ')} {_value(value)}" for name, value in comparison.first.rules.items())
    said = [comparison.verdict] * with_verdict + [
        "AP and AF on test nodes in %, mean ± sample standard deviation over seeds. Best in bold, second underlined, "
        "among rows with the same seeds; Joint, the upper reference, is not ranked.",
        *[EXEMPLARS] * any(row.stores_exemplars for row in comparison.rows),
    ]
    return PageSection(
        comparison.key,
        comparison.title,
        lead=" ".join(said),
        tables=[_comparison_table(comparison), _metrics(comparison)],
        tables_first=True,
        charts=[_dynamics(comparison), _matrices(comparison)],
        notes=[
            f"Protocol: {rules}.",
            f"Time and memory were measured on {'different machines' if len(machines) > 1 else 'one machine'}: "
            f"{'; '.join(machines)}.",
        ],
    )


def _comparison_table(comparison: Comparison) -> CellTable:
    columns = [_scores(comparison, score, comparison.ranked) for score in SCORES]
    rows = [
        (
            Cell(row.title, row.title, "best" if row is comparison.best else ""),
            *(cells[index] for cells in columns),
            Cell(listed(row.seeds), float(len(row.seeds))),
            cost_cell(row, "seconds", seconds),
            cost_cell(row, "peak_bytes", size),
            cost_cell(row, "retained_bytes", size),
            "yes" if row.runs[0].is_exemplar_free else "no",
        )
        for index, row in enumerate(comparison.rows)
    ]
    heads = ("method", *map(arrowed, SCORES), "seeds", "time of a run", "peak memory", "retained", "exemplar-free")
    return table(f"Comparison on {comparison.title}", heads, rows)


def _scores(comparison: Comparison, score: str, ranked: Sequence[ReportRow] = ()) -> list[Cell]:
    return [replace(cell, text=signless(cell.text)) for cell in score_cells(comparison.rows, score, ranked)]


def _metrics(comparison: Comparison) -> CellTable:
    """The metrics that the comparison does not have."""
    found = (score for row in comparison.rows for run in row.runs for score in run.scores)
    scores = [score for score in dict.fromkeys(found) if score not in SCORES]
    columns = [[row.title for row in comparison.rows], *(_scores(comparison, score) for score in scores)]
    heads = ("method", *map(arrowed, scores))
    return table(f"Further metrics on {comparison.title}", heads, zip(*columns, strict=True))


def _dynamics(comparison: Comparison) -> Chart:
    names = plots.tasks(len(comparison.first.split))
    lines: list[Spec] = []
    for index, row in enumerate(comparison.rows):
        summaries = [one for after in zip(*(run.curve for run in row.runs), strict=True) if (one := spread(after))]
        means, hover = [one.mean for one in summaries], "{y:.2f} % after {x}"
        lines.append(plots.line(row.title, names, means, index, hover, is_main=row is comparison.best))
        if len(row.runs) > 1:
            low, high = ([one.mean + sign * (one.deviation or 0.0) for one in summaries] for sign in (-1, 1))
            lines[-1] |= {"low": low, "high": high}
    down = plots.percent_axis("AP", [value for line in lines for value in line["y"]])
    return Chart(
        f"{comparison.key}-dynamics",
        "AP after each task",
        "A line is the mean over seeds, its band one sample standard deviation to each side; the thick line is the "
        "method with the best AP. Falling less is forgetting less; click a name to hide it, twice to see it alone.",
        plots.spec(lines, 440, plots.axis("after learning", names=names), down),
    )


def _matrices(comparison: Comparison) -> Chart:
    specs = []
    for row in comparison.rows:
        matrix = np.mean([run.matrix for run in row.runs], axis=0).tolist()
        specs.append(matrix_spec([[None if math.isnan(value) else value for value in after] for after in matrix]))
    main = next((index for index, row in enumerate(comparison.rows) if row is comparison.best), 0)
    return Chart(
        f"{comparison.key}-matrix",
        "Accuracy matrix",
        "Mean over seeds. A row is a moment, a column a task that is tested; AP is the mean of the last row.",
        {},
        [row.title for row in comparison.rows],
        specs,
        main,
    )


# ---------------------------------------------------------------------- all runs


def _runs_section(rows: Sequence[ReportRow]) -> PageSection:
    runs = [
        (run.name, row.title, run.dataset, count(run.seed), *(number(run.scores[score]) for score in SCORES))
        for row in rows
        for run in row.runs
    ]
    return PageSection(
        "runs",
        "All runs",
        lead="Every run by the name of its folder, which holds its configuration.",
        tables=[table("Runs", ("run", "method", "graph", "seed", "AP %", "AF"), runs)],
    )
