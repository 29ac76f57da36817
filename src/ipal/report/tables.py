"""Rows and cells from benches, and their Markdown, LaTeX and CSV."""

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from ipal.evaluation.metrics import is_higher_better
from ipal.report import paper
from ipal.report.cells import Cell, CellTable, table
from ipal.report.collect import ReportRow, StoredBench
from ipal.report.statistics import Spread, marks, paired_interval, spread

SCORES = ("AP", "AF")
"""Of the paper's tables."""
CHANGES = ("AF", "BWT")
"""Not of the upper reference, which is trained anew on everything: a dash in the paper."""
EXEMPLARS = "† stores raw nodes of earlier tasks."


# ---------------------------------------------------------------------- tables


def wide(benches: Sequence[StoredBench]) -> CellTable:
    """Table 1 or 2: every method in one row, AP and AF of every dataset in columns."""
    columns = [score_cells(bench, score) for bench in benches for score in SCORES]
    rows = [(row.marked_title, *(column.get(row.key, "") for column in columns)) for row in _sorted_rows(benches)]
    return table(
        "", ("method", *(arrowed(score) for _ in benches for score in SCORES)), rows, groups=_headings(benches)
    )


def score_cells(bench: StoredBench, score: str) -> dict[str, Cell]:
    """One column: mean ± deviation by row, best and second marked.

    The upper reference bounds the others from above, so it is not ranked; nor are rows with seeds missing or of another
    protocol, whose numbers do not mean the same.
    """
    summaries = [spread(list(row.by_seed(score).values())) for row in bench.rows]
    sign = 1 if is_higher_better(score) else -1
    ranked = [
        sign * summary.mean
        if summary and row.is_complete and not row.is_upper_reference and bench.is_usual(row)
        else None
        for row, summary in zip(bench.rows, summaries, strict=True)
    ]
    cells = {}
    for row, summary, mark in zip(bench.rows, summaries, marks(ranked), strict=True):
        few = f" ({len(row.runs)}/{len(bench.manifest.seeds)})" if row.runs and not row.is_complete else ""
        is_dash = score in CHANGES and row.is_upper_reference
        cells[row.key] = Cell("–", None) if is_dash else _cell(summary, mark, few)
    return cells


def arrowed(score: str) -> str:
    """A score with the direction in which it is better."""
    return f"{score} {'↑' if is_higher_better(score) else '↓'}"


def metrics(bench: StoredBench) -> CellTable:
    """One dataset: every metric that its runs have."""
    columns = [score_cells(bench, score) for score in bench.scores]
    rows = [(row.marked_title, *(column[row.key] for column in columns)) for row in _sorted_rows([bench])]
    return table("", ("method", *map(arrowed, bench.scores)), rows)


def details(bench: StoredBench) -> CellTable:
    """One dataset: scores, differences to other rows, the paper's numbers where they exist, settings."""
    scores = [score_cells(bench, score) for score in SCORES]
    against = differences(bench)
    beside_paper = bench.is_comparable_to_paper
    rows = [
        (
            row.marked_title,
            *(cells[row.key] for cells in scores),
            *(cells[row.key] for cells in against.values()),
            *(map(_cell, printed_scores(bench, row)) if beside_paper else ()),
            _settings(row),
        )
        for row in _sorted_rows([bench])
    ]
    of_paper = [f"paper {score}" for score in SCORES] if beside_paper else []
    return table("", ("method", *map(arrowed, SCORES), *against, *of_paper, "settings"), rows)


def references(bench: StoredBench) -> dict[str, ReportRow]:
    """Rows that others are compared with: the paper's method, and the best without exemplars if it is another."""
    rows = {paper.title(paper.OURS): bench.reference}
    if bench.best is not bench.reference:
        rows["the best without exemplars"] = bench.best
    return {name: row for name, row in rows.items() if row}


