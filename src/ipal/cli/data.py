"""`ipal data`: what is understood of graphs, how to get them, and the conversion of one to a memory-mapped folder."""

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from ipal.cli import render
from ipal.cli.app import AsJson, DataRoot
from ipal.errors import ConfigError

MOST_NAMED = 12
"""Classes and columns that are named."""


def data(
    names: Annotated[list[str], Argument(help="Names or paths of graphs: see 'ipal list datasets'.")],
    root: DataRoot = None,
    download: Annotated[bool, Option("--download", help="Fetch the datasets first.")] = False,
    convert: Annotated[
        Path | None, Option(metavar="FOLDER", help="Write a memory-mapped folder, as NAME.graph.")
    ] = None,
    directed: Annotated[bool, Option("--directed", help="With --convert: keep the direction of edges.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what is understood of graphs: size, labels, homophily, hash; or how to get them."""
    from ipal.data import datasets
    from ipal.data.datasets import catalog

    folder = catalog.data_root(root)
    if download:
        for name in names:
            render.note(f"downloading {name} to {folder}")
            catalog.download(name, folder)
    if convert is not None:
        if len(names) != 1:
            raise ConfigError("Name one graph to convert: ipal data cs --convert cs.graph")
        datasets.convert(names[0], convert, folder, undirected=not directed)
        names = [str(convert.resolve())]
    rows = [datasets.look(name, folder) for name in names]
    if as_json:
        return render.as_json(rows)
    for row in rows:
        _show(row)


def _show(facts: dict[str, Any]) -> None:
    if not facts["here"]:
        return render.say(facts["how_to_get"])
    n, classes, weights = facts["nodes"], facts["classes"], facts["edge_weights"]
    named = f", called {', '.join(map(str, facts['ids']))}, …" if facts["ids"] else ", numbered from 0"
    way = "all run both ways" if facts["both_ways"] else "some run one way (a run adds the other, unless told not to)"
    kept = f"{'sparse' if facts['sparse'] else 'dense'}, {facts['share_not_zero']:.1%} not zero"
    largest = sorted(classes.items(), key=lambda one: -one[1])
    homophily = f"{facts['edge_homophily'] or 0:.3f} of the edges join nodes of one class"
    render.facts(
        {
            "graph": f"{facts['name']} ({facts['about']})",
            "nodes": f"{n:,}{named}",
            "edges": f"{facts['edges']:,}; {way}",
            "weights": f"{weights[0]:g} to {weights[1]:g}" if weights else "none (every edge counts one)",
            "features": f"{facts['features']:,}, {kept}",
            "columns": _some(facts["columns"]),
            "classes": f"{len(classes)}: " + _some([f"{name} ({size:,})" for name, size in largest]),
            "labelled": f"{facts['labelled']:,} of {n:,} nodes ({facts['labelled'] / n:.1%})",
            "homophily": "" if facts["edge_homophily"] is None else homophily,
            "isolated": f"{render.many(facts['isolated'], 'node')} without an edge",
            "known too": ", ".join(facts["of_every_node"]),
            "remark": facts["remark"],
            "SHA-256": facts["hash"],
            "path": facts["path"],
        }
    )


def _some(words: list[str]) -> str:
    return ", ".join(words[:MOST_NAMED]) + f", and {len(words) - MOST_NAMED} more" * (len(words) > MOST_NAMED)
