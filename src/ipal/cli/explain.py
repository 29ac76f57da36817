"""`ipal explain`: why a node is predicted as it is."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import typer

from ipal.cli import render
from ipal.cli.app import RUNS, AsJson, DataRoot, GraphName, ModelName, Runs
from ipal.cli.models import opened
from ipal.errors import ConfigError


def explain(
    name: ModelName,
    graph: GraphName,
    node: Annotated[str, typer.Option("--node", metavar="NODE", help="The node to explain: its id or number.")],
    against: Annotated[str | None, typer.Option(metavar="CLASS", help="Compared with; default: the next best.")] = None,
    top: Annotated[int, typer.Option(min=1, max=10_000, help="How many nodes, features and values are shown.")] = 10,
    runs: Runs = RUNS,
    root: DataRoot = None,
    as_json: AsJson = False,
) -> None:
    """Explain a prediction: which hops, neighbours and features spoke for the class of a node, and which against.

    What is divided among them is the margin: the score of the predicted class
    less that of another. Contributions above zero spoke for the predicted
    class. Evidence is a feature of a node: without it (set to zero), the
    margin would be less by its contribution. Exact for the methods ncm, slda
    and, but for its normalisation, analytic; a first order for encoders.
    """
    _, model, data = opened(name, graph, runs, root)

    from ipal.data.graph_data import node_numbers
    from ipal.estimator.explain import explain as explained

    (asked,) = node_numbers(node, "--node", (data.graph.num_nodes, data.ids))
    if len(asked) != 1:
        raise ConfigError("Give --node one node: each is explained on its own.")
    by_name = {str(label): label for label in model.labels}
    other = None if against is None else by_name.get(against, against)
    plain = replace(explained(model, data.graph, asked[0], against=other), ids=data.ids).as_plain_data(top)
    render.as_json(plain) if as_json else _show(plain)


def _show(plain: Mapping[str, Any]) -> None:
    render.say(plain["summary"])
    rest = [("no feature (offsets, not linear)", plain["rest"])] * (abs(plain["rest"]) > 1e-4 * abs(plain["margin"]))
    _print("hops", [*((_hops(hop), value) for hop, value in enumerate(plain["by_hop"])), *rest])
    _print("node", [(f"{one['node']}, {_hops(one['hops'])}", one["contribution"]) for one in plain["by_node"]])
    _print("feature", [(str(one["feature"]), one["contribution"]) for one in plain["by_feature"]])
    _print("evidence", [(f"{one['feature']} of node {one['node']}", one["contribution"]) for one in plain["evidence"]])


def _hops(number: int) -> str:
    return "itself" if number == 0 else render.many(number, "hop") + " away"


def _print(what: str, rows: Sequence[tuple[str, float]]) -> None:
    shown = [(name, f"{value:+.4g}") for name, value in rows]
    render.out.print(render.table((what, "contribution"), shown, numbers=["contribution"]))