def differences(bench: StoredBench) -> dict[str, dict[str, str]]:
    """Columns of differences in AP, by row; one without any interval is left out."""
    found = {}
    for name, reference in references(bench).items():
        others = {row.key: _difference(bench, row, reference) for row in bench.rows if row is not reference}
        if any(others.values()):
            found[f"AP against {name} [95 %]"] = {**others, reference.key: "reference"}
    return found


def cost(bench: StoredBench) -> CellTable:
    """Time and memory of one dataset's runs."""
    rows = []
    for row in _sorted_rows([bench]):
        fields = {"seconds": _seconds, "seconds_per_epoch": _seconds, "peak_bytes": size, "retained_bytes": size}
        cells = {
            field: Cell(show(summary.mean), summary.mean) if (summary := spread(row.over_runs(field))) else ""
            for field, show in fields.items()
        }
        if isinstance(peak := cells["peak_bytes"], Cell):
            cells["peak_bytes"] = replace(peak, text=peak.text + shared(row.over_runs("taking_turns")))
        rows.append((row.marked_title, *cells.values(), "yes" if row.entry.stores_exemplars else "no"))
    return table("", ("method", "s a run", "s an epoch", "peak memory", "retained", "stores exemplars"), rows)


def shared(turns: Sequence[float]) -> str:
    """Remark on a peak of memory that several runs share."""
    most = round(max(turns, default=1))
    return f" ({most} runs together)" if most > 1 else ""


def search(points: Sequence[tuple[str, Mapping[str, Any], Sequence[float]]]) -> CellTable:
    """What was tried to choose the settings of rows, by validation scores; the best of each row in bold."""
    found = [(label, settings, spread(list(scores))) for label, settings, scores in points]
    best: dict[str, float] = {}
    for label, _, summary in found:
        if summary:
            best[label] = max(summary.mean, best.get(label, summary.mean))
    rows = []
    for label, settings, summary in found:
        mark = "best" if summary and summary.mean == best[label] else ""
        text = ", ".join(f"`{name}={value}`" for name, value in settings.items())
        rows.append((label, text, _cell(summary, mark)))
    return table("", ("row", "settings", "validation AP"), rows)


def reproducibility(benches: Sequence[StoredBench]) -> CellTable:
    """The paper's numbers beside ours where there is a run."""
    rows, order = [], list(paper.DATASETS)
    for (dataset, method), printed in sorted(paper.PRINTED.items(), key=lambda item: order.index(item[0][0])):
        ours = _ours(benches, dataset, method)
        if ours is None:
            continue
        cells = []
        for score, theirs in zip(SCORES, printed, strict=True):
            mine = spread(list(ours.by_seed(score).values())) if theirs else None
            gap = mine.mean - theirs.mean if mine and theirs else None
            cells += [_cell(theirs), _cell(mine), Cell("" if gap is None else f"{gap:+.2f}", gap)]
        title = paper.METHODS.get(method, f"{paper.title(paper.OURS)} with `{method}`")
        rows.append((title, paper.DATASETS[dataset], *cells))
    scores = [f"{whose}{score}" for score in SCORES for whose in ("paper ", "our ", "difference in ")]
    return table("", ("method", "dataset", *scores), rows)


def printed_scores(bench: StoredBench, row: ReportRow) -> paper.Printed:
    """What the paper prints for this row; a proxy of its graph or another protocol has nothing to be compared with."""
    if not (bench.is_comparable_to_paper and bench.is_usual(row)):
        return None, None
    return paper.PRINTED.get((bench.manifest.dataset, _paper_key(bench, row)), (None, None))


def _paper_key(bench: StoredBench, row: ReportRow) -> str:
    """The method, or the switch, under which the paper has a number for a row."""
    if bench.manifest.kind != "table1" and row.is_ours:
        return row.switch or paper.OURS
    if row.is_ours and any(other.entry.label == paper.OWN_ENCODER for other in bench.rows):
        return paper.OURS if row.entry.label == paper.OWN_ENCODER else row.entry.label + " by default"
    return row.key


# ---------------------------------------------------------------------- texts of cells


