"""Tables of a report: cells that are read, sorted and downloaded. As Markdown, LaTeX and CSV; pages make their HTML."""

import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ipal.report.statistics import Spread


@dataclass(frozen=True)
class Cell:
    """One field of a table: what is read, and what is sorted and downloaded."""

    text: str
    value: float | str | None
    """None sorts last and is empty in a download."""
    mark: str = ""
    """best, second or nothing."""
    deviation: float | None = None
    """Sample standard deviation, where the value is a mean: a column of its own in a download."""


NOTHING = Cell("", None)


@dataclass(frozen=True)
class CellTable:
    """Rows for Markdown, LaTeX, a terminal, or a page, where they can be sorted by any column and downloaded."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    def is_number(self, column: int) -> bool:
        return not any(isinstance(row[column].value, str) for row in self.rows)


def table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> CellTable:
    """A table of cells, and of plain texts that become one."""
    cells = [[Cell(one, one) if isinstance(one, str) else one for one in row] for row in rows]
    return CellTable(caption, columns, cells)


def signless(text: str) -> str:
    """`0.00` where rounding left `-0.00`; a true minus sign elsewhere."""
    return text.removeprefix("-") if not text.strip("-0.") else text.replace("-", "−")


def pretty(score: Spread) -> str:
    """`83.07 ± 2.16`."""
    deviation = "" if score.deviation is None else f" ± {score.deviation:.2f}"
    return signless(f"{score.mean:.2f}") + deviation


def spread_cell(summary: Spread | None, mark: str = "") -> Cell:
    """A mean with its deviation; nothing where there is none."""
    return NOTHING if summary is None else Cell(pretty(summary), summary.mean, mark, summary.deviation)


def seconds(value: float) -> str:
    """`0.43 s`, `12.5 s`, `3 min 20 s`, `2 h 5 min`."""
    if value < 60:
        return f"{value:.2f} s" if value < 10 else f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def markdown(shown: CellTable) -> str:
    """A pipe table; best bold, second underlined."""
    styles = {"best": "**{}**", "second": "<u>{}</u>", "": "{}"}
    rows = [[styles[cell.mark].format(cell.text.replace("|", r"\|")) for cell in row] for row in shown.rows]
    lines = [" | ".join(row) for row in [shown.columns, *rows]]
    return "\n".join([f"| {lines[0]} |", "|---" * len(shown.columns) + "|", *(f"| {line} |" for line in lines[1:])])


SYMBOLS = {"±": "pm", "↑": "uparrow", "↓": "downarrow", "γ": "gamma", "μ": "mu", "Σ": "Sigma", "‖": "|"}
RAISED = {"†": r"\dagger", "²": "2", "⁻": "-", "¹": "1", "ᵀ": r"\top"}
LATEX_SIGNS = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "…": r"\ldots{}",
    "–": "--",
    "−": "$-$",
    "′": "$'$",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    **{sign: f"${sign}$" for sign in "<>"},
    **{sign: f"$\\{name}$" for sign, name in SYMBOLS.items()},
    **{sign: f"$^{{{name}}}$" for sign, name in RAISED.items()},
}


def latex(shown: CellTable, label: str, below: str = "") -> str:
    """A table for LaTeX with the packages booktabs and graphicx, shrunk where it is wider than the page.

    `below` is under it in small print.
    """
    styles = {"best": r"\textbf{%s}", "second": r"\underline{%s}", "": "%s"}
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_escape(shown.caption)}}}",
        rf"\label{{{label}}}",
        r"\resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{l{'c' * (len(shown.columns) - 1)}}}",
        r"\toprule",
    ]
    lines += [" & ".join(map(_escape, shown.columns)) + r" \\", r"\midrule"]
    lines += [" & ".join(styles[cell.mark] % _escape(cell.text) for cell in row) + r" \\" for row in shown.rows]
    lines += [r"\bottomrule", r"\end{tabular}}"]
    lines += [rf"\par\smallskip{{\footnotesize {_escape(below)}}}"] if below else []
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def _escape(text: str) -> str:
    escaped = "".join(LATEX_SIGNS.get(sign, sign) for sign in text)
    escaped = re.sub("`([^`]*)`", r"\\texttt{\1}", escaped)
    return re.sub(r"(?<![\w-])-(?=\d)", "$-$", escaped)


def cells_csv(shown: CellTable) -> str:
    """The values of a table in full precision, each standard deviation in a column of its own."""
    heads = [head.rstrip(" ↑↓") for head in shown.columns]
    fields: list[dict[str, Any]] = [{} for _ in shown.rows]
    for place, head in enumerate(heads):
        column = [row[place] for row in shown.rows]
        for found, cell in zip(fields, column, strict=True):
            found[head] = cell.value
            if any(one.deviation is not None for one in column):
                found[f"{head} (standard deviation)"] = cell.deviation
    text = io.StringIO()
    writer = csv.DictWriter(text, list(fields[0]) if fields else heads, lineterminator="\n")
    writer.writeheader()
    writer.writerows(fields)
    return text.getvalue()
