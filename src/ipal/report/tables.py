"""Rows and cells from benches, and their Markdown, LaTeX and CSV."""

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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
    columns = [_scores_by_key(bench, score) for bench in benches for score in SCORES]
    rows = [(row.title, *(column.get(row.key, "") for column in columns)) for row in _sorted_rows(benches)]
    count = Counter(bench.title for bench in benches)
    groups = [bench.title if count[bench.title] == 1 else f"{bench.title}, {bench.name}" for bench in benches]
    return table("", ("method", *(arrowed(score) for _ in benches for score in SCORES)), rows, groups)


def metrics(bench: StoredBench) -> CellTable:
    """One dataset: every metric that its runs have."""
    columns = [_scores_by_key(bench, score) for score in bench.scores]
    rows = [(row.title, *(column[row.key] for column in columns)) for row in _sorted_rows([bench])]
    return table("", ("method", *map(arrowed, bench.scores)), rows)


def details(bench: StoredBench) -> CellTable:
    """One dataset: scores, differences to other rows, the paper's numbers where they exist, settings."""
    scores, against = [_scores_by_key(bench, score) for score in SCORES], differences(bench)
    beside_paper = bench.is_comparable_to_paper
    rows = [
        (
            row.title,
            *(cells[row.key] for cells in scores),
            *(texts[row.key] for texts in against.values()),
            *(map(spread_cell, printed_scores(bench, row)) if beside_paper else ()),
            _settings(row),
        )
        for row in _sorted_rows([bench])
    ]
    of_paper = [f"paper {score}" for score in SCORES] if beside_paper else []
    return table("", ("method", *map(arrowed, SCORES), *against, *of_paper, "settings"), rows)


def differences(bench: StoredBench) -> dict[str, dict[str, str]]:
    """Columns of differences in AP, by row; one without any interval is left out."""
    found = {}
    for name, reference in bench.references.items():
        column = {}
        for row in bench.rows:
            interval = paired_interval(row.by_seed("AP"), reference.by_seed("AP"), bench.comparisons)
            column[row.key] = ""
            if interval and row is not reference:
                column[row.key] = f"{interval.difference:+.2f} [{interval.low:+.2f}, {interval.high:+.2f}]"
        if any(column.values()):
            found[f"AP against {name} [95 %]"] = {**column, reference.key: "reference"}
    return found


def cost(bench: StoredBench) -> CellTable:
    """Time and memory of one dataset's runs."""
    columns = {"seconds": _seconds, "seconds_per_epoch": _seconds, "peak_bytes": size, "retained_bytes": size}
    rows = [
        (
            row.title,
            *(cost_cell(row, name, show) for name, show in columns.items()),
            "yes" if row.stores_exemplars else "no",
        )
        for row in _sorted_rows([bench])
    ]
    return table("", ("method", "s a run", "s an epoch", "peak memory", "retained", "stores exemplars"), rows)


def search(points: Sequence[tuple[str, Mapping[str, Any], Sequence[float]]]) -> CellTable:
    """What was tried to choose the settings of rows, by validation scores; the best of each row in bold."""
    found = [(label, settings, spread(scores)) for label, settings, scores in points]
    best: dict[str, float] = {}
    for label, _, summary in found:
        if summary:
            best[label] = max(summary.mean, best.get(label, summary.mean))
    rows = []
    for label, settings, summary in found:
        mark = "best" if summary and summary.mean == best[label] else ""
        text = ", ".join(f"`{name}={value}`" for name, value in settings.items())
        rows.append((label, text, spread_cell(summary, mark)))
    return table("", ("row", "settings", "validation AP"), rows)


def printed_scores(bench: StoredBench, row: ReportRow) -> paper.Printed:
    """What the paper prints for this row; a proxy of its graph or another protocol has nothing to be compared with."""
    if not (bench.is_comparable_to_paper and bench.is_usual(row)):
        return None, None
    return paper.PRINTED.get((bench.manifest.dataset, _paper_key(bench, row)), (None, None))


