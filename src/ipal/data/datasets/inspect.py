"""A look at datasets for `ipal data`: where each is, how large, its hash, or how to get it."""

from pathlib import Path
from typing import Any

from ipal.data import datasets
from ipal.data.datasets import catalog
from ipal.errors import IpalError


def look(name: str, root: Path, *, undirected: bool = True) -> dict[str, Any]:
    """One dataset; a damaged one is an error."""
    facts = catalog.describe(name, root)
    if not facts["here"]:
        return facts
    dataset = datasets.load(name, root, undirected=undirected)
    return facts | {
        "nodes": dataset.graph.num_nodes,
        "edges": dataset.graph.num_edges,
        "edge_weights": dataset.graph.is_weighted,
        "features": dataset.graph.num_features,
        "classes": dataset.num_classes,
        "hash": dataset.hash,
        "remark": dataset.remark,
        "of_every_node": list(dataset.known),
    }


def converted(name: str, path: Path, root: Path, *, undirected: bool) -> dict[str, Any]:
    """Write a graph as a folder, and look at that: what was written is read back and compared."""
    datasets.convert(name, path, root, undirected=undirected)
    return look(str(path.resolve()), root, undirected=undirected)


def look_at_all(root: Path) -> list[dict[str, Any]]:
    """Every dataset with a name; a damaged one is reported beside the others and does not hide them."""
    rows = []
    for name in catalog.all_names(root):
        if name in catalog.CATALOG and catalog.CATALOG[name].costly:
            later = f"The graph '{name}' is made when it is asked for: 'ipal data {name}' looks at it."
            rows.append(catalog.describe(name, root) | {"how_to_get": later})
            continue
        try:
            rows.append(look(name, root))
        except IpalError as error:
            rows.append(catalog.describe(name, root) | {"here": False, "how_to_get": str(error)})
    return rows
