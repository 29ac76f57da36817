"""`ipal report`: tables, figures and pages from what `ipal bench` has run."""

from pathlib import Path
from typing import Annotated

import typer

from ipal.cli import render
from ipal.cli.app import RUNS, Runs

OUT = Path("report")


def report(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]", help="Benches; default all.")] = None,
    runs: Runs = RUNS,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for tables, figures and pages.")] = OUT,
    into: Annotated[
        Path | None,
        typer.Option(help="Renew the tables in this page: those between <!-- ipal report: KEY --> and <!-- end -->."),
    ] = None,
    figures_for: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Draw the figures of this bench only; may be repeated.")
    ] = None,
) -> None:
    """Make the paper's tables and figures from stored runs, with the paper's numbers beside. Needs no torch."""
    from ipal.report.pages import make_report

    written = make_report(runs, out, names or [], into, figures_for or [])
    render.note(f"{len(written)} files; start with {written[0]}")
