"""Every script of the repository can be imported, and those that make numbers run."""

import importlib
import json
import runpy
import zipfile
from pathlib import Path
from typing import Any

import pytest

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
