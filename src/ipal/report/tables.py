"""Rows and cells from benches, and their Markdown, LaTeX and CSV."""

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ipal.evaluation.metrics import is_higher_better
from ipal.report import paper
from ipal.report.collect import Bench, ReportRow, plain_name
from ipal.report.statistics import marks, paired_interval, spread

SCORES = ("AP", "AF")
"""Of the paper's tables."""
NOT_OF_JOINT = ("AF", "BWT")
NUMBER_FIELDS = ["bench", "dataset", "row", "method", "stores_exemplars", "score", "statistic", "seed", "value"]


@dataclass(frozen=True)
class ReportCell:
    text: str = ""
    mark: str = ""
    """best, second or nothing."""


@dataclass(frozen=True)
class ReportTable:
    columns: tuple[str, ...]
    rows: tuple[tuple[ReportCell, ...], ...]
    groups: tuple[str, ...] = ()
    """Headings over equally many columns each, after the first column."""


# ---------------------------------------------------------------------- tables


def wide(benches: Sequence[Bench]) -> ReportTable:
    """Table 1 or 2: every method in one row, AP and AF of every dataset in columns."""
    lookup = [{row.key: row for row in bench.rows} for bench in benches]
    columns = [score_cells(bench, score) for bench in benches for score in SCORES]
    rows = []
    for key in _row_order(benches):
        cells = [column.get(key, ReportCell()) for column in columns]
        title = next(rows_of[key].marked_title for rows_of in lookup if key in rows_of)
        rows.append((ReportCell(title), *cells))
    return ReportTable(
        ("method", *(arrowed(score) for _ in benches for score in SCORES)), tuple(rows), _headings(benches)
    )


def score_cells(bench: Bench, score: str) -> dict[str, ReportCell]:
    """One column: mean ± deviation by row, best and second marked.

    Joint learning bounds the others from above, so it is not ranked; nor are rows with seeds missing or of another
    protocol, whose numbers do not mean the same.
    """
    summaries = {row.key: spread(list(row.by_seed(score).values())) for row in bench.rows}
    sign = 1 if is_higher_better(score) else -1
    ranked = [
        sign * summary.mean
        if (summary := summaries[row.key]) and row.is_complete and not row.is_upper_reference and bench.is_usual(row)
        else None
        for row in bench.rows
    ]
    cells = {}
    for row, mark in zip(bench.rows, marks(ranked), strict=True):
        if score in NOT_OF_JOINT and row.is_upper_reference and row.runs:
            cells[row.key] = ReportCell("–")  # trained anew on everything: a dash in the paper
            continue
        few = f" ({len(row.runs)}/{len(bench.manifest.seeds)})" if row.runs and not row.is_complete else ""
        cells[row.key] = ReportCell(pretty(summaries[row.key]) + few, mark)
    return cells


def arrowed(score: str) -> str:
    """A score with the direction in which it is better."""
    return f"{score} {'↑' if is_higher_better(score) else '↓'}"


def metrics(bench: Bench) -> ReportTable:
    """One dataset: every metric that its runs have."""
    columns = [score_cells(bench, score) for score in bench.scores]
    rows = ((ReportCell(row.marked_title), *(column[row.key] for column in columns)) for row in _sorted_rows(bench))
    return ReportTable(("method", *map(arrowed, bench.scores)), tuple(rows))


def details(bench: Bench) -> ReportTable:
    """One dataset: scores, difference to IPAL, the paper's numbers where they exist, settings."""
    scores = {score: score_cells(bench, score) for score in SCORES}
    beside_paper = bench.is_comparable_to_paper
    columns = ["method", *map(arrowed, SCORES), "AP against IPAL [95 %]"]
    columns += ["paper AP", "paper AF"] if beside_paper else []
    rows = []
    for row in _sorted_rows(bench):
        printed = [ReportCell(pretty(score)) for score in printed_scores(bench, row)] if beside_paper else []
        own = [scores[score][row.key] for score in SCORES]
        rows.append(
            (ReportCell(row.marked_title), *own, ReportCell(_against(bench, row)), *printed, ReportCell(_settings(row)))
        )
    return ReportTable((*columns, "settings"), tuple(rows))


def cost(bench: Bench) -> ReportTable:
    """Time and memory of one dataset's runs."""
    rows = []
    for row in _sorted_rows(bench):
        mean = {
            field: summary.mean if (summary := spread(row.over_runs(field))) else None
            for field in ("seconds", "seconds_per_epoch", "peak_bytes", "retained_bytes")
        }
        cells = [
            _seconds(mean["seconds"]),
            _seconds(mean["seconds_per_epoch"]),
            size(mean["peak_bytes"]) + _shared(row.over_runs("taking_turns")),
            size(mean["retained_bytes"]),
            "yes" if row.entry.stores_exemplars else "no",
        ]
        rows.append((ReportCell(row.marked_title), *map(ReportCell, cells)))
    return ReportTable(("method", "s a run", "s an epoch", "peak memory", "retained", "stores exemplars"), tuple(rows))


