"""Tables with captions and commands, and the folder of a report."""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipal.report import paper, tables
from ipal.report.cells import CellTable
from ipal.report.collect import StoredBench, choose_manifests, read_bench, read_search, usual
from ipal.report.statistics import how_many, listed
from ipal.runs.records import batch_in_words
from ipal.system.files import make_folder, write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RANKS = "Best in bold, second underlined; Joint, the upper reference, is not ranked."
DIFFERENCES = (
    "Differences in AP are means at equal seeds with Student's 95 % interval, corrected for the number of rows "
    "(Bonferroni); rows with fewer than five seeds have none."
)
NO_DIFFERENCES = "Differences are not shown: fewer than five seeds."


def make_report(runs: Path, out: Path, names: Sequence[str] = (), draw: bool = True) -> list[Path]:
    """Everything `ipal report` does; returns the files written, the index first."""
    benches = [read_bench(manifest, runs) for manifest in choose_manifests(runs, names)]
    files = {name: text for made in all_tables(benches, runs).values() for name, text in made.files.items()}
    make_folder(out)
    for name, text in files.items():
        write_atomically(out / name, text)
    written = [out / name for name in files]
    if draw:
        written += _write_figures(out / "figures", benches, runs)
    index = out / "README.md"
    write_atomically(index, _index(written, out, benches))
    return [index, *written]


# ---------------------------------------------------------------------- tables with what belongs to them


@dataclass(frozen=True)
class Captioned:
    """A table with what belongs to it."""

    stem: str
    """Of its files."""
    table: CellTable
    benches: Sequence[StoredBench]
    """That its numbers are from."""
    caption: str
    """One sentence: what the numbers are."""
    how: str = ""
    """How they were measured: below the caption in Markdown, a comment in LaTeX."""
    below: str = ""
    """What its signs mean, and what it leaves out."""
    numbers: bool = False
    """Whether its CSV has every number behind it, run by run, and not its cells."""

    @property
    def markdown(self) -> str:
        commands = "\n".join([*dict.fromkeys(bench.manifest.command for bench in self.benches), "ipal report"])
        parts = [
            _wrap(f"{self.caption} {self.how}".strip()),
            f"```console\n{commands}\n```",
            tables.markdown(self.table),
        ]
        if self.below:
            parts.append(_wrap(self.below))
        if listed := remarks(self.benches):
            parts.append("\n".join(_wrap(f"- {remark}", indent="  ") for remark in listed))
        return "\n\n".join(parts)

    @property
    def files(self) -> dict[str, str]:
        """As Markdown, LaTeX and CSV, by the names of the files."""
        comments = [*filter(None, [self.how]), *remarks(self.benches)]
        latex = tables.latex(self.table, self.caption, f"tab:{self.stem}", self.below, comments)
        csv = tables.numbers(self.benches) if self.numbers else tables.cells_csv(self.table)
        return {f"{self.stem}.md": self.markdown + "\n", f"{self.stem}.tex": latex, f"{self.stem}.csv": csv}


def all_tables(benches: Sequence[StoredBench], runs: Path) -> dict[str, Captioned]:
    """Every table with its caption, by its key in a page."""
    found = {
        kind: Captioned(kind, tables.wide(chosen), chosen, caption(chosen), protocol(chosen), legend(chosen), True)
        for kind, chosen in of_paper(benches).items()
    }
    for bench in benches:
        name, own = bench.name, [bench]
        if points := read_search(bench.manifest, runs):
            text = f"{bench.title}: what settings were chosen from, by mean AP on validation nodes over seeds, in %."
            shown = tables.search(points)
            found[f"{name}.search"] = Captioned(f"search-{name}", shown, own, text, below="Best of each row in bold.")
        if bench.manifest.kind == "figure6":
            continue
        how, signs = protocol(own), legend(own)
        text, shown = f"{bench.title}: {caption(own)}", tables.details(bench)
        found[name] = Captioned(f"details-{name}", shown, own, text, *_with_differences(bench, how, signs), True)
        text = f"{bench.title}: all metrics, {_over_seeds(own)}."
        found[f"{name}.metrics"] = Captioned(f"metrics-{name}", tables.metrics(bench), own, text, how, signs)
        machines = "; ".join(sorted({run.machine for row in bench.rows for run in row.runs}))
        text, how = f"{bench.title}: time and memory of a run, mean over {_seeds(own)}.", f"Measured on: {machines}."
        found[f"{name}.cost"] = Captioned(f"cost-{name}", tables.cost(bench), own, text, how, legend(own, ranked=False))
    return found


def _with_differences(bench: StoredBench, how: str, below: str) -> tuple[str, str]:
    """The texts of a table with what they say of the differences between its rows."""
    if tables.differences(bench):
        return f"{how} {DIFFERENCES}", below
    comparable = bench.references and sum(bool(row.runs) for row in bench.rows) > 1
    return how, f"{below} {NO_DIFFERENCES}" if comparable else below


def of_paper(benches: Sequence[StoredBench]) -> dict[str, list[StoredBench]]:
    """The benches of each of the paper's tables, where there are any; other test graphs in tables of their own."""
    usual_graph = paper.PROTOCOL["test_graph"]
    found: dict[str, list[StoredBench]] = {}
    for bench in sorted(benches, key=lambda bench: bench.manifest.kind):
        graph = bench.protocol.get("test_graph", usual_graph)
        if bench.manifest.kind in ("table1", "table2"):
            found.setdefault(bench.manifest.kind + f"-{graph}" * (graph != usual_graph), []).append(bench)
    return found


