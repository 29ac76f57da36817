"""The command `ipal`: every command, what it prints, what it leaves on disk."""

import csv
import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
import yaml
from torch_geometric.data import Data

import ipal as package
from ipal import experiment
from ipal.cli import main
from ipal.config import run_config
from ipal.datasets import Dataset, catalog, load
from ipal.evaluate import Row
from ipal.state import State
from ipal.store import RunStore
from tests.conftest import Ipal, write_graph

GRAPH = "synthetic:nodes=240,classes=6,features=16,signal=3"
SMALL = ["--dataset", GRAPH, "--set", "train.epochs=3", "--threads", 1]


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What stdout holds, which must be JSON and nothing else."""
        assert self.code == 0, self.err
        return json.loads(self.out)


Command = Callable[..., Outcome]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command as `ipal` would run it in an empty folder, but without starting Python anew."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IPAL_DATA", str(tmp_path / "no-data"))
    monkeypatch.delenv("IPAL_RUNS", raising=False)

    def call(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["ipal", *map(str, arguments)])
        capsys.readouterr()
        code: Any = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
        return Outcome(code, *capsys.readouterr())

    return call


@pytest.fixture
def finished(command: Command) -> Path:
    """The folder of a finished run, under runs/."""
    folder = Path(command("run", *SMALL, "--json").json["run"])
    return folder.resolve()


def config_of(folder: Path) -> dict[str, Any]:
    tree = yaml.safe_load((folder / "config.yaml").read_text())
    assert isinstance(tree, dict)
    return tree


def stamps(folder: Path) -> dict[str, tuple[int, int]]:
    """When each file was last written, and how large it is."""
    return {path.name: (path.stat().st_mtime_ns, path.stat().st_size) for path in folder.iterdir()}


def assert_same_model(one: Path, other: Path) -> None:
    """Bit for bit. The files themselves may differ: safetensors writes the names in its header in any order."""
    a, b = (State.load(folder / "model.safetensors") for folder in (one, other))
    assert a.facts == b.facts
    assert a.tensors.keys() == b.tensors.keys()
    assert all(torch.equal(a.tensors[name], b.tensors[name]) for name in a.tensors)


# ---------------------------------------------------------------------- help


def test_help_ends_with_examples(command: Command) -> None:
    done = command("--help")
    assert done.code == 0
    for name in ("run", "resume", "show", "list", "data"):
        assert re.search(rf"\b{name}\b", done.out)
    lines = [line.strip() for line in done.out.splitlines() if line.strip()]
    examples = lines.index("Examples")
    assert any("ipal run --dataset digits" in line for line in lines[examples:])
    assert "IPAL_DATA" in " ".join(lines[examples:])
    assert not any("Commands" in line for line in lines[examples:]), "the examples do not stand at the end"


def test_no_command_at_all_shows_the_help(command: Command) -> None:
    done = command()
    assert "ipal run --dataset digits" in done.out + done.err


@pytest.mark.parametrize("name", ["run", "resume", "show", "list", "data"])
def test_every_command_explains_itself(command: Command, name: str) -> None:
    done = command(name, "--help")
    assert done.code == 0
    assert "--json" in done.out


def test_help_does_not_wait_for_torch() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "ipal", "--help"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0
    imported = {line.rsplit("|", 1)[1].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "typer" in imported, "the list of imports was not read"
    assert not [name for name in imported if name.split(".")[0] in {"torch", "torch_geometric", "scipy", "sklearn"}]


# ---------------------------------------------------------------------- run


def test_a_run_as_a_user_starts_it(ipal: Ipal, command: Command, tmp_path: Path) -> None:
    """The one run here through a real process: a matrix for people on stdout, progress on stderr."""
    done = ipal("run", "--dataset", "digits", "--set", "train.epochs=2", check=True)
    for word in ("Accuracy (%)", "task 4", "AP", "AF", "peak memory", "retained", "no node is stored", "protocol"):
        assert word in done.stdout
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name in done.stdout.replace("\n", "")
    assert folder.name.startswith("digits-ipal-seed0-")
    assert "task 4/4 learned" in done.stderr
    assert "learned, AP so far" not in done.stdout
    assert "Traceback" not in done.stderr
    again = command("run", "--dataset", "digits", "--set", "train.epochs=2", "--json")
    assert again.json["protocol"]["split"] == [4, 2, 2, 2]
    assert "finished already" in again.err


def test_stdout_carries_only_data_while_progress_goes_to_stderr(command: Command) -> None:
    done = command("run", *SMALL, "--json")
    assert done.json["method"] == "ipal"
    assert "task 3/3 learned" in done.err
    assert "{" not in done.err


def test_the_result_holds_all_that_a_reader_asks_for(finished: Path) -> None:
    result = json.loads((finished / "result.json").read_text())
    asked = {
        "accuracy_matrix",
        "average_performance",
        "average_forgetting",
        "per_class",
        "validation",
        "protocol",
        "method",
        "seed",
        "timing",
        "peak_memory_bytes",
        "retained",
    }
    assert asked <= set(result)
    matrix = result["accuracy_matrix"]
    assert [[value is not None for value in row] for row in matrix] == np.tri(3, dtype=bool).tolist()
    assert all(0 <= value <= 100 for row in matrix for value in row if value is not None)
    assert result["average_performance"] == pytest.approx(np.mean(matrix[-1]))
    assert result["average_forgetting"] == pytest.approx(np.mean([matrix[-1][i] - matrix[i][i] for i in (0, 1)]))
    assert {"accuracy_matrix", "average_performance", "average_forgetting"} <= set(result["validation"])
    assert sorted(result["per_class"]) == list("012345")
    protocol = result["protocol"]
    assert protocol["split"] == [2, 2, 2]
    assert protocol["classes"] == [[0, 1], [2, 3], [4, 5]]
    assert protocol["exemplar_free"] is True
    assert protocol["train_graph"] == "isolated"
    assert protocol["accuracy"] == "balanced"
    assert protocol["dropped_classes"] == []
    assert len(result["timing"]["seconds_per_task"]) == 3
    assert len(result["timing"]["seconds_per_epoch"]) == 3
    assert result["timing"]["total_seconds"] > 0
    assert result["peak_memory_bytes"] > 10**7
    retained = result["retained"]
    assert retained["bytes"] == sum(item["bytes"] for item in retained["items"])
    assert retained["stores_exemplars"] is False
    assert result["data"]["hash"] == load(GRAPH).hash


def test_a_finished_run_leaves_the_files_it_says(finished: Path) -> None:
    names = {path.name for path in finished.iterdir()} - {".lock"}
    files = {"config.yaml", "environment.json", "history.csv", "model.safetensors", "result.json", "log.txt"}
    assert names == files, "no checkpoint and no half-written file stays"


def test_the_history_has_every_loss_term_of_every_epoch(finished: Path) -> None:
    with (finished / "history.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["task", "epoch", "contrast", "distillation"]
    assert [(int(row["task"]), int(row["epoch"])) for row in rows] == [(t, e) for t in range(3) for e in range(3)]
    assert all(float(row["contrast"]) > 0 for row in rows)
    # There is nothing to distil on the first task.
    assert [row["distillation"] == "" for row in rows] == [True] * 3 + [False] * 6


def test_the_environment_names_versions_and_threads(finished: Path) -> None:
    environment = json.loads((finished / "environment.json").read_text())
    assert environment["python"] == ".".join(map(str, sys.version_info[:3]))
    assert environment["packages"]["torch"] == torch.__version__
    assert environment["packages"]["ipal"] == package.__version__
    assert {"numpy", "scipy", "torch-geometric", "safetensors"} <= set(environment["packages"])
    assert environment["threads"] == 1
    assert environment["device"] == "cpu"
    assert environment["command"][1:3] == ["run", "--dataset"]
    assert environment["platform"]
    assert environment["cores"] >= 1


def test_the_log_says_what_happened_when(finished: Path) -> None:
    lines = (finished / "log.txt").read_text().splitlines()
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00 started", lines[0])
    assert lines[-1].endswith("finished")
    assert sum("learned task" in line for line in lines) == 3


def test_the_saved_model_predicts_what_the_run_measured(finished: Path) -> None:
    """The model in the run folder is the one behind the numbers in result.json."""
    model = package.load(finished / "model.safetensors")
    result = json.loads((finished / "result.json").read_text())
    dataset = load(GRAPH)
    stream = package.TaskStream(dataset.graph, dataset.y, (2, 2, 2), package.ProtocolConfig(), seed=0)
    assert model.classes_.tolist() == list(range(6))
    for index, exam in enumerate(stream.exams(2)):
        data = Data(x=torch.from_numpy(exam.graph.x), edge_index=torch.from_numpy(exam.graph.edges))
        predicted = model.predict(data)
        assert np.array_equal(predicted, model.predict_graph(exam.graph))
        hits = predicted[exam.test.nodes] == exam.test.labels
        recall = [100 * hits[exam.test.labels == label].mean() for label in np.unique(exam.test.labels)]
        assert np.mean(recall) == pytest.approx(result["accuracy_matrix"][-1][index])


def test_a_finished_run_is_shown_and_not_repeated(command: Command, finished: Path) -> None:
    before = stamps(finished)
    done = command("run", *SMALL, "--json")
    assert done.json["accuracy_matrix"] == json.loads((finished / "result.json").read_text())["accuracy_matrix"]
    assert "finished already" in done.err
    assert stamps(finished) == before
    assert "Accuracy (%)" in command("run", *SMALL).out
    assert stamps(finished) == before
    assert len(list(finished.parent.iterdir())) == 1


@pytest.mark.parametrize("change", [["--seed", 1], ["--set", "ipal.gamma=0.1"], ["--split", "4,2"]], ids=str)
def test_a_run_with_other_settings_has_a_folder_of_its_own(
    command: Command, finished: Path, change: list[object]
) -> None:
    before = stamps(finished)
    other = command("run", *SMALL, *change, "--json").json
    assert Path(other["run"]).resolve() != finished
    assert stamps(finished) == before


def test_the_same_run_in_another_place_gives_the_same_numbers(command: Command, finished: Path) -> None:
    other = command("run", *SMALL, "--runs", "elsewhere", "--json").json
    assert Path(other["run"]).name == finished.name
    for name in ("history.csv", "config.yaml"):
        assert (Path(other["run"]) / name).read_bytes() == (finished / name).read_bytes()
    assert_same_model(Path(other["run"]), finished)


def test_the_folder_of_runs_may_come_from_the_environment(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IPAL_RUNS", str(tmp_path / "mine"))
    assert Path(command("run", *SMALL, "--json").json["run"]).parent == tmp_path / "mine"
    assert len(command("list", "runs", "--json").json) == 1


# ---------------------------------------------------------------------- settings


def test_settings_reach_every_part_of_the_configuration(command: Command) -> None:
    wanted = {
        "protocol.accuracy": "micro",
        "protocol.class_order": [5, 4, 3, 2, 1, 0],
        "protocol.train_share": 0.5,
        "encoder.hidden": 24,
        "encoder.last_activation": "relu",
        "train.epochs": 1,
        "train.lr_base": 0.01,
        "ipal.gamma": 0.2,
        "ipal.distillation": "none",
        "ipal.boundary": False,
        "seed": 7,
        "threads": 1,
    }
    settings = [part for name, value in wanted.items() for part in ("--set", f"{name}={json.dumps(value)}")]
    result = command("run", "--dataset", GRAPH, *settings, "--json").json
    tree = config_of(Path(result["run"]))
    for name, value in wanted.items():
        found: Any = tree
        for part in name.split("."):
            found = found[part]
        assert found == value, name
    assert result["protocol"]["classes"] == [[5, 4], [3, 2], [1, 0]]
    assert result["protocol"]["accuracy"] == "micro"
    assert result["seed"] == 7


def test_the_configuration_is_written_out_in_full(finished: Path) -> None:
    tree = config_of(finished)
    assert tree["format"] == 1
    assert tree["dataset_hash"] == load(GRAPH).hash
    assert tree["split"] == [2, 2, 2]
    assert {"gamma", "tau", "k", "distillation"} <= set(tree["ipal"])
    assert {"epochs", "lr_base", "lr_next", "weight_decay", "moments"} <= set(tree["train"])
    assert tree["threads"] == 1


def test_a_file_lies_below_options_and_options_below_set(command: Command, tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text(
        f"dataset: {GRAPH}\nseed: 1\nthreads: 1\nsplit: [6]\n"
        "train: {epochs: 1, lr_base: 0.5}\nipal: {gamma: 0.1, tau: 0.2}\nencoder: {width: 16}\n"
    )
    overriding = ["--seed", 2, "--split", "4,2", "--set", "seed=3", "--set", "ipal.gamma=0.9"]
    tree = config_of(Path(command("run", "--config", "my.yaml", *overriding, "--json").json["run"]))
    assert tree["seed"] == 3, "--set lies over the option"
    assert tree["split"] == [4, 2], "the option lies over the file"
    assert tree["ipal"]["gamma"] == 0.9, "--set lies over the file"
    assert tree["ipal"]["tau"] == 0.2, "what is not overridden stays"
    assert tree["train"]["lr_base"] == 0.5
    assert tree["encoder"] == {"layers": 2, "hidden": 128, "width": 16, "last_activation": "none"}


def test_the_later_of_two_assignments_wins(command: Command) -> None:
    twice = ["--set", "ipal.k=3", "--set", "ipal.k=4"]
    assert config_of(Path(command("run", *SMALL, *twice, "--json").json["run"]))["ipal"]["k"] == 4


def test_the_split_is_as_asked(command: Command) -> None:
    result = command("run", *SMALL, "--split", "3,1,2", "--json").json
    assert result["protocol"]["classes"] == [[0, 1, 2], [3], [4, 5]]
    assert len(result["accuracy_matrix"]) == 3


def test_one_task_alone_forgets_nothing(command: Command) -> None:
    result = command("run", *SMALL, "--split", "6", "--json").json
    assert result["average_forgetting"] == 0
    assert len(result["accuracy_matrix"]) == 1


def test_no_epochs_at_all_is_a_run(command: Command) -> None:
    done = command("run", "--dataset", GRAPH, "--set", "train.epochs=0", "--threads", 1, "--json")
    assert len(done.json["accuracy_matrix"]) == 3


# ---------------------------------------------------------------------- graphs of one's own


def test_a_graph_of_ones_own_is_learned_from(command: Command, tmp_path: Path) -> None:
    path = write_graph(tmp_path / "mine.npz")
    result = command("run", "--dataset", path.name, "--set", "train.epochs=2", "--threads", 1, "--json").json
    assert result["protocol"]["split"] == [2, 2]
    assert result["data"]["preprocessing"] == "features as in the file"
    assert result["data"]["features_looked_beyond_task"] is False
    assert Path(result["run"]).name.startswith("mine-ipal-seed0-")


def test_a_graph_with_sparse_features_is_learned_from(command: Command, tmp_path: Path) -> None:
    with np.load(write_graph(tmp_path / "dense.npz")) as archive:
        dense = archive["x"]
    x = sp.csr_array(dense)
    parts = {"x_values": x.data, "x_indices": x.indices, "x_indptr": x.indptr, "x_shape": np.array(x.shape)}
    write_graph(tmp_path / "sparse.npz", x=None, **parts)
    options = ["--set", "train.epochs=2", "--threads", 1, "--json"]
    matrices = [command("run", "--dataset", f"{name}.npz", *options).json for name in ("dense", "sparse")]
    assert matrices[0]["accuracy_matrix"] == matrices[1]["accuracy_matrix"], (
        "the form of the features made a difference"
    )


def test_a_graph_without_features_is_learned_from_and_the_record_says_how(command: Command, tmp_path: Path) -> None:
    write_graph(tmp_path / "bare.npz", x=None)
    options = ["--dataset", "bare.npz", "--set", "train.epochs=2", "--threads", 1]
    result = command("run", *options, "--json").json
    assert result["data"]["features_looked_beyond_task"] is True
    assert "structural features" in result["data"]["preprocessing"]
    # No result on such features is called isolated without the remark, to people as to scripts.
    assert "structural" in command("run", *options).out


def test_the_data_root_is_where_names_are_looked_up(command: Command, tmp_path: Path) -> None:
    (tmp_path / "root" / "graphs").mkdir(parents=True)
    write_graph(tmp_path / "root" / "graphs" / "friends.npz")
    assert command("run", "--dataset", "friends").code == 2
    options = ["--set", "train.epochs=1", "--threads", 1, "--data-root", "root", "--json"]
    result = command("run", "--dataset", "friends", *options).json
    assert Path(result["run"]).name.startswith("friends-ipal")
    names = {row["name"] for row in command("list", "datasets", "--data-root", "root", "--json").json}
    assert "friends" in names


# ---------------------------------------------------------------------- resume


class Interrupting:
    """Watches a run until it has seen enough epochs."""

    def __init__(self, after: int) -> None:
        self.left = after

    def started(self, tasks: int, epochs: int, done: int) -> None: ...

    def epoch(self, task: int, terms: dict[str, float]) -> None:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt

    def task(self, index: int, row: Row) -> None: ...


def interrupted_run(runs: Path, dataset: str = GRAPH, after: int = 4, root: Path | None = None) -> Path:
    """A run like SMALL that was stopped in its second task."""
    asked = run_config({"dataset": dataset, "threads": 1, "train": {"epochs": 3}})
    config, graph = experiment.resolve(asked, root)
    folder = RunStore(runs).folder_for(config)
    with pytest.raises(KeyboardInterrupt):
        experiment.run(config, graph, folder, Interrupting(after), checkpoint_every=2, data_root=root)
    return folder.path


def test_an_interrupted_run_is_resumed_to_the_same_numbers(command: Command, tmp_path: Path, finished: Path) -> None:
    folder = interrupted_run(tmp_path / "stopped")
    assert folder.name == finished.name
    result = command("resume", folder, "--json").json
    expected = json.loads((finished / "result.json").read_text())
    assert result["accuracy_matrix"] == expected["accuracy_matrix"]
    assert (folder / "history.csv").read_bytes() == (finished / "history.csv").read_bytes()
    assert_same_model(folder, finished)
    assert "resumed at task 1" in (folder / "log.txt").read_text()
    assert not (folder / "checkpoint.safetensors").exists()


def test_run_goes_on_where_the_same_run_was_interrupted(command: Command, tmp_path: Path) -> None:
    folder = interrupted_run(tmp_path / "runs")
    done = command("run", *SMALL, "--json")
    assert Path(done.json["run"]).name == folder.name
    assert "resuming" in done.err
    assert "resumed at task 1" in (folder / "log.txt").read_text()


def test_a_run_that_was_only_started_is_resumed_from_the_start(command: Command, tmp_path: Path) -> None:
    folder = interrupted_run(tmp_path / "runs", after=1)
    assert not (folder / "checkpoint.safetensors").exists()
    assert command("list", "runs", "--json").json[0]["status"] == "started"
    assert len(command("resume", folder.name, "--json").json["accuracy_matrix"]) == 3


def test_resume_finds_the_data_root_of_the_run_by_itself(command: Command, tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "graphs").mkdir(parents=True)
    write_graph(root / "graphs" / "friends.npz")
    folder = interrupted_run(tmp_path / "runs", "friends", root=root)
    assert command("resume", folder.name, "--json").json["dataset"] == "friends"


def test_resume_finds_a_file_of_ones_own_from_any_folder(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The path was given relative to where the user was then.
    write_graph(tmp_path / "mine.npz")
    folder = interrupted_run(tmp_path / "runs", "mine.npz")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    done = command("resume", folder, "--json")
    assert done.code == 0, done.err


def test_resuming_a_finished_run_shows_it(command: Command, finished: Path) -> None:
    before = stamps(finished)
    done = command("resume", finished.name, "--json")
    assert done.json["accuracy_matrix"] == json.loads((finished / "result.json").read_text())["accuracy_matrix"]
    assert "finished already" in done.err
    assert stamps(finished) == before


def test_ctrl_c_says_how_to_go_on(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ipal.cli import render

    watcher = Interrupting(4)
    with monkeypatch.context() as pressed:
        pressed.setattr(render.ProgressBar, "epoch", lambda self, task, terms: watcher.epoch(task, terms))
        done = command("run", *SMALL, "--checkpoint-every", 2)
    assert done.code == 130
    assert done.out == ""
    (folder,) = (tmp_path / "runs").iterdir()
    assert f"ipal resume runs/{folder.name}" in done.err
    assert "Traceback" not in done.err
    assert command("resume", f"runs/{folder.name}", "--json").json["run"]


# ---------------------------------------------------------------------- show


def test_a_run_is_shown_by_path_name_and_part(command: Command, finished: Path) -> None:
    digest = finished.name.rsplit("-", 1)[1]
    expected = json.loads((finished / "result.json").read_text())
    for name in (finished, f"runs/{finished.name}", finished.name, "synthetic", digest, digest[:6], "seed0"):
        shown = command("show", name, "--json").json
        assert Path(shown.pop("run")).resolve() == finished
        assert shown == expected


def test_a_run_is_shown_from_another_folder_of_runs(command: Command, finished: Path, tmp_path: Path) -> None:
    finished.parent.rename(tmp_path / "archive")
    assert command("show", "synthetic").code == 2
    assert command("show", "synthetic", "--runs", "archive").code == 0


def test_a_part_of_a_name_is_found_even_where_a_folder_has_that_name(command: Command, finished: Path) -> None:
    # `cs` may well be both a dataset, whose runs are meant, and a folder of the user's.
    Path("synthetic").mkdir()
    done = command("show", "synthetic", "--json")
    assert done.code == 0, done.err
    assert Path(done.json["run"]).name == finished.name


def test_a_run_is_shown_to_people(command: Command, finished: Path) -> None:
    shown = command("show", finished.name)
    assert shown.code == 0
    assert shown.err == ""
    result = json.loads((finished / "result.json").read_text())
    for words in ("Accuracy (%)", f"{result['average_performance']:.2f} %", f"{result['average_forgetting']:.2f} %"):
        assert words in shown.out
    assert "no node is stored; 6 classes remembered" in shown.out
    assert "train isolated, test isolated" in shown.out


def test_showing_needs_no_torch(finished: Path) -> None:
    # Results can be read on a machine that could not have made them, and at once.
    program = (
        "import sys; sys.modules['torch'] = None; sys.argv = ['ipal', 'show', sys.argv[1], '--json'];"
        "from ipal.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", program, str(finished)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["method"] == "ipal"


# ---------------------------------------------------------------------- list


def test_datasets_are_listed(command: Command, tmp_path: Path) -> None:
    rows = {row["name"]: row for row in command("list", "datasets", "--json").json}
    assert {"digits", "synthetic", "cs", "corafull", "arxiv", "reddit", "physics", "computers"} <= set(rows)
    assert rows["digits"]["here"] is True
    assert rows["digits"]["split"] == [4, 2, 2, 2]
    assert rows["cs"]["here"] is False
    assert "ipal data --download cs" in rows["cs"]["how_to_get"]
    text = command("list", "datasets")
    assert text.err == ""
    for name in ("digits", "cs", "5+2+2+2+2+2"):
        assert name in text.out


def test_methods_are_listed_with_their_settings(command: Command) -> None:
    rows = {row["name"]: row for row in command("list", "methods", "--json").json}
    settings = {setting["name"]: setting for setting in rows["ipal"]["settings"]}
    assert settings["gamma"]["default"] == 0.7
    assert settings["tau"]["default"] == 0.07
    assert all(setting["about"] for setting in settings.values()), "a setting is not explained"
    assert rows["ipal"]["about"]
    assert rows["ipal"]["stores_exemplars"] is False
    assert "ipal.gamma" in command("list", "methods").out


def test_runs_are_listed_with_status_and_scores(command: Command, finished: Path, tmp_path: Path) -> None:
    interrupted = interrupted_run(tmp_path / "runs", GRAPH + ",seed=1")
    rows = {row["run"]: row for row in command("list", "runs", "--json").json}
    assert set(rows) == {finished.name, interrupted.name}
    assert rows[finished.name]["status"] == "finished"
    assert rows[finished.name]["average_performance"] > 0
    assert rows[interrupted.name]["status"] == "resumable"
    assert rows[interrupted.name]["average_performance"] is None
    text = command("list", "runs").out
    assert "finished" in text
    assert "resumable" in text


def test_where_there_are_no_runs_none_are_listed(command: Command) -> None:
    assert command("list", "runs", "--json").json == []
    assert command("list", "runs").code == 0


# ---------------------------------------------------------------------- data


def test_the_graphs_that_are_here_are_surveyed(command: Command, tmp_path: Path) -> None:
    (tmp_path / "root" / "graphs").mkdir(parents=True)
    path = write_graph(tmp_path / "root" / "graphs" / "friends.npz")
    rows = {row["name"]: row for row in command("data", "--data-root", "root", "--json").json}
    friends = rows["friends"]
    assert friends["here"] is True
    assert (friends["nodes"], friends["features"], friends["classes"]) == (40, 5, 4)
    assert friends["hash"] == load(str(path)).hash
    assert Path(friends["path"]).resolve() == path
    assert rows["cs"]["here"] is False
    assert "--download cs" in rows["cs"]["how_to_get"]
    assert rows["digits"]["nodes"] == 1797
    assert set(rows) == set(catalog.all_names(tmp_path / "root"))


def test_single_graphs_are_surveyed_by_name_and_by_path(command: Command, tmp_path: Path) -> None:
    write_graph(tmp_path / "mine.npz")
    rows = command("data", "cs", "mine.npz", "synthetic:nodes=50,classes=2", "--json").json
    assert [row["here"] for row in rows] == [False, True, True]
    assert rows[2]["nodes"] == 50
    text = command("data", "cs", "mine.npz")
    assert text.code == 0
    assert "data root:" in text.out
    assert "ipal data --download cs" in text.out.replace("\n", " ")


def test_a_download_is_fetched_and_surveyed(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: Dataset
) -> None:
    import torch_geometric.datasets as stock

    def fetch(root: str, name: str) -> None:
        """In place of the stock class: leaves its file where the real one would."""
        x, a = sp.csr_array(tiny.graph.x), tiny.graph.adjacency
        path = Path(root) / name / "raw" / "ms_academic_cs.npz"
        path.parent.mkdir(parents=True)
        attr = {"attr_data": x.data, "attr_indices": x.indices, "attr_indptr": x.indptr, "attr_shape": x.shape}
        adj = {"adj_data": a.data, "adj_indices": a.indices, "adj_indptr": a.indptr, "adj_shape": a.shape}
        np.savez(path, **attr, **adj, labels=tiny.y)

    monkeypatch.setattr(stock, "Coauthor", fetch)
    done = command("data", "cs", "--download", "--data-root", "root", "--json")
    assert done.json[0]["here"] is True
    assert done.json[0]["nodes"] == 240
    assert "downloading cs" in done.err


def test_a_real_benchmark_is_surveyed(command: Command, real_data: Path) -> None:
    (row,) = command("data", "cora-ml", "--data-root", real_data, "--json").json
    assert (row["nodes"], row["edges"], row["features"], row["classes"]) == (2_995, 16_316, 2_879, 7)
