"""A method and a dataset of a file outside the package: by --plugin and by an entry point, in every command."""

import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer.main

import ipal as library
from ipal.bench.experiment_file import read_experiment
from ipal.bench.jobs import GroupRunner, JobGroup
from ipal.bench.suite import prepare
from ipal.cli import app
from ipal.config import run_config
from ipal.errors import ConfigError
from ipal.estimator import files
from ipal.runs import runner
from ipal.runs.run_folder import RunStore
from tests.cli.support import SMALL, assert_same_model
from tests.report.support import parse
from tests.snippets import in_this_process
from tests.support import Command, Watcher, complaint, forget_plugins, install_package

TOYS = """
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Annotated

import numpy as np
from pydantic import Field

import ipal
from ipal.nn.encoders import GCN


@dataclass(frozen=True, kw_only=True)
class Toy(ipal.Classifier):
    \"\"\"Fine-tuning under another name.\"\"\"

    strength: Annotated[float, Field(ge=0)] = 1.0
    \"\"\"Of nothing.\"\"\"

    name = "toy-method"
    title = "Toy"


class ToyEncoder(GCN):
    \"\"\"Convolutions under another name.\"\"\"

    name = "toy-encoder"


def make() -> SimpleNamespace:
    random = np.random.default_rng(0)
    y = np.repeat([0, 1, 2, 3], 30)
    x = (random.normal(size=(120, 6)) + y[:, None]).astype("float32")
    edges = random.integers(0, 120, (2, 300))
    return SimpleNamespace(x=x, edge_index=edges, y=y)


class Halves(ipal.TaskStream):
    \"\"\"Every task again at the end, with the same nodes.\"\"\"

    name = "toy-stream"

    class Settings(ipal.Stream.Settings):
        again: int = Field(1, ge=0)
        \"\"\"How often.\"\"\"

    @classmethod
    def of(cls, dataset, config):
        stream = super().of(dataset, config.model_copy(update={"split": (2, 2)}))
        stream.classes = stream.classes * (1 + cls.Settings(**config.protocol.stream.settings).again)
        return stream

    def task(self, index):
        return super().task(index % 2)

    def test_splits(self, learned):
        first = super().test_splits(min(learned, 1))
        return [first[index % 2] for index in range(learned + 1)]


def worst_task(scores):
    \"\"\"Lowest accuracy of a task at the end.\"\"\"
    return scores.test[-1].min()


worst = ipal.Metric("worst", worst_task)
graph = ipal.DatasetEntry("toy-graph", "Four classes that are not there.", make=make, split=(2, 2))
"""
ENTRIES = {
    "ipal.methods": {"toy-method": "toys:Toy"},
    "ipal.encoders": {"toy-encoder": "toys:ToyEncoder"},
    "ipal.datasets": {"toy-graph": "toys:graph"},
    "ipal.streams": {"toy-stream": "toys:Halves"},
    "ipal.metrics": {"worst_task": "toys:worst"},
}
SET = ("--set", "train.epochs=3", "--set", "encoder.kind=toy-encoder", "--set", "protocol.stream=toy-stream")
RUN = ["run", "--dataset", "toy-graph", "--method", "toy-method", *SET]
EXPERIMENT = """
kind: study
seeds: 2
PLUGINS
all: {dataset: toy-graph, train.epochs: 2, toy-method.strength: 2, protocol.stream: {name: toy-stream, again: 1}}
entries: {bare: , mine: {method: toy-method}}
"""


@dataclass
class Door:
    """How the toys come in: what to add to a command, and what a list says of them."""

    options: tuple[str, ...]
    origin: str


@pytest.fixture(params=["file", "package"])
def door(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Door]:
    if request.param == "file":
        yield Door(("--plugin", str(plugin_file(tmp_path))), "toys.py")
    else:
        install_package(tmp_path, monkeypatch, {"toys": TOYS}, ENTRIES)
        yield Door((), "the package toys 1.0")


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    yield
    forget_plugins()


