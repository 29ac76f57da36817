"""`ipal data`: which graphs there are, what is understood of them, and how to get the others."""

from pathlib import Path
from typing import Annotated

import typer

from ipal.cli import render, render_graph
from ipal.cli.app import AsJson, DataRoot
from ipal.errors import ConfigError


def data(
    names: Annotated[list[str] | None, typer.Argument(help="Names or paths of graphs; default all datasets.")] = None,
    root: DataRoot = None,
    download: Annotated[bool, typer.Option("--download", help="Fetch the named datasets first.")] = False,
    convert: Annotated[
        bool, typer.Option("--convert", help="Write the named dataset as a memory-mapped folder (-o).")
    ] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Folder for --convert, as NAME.graph.")] = None,
    directed: Annotated[bool, typer.Option("--directed", help="With --convert: keep the direction of edges.")] = False,
    details: Annotated[
        bool,
        typer.Option("--inspect", help="Show what is understood of the named graphs: labels, homophily, degrees, …"),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show which datasets are available, with statistics and hashes, and how to get the others."""
    from ipal.data.datasets import catalog, inspect

    folder = catalog.data_root(root)
    if download:
        if not names:
            raise ConfigError("Say which dataset to download: ipal data --download cs")
        for name in names:
            render.note(f"downloading {name} to {folder}")
            catalog.download(name, folder)
    if convert:
        if output is None or len(names or []) != 1:
            raise ConfigError("Say what to convert, and where to: ipal data --convert cs -o cs.graph")
        rows = [inspect.converted((names or [])[0], output, folder, undirected=not directed)]
    elif details:
        if not names:
            raise ConfigError("Say which graph to inspect: ipal data --inspect nodes.csv,edges.csv")
        rows = [inspect.understood(name, folder) for name in names]
    else:
        rows = [inspect.look(name, folder) for name in names] if names else inspect.look_at_all(folder)
    if as_json:
        render.as_json(rows)
    elif details:
        for row in rows:
            render_graph.show(row)
    else:
        render.survey(rows, folder)