def _shared(turns: Sequence[float]) -> str:
    """Remark on a peak of memory that several runs share."""
    most = round(max(turns, default=1))
    return f" ({most} runs together)" if most > 1 else ""


def search(points: Sequence[tuple[str, Mapping[str, Any], Sequence[float]]]) -> ReportTable:
    """What was tried to choose the settings of rows, by validation scores; the best of each row in bold."""
    best: dict[str, float] = {}
    for label, _, scores in points:
        if (summary := spread(list(scores))) and summary.mean > best.get(label, float("-inf")):
            best[label] = summary.mean
    rows = []
    for label, settings, scores in points:
        summary = spread(list(scores))
        mark = "best" if summary and summary.mean == best[label] else ""
        text = ", ".join(f"`{name}={value}`" for name, value in settings.items())
        rows.append((ReportCell(label), ReportCell(text), ReportCell(pretty(summary), mark)))
    return ReportTable(("row", "settings", "validation AP"), tuple(rows))


def reproducibility(benches: Sequence[Bench]) -> ReportTable:
    """Every number of the paper's tables beside ours, run or not, with the reason for the difference."""
    rows, order = [], list(paper.DATASETS)
    for (dataset, method), printed in sorted(paper.PRINTED.items(), key=lambda item: order.index(item[0][0])):
        ours = _ours(benches, dataset, method)
        cells = []
        for score, theirs in zip(SCORES, printed, strict=True):
            mine = spread(list(ours.by_seed(score).values())) if ours and theirs else None
            difference = f"{mine.mean - theirs.mean:+.2f}" if mine and theirs else ""
            cells += [ReportCell(pretty(theirs)), ReportCell(pretty(mine)), ReportCell(difference)]
        reason = paper.WHY.get((dataset, method), paper.NOT_EXAMINED) if ours else "not run"
        title = paper.METHODS.get(method, f"IPAL with `{method}`")
        rows.append((ReportCell(title), ReportCell(paper.DATASETS[dataset]), *cells, ReportCell(reason)))
    scores = [f"{whose}{score}" for score in SCORES for whose in ("paper ", "our ", "difference in ")]
    return ReportTable(("method", "dataset", *scores, "why they differ"), tuple(rows))


def printed_scores(bench: Bench, row: ReportRow) -> paper.Printed:
    """What the paper prints for this row; a proxy of its graph or another protocol has nothing to be compared with."""
    if not (bench.is_comparable_to_paper and bench.is_usual(row)):
        return None, None
    return paper.PRINTED.get((bench.manifest.dataset, _paper_key(bench, row)), (None, None))


def _paper_key(bench: Bench, row: ReportRow) -> str:
    is_ablation = bench.manifest.kind != "table1" and plain_name(row.entry.method) == "ipal"
    return (row.switch or "ipal") if is_ablation else row.key


# ---------------------------------------------------------------------- texts of cells


def pretty(score: Any) -> str:
    """`83.07 ± 2.16`."""
    if score is None:
        return ""
    return f"{score.mean:.2f}" if score.deviation is None else f"{score.mean:.2f} ± {score.deviation:.2f}"


def size(count: float | None) -> str:
    if count is None:
        return ""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count:.0f} B"


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:#.3g}" if value < 100 else f"{value:.0f}"


def _against(bench: Bench, row: ReportRow) -> str:
    if bench.reference is None:
        return ""
    if row is bench.reference:
        return "reference"
    interval = paired_interval(row.by_seed("AP"), bench.reference.by_seed("AP"))
    return f"{interval.difference:+.2f} [{interval.low:+.2f}, {interval.high:+.2f}]" if interval else ""


def _settings(row: ReportRow) -> str:
    """What was set, and out of how many values it was chosen."""
    chosen = {name: f" (of {len(values)})" for name, values in row.entry.grid.items()}
    return ", ".join(f"`{name}={value}`{chosen.get(name, '')}" for name, value in row.entry.settings.items())


# ---------------------------------------------------------------------- order


def _row_order(benches: Sequence[Bench]) -> list[str]:
    """Table 1 in the paper's order of methods, variants after their method; Table 2 as its experiment file has it."""
    seen = {row.key: row for bench in benches for row in bench.rows}
    if any(bench.manifest.kind != "table1" for bench in benches):
        return list(seen)
    return sorted(seen, key=lambda key: _place(seen[key]))


def _sorted_rows(bench: Bench) -> list[ReportRow]:
    rows = {row.key: row for row in bench.rows}
    return [rows[key] for key in _row_order([bench])]


def _place(row: ReportRow) -> tuple[int, bool]:
    methods, name = list(paper.METHODS), plain_name(row.entry.method)
    return (methods.index(name) if name in methods else len(methods), row.key != name)


