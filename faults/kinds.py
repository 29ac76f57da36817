"""The kinds of damaged input: each makes one, and hands it to its readers."""

import contextlib
import io
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np

from faults.bases import CONFIG, EXPERIMENT, Bases
from faults.core import Case, Failed
from faults.mutations import VALUES, as_json, as_yaml, changed_archive, changed_array, changed_tree, damaged, one_of

RUN_FILES = ("config.yaml", "result.json", "history.csv", "confusion.json", "environment.json")
WORDS = ("", " ", "x", "-1", "0", "1e999", "nan", "9" * 5000, "[/bold]", "a" * 300, "\x00", "é\ud800", "../..", "1;2")


# ---------------------------------------------------------------------- graphs


def graph_files(bases: Bases, case: Case) -> None:
    from ipal.data.datasets import load, load_to_predict
    from ipal.data.datasets.forget_file import read_departures

    draw = case.random
    path = case.folder / "mine.npz"
    sound = [bases.folder / "dense.npz", bases.folder / "sparse.npz"]
    if draw.random() < 0.4:
        one, other = draw.sample(sound, 2)
        path.write_bytes(damaged(draw, one.read_bytes(), other.read_bytes()))
    else:
        path.write_bytes(changed_archive(draw, draw.choice([bases.arrays, bases.sparse, bases.named])))
    readers: list[Callable[[], object]] = [
        lambda: load(str(path)).hash,
        lambda: load_to_predict(str(path)),
        lambda: read_departures([path]),
    ]
    draw.choice(readers)()


def stock_files(bases: Bases, case: Case) -> None:
    from ipal.data.datasets import load

    path = case.folder / "pyg/CS/raw/ms_academic_cs.npz"
    path.parent.mkdir(parents=True)
    path.write_bytes(changed_archive(case.random, bases.stock))
    _ = load("cs", case.folder).hash


def table_files(bases: Bases, case: Case) -> None:
    from ipal.data.datasets import load, load_to_predict
    from ipal.data.datasets.forget_file import read_departures

    draw = case.random
    kind = draw.choice(sorted({path.suffix for path in (bases.folder / "tables").iterdir()}))
    nodes, edges = (case.folder / f"{name}{kind}" for name in ("nodes", "edges"))
    for path in (nodes, edges):
        shutil.copy(bases.folder / "tables" / path.name, path)
    path = draw.choice([nodes, edges])
    if kind == ".csv" and draw.random() < 0.6:
        lines = [line.split(",") for line in path.read_text().splitlines()]
        for _ in range(draw.choice((1, 1, 3))):
            row = draw.choice([lines[0], *draw.sample(lines, 3)])
            row[draw.randrange(len(row))] = draw.choice(WORDS)
        path.write_text("\n".join(map(",".join, lines)), errors="surrogatepass")
    else:
        path.write_bytes(damaged(draw, path.read_bytes(), draw.choice([nodes, edges]).read_bytes()))
    readers: list[Callable[[], object]] = [
        lambda: load(f"{nodes},{edges}").hash,
        lambda: load_to_predict(f"{case.folder}/"),
        lambda: read_departures([Path(f"{nodes},{edges}")], "n3,n5"),
        lambda: _command("data", f"{nodes},{edges}"),
    ]
    draw.choice(readers)()


def graph_folders(bases: Bases, case: Case) -> None:
    from ipal.config import run_config
    from ipal.runs import runner

    draw = case.random
    folder = Path(shutil.copytree(one_of(draw, bases.graph_folders), case.folder / "mine.graph"))
    path = draw.choice(sorted(folder.iterdir()))
    if draw.random() < 0.4:
        path.write_bytes(damaged(draw, path.read_bytes()))
    elif path.suffix == ".npy":
        path.write_bytes(changed_array(draw, np.load(path)))
    else:
        path.write_bytes(as_json(changed_tree(draw, json.loads(path.read_text()))))
    stream = runner.resolve(run_config({"dataset": str(folder), "method": "slda"})).stream
    for index in range(len(stream)):
        stream.task(index)


# ---------------------------------------------------------------------- models and checkpoints


def models(bases: Bases, case: Case) -> None:
    from ipal.data.graph_data import GraphData
    from ipal.estimator import edits, files
    from ipal.estimator.learners import Analytic
    from ipal.runs import runner
    from ipal.runs.run_folder import RunFolder

    draw = case.random
    sound = one_of(draw, bases.models)
    path = case.folder / "model.safetensors"
    must_refuse = _write_state(bases, case, sound, path)
    model = files.load(path)
    if must_refuse:
        raise Failed(f"{sound.parent.name}: a model with {must_refuse} was taken")
    model.memory_report()
    model.predict_graph(_graph(bases))
    if model.name == "analytic":
        stream = runner.resolve(RunFolder(sound.parent).config()).stream
        last = stream.task(len(stream) - 1)
        y = np.full(last.graph.num_nodes, -1)
        y[last.nodes] = last.labels
        learner, other = Analytic.load(path), Analytic._of(replace(files.load(sound), history=()))
        edits.merge_models(other, learner)  # as if it had learned other graphs
        own = {"x": last.graph.x, "edge_index": last.graph.edges, "edge_weight": last.graph.edge_weight}
        data: Any = GraphData(**own, y=y, train_mask=y >= 0)
        edits.forget_class(learner, int(last.labels[0]), data)


