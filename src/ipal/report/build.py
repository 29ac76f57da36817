"""The folder of a report: tables and figures."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ipal.report.collect import Comparison, choose_manifests, read_bench
from ipal.report.tables import all_tables
from ipal.system.files import make_folder, write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def make_report(runs: Path, out: Path, names: Sequence[str] = (), draw: bool = True) -> list[Path]:
    """Everything `ipal report` does; returns the files written."""
    benches = [read_bench(manifest, runs) for manifest in choose_manifests(runs, names)]
    files = {name: text for made in all_tables(benches) for name, text in made.files.items()}
    make_folder(out)
    for name, text in files.items():
        write_atomically(out / name, text)
    return [*(out / name for name in files), *(_write_figures(out / "figures", benches) if draw else ())]


def _write_figures(folder: Path, benches: Sequence[Comparison]) -> list[Path]:
    from ipal.report import figures  # matplotlib may not be installed

    drawings: dict[str, Callable[[], Figure | None]] = {}
    for bench in benches:
        if bench.kind == "table1":
            drawings[f"figure4-{bench.name}"] = partial(figures.learning_dynamics, bench)
        if bench.kind == "table2":
            drawings[f"figure3-{bench.name}"] = partial(figures.heat_maps, bench)
    drawings["figure6"] = partial(figures.gamma_curves, [bench for bench in benches if bench.kind == "figure6"])
    return [path for name, draw in drawings.items() for path in figures.write_figure(folder / name, draw)]
