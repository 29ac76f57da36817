"""Tables of comparisons: scores, differences, costs, what settings were chosen from; and their captions."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ipal.evaluation.metrics import is_higher_better
from ipal.report import paper
from ipal.report.cells import NOTHING, Cell, CellTable, cells_csv, latex, markdown, seconds, spread_cell, table
from ipal.report.collect import Comparison, ReportRow
from ipal.report.statistics import Spread, how_many, listed, marks, paired_interval, spread
from ipal.runs.records import stream_in_words
from ipal.system.documents import write_yaml
from ipal.system.units import size

SCORES = ("AP", "AF")
"""Of the paper's tables."""
CHANGES = ("AF", "FM")
"""Not of the upper reference, which is trained again on everything: a dash in the paper."""
EXEMPLARS = "† stores raw nodes of earlier tasks."
INTERVAL = " [95 %]"
RANKS = "Best in bold, second underlined, of rows with all seeds; Joint, the upper reference, is not ranked."
DIFFERENCES = (
    "Differences in AP are means at equal seeds with Student's 95 % interval, corrected for the number of rows "
    "(Bonferroni)."
)


# ---------------------------------------------------------------------- tables


def wide(benches: Sequence[Comparison]) -> CellTable:
    """Table 1 or 2: every method in one row, AP and AF of every dataset in columns."""
    columns = [dict(zip(bench.rows, scores_of(bench, score), strict=True)) for bench in benches for score in SCORES]
    by_key = [{row.key: cell for row, cell in column.items()} for column in columns]
    rows = [(row.title, *(column.get(row.key, "") for column in by_key)) for row in _in_order(benches)]
    count = Counter(bench.title for bench in benches)
    names = [bench.title if count[bench.title] == 1 else f"{bench.title}, {bench.name}" for bench in benches]
    return table("", ("method", *(f"{name} {arrowed(score)}" for name in names for score in SCORES)), rows)


def details(bench: Comparison) -> CellTable:
    """AP and AF, differences to another row, the paper's numbers where they exist, seeds, settings."""
    columns: dict[str, Sequence[Any]] = {arrowed(score): scores_of(bench, score) for score in SCORES}
    columns |= differences(bench)
    for place, score in enumerate(SCORES):
        columns[f"paper {score}"] = [spread_cell(printed(bench, row)[place]) for row in bench.rows]
    columns["seeds"] = [listed([run.result.seed for run in row.runs]) for row in bench.rows]
    columns["settings"] = [_settings(row) for row in bench.rows]
    return _by_row(bench, columns)


def further(bench: Comparison) -> CellTable:
    """The other metrics; time, memory, and whether nodes are kept."""
    metrics = dict.fromkeys(title for run in bench.runs for title in run.scores if title not in SCORES)
    columns: dict[str, list[Any]] = {arrowed(title): scores_of(bench, title) for title in metrics}
    units = {"time of a run": seconds, "an epoch": seconds, "peak memory": size, "retained": size}
    for head, show in units.items():
        means = [spread([run.costs[head] for run in row.runs]) for row in bench.rows]
        columns[head] = [Cell(show(one.mean), one.mean) if one else NOTHING for one in means]
    free = [
        "yes" if row.runs and row.runs[0].result.protocol.exemplar_free else "no" * bool(row.runs) for row in bench.rows
    ]
    return _by_row(bench, columns | {"exemplar-free": free})


def differences(bench: Comparison) -> dict[str, list[str]]:
    """The column of differences in AP to the row that others are compared with; none without any interval."""
    reference = bench.reference
    if reference is None:
        return {}
    texts, compared = {reference: "reference"}, sum(bool(row.runs) for row in bench.rows) - 1
    for row in (row for row in bench.rows if row is not reference):
        if one := paired_interval(row.by_seed("AP"), reference.by_seed("AP"), compared):
            texts[row] = f"{one.difference:+.2f} [{one.low:+.2f}, {one.high:+.2f}]".replace("-", "−")
    if len(texts) == 1:
        return {}
    return {f"AP against {reference.title}{INTERVAL}": [texts.get(row, "") for row in bench.rows]}


