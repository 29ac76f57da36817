"""`ipal report --html`: which runs, where to, what is refused; and the command that a page names."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from ipal.cli import experiment
from ipal.config import nested, override, run_config
from ipal.report.page.single import command as reproducing
from ipal.runs import runner
from ipal.runs.run_folder import RunStore
from ipal.system import optional
from tests.report.support import parse, write_whole_run
from tests.support import Command, complaint

TINY = "synthetic:nodes=60,classes=4,features=8,signal=3,seed=1"


def test_one_run_gets_its_page_beside_it(command: Command, tmp_path: Path):
    folder = write_whole_run(tmp_path / "runs")
    write_whole_run(tmp_path / "runs", seed=1)
    done = command("report", "seed0", "--html")
    assert done.code == 0, done.err
    path = folder.path / "report.html"
    assert done.err.splitlines()[-1] == f"Open {path.relative_to(tmp_path)} in a browser."
    assert "matrix" in parse(path).charts
    assert command("report", folder.path, "--html", "-o", "new/page.html").code == 0
    assert (tmp_path / "new" / "page.html").exists()


def test_several_runs_get_one_page(command: Command, tmp_path: Path):
    for seed in (0, 1):
        write_whole_run(tmp_path / "runs", seed=seed)
    assert command("report", "--html").code == 0
    assert "73.33 ± 0.00" in parse(tmp_path / "report" / "runs.html").text
    done = command("report", "seed1", "seed0", "seed1", "--html", "-o", "two.html")
    assert done.err.splitlines()[-1] == "Open two.html in a browser."
    assert "2 runs compared" in parse(tmp_path / "two.html").text


def test_what_cannot_be_shown_is_refused_in_a_sentence(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    complaint(command("report", "--html"), "no finished run", "ipal run --dataset digits")
    folder = write_whole_run(tmp_path / "runs")
    other = write_whole_run(tmp_path / "runs", seed=1)
    complaint(command("report", "nothing-like-it", "--html"), "nothing-like-it", "ipal list runs")
    complaint(command("report", "mine", "--html"), "fits 2 runs")
    (tmp_path / "pages").mkdir()
    complaint(command("report", "seed0", "--html", "-o", "pages"), "pages/page.html")
    complaint(command("report", "seed0", "--html", "-o", "page.pdf"), "page.pdf is no HTML file")
    (other.path / "result.json").unlink()
    complaint(command("report", "seed1", "--html"), "not finished", "ipal resume")
    good = (folder.path / "confusion.json").read_text()
    for bad in ("{", "[]", '{"classes": ["a"], "after_task": []}'):
        (folder.path / "confusion.json").write_text(bad)
        complaint(command("report", "seed0", "--html"), "confusion.json is damaged")
    (folder.path / "confusion.json").write_text(good)
    whole = json.loads((folder.path / "result.json").read_text())
    folder.write_json("result.json", {**whole, "retained": {"bytes": 1}})
    complaint(command("report", "seed0", "--html"), "result.json is damaged")
    folder.write_json("result.json", whole)
    (folder.path / "history.csv").write_text("task,epoch,contrast\nx,1,2\n")
    complaint(command("report", "seed0", "--html"), "history.csv is damaged")
    monkeypatch.setattr(optional, "find_spec", lambda name: None)
    complaint(command("report", "seed0", "--html"), "jinja2", "pip install 'ipal[html]'")
    assert not (folder.path / "report.html").exists()


# ---------------------------------------------------------------------- the command that makes a run again

WAYS = [
    {},
    {"method": "ewc", "seed": 3, "train.lr_next": 1e-05, "ewc.strength": 10},
    {"ipal.gamma": 0.7, "ipal.boundary": False, "threads": 2, "encoder.last_activation": "relu"},
    {"encoder.kind": "gcn", "encoder.width": 128, "train.lr_next": 1e-4},
    {"method": "analytic", "protocol.class_order": [3, 1, 0, 2], "protocol.accuracy": "micro"},
    {"protocol.batch": {"nodes": 10, "fanouts": [2, "all"]}, "split": [3, 1], "method": "bare"},
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: str(way.get("method", len(way))))
def test_the_command_makes_the_same_run(way: dict[str, Any], command: Command, monkeypatch: pytest.MonkeyPatch):
    tree: dict[str, Any] = {"dataset": TINY}
    for name, value in way.items():
        tree = override(tree, nested(name, value))
    config = runner.resolve(run_config(tree)).config
    words = shlex.split(reproducing(config))
    reached: list[str] = []
    monkeypatch.setattr(experiment, "_execute", lambda resolved, folder, **_: reached.append(folder.path.name))
    monkeypatch.setattr(experiment, "_show", lambda *_: None)
    assert command(*words[1:]).code == 0
    assert reached == [RunStore(Path("runs")).folder_for(config).path.name]