def _paper_key(bench: StoredBench, row: ReportRow) -> str:
    """The method, or the switch, under which the paper has a number for a row."""
    if bench.manifest.kind != "table1" and row.is_ours:
        return row.switch or paper.OURS
    if row.is_ours and any(other.label == paper.OWN_ENCODER for other in bench.rows):
        return paper.OURS if row.label == paper.OWN_ENCODER else row.label + " by default"
    return row.key


def _sorted_rows(benches: Sequence[StoredBench]) -> list[ReportRow]:
    """Table 1 in the paper's order of methods, variants after their method; Table 2 as its experiment file has it."""
    rows: dict[str, ReportRow] = {}
    for row in (row for bench in benches for row in bench.rows):
        rows.setdefault(row.key, row)
    if any(bench.manifest.kind != "table1" for bench in benches):
        return list(rows.values())
    return sorted(rows.values(), key=lambda row: (paper.place(row.method), row.key != paper.plain_name(row.method)))


# ---------------------------------------------------------------------- cells


def score_cells(rows: Sequence[ReportRow], score: str, ranked: Collection[ReportRow] = ()) -> list[Cell]:
    """One column: mean ± deviation, with the best and the second of the ranked rows marked."""
    sign = 1 if is_higher_better(score) else -1
    means = [sign * row.mean(score) if row in ranked and row.by_seed(score) else None for row in rows]
    found = []
    for row, mark in zip(rows, marks(means), strict=True):
        if score in CHANGES and row.is_upper_reference:
            found.append(Cell("–", None))
        else:
            found.append(spread_cell(spread(list(row.by_seed(score).values())), mark))
    return found


def _scores_by_key(bench: StoredBench, score: str) -> dict[str, Cell]:
    """By row; what seeds are missing is said."""
    cells = score_cells(bench.rows, score, bench.ranked)
    found = {}
    for row, cell in zip(bench.rows, cells, strict=True):
        few = f" ({len(row.runs)}/{len(bench.manifest.seeds)})" if row.runs and not row.is_complete else ""
        found[row.key] = replace(cell, text=cell.text + few)
    return found


def arrowed(score: str) -> str:
    """A score with the direction in which it is better."""
    return f"{score} {'↑' if is_higher_better(score) else '↓'}"


def cost_cell(row: ReportRow, name: str, show: Callable[[float], str]) -> Cell:
    """The mean over seeds; of a peak of memory also how many runs share it."""
    summary, turns = spread(row.costs(name)), round(max(row.costs("taking_turns"), default=1))
    if summary is None:
        return Cell("", None)
    together = f" ({turns} runs together)" if name == "peak_bytes" and turns > 1 else ""
    return Cell(show(summary.mean) + together, summary.mean)


def spread_cell(summary: Spread | None, mark: str = "") -> Cell:
    """A mean with its deviation; nothing where there is none."""
    mean, deviation = summary or (None, None)
    return Cell(pretty(summary), mean, mark, deviation)


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


def _settings(row: ReportRow) -> str:
    """What was set, and out of how many values it was chosen."""
    chosen = {name: f" (of {len(values)})" for name, values in row.grid.items()}
    return ", ".join(f"`{name}={value}`{chosen.get(name, '')}" for name, value in row.settings.items())


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


def numbers(benches: Sequence[StoredBench]) -> str:
    """As CSV every number behind a table, run by run and in full precision."""
    return to_csv(
        {
            "bench": bench.name,
            "dataset": bench.manifest.dataset,
            "row": row.title,
            "method": row.method,
            "stores_exemplars": row.stores_exemplars,
            "seed": run.seed,
            **{score: run.scores.get(score) for score in dict.fromkeys(one for b in benches for one in b.scores)},
        }
        for bench in benches
        for row in _sorted_rows([bench])
        for run in row.runs
    )


def to_csv(rows: Iterable[Mapping[str, Any]]) -> str:
    """Rows of equal fields; without a row there is not even a heading."""
    text, listed = io.StringIO(), list(rows)
    writer = csv.DictWriter(text, list(listed[0]) if listed else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(listed)
    return text.getvalue()
