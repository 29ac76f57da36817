"""A look at a dataset for `ipal data`: where it is, how large, its hash, or how to get it."""

from pathlib import Path
from typing import Any

from ipal import datasets
from ipal.datasets import catalog
from ipal.errors import DataError


def look(name: str, root: Path) -> dict[str, Any]:
    facts = catalog.describe(name, root)
    if not facts["here"]:
        return facts
    try:
        dataset = datasets.load(name, root)
    except DataError as error:  # one damaged file must not hide the others
        return facts | {"here": False, "how_to_get": str(error)}
    return facts | {
        "nodes": dataset.graph.num_nodes,
        "edges": dataset.graph.edges.shape[1],
        "features": dataset.graph.num_features,
        "classes": dataset.num_classes,
        "hash": dataset.hash,
        "remark": dataset.remark,
    }
