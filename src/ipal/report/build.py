"""The folder of a report: tables and figures."""

from collections.abc import Sequence
from pathlib import Path

from ipal.report.collect import choose_manifests, read_bench
from ipal.report.tables import all_tables
from ipal.system.files import make_folder, write_atomically


def make_report(runs: Path, out: Path, names: Sequence[str] = (), draw: bool = True) -> list[Path]:
    """Everything `ipal report` does; returns the files written."""
    benches = [read_bench(manifest, runs) for manifest in choose_manifests(runs, names)]
    files = {out / name: text for made in all_tables(benches) for name, text in made.files.items()}
    make_folder(out)
    for path, text in files.items():
        write_atomically(path, text)
    if not draw:
        return [*files]
    from ipal.report.figures import write_figures  # matplotlib may not be installed

    return [*files, *write_figures(out / "figures", benches)]
