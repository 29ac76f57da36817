"""`ipal predict`, `explain`, `discover`, `serve` and `export`: a saved model at work."""

import csv
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from ipal.cli import render
from ipal.cli.app import RUNS, AsJson, DataRoot, Force, GraphName, ModelName, Runs
from ipal.cli.models import new_file, opened
from ipal.errors import ConfigError
from ipal.runs.run_folder import RunStore
from ipal.system.files import read_bounded, write_atomically
from ipal.system.optional import need_extra

TOKEN = "IPAL_TOKEN"


def predict(
    name: ModelName,
    graph: GraphName,
    out: Annotated[Path, Option("--out", "-o", help="CSV file for the predictions.")],
    reject: Annotated[
        float | None, Option(metavar="SHARE", help="Reject nodes of no known class; lose this share of others.")
    ] = None,
    coverage: Annotated[
        float | None, Option(metavar="SHARE", help="Also sets of classes that hold the right one this often.")
    ] = None,
    nodes: Annotated[str | None, Option(metavar="NODES", help="Ids or numbers of nodes, as 3,17,25.")] = None,
    force: Force = False,
    device: Annotated[str, Option(help="cpu, cuda or cuda:N.")] = "cpu",
    runs: Runs = RUNS,
    root: DataRoot = None,
    as_json: AsJson = False,
) -> None:
    """Predict the classes of a graph's nodes: a CSV file with one row per node, and the number of nodes of each class.

    Columns: node (its id, where the graph has ids), predicted (empty where
    rejected), confidence (the largest probability), rejected, set (with --coverage), and p(CLASS) for every class
    the model knows.

    Probabilities are over the known classes: they add up to one also for a
    node of another class, which --reject finds.
    """
    target = new_file(out, force)
    path, model, whole = opened(name, graph, runs, root, device)

    from ipal.data.graph_data import node_numbers
    from ipal.deploy import predict as deployed

    asked = None if nodes is None else node_numbers(nodes.split(","), "--nodes", (whole.graph.num_nodes, whole.ids))[0]
    found = deployed.predict(model, whole.graph, asked, reject=reject, coverage=coverage)
    deployed.write_csv(found, target, whole.ids)
    counts, rejected = found.counts(), int(found.rejected.sum())
    if as_json:
        what = {"file": str(target), "model": str(path), "method": model.name, "nodes": len(found.nodes)}
        how = {"rejected": rejected, "reject": reject, "coverage": coverage, "directed": model.directed}
        return render.as_json({**what, "predicted": counts, **how})
    shown = counts if reject is None else {**counts, "none of them": rejected}
    render.table(("class", "nodes"), shown.items(), numbers=["nodes"])
    render.say(f"{len(found.nodes)} nodes predicted\nfile  {target}")


