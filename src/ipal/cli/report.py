"""`ipal report`: tables, figures and pages from stored runs."""

from pathlib import Path
from typing import Annotated

import typer

from ipal.cli import render
from ipal.cli.app import RUNS, DataRoot, Runs
from ipal.cli.page import write_page
from ipal.errors import ConfigError
from ipal.system.optional import FIGURES, lacking

OUT = Path("report")


def report(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]", help="Benches; with --html also runs: path, name or part of one. Default all."
        ),
    ] = None,
    html: Annotated[bool, typer.Option("--html", help="One HTML page: of a run, or comparing many.")] = False,
    runs: Runs = RUNS,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Folder for tables, figures and pages (report); with --html, the file.",
            show_default=False,
        ),
    ] = None,
    no_nodes: Annotated[
        bool, typer.Option("--no-nodes", help="With --html: leave out the 2-d view, which shows nodes.")
    ] = False,
    search: Annotated[
        bool, typer.Option("--audit", help="With --html: also search the model for nodes of the graph; slower.")
    ] = False,
    root: DataRoot = None,
) -> None:
    """Make tables and figures from stored runs, with the paper's numbers; or an HTML page (--html)."""
    if html:
        return write_page(names or [], runs, out, root, nodes=not no_nodes, search=search)
    if no_nodes or search or root:
        raise ConfigError("--no-nodes, --audit and --data-root are for a page: add --html.")
    from ipal.report.build import make_report

    draw = not lacking(FIGURES[1])
    written = make_report(runs, out or OUT, names or [], draw)
    render.note(f"{len(written)} files; start with {written[0]}")
    if not draw:
        render.note("No figures were drawn: pip install 'ipal[figures]' adds what they need.")
