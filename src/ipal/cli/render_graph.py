"""What `ipal data --inspect` prints of one graph."""

from typing import Any

from rich.table import Table

from ipal.cli import render

BAR, MOST_CLASSES, MOST_COLUMNS = 40, 12, 12
"""Characters of the longest bar; classes and columns that are named."""


def show(facts: dict[str, Any]) -> None:
    if "nodes" not in facts:
        render.say(facts["how_to_get"])
        return
    n, classes = facts["nodes"], facts["classes"]
    rows = Table.grid(padding=(0, 2))
    named = f", called {', '.join(map(str, facts['ids']))}, …" if facts["ids"] else ", numbered from 0"
    rows.add_row("graph", f"{facts['name']} ({facts['about']})")
    rows.add_row("nodes", f"{n:,}{named}; one type")
    way = "all run both ways" if facts["both_ways"] else "some run one way (a run adds the other, unless told not to)"
    rows.add_row("edges", f"{facts['edges']:,}; {way}; one type")
    weights = facts["edge_weights"]
    rows.add_row("weights", f"{weights[0]:g} to {weights[1]:g}" if weights else "none (every edge counts one)")
    kept = "sparse" if facts["sparse"] else "dense"
    rows.add_row("features", f"{facts['features']:,}, {kept}, {facts['share_not_zero']:.1%} not zero")
    if facts["columns"]:
        rows.add_row("", _some(facts["columns"], MOST_COLUMNS))
    largest = sorted(classes.items(), key=lambda one: -one[1])
    rows.add_row("classes", f"{len(classes)}: " + _some([f"{name} ({size:,})" for name, size in largest], MOST_CLASSES))
    rows.add_row("labelled", f"{facts['labelled']:,} of {n:,} nodes ({facts['labelled'] / n:.1%})")
    if facts["edge_homophily"] is not None:
        balanced = facts["balanced_homophily"]
        beside = "" if balanced is None else f" (class-balanced: {balanced:.3f})"
        rows.add_row("homophily", f"{facts['edge_homophily']:.3f} of the edges join nodes of one class{beside}")
    rows.add_row("isolated", f"{render.many(facts['isolated'], 'node')} without an edge")
    if facts["components"] is not None:
        rows.add_row("components", f"{facts['components']:,}")
    if facts["of_every_node"]:
        rows.add_row("known too", ", ".join(facts["of_every_node"]))
    if facts["remark"]:
        rows.add_row("remark", facts["remark"])
    render.out.print(rows, soft_wrap=True)
    render.out.print(_bars(facts["neighbours"]))


def _bars(distribution: list[dict[str, int]]) -> Table:
    """The distribution of degrees, one bar for each doubling."""
    most = max(one["nodes"] for one in distribution)
    shown = Table.grid(padding=(0, 2))
    for name in ("neighbours", "nodes", ""):
        shown.add_column(name, justify="left" if not name else "right")
    shown.add_row("neighbours", "nodes", "")
    for one in distribution:
        span = str(one["from"]) if one["from"] == one["to"] else f"{one['from']} to {one['to']}"
        bar = "█" * round(BAR * one["nodes"] / most) or "▏" * bool(one["nodes"])
        shown.add_row(span, f"{one['nodes']:,}", bar)
    return shown


def _some(words: list[str], most: int) -> str:
    return ", ".join(words[:most]) + (f", and {len(words) - most} more" if len(words) > most else "")