def scores_of(bench: Comparison, score: str) -> list[Cell]:
    """One column: mean ± deviation, with the best and the second of the ranked rows marked; other seeds are said."""
    sign = 1 if is_higher_better(score) else -1
    ranked = [row if row in bench.ranked and row.by_seed(score) else None for row in bench.rows]
    found = []
    for row, mark in zip(bench.rows, marks([sign * row.mean(score) if row else None for row in ranked]), strict=True):
        cell = spread_cell(spread(list(row.by_seed(score).values())), mark)
        if score in CHANGES and row.is_upper_reference:
            cell = Cell("–", None)
        elif row.runs and not bench.has_all_seeds(row):
            cell = replace(cell, text=f"{cell.text} ({how_many(run.result.seed for run in row.runs)})")
        found.append(cell)
    return found


def arrowed(score: str) -> str:
    """A score with the direction in which it is better."""
    return f"{score} {'↑' if is_higher_better(score) else '↓'}"


def printed(bench: Comparison, row: ReportRow) -> tuple[Spread | None, Spread | None]:
    """What the paper prints for this row; a proxy of its graph or another protocol has nothing to be compared with."""
    if not (bench.is_comparable_to_paper and bench.is_usual(row)):
        return None, None
    key = row.key
    if bench.kind != "table1" and row.is_ours:
        key = row.switch or paper.OURS
    elif row.is_ours and any(other.label == paper.OWN_ENCODER for other in bench.rows):
        key = paper.OURS if row.label == paper.OWN_ENCODER else ""
    return paper.PRINTED.get((bench.dataset, key), (None, None))


def _by_row(bench: Comparison, columns: Mapping[str, Sequence[Any]]) -> CellTable:
    """Columns of cells in the order of the rows; without columns that say nothing."""
    said = {head: column for head, column in columns.items() if {*column} - {"", NOTHING}}
    cells = {row.key: [row.title, *cells] for row, *cells in zip(bench.rows, *said.values(), strict=True)}
    return table("", ("method", *said), [cells[row.key] for row in _in_order([bench])])


def _in_order(benches: Sequence[Comparison]) -> list[ReportRow]:
    """The paper's order of methods, variants after their method; Table 2 as its experiment file has it."""
    rows: dict[str, ReportRow] = {}
    for row in (row for bench in benches for row in bench.rows):
        rows.setdefault(row.key, row)
    if any(bench.kind != "table1" for bench in benches):
        return list(rows.values())
    return sorted(rows.values(), key=lambda row: (paper.place(row.method), row.key != paper.plain_name(row.method)))


def _settings(row: ReportRow) -> str:
    """What was set, and out of how many values it was chosen."""
    chosen = {name: f" (of {len(values)})" for name, values in row.grid.items()}
    return ", ".join(f"`{name}={value}`{chosen.get(name, '')}" for name, value in row.settings.items())


# ---------------------------------------------------------------------- captions


@dataclass(frozen=True)
class Captioned:
    """A table with what belongs to it."""

    stem: str
    """Of its files."""
    table: CellTable
    """With one sentence as its caption: what the numbers are."""
    commands: Sequence[str]
    """That make it again."""
    remarks: Sequence[str]
    how: str = ""
    """How they were measured: under the caption in Markdown."""
    below: str = ""
    """What its signs mean, and what it leaves out."""

    @property
    def files(self) -> dict[str, str]:
        """As Markdown, LaTeX and CSV, by the names of the files."""
        commands = "\n".join(["```console", *self.commands, "```"])
        told = "\n".join(f"- {remark}" for remark in self.remarks)
        page = [f"{self.table.caption} {self.how}".strip(), commands, markdown(self.table), self.below, told]
        return {
            f"{self.stem}.md": "\n\n".join(filter(None, page)) + "\n",
            f"{self.stem}.tex": latex(self.table, f"tab:{self.stem}", self.below),
            f"{self.stem}.csv": cells_csv(self.table),
        }