def checkpoints(bases: Bases, case: Case) -> None:
    from faults.kills_forked import Nobody
    from ipal.runs import runner
    from ipal.runs.run_folder import RunFolder

    sound = one_of(case.random, bases.interrupted)
    folder = RunFolder(Path(shutil.copytree(sound, case.folder / sound.name)))
    must_refuse = _write_state(bases, case, sound / "checkpoint.safetensors", folder.checkpoint)
    resolved = runner.resolve(folder.config())
    epochs = runner.run_by_epochs(resolved, folder, Nobody())
    next(epochs, None)
    epochs.close()
    if must_refuse:
        raise Failed(f"{sound.name}: a checkpoint with {must_refuse} was taken")


def _write_state(bases: Bases, case: Case, sound: Path, path: Path) -> str | None:
    """A changed state; returns what is so wrong with it that it must be refused."""
    from ipal.state.snapshot import Snapshot

    draw = case.random
    if draw.random() < 0.3:
        path.write_bytes(damaged(draw, sound.read_bytes(), one_of(draw, bases.models).read_bytes()))
        return None
    saved = Snapshot.load(sound)
    tensors, facts = dict(saved.tensors), saved.facts
    wrong = None
    if draw.random() < 0.5:
        facts = _plain(changed_tree(draw, facts))
    else:
        wrong = _change_tensors(case, tensors)
    Snapshot(tensors, facts).save(path)
    return wrong


def _change_tensors(case: Case, tensors: dict[str, Any]) -> str | None:
    import torch

    draw = case.random
    name = draw.choice(sorted(tensors))
    one = tensors[name]
    is_float = one.dtype.is_floating_point and one.numel() > 0
    kind = draw.choice(["missing", "extra", "renamed", "shape", "flat", "type", "value", "value", "empty", "scalar"])
    if kind == "missing":
        del tensors[name]
        return f"no {name}"
    if kind == "extra":
        tensors["nobody.asked"] = torch.zeros(3)
    elif kind == "renamed":
        tensors[f"{name}x"] = tensors.pop(name)
        return f"{name} under another name"
    elif kind == "shape":
        tensors[name] = torch.cat([one, one]) if one.ndim else one.reshape(1)
    elif kind == "flat":
        tensors[name] = one.reshape(-1)
    elif kind == "type":
        tensors[name] = one.to(draw.choice([torch.float64, torch.int64, torch.float16, torch.uint8, torch.bool]))
    elif kind == "empty":
        tensors[name] = one[:0] if one.ndim else one
    elif kind == "scalar":
        tensors[name] = one.reshape(-1)[0].clone() if one.numel() else one
    elif is_float:
        changed = one.clone()
        value = draw.choice([float("nan"), float("inf"), -1.0, 1e38])
        changed.reshape(-1)[draw.randrange(one.numel())] = value
        tensors[name] = changed
        if not np.isfinite(value):
            return f"{value} in {name}"
    return None


def _plain(tree: Any) -> Any:
    """JSON that Python itself can write."""
    return json.loads(json.dumps(tree))


def _graph(bases: Bases) -> Any:
    from ipal.data.graph import checked_graph

    return checked_graph(bases.arrays["x"], bases.arrays["edge_index"], undirected=True)


# ---------------------------------------------------------------------- run folders and plans


def run_folders(bases: Bases, case: Case) -> None:
    draw = case.random
    sound = one_of(draw, bases.finished)
    folder = Path(shutil.copytree(sound, case.folder / "runs" / sound.name))
    name = draw.choice([name for name in RUN_FILES if (folder / name).exists()])
    _damage_text(case, folder / name)
    _read_run(case, folder)


def _read_run(case: Case, folder: Path) -> None:
    from ipal.report.collect import read_run
    from ipal.runs.run_folder import RunFolder
    from ipal.trackers.record import read

    run = RunFolder(folder)
    readers: list[Callable[[], object]] = [
        lambda: _command("show", folder),
        lambda: _command("show", folder, "--json"),
        lambda: _command("list", "runs", "--runs", folder.parent),
        lambda: _command("resume", folder),
        lambda: read_run(run).result.model_dump(),
        lambda: read(run),
        lambda: (run.config(), run.environment(), run.history(), run.confusion(), run.data_root()),
    ]
    case.random.choice(readers)()