def explain(
    name: ModelName,
    graph: GraphName,
    node: Annotated[str, Option(metavar="NODE", help="The node to explain: its id or number.")],
    against: Annotated[str | None, Option(metavar="CLASS", help="Compared with; else the next best.")] = None,
    top: Annotated[int, Option(min=1, max=10_000, help="How many nodes, features and values are shown.")] = 10,
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

    (asked,) = node_numbers(node.split(","), "--node", (data.graph.num_nodes, data.ids))
    if len(asked) != 1:
        raise ConfigError("Give --node one node: each is explained on its own.")
    plain = replace(explained(model, data.graph, asked[0], against=against), ids=data.ids).as_plain_data(top)
    render.as_json(plain) if as_json else _show_explanation(plain)


def _show_explanation(plain: Mapping[str, Any]) -> None:
    render.say(plain["summary"])
    rest = [("no feature (offsets, not linear)", plain["rest"])] * (abs(plain["rest"]) > 1e-4 * abs(plain["margin"]))
    _shares("hops", [*((_hops(hop), value) for hop, value in enumerate(plain["by_hop"])), *rest])
    _shares("node", [(f"{one['node']}, {_hops(one['hops'])}", one["contribution"]) for one in plain["by_node"]])
    _shares("feature", [(str(one["feature"]), one["contribution"]) for one in plain["by_feature"]])
    _shares("evidence", [(f"{one['feature']} of node {one['node']}", one["contribution"]) for one in plain["evidence"]])


def _hops(number: int) -> str:
    return "itself" if number == 0 else render.many(number, "hop") + " away"


def _shares(what: str, rows: Sequence[tuple[str, float]]) -> None:
    render.table((what, "contribution"), [(name, f"{value:+.4g}") for name, value in rows], numbers=["contribution"])


def discover(
    name: ModelName,
    graph: GraphName,
    out: Annotated[Path, Option("--out", "-o", help="CSV file: node, group.")],
    reject: Annotated[float, Option(metavar="SHARE", help="Share of known nodes that may be lost.")] = 0.05,
    classes: Annotated[int | None, Option(min=1, max=1000, help="How many groups; default: chosen.")] = None,
    force: Force = False,
    runs: Runs = RUNS,
    root: DataRoot = None,
    as_json: AsJson = False,
) -> None:
    """Group the nodes of a graph that seem to be of no known class: candidates for new ones, to name and learn."""
    target = new_file(out, force)
    path, model, read = opened(name, graph, runs, root)

    from ipal.estimator.open_world.discover import discover as grouped

    groups = grouped(model, model.checked(read.graph), reject, classes)
    members, rows = list[tuple[Any, int]](), []
    for number, one in enumerate(groups):
        ids = one.nodes if read.ids is None else read.ids[one.nodes]
        members += [(node, number) for node in ids.tolist()]
        nearest = ", ".join(f"{label} ({100 * share:.0f} %)" for label, share in one.nearest)
        rows.append((number, one.size, f"{one.cohesion:.2f}", nearest))
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([("node", "group"), *members])
    write_atomically(target, text.getvalue())
    if as_json:
        plain = [{"nodes": one.size, "cohesion": one.cohesion, "nearest": one.nearest} for one in groups]
        return render.as_json({"file": str(target), "model": str(path), "groups": plain})
    render.table(("group", "nodes", "cohesion", "taken for"), rows, numbers=("group", "nodes", "cohesion"))
    render.say(f"{render.many(len(groups), 'group')}\nfile  {target}")


def serve(
    name: ModelName,
    host: Annotated[str, Option(help="Address to listen on; others than loopback need a token.")] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="Port; 0 for any free one.")] = 8000,
    token_file: Annotated[
        Path | None, Option(help=f"Token file; only /health and /docs need no token. Or set {TOKEN}.")
    ] = None,
    max_bytes: Annotated[str, Option(help="Most bytes of a request body, also after decompression.")] = "64MB",
    max_nodes: Annotated[int, Option(min=1, max=2**31, help="Most nodes of a request.")] = 20_000,
    max_edges: Annotated[int, Option(min=0, max=2**40, help="Most edges of a request.")] = 1_000_000,
    timeout: Annotated[
        float, Option(min=0.1, max=86_400, help="Seconds for receiving a body, and again for answering it.")
    ] = 30.0,
    queue: Annotated[int, Option(min=0, max=10**6, help="Most requests in the queue.")] = 16,
    max_connections: Annotated[int, Option(min=1, max=10**6, help="Most open connections.")] = 2048,
    threads: Annotated[int | None, Option(min=1, max=1024, help="CPU threads; workers share them.")] = None,
    workers: Annotated[int, Option(min=1, max=1024, help="Processes that answer, each with the model.")] = 1,
    runs: Runs = RUNS,
) -> None:
    """Serve predictions over HTTP until stopped. A request holds a graph as JSON or .npz; none is stored.

    POST /predict, /explain, GET /memory, /health, /metrics; /docs describes them. A new model in the file is taken
    within a second, or at POST /reload where there is a token, without losing a request. Needs the extra 'serve'.
    """
    path = RunStore(runs).model_file(name)
    token = _token(token_file)

    need_extra("serve", "fastapi", "uvicorn", "prometheus_client")
    from ipal.deploy.serving.bodies import Limits
    from ipal.deploy.serving.server import serve as serve_until_stopped
    from ipal.runs.memory_plan import parse_bytes

    limits = Limits(
        bytes=parse_bytes(max_bytes, "--max-bytes"),
        nodes=max_nodes,
        edges=max_edges,
        seconds=timeout,
        waiting=queue,
        connections=max_connections,
    )

    def started(address: str, facts: dict[str, Any]) -> None:
        render.say(f"Listening on {address}")
        what = f"{facts['method']} with {len(facts['classes'])} classes, version {facts['version']}"
        render.note(f"{what}; {address}/docs says what it takes. Ctrl-C stops.")

    serve_until_stopped(
        path, host=host, port=port, token=token, limits=limits, threads=threads, workers=workers, started=started
    )
    render.note("Stopped; the requests being processed were answered.")


def _token(file: Path | None) -> str | None:
    if file is None:
        return os.environ.get(TOKEN) or None
    try:
        return read_bounded(file, 4096).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"The token file {file} cannot be read: give a file with one line of plain characters."
        ) from error


def export(
    name: ModelName,
    out: Annotated[Path, Option("--out", "-o", help="File for the ONNX model, as model.onnx.")],
    force: Force = False,
    edge_weights: Annotated[bool, Option("--edge-weights", help="Weights of edges as a third input.")] = False,
    runs: Runs = RUNS,
    as_json: AsJson = False,
) -> None:
    """Write a model as one ONNX file for graphs of any size, checked against the model on random graphs.

    Inputs are features and edges, and with --edge-weights their weights;
    outputs are scores, probabilities and the predicted class of every node.
    Needs the extra onnx.
    """
    target = new_file(out, force)
    path = RunStore(runs).model_file(name)

    need_extra("onnx", "onnx", "onnxruntime", "onnxscript")
    from ipal.deploy.export import export_onnx
    from ipal.estimator.files import load

    made = {"model": str(path), **export_onnx(load(path), target, edge_weights=edge_weights)}
    if as_json:
        return render.as_json(made)
    apart, size = made["largest_difference"], render.size(made["bytes"])
    named = {word: "; ".join(f"{name}: {kind}" for name, kind in made[word].items()) for word in ("inputs", "outputs")}
    checked = (
        f"on {made['graphs']} random graphs: scores differ by at most {apart['scores']:.1e} of the largest one "
        f"(allowed {made['tolerance']:.0e}), probabilities by {apart['probabilities']:.1e}"
    )
    model = f"method {made['method']}, classes {len(made['classes'])}, opset {made['opset']}, {size}"
    render.facts({"model": model, **named, "checked": checked, "file": made["file"]})