def _cell(summary: Spread | None, mark: str = "", remark: str = "") -> Cell:
    """A mean with its deviation; nothing where there is none."""
    mean, deviation = (None, None) if summary is None else (summary.mean, summary.deviation)
    return Cell(pretty(summary) + remark, mean, mark, deviation)


def pretty(score: Spread | None) -> str:
    """`83.07 ± 2.16`."""
    if score is None:
        return ""
    return f"{score.mean:.2f}" if score.deviation is None else f"{score.mean:.2f} ± {score.deviation:.2f}"


def size(count: float) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count:.0f} B"


def _seconds(value: float) -> str:
    return f"{value:#.3g}" if value < 100 else f"{value:.0f}"


def _difference(bench: StoredBench, row: ReportRow, reference: ReportRow) -> str:
    interval = paired_interval(row.by_seed("AP"), reference.by_seed("AP"), bench.comparisons)
    return f"{interval.difference:+.2f} [{interval.low:+.2f}, {interval.high:+.2f}]" if interval else ""


def _settings(row: ReportRow) -> str:
    """What was set, and out of how many values it was chosen."""
    chosen = {name: f" (of {len(values)})" for name, values in row.entry.grid.items()}
    return ", ".join(f"`{name}={value}`{chosen.get(name, '')}" for name, value in row.entry.settings.items())


# ---------------------------------------------------------------------- order


def _sorted_rows(benches: Sequence[StoredBench]) -> list[ReportRow]:
    """Table 1 in the paper's order of methods, variants after their method; Table 2 as its experiment file has it."""
    rows: dict[str, ReportRow] = {}
    for row in (row for bench in benches for row in bench.rows):
        rows.setdefault(row.key, row)
    if any(bench.manifest.kind != "table1" for bench in benches):
        return list(rows.values())
    return sorted(
        rows.values(), key=lambda row: (paper.place(row.entry.method), row.key != paper.plain_name(row.entry.method))
    )


def _headings(benches: Sequence[StoredBench]) -> tuple[str, ...]:
    """Datasets; with the bench's name where one dataset has several."""
    count = Counter(bench.title for bench in benches)
    return tuple(bench.title if count[bench.title] == 1 else f"{bench.title}, {bench.name}" for bench in benches)


def _ours(benches: Sequence[StoredBench], dataset: str, method: str) -> ReportRow | None:
    """Our row for a number of the paper."""
    kind = "table2" if "=" in method else "table1"
    for bench in (bench for bench in benches if (bench.manifest.kind, bench.manifest.dataset) == (kind, dataset)):
        for row in (row for row in bench.rows if row.runs and _paper_key(bench, row) == method):
            if any(printed_scores(bench, row)):
                return row
    return None


# ---------------------------------------------------------------------- formats


def _heads(shown: CellTable) -> list[str]:
    groups = [f"{group} " for group in shown.groups for _ in range(shown.group_width)]
    return [f"{group}{column}" for group, column in zip_longest(["", *groups], shown.columns, fillvalue="")]


def markdown(shown: CellTable) -> str:
    """A pipe table; best bold, second underlined."""
    heads = _heads(shown)
    styles = {"best": "**{}**", "second": "<u>{}</u>", "": "{}"}
    lines = [" | ".join(heads), "|".join(["---"] * len(heads))]
    for row in shown.rows:
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
    "↓": r"$\downarrow$",
    "γ": r"$\gamma$",
    "μ": r"$\mu$",
    "Σ": r"$\Sigma$",
    "‖": r"$\|$",
    "′": "$'$",
    "²": "$^2$",
    "⁻": "$^{-}$",
    "¹": "$^{1}$",
    "ᵀ": r"$^{\top}$",
    "−": "$-$",
    "…": r"\ldots{}",
    "–": "--",
    "<": r"$<$",
    ">": r"$>$",
}


