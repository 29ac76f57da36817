"""Every script of the repository can be imported, and those that make numbers run."""

import importlib
import json
import runpy
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ipal.config import run_config
from ipal.runs.resolved import Resolver
from ipal.runs.run_folder import RunFolder
from ipal.runs.runner import Silent, run
from tests.conftest import PROJECT

SCRIPTS = sorted(path for folder in ("scripts", "benchmarks", "examples") for path in (PROJECT / folder).rglob("*.py"))


def imported(path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a script defines. It finds the files next to it, and a file of a package finds its package."""
    folder = next(folder for folder in path.parents if not (folder / "__init__.py").exists())
    monkeypatch.syspath_prepend(folder)
    return runpy.run_path(str(path))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: str(path.relative_to(PROJECT)))
def test_every_script_can_be_imported(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert imported(path, monkeypatch)["__doc__"]


def test_the_search_of_joint_keeps_the_best_setting_and_what_was_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(PROJECT / "scripts")
    script = importlib.import_module("joint_search")
    monkeypatch.setattr(script, "SPACE", {"train.epochs": (1, 20), "protocol.train_graph": ("isolated", "seen")})
    dataset = "synthetic:nodes=120,classes=4,features=16,signal=3,seed=1"
    output = tmp_path / "joint.jsonl"
    monkeypatch.setattr("sys.argv", ["joint_search.py", "--datasets", dataset, "--seeds", "1", "-o", str(output)])
    script.main()
    said, lines = capsys.readouterr().out, output.read_text().splitlines()
    records = [json.loads(line) for line in lines]
    for graph in ("isolated", "seen"):
        best = max(record["validation"][graph] for record in records)
        assert f"{graph} test graph: validation AP {best:.2f}" in said
    script.main()  # nothing is trained again
    assert capsys.readouterr().out == said
    assert output.read_text().splitlines() == lines


def test_table_1_is_made_of_what_was_run_and_defaults_of_what_validation_nodes_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(PROJECT / "scripts")
    script = importlib.import_module("table1")
    monkeypatch.setattr(script, "ProcessPoolExecutor", lambda *_, **__: ThreadPoolExecutor(1))
    file, output = tmp_path / "few.yaml", tmp_path / "few.jsonl"
    file.write_text(
        "about: few\nkind: study\nseeds: 2\ntuning_seeds: [100]\nall: {dataset: digits}\n"
        "entries:\n  bare: {train.epochs: 1, grid: {train.epochs: [1, 20]}}\n  joint: {train.epochs: 2}\n"
    )
    dataset = "synthetic:nodes=120,classes=4,features=16,signal=3,seed=1"

    def said(*words: str) -> str:
        monkeypatch.setattr("sys.argv", ["table1.py", *map(str, words)])
        script.main()
        return capsys.readouterr().out

    asked = ("run", str(file), "--datasets", dataset, "-o", str(output))
    assert said(*asked).count(": isolated") == 4
    assert said(*asked) == "", "nothing is run again"
    lines = script.read(output)
    assert [line["isolated"]["AF"] is None for line in sorted(lines, key=lambda line: line["label"])] == [False] * 2 + [
        True
    ] * 2
    mean = sum(line["seen"]["AP"] for line in lines if line["label"] == "bare") / 2
    assert f"| Bare | {mean:.2f} ± " in said("show", str(output)).partition("AP, seen")[2].partition("AF")[0]
    assert f"| Bare | {mean:.1f} | {mean:.1f} |" in said("show", "--short", str(output)).partition("AP, seen")[2]
    search = str(tmp_path / "search.jsonl")
    said("run", str(file), "--tune", "--datasets", dataset, "-o", search)
    found = {
        line["settings"]["train"]["epochs"]: (line["isolated"]["validation"] + line["seen"]["validation"]) / 2
        for line in script.read(Path(search))
        if line["label"] == "bare"
    }
    best = max(found, key=lambda epochs: found[epochs])
    assert f'bare: 1 graphs\n  {found[best]:.2f} {{"train": {{"epochs": {best}}}}}' in said("choose", search)


def test_table_1_has_the_numbers_of_ipal_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One model that is tested on both graphs, or two runs of the command."""
    monkeypatch.syspath_prepend(PROJECT / "scripts")
    script = importlib.import_module("table1")
    dataset = "synthetic:nodes=120,classes=4,features=16,signal=3,seed=1"
    for method in ("ewc", "ipal"):
        settings = {"train": {"epochs": 3}}
        made = script.perform(script.Work(dataset, method, method, json.dumps(settings), 3, "cpu"))
        for graph in script.TEST_GRAPHS:
            tree = {"dataset": dataset, "method": method, "seed": 3, **settings}
            config = run_config({**tree, "protocol": {"test_graph": graph, "calibration": 0.0}})
            result = run(Resolver().resolve(config), RunFolder(tmp_path / method / graph), Silent())
            assert made[graph]["AP"] == result["average_performance"]
            assert made[graph]["validation"] == result["validation"]["average_performance"]


def test_a_wheel_with_data_or_without_its_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = imported(PROJECT / "scripts" / "check_dist.py", monkeypatch)
    whole = [*(f"{name}file" if name.endswith("/") else name for name in script["NEEDED"]), "ipal.dist-info/LICENSE"]
    for names, said in (
        (whole, []),
        ([*whole, "ipal/cs.npz"], ["cs.npz is data"]),
        (whole[1:], ["py.typed is missing"]),
    ):
        with zipfile.ZipFile(tmp_path / "x.whl", "w") as wheel:
            for name in names:
                wheel.writestr(name, "")
        found = script["faults"](tmp_path / "x.whl")
        assert len(found) == len(said)
        assert all(words in fault for words, fault in zip(said, found, strict=True))