def manifests(bases: Bases, case: Case) -> None:
    from ipal.report.collect import choose_manifests, read_bench

    path = case.folder / "runs" / "benches" / "study.json"
    path.parent.mkdir(parents=True)
    for run in bases.manifest["entries"][0]["runs"]:
        shutil.copytree(bases.folder / "finished" / run, case.folder / "runs" / run)
    shutil.copy(bases.folder / "manifest.json", path)
    _damage_text(case, path)
    for manifest in choose_manifests(case.folder / "runs", []):
        read_bench(manifest, case.folder / "runs")


def experiment_files(bases: Bases, case: Case) -> None:
    path = case.folder / "study.yaml"
    if case.random.random() < 0.3:
        path.write_bytes(damaged(case.random, (bases.folder / "experiment.yaml").read_bytes()))
    else:
        path.write_bytes(as_yaml(case.random, changed_tree(case.random, EXPERIMENT)))
    _command("bench", path, "--dry-run", "--runs", case.folder / "runs", *["--tune"] * (case.random.random() < 0.3))


def config_files(bases: Bases, case: Case) -> None:
    path = case.folder / "run.yaml"
    if case.random.random() < 0.3:
        path.write_bytes(damaged(case.random, (bases.folder / "config.yaml").read_bytes()))
    else:
        path.write_bytes(as_yaml(case.random, changed_tree(case.random, CONFIG)))
    _resolve(path, [])


def options(bases: Bases, case: Case) -> None:
    from ipal.config import RunConfig, known_settings
    from ipal.data.datasets import load
    from ipal.data.graph_data import node_numbers
    from ipal.runs.memory_plan import parse_bytes

    draw = case.random
    name = draw.choice([*known_settings(RunConfig), "ipal.gamma", "ipal.k", "ipal", "x.y", ""])
    text = as_json(draw.choice(VALUES)).decode() if draw.random() < 0.5 else draw.choice(WORDS)
    ways: list[Callable[[], object]] = [
        lambda: _resolve(None, [f"{name}={text}"]),
        lambda: parse_bytes(text),
        lambda: node_numbers(text.split(","), "--nodes", (10, None)),
        lambda: node_numbers(text.split(","), "--nodes", (2, np.array(["x", "1;2"]))),
        lambda: load(
            f"synthetic:{draw.choice(('nodes', 'classes', 'features', 'degree', 'seed'))}={draw.choice(WORDS)}"
        ),
        lambda: _command("show", draw.choice(WORDS), "--runs", case.folder),
        lambda: _command("list", draw.choice(WORDS)),
    ]
    draw.choice(ways)()


def requests(bases: Bases, case: Case) -> None:
    from ipal.deploy.serving.bodies import JSON, NPZ, Limits, json_body, npz_body, read_question

    draw = case.random
    graph = _graph(bases)
    kind = draw.choice([JSON, NPZ])
    if draw.random() < 0.4:
        body = damaged(draw, json_body(graph) if kind == JSON else npz_body(graph))
    elif kind == JSON:
        body = as_json(changed_tree(draw, json.loads(json_body(graph))))
    else:
        body = changed_archive(draw, {name: bases.arrays[name] for name in ("x", "edge_index")})
    read_question(body, kind, Limits())


def _resolve(path: Path | None, assignments: list[str]) -> None:
    from ipal.cli.experiment import wanted_run
    from ipal.config import override, parse_assignment
    from ipal.runs import runner

    base = {} if path else {"dataset": "synthetic:nodes=60,classes=4,features=5"}
    runner.resolve(wanted_run(reduce(override, map(parse_assignment, assignments), base), path))


def _damage_text(case: Case, path: Path) -> None:
    """A text file, by its bytes or by what it says."""
    import yaml

    draw, content = case.random, path.read_bytes()
    if draw.random() < 0.35 or path.suffix == ".csv":
        path.write_bytes(damaged(draw, content))
    elif path.suffix == ".yaml":
        path.write_bytes(as_yaml(draw, changed_tree(draw, yaml.safe_load(content))))
    else:
        path.write_bytes(as_json(changed_tree(draw, json.loads(content))))


def _command(*arguments: object) -> None:
    """The command in this process: it ends well, or with code 2 and at most three lines."""
    from ipal.cli import main

    sys.argv = ["ipal", *map(str, arguments)]
    err = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as stop:
            lines = [line for line in err.getvalue().splitlines() if line.strip()]
            if stop.code not in (None, 0, 2) or (stop.code == 2 and len(lines) > 3):
                raise Failed(f"{arguments[0]}: exit code {stop.code}, {len(lines)} lines: {lines[-1:]}") from stop


KINDS: dict[Callable[[Bases, Case], None], int] = {
    graph_files: 6,
    table_files: 6,
    stock_files: 2,
    graph_folders: 4,
    models: 6,
    checkpoints: 3,
    run_folders: 6,
    manifests: 2,
    experiment_files: 3,
    config_files: 3,
    options: 3,
    requests: 2,
}
"""And how often each is tried."""
