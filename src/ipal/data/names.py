"""Names of graphs, as `--dataset` takes them: one, or several with commas."""

import os
import re
from pathlib import Path

TABLES = (".csv", ".tsv", ".parquet")
"""How names of tables end: two of them, of nodes and of edges, are one graph."""


def split_names(text: str) -> list[str]:
    """`cora-ml,dblp` as two names. A path that exists is one, and so are `synthetic:nodes=500,classes=3` and
    `nodes.csv,edges.csv`."""
    if "," not in text or os.path.exists(os.path.expanduser(text)):
        return [text]
    names: list[str] = []
    for part in text.split(","):
        last = names[-1] if names else ""
        if (":" in last and re.match(r"\s*\w+\s*=", part)) or (is_table(last) and "," not in last and is_table(part)):
            names[-1] += f",{part.strip() if is_table(part) else part}"
        else:
            names.append(part.strip())
    return names


def stem(name: str) -> str:
    """A short name for what is made from a graph: `cs` of cs.npz, `shop` of shop/nodes.csv,shop/edges.csv."""
    path = Path(name.partition(",")[0] if is_table(name) else name)
    return (path.parent.name if is_table(name) and path.stem == "nodes" else path.stem).partition(":")[0] or "graph"


def is_table(name: str) -> bool:
    """Whether a name is that of a table, by its ending."""
    return name.strip().lower().endswith(TABLES)