def latex(shown: CellTable, caption: str, label: str, below: str = "", comments: Sequence[str] = ()) -> str:
    """A table for LaTeX with the packages booktabs and graphicx, shrunk where it is wider than the page.

    `below` stands under it in small print; `comments` are for the text around it.
    """
    styles = {"best": r"\textbf{%s}", "second": r"\underline{%s}", "": "%s"}
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_escape(caption)}}}",
        rf"\label{{{label}}}",
        r"\resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{l{'c' * (len(shown.columns) - 1)}}}",
        r"\toprule",
    ]
    if shown.groups:
        width = shown.group_width
        heads = [rf"\multicolumn{{{width}}}{{c}}{{{_escape(group)}}}" for group in shown.groups]
        lines.append(" & ".join(["", *heads]) + r" \\")
        rules = ((2 + width * index, 1 + width * (index + 1)) for index in range(len(shown.groups)))
        lines.append(" ".join(rf"\cmidrule(lr){{{first}-{last}}}" for first, last in rules))
    lines += [" & ".join(map(_escape, shown.columns)) + r" \\", r"\midrule"]
    lines += [" & ".join(styles[cell.mark] % _escape(cell.text) for cell in row) + r" \\" for row in shown.rows]
    lines += [r"\bottomrule", r"\end{tabular}}"]
    lines += [rf"\par\smallskip{{\footnotesize {_escape(below)}}}"] if below else []
    lines += [r"\end{table}", *(f"% {_escape(comment)}" for comment in comments)]
    return "\n".join(lines) + "\n"


def _escape(text: str) -> str:
    escaped = "".join(LATEX_SIGNS.get(sign, sign) for sign in text)
    escaped = re.sub("`([^`]*)`", r"\\texttt{\1}", escaped)
    return re.sub(r"(?<![\w-])-(?=\d)", "$-$", escaped)


def cells_csv(shown: CellTable) -> str:
    """The values of a table in full precision, each standard deviation in a column of its own."""
    heads = [head.rstrip(" ↑↓") for head in _heads(shown)]
    spread_out = [any(row[place].deviation is not None for row in shown.rows) for place in range(len(heads))]
    rows = []
    for row in shown.rows:
        fields: dict[str, Any] = {}
        for head, cell, has_deviation in zip(heads, row, spread_out, strict=True):
            fields[head] = cell.value
            if has_deviation:
                fields[f"{head} (standard deviation)"] = cell.deviation
        rows.append(fields)
    return to_csv(rows)


def numbers(benches: Sequence[StoredBench]) -> Iterator[dict[str, Any]]:
    """Every number behind a table on its own, in full precision."""
    for bench in benches:
        for row in _sorted_rows([bench]):
            printed = dict(zip(SCORES, printed_scores(bench, row), strict=True))
            for score in bench.scores:
                for statistic, seed, value in _statistics(bench, row, score, printed.get(score)):
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
    bench: StoredBench, row: ReportRow, score: str, printed: Spread | None
) -> Iterator[tuple[str, int | str, float]]:
    by_seed = row.by_seed(score)
    for seed, value in by_seed.items():
        yield "seed", seed, value
    for whose, summary in (("", spread(list(by_seed.values()))), ("paper ", printed)):
        for name, value in (summary._asdict() if summary else {}).items():
            if value is not None:
                yield f"{whose}{name}", "", value
    ours = paper.title(paper.OURS)
    names = {f"difference to {ours}": bench.reference, "difference to the best without exemplars": bench.best}
    for name, other in names.items():
        if other and row is not other:
            interval = paired_interval(by_seed, other.by_seed(score), bench.comparisons)
            low, high = (f"{end} of the {name}" for end in ("low end", "high end"))
            for statistic, value in zip((name, low, high), interval or (), strict=False):
                yield statistic, "", value


def to_csv(rows: Iterable[Mapping[str, Any]]) -> str:
    """Rows of equal fields; without a row there is not even a heading."""
    text, listed = io.StringIO(), list(rows)
    writer = csv.DictWriter(text, list(listed[0]) if listed else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(listed)
    return text.getvalue()