def _headings(benches: Sequence[Bench]) -> tuple[str, ...]:
    """Datasets; with the bench's name where one dataset has several."""
    count = Counter(bench.title for bench in benches)
    return tuple(bench.title if count[bench.title] == 1 else f"{bench.title}, {bench.name}" for bench in benches)


def _ours(benches: Sequence[Bench], dataset: str, method: str) -> ReportRow | None:
    """Our row for a number of the paper."""
    kind = "table2" if "=" in method else "table1"
    for bench in (bench for bench in benches if (bench.manifest.kind, bench.manifest.dataset) == (kind, dataset)):
        for row in (row for row in bench.rows if row.runs and _paper_key(bench, row) == method):
            if any(printed_scores(bench, row)):
                return row
    return None


# ---------------------------------------------------------------------- formats


def markdown(table: ReportTable) -> str:
    """A pipe table; best bold, second underlined."""
    width = (len(table.columns) - 1) // len(table.groups) if table.groups else 0
    heads = [table.columns[0]]
    for index, column in enumerate(table.columns[1:]):
        heads.append(f"{table.groups[index // width]} {column}" if width else column)
    styles = {"best": "**{}**", "second": "<u>{}</u>", "": "{}"}
    lines = [" | ".join(heads), "|".join(["---"] * len(heads))]
    for row in table.rows:
        lines.append(" | ".join(styles[cell.mark].format(cell.text.replace("|", r"\|")) for cell in row))
    return "\n".join(f"| {line} |" if "---" not in line else f"|{line}|" for line in lines)


LATEX_SIGNS = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "†": r"$^{\dagger}$",
    "↑": r"$\uparrow$",
    "γ": r"$\gamma$",
    "–": "--",
    "<": r"$<$",
    ">": r"$>$",
}


def latex(table: ReportTable, caption: str, label: str, remarks: Sequence[str] = ()) -> str:
    """A table for LaTeX with the packages booktabs and graphicx, shrunk where it is wider than the page."""
    styles = {"best": r"\textbf{%s}", "second": r"\underline{%s}", "": "%s"}
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_escape(caption)}}}",
        rf"\label{{{label}}}",
        r"\resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{l{'c' * (len(table.columns) - 1)}}}",
        r"\toprule",
    ]
    if table.groups:
        width = (len(table.columns) - 1) // len(table.groups)
        lines.append(
            " & ".join(["", *(rf"\multicolumn{{{width}}}{{c}}{{{_escape(g)}}}" for g in table.groups)]) + r" \\"
        )
        rules = ((2 + width * index, 1 + width * (index + 1)) for index in range(len(table.groups)))
        lines.append(" ".join(rf"\cmidrule(lr){{{first}-{last}}}" for first, last in rules))
    lines += [" & ".join(map(_escape, table.columns)) + r" \\", r"\midrule"]
    lines += [" & ".join(styles[cell.mark] % _escape(cell.text) for cell in row) + r" \\" for row in table.rows]
    lines += [r"\bottomrule", r"\end{tabular}}", r"\end{table}", *(f"% {remark}" for remark in remarks)]
    return "\n".join(lines) + "\n"


def _escape(text: str) -> str:
    escaped = "".join(LATEX_SIGNS.get(sign, sign) for sign in text)
    return re.sub(r"(?<![\w-])-(?=\d)", "$-$", escaped)


def numbers(benches: Sequence[Bench]) -> Iterator[dict[str, Any]]:
    """Every number behind a table on its own, in full precision."""
    for bench in benches:
        for row in _sorted_rows(bench):
            printed = dict(zip(SCORES, printed_scores(bench, row), strict=True))
            for score in bench.scores:
                for statistic, seed, value in _statistics(bench, row, score, printed):
                    yield {
                        "bench": bench.name,
                        "dataset": bench.manifest.dataset,
                        "row": row.title,
                        "method": row.entry.method,
                        "stores_exemplars": row.entry.stores_exemplars,
                        "score": score,
                        "statistic": statistic,
                        "seed": seed,
                        "value": value,
                    }


def _statistics(
    bench: Bench, row: ReportRow, score: str, printed: Mapping[str, paper.Score | None]
) -> Iterator[tuple[str, int | str, float]]:
    by_seed = row.by_seed(score)
    for seed, value in by_seed.items():
        yield "seed", seed, value
    if summary := spread(list(by_seed.values())):
        yield "mean", "", summary.mean
        if summary.deviation is not None:
            yield "deviation", "", summary.deviation
    if (theirs := printed.get(score)) is not None:
        yield "paper mean", "", theirs.mean
        yield "paper deviation", "", theirs.deviation
    if bench.reference and row is not bench.reference:
        interval = paired_interval(by_seed, bench.reference.by_seed(score))
        for name, value in zip(("difference to IPAL", "interval low", "interval high"), interval or (), strict=False):
            yield name, "", value


def to_csv(rows: Iterable[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, NUMBER_FIELDS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
