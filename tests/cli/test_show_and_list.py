"""Help, `ipal show` and `ipal list`."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ipal
from ipal.cli import render
from tests.cli.support import GRAPH, interrupted_run
from tests.support import Command

# ---------------------------------------------------------------------- help


def test_commands_come_in_three_groups_and_then_examples(command: Command) -> None:
    shown = command("--help").out
    groups = ["─ Experiment ─", "─ Use a model ─", "─ Maintain a model ─", "Examples", "ipal run --dataset digits"]
    assert [shown.index(group) for group in groups] == sorted(shown.index(group) for group in groups)
    for name, group in (("run", 0), ("data", 0), ("bench", 0), ("predict", 1), ("serve", 1), ("forget", 2)):
        found = re.search(rf"│ {name} ", shown)
        assert found
        assert shown.index(groups[group]) < found.start() < shown.index(groups[group + 1])
    assert "─ Commands ─" not in shown
    assert "IPAL_DATA" in shown
    nothing = command()
    assert (nothing.code, nothing.err) == (2, "")
    assert "ipal run --dataset digits" in nothing.out


def test_options_that_people_use_come_first(command: Command) -> None:
    shown = command("run", "--help").out
    used, rare = shown.split("─ More options ─")
    assert all(f"{name} " in used for name in ("--dataset", "--method", "--seed", "--epochs", "--set", "--html"))
    assert all(f"{name} " in rare for name in ("--threads", "--runs", "--checkpoint-every"))
    assert "short for --set train.epochs=N" in " ".join(used.replace("│", "").split())
    assert "<bool>" not in shown
    assert re.search(r"--html +Also write", used), "a flag has no type beside it"


def test_help_does_not_wait_for_torch() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "ipal", "--help"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0
    imported = {line.rsplit("|", 1)[1].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "typer" in imported, "the list of imports was not read"
    assert not [name for name in imported if name.split(".")[0] in {"torch", "torch_geometric", "scipy", "sklearn"}]


# ---------------------------------------------------------------------- show


def test_a_run_is_shown_by_path_name_and_part(command: Command, finished: Path) -> None:
    digest = finished.name.rsplit("-", 1)[1]
    expected = json.loads((finished / "result.json").read_text())
    for name in (finished, f"runs/{finished.name}", finished.name, "synthetic", digest, digest[:6], "seed0"):
        shown = command("show", name, "--json").json
        assert Path(shown.pop("run")).resolve() == finished
        assert shown == expected


def test_a_run_is_shown_to_people(command: Command, finished: Path) -> None:
    shown = command("show", finished.name)
    assert shown.code == 0
    assert shown.err == ""
    result = json.loads((finished / "result.json").read_text())
    for words in ("Accuracy (%)", f"{result['average_performance']:.2f} %", f"{result['average_forgetting']:.2f} %"):
        assert words in shown.out
    assert "no node is stored; 6 classes remembered" in shown.out
    assert f"ipal show {finished} --json" in shown.out.replace("\n", "")


def test_of_a_matrix_that_is_too_wide_ap_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    tasks = 20
    matrix = [[float(row) if other <= row else None for other in range(tasks)] for row in range(tasks)]
    content: Any = {"protocol": {"split": [1] * tasks}, "accuracy_matrix": matrix}
    content["average_performance_curve"] = list(map(float, range(tasks)))
    console = render.PlainConsole()
    monkeypatch.setattr(render, "out", console)
    with console.capture() as capture:
        render.matrix(content)
    shown = capture.get()
    assert max(map(len, shown.splitlines())) <= 80
    for word in ("task 1 ", "task 20 ", "19.00"):
        assert shown.count(word) == 1


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
    assert settings["gamma"]["default"] == 3.0
    assert settings["tau"]["default"] == 0.07
    assert all(setting["about"] for setting in settings.values()), "a setting is not explained"
    assert rows["ipal"]["about"]
    assert rows["ipal"]["stores_exemplars"] is False
    assert "ipal.gamma" in command("list", "methods", "--long").out


def test_the_short_list_has_one_line_for_a_method_whatever_the_width(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    heading, *lines, legend = command("list", "methods").out.splitlines()
    assert heading.split() == ["name", "what", "it", "is"]
    assert [line.split()[0] for line in lines] == [row["name"] for row in command("list", "methods", "--json").json]
    assert [line.split()[0] for line in lines if " † " in line] == ["joint", "gem", "er-gnn"]
    assert "†" in legend


def test_the_version_is_told(command: Command) -> None:
    assert command("--version").out == f"ipal {ipal.__version__}\n"


def test_runs_are_listed_with_status_and_scores(command: Command, finished: Path, tmp_path: Path) -> None:
    interrupted = interrupted_run(tmp_path / "runs", GRAPH + ",seed=1")
    rows = {row["run"]: row for row in command("list", "runs", "--json").json}
    assert set(rows) == {finished.name, interrupted.name}
    assert rows[finished.name]["status"] == "finished"
    assert rows[finished.name]["average_performance"] > 0
    assert rows[interrupted.name]["status"] == "resumable"
    assert rows[interrupted.name]["average_performance"] is None
    heading, *lines = [line.split() for line in command("list", "runs").out.splitlines()]
    assert heading == ["date", "method", "graph", "seed", "AP", "AF", "status", "run"]
    score = f"{rows[finished.name]['average_performance']:.2f}"
    found = {line[-1]: line for line in lines}
    assert found[finished.name][2:6] == ["ipal", GRAPH, "0", score]
    assert found[interrupted.name][2:6] == ["ipal", GRAPH + ",seed=1", "0", "resumable"]
    started = (finished / "log.txt").read_text()[:10]
    assert found[finished.name][0] == started == rows[finished.name]["date"][:10]


@pytest.mark.parametrize("what", ["runs", "datasets"])
def test_lists_that_need_no_torch_do_not_wait_for_it(what: str, tmp_path: Path) -> None:
    listing = f"app(['list', '{what}', '--json'], standalone_mode=False)"
    text = f"import sys; from ipal.cli import app; {listing}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", text], cwd=tmp_path, check=True, capture_output=True, timeout=120)


@pytest.mark.parametrize("kind", ["streams", "encoders", "metrics", "methods"])
def test_descriptions_are_whole_sentences(command: Command, kind: str) -> None:
    for row in command("list", kind, "--json").json:
        about = row["about"]
        assert about.endswith(".") or kind == "metrics", about
        assert "\n" not in about
