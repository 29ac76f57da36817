"""What commands about a model and a graph begin with: both are read."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from ipal.runs.run_folder import RunFolder, RunStore

if TYPE_CHECKING:
    from ipal.data.dataset import Dataset
    from ipal.estimator.model import Model

GraphName = Annotated[
    str,
    typer.Option(
        "--graph", metavar="GRAPH", help="A dataset, a file, a folder, or nodes.csv,edges.csv; no labels needed."
    ),
]
Directed = Annotated[
    bool | None,
    typer.Option("--directed/--undirected", help="Directed or undirected edges; default: as the model learned them."),
]


class Opened(NamedTuple):
    """A saved model, and a graph to predict on."""

    path: Path
    model: "Model"
    data: "Dataset"
    directed: bool


def opened(name: str, graph: str, runs: Path, root: Path | None, directed: bool | None, device: str = "cpu") -> Opened:
    """Read a model and a graph to predict on."""
    path = RunStore(runs).model_file(name)
    run = RunFolder.of_model(path)

    from ipal.data.datasets import load_to_predict
    from ipal.estimator.files import load

    model = load(path, device=device)
    one_way = is_directed(model, directed)
    data = load_to_predict(graph, root or (run.data_root() if run else None), undirected=not one_way)
    return Opened(path, model, data, one_way)


def is_directed(model: "Model", given: bool | None) -> bool:
    """Whether edges are directed: as given, or as the model learned them."""
    return model.schema.directed if given is None else given
