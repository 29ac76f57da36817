"""`ipal watch`: has a graph drifted since a model learned?"""

import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from ipal.cli import render
from ipal.cli.app import RUNS, AsJson, DataRoot, Directed, GraphName, ModelName, Runs
from ipal.cli.models import opened, rewritten
from ipal.errors import ConfigError, shortened
from ipal.system.files import check_target, write_atomically


def watch(
    name: ModelName,
    graph: GraphName,
    remembers: Annotated[
        bool,
        typer.Option("--remember", help="Keep this graph's figures in the model file, to compare others with."),
    ] = False,
    false_alarms: Annotated[
        float, typer.Option("--false-alarms", metavar="P", help="Probability that a graph as before gives an alarm.")
    ] = 0.01,
    limits: Annotated[
        list[str] | None,
        typer.Option("--limit", metavar="NAME=VALUE", help="A limit of your own, as features=0.3; may be repeated."),
    ] = None,
    prometheus: Annotated[
        Path | None,
        typer.Option(
            "--prometheus", metavar="FILE", help="Write metrics for node_exporter's textfile collector; - prints them."
        ),
    ] = None,
    directed: Directed = None,
    runs: Runs = RUNS,
    root: DataRoot = None,
    as_json: AsJson = False,
) -> None:
    """Compare a graph with the one that a model remembers (--remember), or with its training nodes.

    Watched are class_shares, features, homophily, unknown and
    expected_accuracy, as far as the method says something about them. Ends
    with exit code 1 where a limit is exceeded. Limits follow from sampling
    error, and without a remembered graph also from the predictions' expected
    errors; expected_accuracy then has none unless given.
    """
    own = dict(_limit(text) for text in limits or ())
    printed = prometheus == Path("-")
    if printed and as_json:
        raise ConfigError("--prometheus - and --json both print: name a file for the metrics.")
    if prometheus is not None and not printed:
        check_target(prometheus)
    path, model, data, _ = opened(name, graph, runs, root, directed)
    whole = data.graph

    from ipal.deploy import watch as deployed

    lines = deployed.watch(model, whole, false_alarms=false_alarms, limits=own)
    since = model.reference["time"] if model.reference else None
    if remembers:
        rewritten(name, None, False, runs, lambda one: deployed.remember(one, whole), f"remembered {graph}")
    metrics = deployed.prometheus(lines, path.name)
    if prometheus is not None and not printed:
        write_atomically(prometheus, metrics)
    alarms = [line.name for line in lines if line.alarm]
    if printed:
        render.say(metrics.rstrip())
    elif as_json:
        shown = [{**asdict(line), "what": line.what} for line in lines]
        render.as_json({"model": str(path), "nodes": whole.num_nodes, "since": since, "lines": shown, "alarms": alarms})
    else:
        _show(lines, since, alarms)
    if alarms:
        raise typer.Exit(1)


def _limit(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if math.isnan(number):
        raise ConfigError(f"--limit takes a name and a number, as features=0.3; got '{shortened(text)}'.")
    return name, number


def _show(lines: list[Any], since: str | None, alarms: list[str]) -> None:
    columns = ("before", "now", "change", "limit")
    table = render.table(("watched", *columns, ""), numbers=columns)
    for line in lines:
        cells = ("" if value is None else f"{value:.3f}" for value in (line.learned, line.now, line.change, line.limit))
        table.add_row(line.name, *cells, "ALARM" if line.alarm else "")
    render.out.print(table)
    before = "the training nodes" if since is None else f"the graph remembered on {since}"
    said = f"exceeded: {', '.join(alarms)}" if alarms else "no limit exceeded"
    render.say(f"{said}; compared with {before}")