def caption(benches: Sequence[StoredBench]) -> str:
    """What the numbers are, in one sentence."""
    return f"AP and AF in %, {_over_seeds(benches)}."


def protocol(benches: Sequence[StoredBench]) -> str:
    """Under which protocol numbers were measured, and with which seeds."""
    rules = usual(_shared(bench.protocol) for bench in benches)
    splits = "; ".join(f"{bench.title} {'+'.join(map(str, bench.protocol.get('split', ())))}" for bench in benches)
    if not rules:
        return "No run is finished."
    seeds = " or ".join(dict.fromkeys(listed(bench.manifest.seeds) for bench in benches))
    train, validation = (round(100 * rules[f"{part}_share"]) for part in ("train", "validation"))
    parts = f"{train}/{validation}/{100 - train - validation} within each class"
    if isinstance(counts := rules.get("parts"), dict):
        parts = "/".join(str(counts[part]) for part in ("train", "validation", "test")) + " nodes of each class"
        parts += f" ({train}/{validation}/{100 - train - validation} % of one with fewer)" * (
            counts["fewer"] == "shares"
        )
    if rules.get("parts") == "given":
        parts = "training, validation and test nodes as the dataset says"
    return (
        f"Protocol: seeds {seeds}, train graph {rules['train_graph']}, test graph {rules['test_graph']}, "
        f"{rules['visibility']}, {rules['accuracy']} accuracy, {batch_in_words(rules['batch'])}, class order "
        f"{rules['class_order']}, {rules['edges']} edges, {parts}; classes of each "
        f"task: {splits}."
    )


def legend(benches: Sequence[StoredBench], ranked: bool = True) -> str:
    """What the signs of the table mean."""
    stored = any(row.stores_exemplars for bench in benches for row in bench.rows)
    return " ".join([tables.EXEMPLARS] * stored + [RANKS] * ranked)


def remarks(benches: Sequence[StoredBench]) -> list[str]:
    """Remarks on the comparability of one table."""
    table = usual(_shared(bench.protocol) for bench in benches)
    found = []
    for bench in benches:
        own = _shared(bench.protocol)
        if odd := _differing(own, table):
            found.append(f"{bench.name} has another protocol than the rest ({odd}): no comparison across datasets.")
        for row in (row for row in bench.rows if not bench.is_usual(row)):
            odd = _differing(row.runs[0].rules, bench.protocol)
            found.append(f"{bench.name}, {row.title}: another protocol than the other rows ({odd}), so not ranked.")
        found += [f"{bench.name}, {remark}" for remark in bench.remarks]
        if any(row.runs and not row.is_complete for row in bench.rows):
            found.append(f"{bench.name}: cells with (n/N) have n of N seeds and are not ranked.")
    return found


def _shared(protocol: Mapping[str, Any]) -> dict[str, Any]:
    """What datasets can have in common: all but the split."""
    return {field: value for field, value in protocol.items() if field != "split"}


def _differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    return ", ".join(f"{field} {value}" for field, value in one.items() if value != other.get(field))


def _seeds(benches: Sequence[StoredBench]) -> str:
    return " or ".join(dict.fromkeys(how_many(bench.manifest.seeds) for bench in benches))


def _over_seeds(benches: Sequence[StoredBench]) -> str:
    graphs = dict.fromkeys(f"test graph {bench.protocol['test_graph']}, " for bench in benches if bench.protocol)
    return f"{''.join(graphs)}mean ± sample standard deviation over {_seeds(benches)}"


def _wrap(text: str, indent: str = "") -> str:
    return textwrap.fill(text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _write_figures(folder: Path, benches: Sequence[StoredBench], runs: Path) -> list[Path]:
    from ipal.report import figures  # matplotlib may not be installed

    drawings: dict[str, Callable[[], Figure | None]] = {}
    for bench in benches:
        if bench.manifest.kind == "table1":
            drawings[f"figure4-{bench.name}"] = partial(figures.learning_dynamics, bench)
        if bench.manifest.kind == "table2":
            drawings[f"figure3-{bench.name}"] = partial(figures.heat_maps, bench)
    grids = [bench for bench in benches if bench.manifest.kind == "figure6"]
    points = [(bench.title, read_search(bench.manifest, runs)) for bench in grids]
    drawings["figure6"] = partial(figures.gamma_curves, points)
    return [path for name, draw in drawings.items() for path in figures.write_figure(folder / name, draw)]


def _index(written: Sequence[Path], out: Path, benches: Sequence[StoredBench]) -> str:
    names = [path.relative_to(out).as_posix() for path in written]
    lines = [f"- [{name}]({name})" for name in names if not name.endswith((".png", ".svg"))]
    shown = [f"![{Path(name).stem}]({name})" for name in names if name.endswith(".png")]
    about = [f"- {bench.name}: {bench.manifest.about or bench.title} (`{bench.manifest.command}`)" for bench in benches]
    parts = ["# Report", "From these benches:", "\n".join(about), "Tables:", "\n".join(lines)]
    if shown:
        parts += ["Figures, each also as SVG:", *shown]
    return "\n\n".join(parts) + "\n"