def plugin_file(folder: Path, text: str = TOYS) -> Path:
    path = folder / "outside" / "toys.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def stopped(runs: Path, path: Path | None) -> Path:
    """The run of RUN, interrupted in its third task, which was tested before it was learned."""
    if path:
        library.load_plugin(path)
    settings = {"train": {"epochs": 3}, "encoder": {"kind": "toy-encoder"}}
    protocol = {"stream": {"name": "toy-stream", "again": 1}}
    asked = run_config({"dataset": "toy-graph", "method": "toy-method", "protocol": protocol, **settings})
    resolved = runner.resolve(asked)
    folder = RunStore(runs).folder_for(resolved.config)
    with pytest.raises(KeyboardInterrupt):
        runner.run(resolved, folder, Watcher(7), checkpoint_every=2)
    return folder.path


def test_every_command_takes_it() -> None:
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        (option,) = (one for one in command.params if "--plugin" in one.opts)
        assert option.multiple, name


@pytest.mark.usefixtures("short_tsne")
def test_a_toy_goes_through_every_command(
    command: Command, door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_toys = door.options
    run = command(*RUN, *with_toys, "--json").json
    folder = Path(run["run"])
    name, version = next(iter(run["plugins"].items()))
    assert (name, len(version)) == (("toys.py", 64) if with_toys else ("toys", 3))
    stored = command("show", folder, "--json")
    assert stored.json == {**run, "run": str(folder.resolve())}
    assert name in command("show", folder, "--long").out
    assert run["protocol"]["stream"] == {"name": "toy-stream", "again": 1}
    assert [one is None for one in run["before_learning"]] == [True, True, False, False]
    assert run["metrics"]["forward_transfer"] is not None
    assert run["metrics"]["worst_task"] == min(run["accuracy_matrix"][-1])
    assert "Lowest accuracy of a task at the end" in command("show", folder, "--long", *with_toys).out

    other = resumed(command, door, tmp_path)
    assert_same_model(other, folder)

    model = library.load_plugin(with_toys[1]) and library.load(folder / "model.safetensors") if with_toys else None
    assert model is None or model.model_.name == "toy-method"
    made = command("predict", folder, "--graph", "toy-graph", "-o", "p.csv", *with_toys, "--json").json
    assert made["method"] == "toy-method"
    assert made["nodes"] == 120
    more = (  # each loads a file that it is given; what is installed is found by its name, whatever the command
        ("audit", folder, "--data", "toy-graph"),
        ("export", folder, "-o", "toy.onnx", "--graphs", "1"),
        ("drift", "--dataset", "toy-graph", "--methods", "toy-method", "--seeds", "1", "--set", "train.epochs=1"),
        ("track", folder, "--to", "tensorboard", "-o", "board"),
        RUN,
    )
    for again in (("report", folder, "--html", "-o", "page.html"), ("data", "toy-graph"), *(more if with_toys else ())):
        done = command(*again, *with_toys)
        assert done.code == 0, done.err
    page = Path("page.html").read_text()
    assert "toy-method" in page
    assert "Lowest accuracy of a task at the end" in page
    if with_toys:
        assert "--plugin toys.py" in page
    complaint(command("merge", folder, other, "-o", "m.safetensors", *with_toys), "'toy-method'")
    served = list[str]()
    monkeypatch.setattr("ipal.deploy.serving.server.serve", lambda path, **_: served.append(files.load(path).name))
    assert command("serve", folder, *with_toys).code == 0
    assert served == ["toy-method"]


def resumed(command: Command, door: Door, tmp_path: Path) -> Path:
    folder = stopped(tmp_path / "stopped", Path(door.options[1]) if door.options else None)
    if door.options:
        words = ("made with the plugin toys.py, which is not loaded", "--plugin toys.py")
        complaint(command("resume", folder), *words)
        assert "ipal_plugins.toys" not in sys.modules
    assert command("resume", folder, *door.options).code == 0
    return folder


def test_lists_say_where_a_toy_comes_from(command: Command, door: Door) -> None:
    names = {
        "methods": "toy-method",
        "encoders": "toy-encoder",
        "streams": "toy-stream",
        "metrics": "worst_task",
        "datasets": "toy-graph",
    }
    for what, name in names.items():
        done = command("list", what, *door.options)
        assert f"{name} is from {door.origin}" in done.out
        (row,) = (row for row in command("list", what, *door.options, "--json").json if row["name"] == name)
        assert row["plugin"] == door.origin
        if door.options:
            assert row["about"]
    assert "toys" not in sys.modules, "an installed package is loaded only when one of its names is asked for"


def test_a_bench_by_both_doors(command: Command, door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ipal.bench.suite import ENGINES

    monkeypatch.setitem(ENGINES, "local", in_this_process)
    (tmp_path / "toys.yaml").write_text(EXPERIMENT.replace("PLUGINS", ""))
    rows = command("bench", "toys.yaml", *door.options, "--json").json["toys"]
    assert [row["label"] for row in rows] == ["bare", "mine"]
    again = json.loads(Path("runs/benches/toys.json").read_text())["command"]
    assert again == " ".join(["ipal bench toys.yaml", *door.options])
    assert command("report", "--html").code == 0
    assert "toy-method" in parse(Path("report/runs.html")).text  # runs are named after their methods, not their entries
    assert command("report", *door.options).code == 0
    assert "mine" in Path("report/details-toys.md").read_text()
    assert "worst ↑" in Path("report/metrics-toys.md").read_text()


def test_a_job_names_the_plugins_that_its_process_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = plugin_file(tmp_path)
    (tmp_path / "toys.yaml").write_text(EXPERIMENT.replace("PLUGINS", "plugins: [outside/toys.py]"))
    suite = prepare([read_experiment(tmp_path / "toys.yaml")], tmp_path / "runs")
    jobs = tuple(suite.jobs.values())
    assert {job.plugins for job in jobs} == {(path,)}
    forget_plugins()
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    assert list(GroupRunner()(JobGroup(jobs)).values()) == [None] * 4
    path.unlink()
    forget_plugins()
    (reason,) = GroupRunner()(JobGroup(jobs[:1])).values()
    assert f"There is no plugin file {path}" in str(reason)


# ---------------------------------------------------------------------- what is recorded


def test_only_the_runs_that_use_a_plugin_are_those_of_its_content(command: Command, tmp_path: Path) -> None:
    path = plugin_file(tmp_path)
    option = ("--plugin", str(path))
    own = ["run", *SMALL, "--method", "ncm", "--json"]
    assert command(*own, *option).json["run"] == command(*own).json["run"]
    first = Path(command(*RUN, *option, "--json").json["run"])
    assert json.loads((first / "environment.json").read_text())["plugins"] == [str(path)]
    moved = tmp_path / "elsewhere" / "toys.py"
    moved.parent.mkdir()
    shutil.copy(path, moved)
    assert command(*RUN, "--plugin", moved, "--json").json["run"] == str(first)
    plugin_file(tmp_path, TOYS + "# changed\n")
    assert command(*RUN, *option, "--json").json["run"] != str(first)


@pytest.mark.filterwarnings("default")
def test_a_file_that_has_changed_is_said_once(command: Command, tmp_path: Path) -> None:
    path = plugin_file(tmp_path)
    folder = stopped(tmp_path / "runs", path)
    plugin_file(tmp_path, TOYS + "# changed\n")
    done = command("resume", folder, "--plugin", path)
    assert done.code == 0
    assert done.err.count("Warning: This run was made with another version of the plugin toys.py") == 1


def test_a_saved_model_asks_for_its_plugin(command: Command, tmp_path: Path) -> None:
    path = plugin_file(tmp_path)
    folder = Path(command(*RUN, "--plugin", path, "--json").json["run"])
    forget_plugins()
    model = folder / "model.safetensors"
    shutil.copy(model, "copy.safetensors")
    with pytest.raises(ConfigError, match=r"made with the plugin toys\.py.*ipal\.load_plugin\('toys\.py'\)"):
        library.load("copy.safetensors")
    complaint(command("predict", "copy.safetensors", "--graph", "digits", "-o", "p.csv"), "--plugin toys.py")
    library.load_plugin(path)
    assert library.load("copy.safetensors").model_.name == "toy-method"


# ---------------------------------------------------------------------- what is refused

HEAD = "from dataclasses import dataclass\nfrom typing import Annotated\nimport ipal\nfrom pydantic import Field\n"
SETTINGS = "@dataclass(frozen=True, kw_only=True)\n"
TAKEN = f"{SETTINGS}class Mine(ipal.Classifier):\n    'One.'\n    name = 'ewc'\n    title = 'M'\n"
MINE = TAKEN.replace("ewc", "mine")
BAD = {
    "a taken method": (TAKEN, "defines a method 'ewc', and there is another"),
    "a taken dataset": ("x = ipal.DatasetEntry('cs', '', make=int)\n", "defines a dataset 'cs', and there is another"),
    "a setting's name": (
        TAKEN.replace("ewc", "train"),
        "'train' of PATH cannot be used as a method: the name 'train' is",
    ),
    "no method": (
        MINE.replace("Classifier", "Trained"),
        "'mine' of PATH is no complete method: it lacks",
    ),
    "no dataclass": (
        MINE.replace(SETTINGS, ""),
        "'mine' of PATH cannot be used as a method: it lacks @dataclass",
    ),
    "a bad default": (
        MINE + "    a: Annotated[float, Field(ge=0)] = -1.0\n",
        "'mine' of PATH cannot be used as a method: The setting 'mine.a' cannot be -1.0",
    ),
    "no default": (
        MINE + "    a: float\n",
        "'mine' of PATH cannot be used as a method: The setting 'a' has no default",
    ),
    "a bad metric": (
        "def mine(scores):\n    return scores.tset\nx = ipal.Metric('mine', mine)\n",
        "'mine' of PATH cannot be used as a metric: AttributeError",
    ),
    "no stream": (
        "class Mine(ipal.Stream):\n    name = 'm'\n",
        "'m' of PATH is no complete stream: it lacks of, task, test_splits",
    ),
    "a dataset of nothing": (
        "x = ipal.DatasetEntry('mine', '')\n",
        "'mine' of PATH cannot be used as a dataset: it says",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_plugin_is_one_sentence_with_file_and_line(what: str, command: Command, tmp_path: Path) -> None:
    text, words = BAD[what]
    path = plugin_file(tmp_path, HEAD + text)
    complaint(command("list", "methods", "--plugin", path), str(path), words.replace("PATH", str(path)))


def test_what_makes_a_dataset_must_give_a_graph(command: Command, tmp_path: Path) -> None:
    path = plugin_file(tmp_path, HEAD + "x = ipal.DatasetEntry('mine', '', make=dict)\n")
    complaint(command("run", "--dataset", "mine", "--plugin", path), "'mine' gave a dict", "edge_index, y and x")


@pytest.mark.parametrize("given", ["toys.py", "{toys.py: 1}", "[3]", "[none.py]", "[bad.py]"])
def test_an_experiment_file_with_bad_plugins(given: str, command: Command, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("1 / 0\n")
    (tmp_path / "toys.yaml").write_text(EXPERIMENT.replace("PLUGINS", f"plugins: {given}"))
    complaint(command("bench", "toys.yaml"), "toys.yaml, line 4: ")


def test_a_dataset_that_cannot_be_made_is_a_sentence_that_names_its_plugin(command: Command, tmp_path: Path) -> None:
    path = plugin_file(tmp_path, HEAD + "x = ipal.DatasetEntry('broken', '', make=lambda: int('no'))\n")
    said = command("run", "--plugin", path, "--dataset", "broken")
    complaint(said, "The dataset 'broken' of toys.py could not be made (ValueError: ")
