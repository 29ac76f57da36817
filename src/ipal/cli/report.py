"""`ipal report`: tables, figures and pages from stored runs."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ipal.cli import render
from ipal.cli.app import RUNS, DataRoot, Runs
from ipal.errors import ConfigError
from ipal.runs.run_folder import RunFolder
from ipal.system.optional import FIGURES, lacking, need_extra

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
    into: Annotated[
        Path | None,
        typer.Option(help="Update the tables in this page: those between <!-- ipal report: KEY --> and <!-- end -->."),
    ] = None,
    figures_for: Annotated[
        list[str] | None,
        typer.Option("--figures-for", metavar="NAME", help="Draw the figures of this bench only; may be repeated."),
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
        if into or figures_for:
            raise ConfigError(
                "--into and --figures-for are for tables and figures: leave them out, or leave out --html."
            )
        return write_page(names or [], runs, out, root, nodes=not no_nodes, search=search)
    if no_nodes or search or root:
        raise ConfigError("--no-nodes, --audit and --data-root are for a page: add --html.")
    from ipal.report.build import make_report

    if figures_for:
        need_extra(*FIGURES)
    draw = not lacking(FIGURES[1])
    written = make_report(runs, out or OUT, names or [], into, figures_for or [], draw)
    render.note(f"{len(written)} files; start with {written[0]}")
    if not draw:
        render.note("No figures were drawn: pip install 'ipal[figures]' adds what they need.")


def write_page(
    names: list[str],
    runs: Path,
    out: Path | None = None,
    root: Path | None = None,
    *,
    nodes: bool = True,
    search: bool = False,
) -> None:
    """Write the page of these runs and print its path."""
    from ipal.report.page import choose, default_path, make_page
    from ipal.report.page.write import check_path

    chosen = choose(names, runs)
    path = out or default_path(chosen.folders)
    check_path(path)  # before a graph is read
    closer = None
    if len(chosen.folders) == 1:
        closer = _closer(chosen.folders[0], root, nodes, search)
    elif search:
        raise ConfigError("--audit examines the model of one run: name a single run.")
    make_page(chosen.folders, path, closer, labels=chosen.labels, remarks=chosen.remarks)
    render.note(f"Open {path} in a browser.")


def _closer(folder: RunFolder, root: Path | None, nodes: bool, search: bool) -> dict[str, Any]:
    """What the page shows of model and graph; None for a run folder without its model."""
    from ipal.report.page.facts import read_facts

    read_facts(folder)  # errors of the folder come before heavy imports
    if not folder.model.exists():
        return {"remarks": ["The model was not examined: model.safetensors is missing from the run's folder."]}
    from ipal.analysis.run_view import look_closely

    return look_closely(folder, root, nodes=nodes, search=search)