def all_tables(benches: Sequence[Comparison]) -> list[Captioned]:
    """Every table with its caption: those of the paper, then those of each bench."""
    found = list[Captioned]()

    def add(stem: str, made: CellTable, chosen: Sequence[Comparison], about: str, measured: str = "") -> None:
        graphs = dict.fromkeys(f"test graph {bench.protocol['test_graph']}, " for bench in chosen if bench.protocol)
        seeds = " or ".join(dict.fromkeys(how_many(bench.seeds) for bench in chosen))
        captioned = replace(made, caption=f"{about}, {''.join(graphs)}mean ± standard deviation over {seeds}.")
        commands = [*dict.fromkeys(bench.command for bench in chosen), "ipal report"]
        how, below = protocol(chosen) + measured, legend(chosen, made)
        found.append(Captioned(stem, captioned, commands, remarks(chosen), how, below))

    for kind, chosen in of_paper(benches).items():
        add(kind, wide(chosen), chosen, "AP and AF in %")
    for bench in (bench for bench in benches if bench.kind != "figure6"):
        add(f"details-{bench.name}", details(bench), [bench], f"{bench.title}: AP and AF in %")
        about, measured = f"{bench.title}: further metrics, time and memory", "; ".join(machines(bench))
        add(f"further-{bench.name}", further(bench), [bench], about, f" Measured on: {measured}.")
    return found


def of_paper(benches: Sequence[Comparison]) -> dict[str, list[Comparison]]:
    """The benches of each of the paper's tables, where there are any; other test graphs in tables of their own."""
    usual_graph = paper.PROTOCOL["test_graph"]
    found: dict[str, list[Comparison]] = {}
    for bench in sorted(benches, key=lambda bench: bench.kind):
        graph = bench.protocol.get("test_graph", usual_graph)
        if bench.kind in ("table1", "table2"):
            found.setdefault(bench.kind + f"-{graph}" * (graph != usual_graph), []).append(bench)
    return found


def protocol(benches: Sequence[Comparison]) -> str:
    """Under which protocol numbers were measured, and with which seeds."""
    found: dict[str, list[str]] = {}
    for bench in (bench for bench in benches if bench.protocol):
        rules = {name: value for name, value in bench.protocol.items() if name != "split"}
        split = f"{bench.title} {rule_in_words('split', bench.protocol['split'])}"
        found.setdefault(f"seeds {listed(bench.seeds)}, {rules_in_words(rules)}", []).append(split)
    said = "; ".join(f"{rules}; classes of each task: {', '.join(splits)}" for rules, splits in found.items())
    return f"Protocol: {said}." if said else "No run is finished."


def rules_in_words(rules: Mapping[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {rule_in_words(name, value)}" for name, value in rules.items())


def rule_in_words(name: str, value: Any) -> str:
    """A field of the protocol, as a result holds it."""
    if name == "split":
        return "+".join(map(str, value))
    return stream_in_words(value) if name == "stream" else as_text(value)


def as_text(value: Any) -> str:
    """A setting as it is read: a text as it is, nothing for None."""
    return as_yaml(value) if not isinstance(value, str | None) else value or ""


def as_yaml(value: Any) -> str:
    """A setting as `--set` reads it, on one line."""
    return write_yaml(value, default_flow_style=True, width=float("inf")).removesuffix("...\n").strip()


def legend(benches: Sequence[Comparison], made: CellTable) -> str:
    """What the signs of their table mean, and what it leaves out."""
    stored = any(row.stores_exemplars for bench in benches for row in bench.rows)
    compared = any(head.endswith(INTERVAL) for head in made.columns)
    return " ".join([EXEMPLARS] * stored + [RANKS] + [DIFFERENCES] * compared)


def machines(bench: Comparison) -> list[str]:
    return sorted({run.machine for run in bench.runs})


def remarks(benches: Sequence[Comparison]) -> list[str]:
    """Remarks on the comparability of one table."""
    found = []
    for bench in benches:
        for row in (row for row in bench.rows if not bench.is_usual(row)):
            rules = row.runs[0].rules
            odd = rules_in_words({name: rules[name] for name in rules if rules[name] != bench.protocol[name]})
            found.append(f"{bench.name}, {row.title}: another protocol than the other rows ({odd}), so not ranked.")
        found += [f"{bench.name}, {remark}" for remark in bench.remarks]
    return found
