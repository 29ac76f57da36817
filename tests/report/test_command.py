"""`ipal report`: its folder, its figures, the page it keeps up to date."""

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from PIL import Image

from tests.report.support import write_entry, write_manifest
from tests.support import Command, complaint


def test_the_folder_has_tables_and_figures(command: Command, runs: Path, tmp_path: Path):
    done = command("report", "--runs", runs, "-o", "out")
    assert done.code == 0, done.err
    assert "files in out" in done.err
    names = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    pictures = ["figure3-table2-cs", "figure4-table1-cs", "figure4-table1-proxy", "figure6"]
    assert names >= {f"figures/{name}.{suffix}" for name in pictures for suffix in ("svg", "png")}
    assert names >= {f"{table}.{suffix}" for table in ("table1", "table2") for suffix in ("md", "tex", "csv")}
    assert names >= {"details-table1-cs.md", "further-table1-cs.md", "details-table2-cs.md"}


def test_without_matplotlib_there_are_tables_and_a_sentence(
    command: Command, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("ipal.cli.report.lacking", lambda *modules: list(modules))
    done = command("report", "--runs", runs, "-o", "out")
    assert done.code == 0
    assert "No figures were drawn: pip install 'ipal[figures]'" in done.err
    assert (tmp_path / "out" / "table1.tex").exists()
    assert not (tmp_path / "out" / "figures").exists()


def test_figures_are_whole_and_the_same_again(command: Command, runs: Path, tmp_path: Path):
    for out in ("one", "two"):
        assert command("report", "--runs", runs, "-o", out).code == 0
    pictures = sorted((tmp_path / "one" / "figures").iterdir())
    assert pictures
    for picture in pictures:
        content = picture.read_bytes()
        assert content == (tmp_path / "two" / "figures" / picture.name).read_bytes(), picture.name
        if picture.suffix == ".png":
            with Image.open(picture) as image:
                image.load()
                assert image.info["dpi"][0] > 149
        else:
            assert ElementTree.fromstring(content).tag.endswith("svg")
            assert b"dc:date" not in content


def test_benches_can_be_chosen(command: Command, runs: Path, tmp_path: Path):
    done = command("report", "table2-cs", "figure6-cs", "--runs", runs, "-o", "out")
    assert done.code == 0
    assert {path.stem for path in (tmp_path / "out" / "figures").iterdir()} == {"figure3-table2-cs", "figure6"}
    assert not (tmp_path / "out" / "table1.md").exists()


def test_a_study_has_no_figures(command: Command, tmp_path: Path):
    write_manifest(
        tmp_path / "runs", "why-cs", [write_entry(tmp_path / "runs", "cs", "bare", [16.0])], "study", seeds=1
    )
    assert command("report", "-o", "out").code == 0
    assert not (tmp_path / "out" / "figures").exists()


def test_nothing_to_report_says_what_to_do(command: Command, runs: Path):
    complaint(command("report", "--runs", "empty"), "ipal bench experiments/table1-cs.yaml")
    complaint(command("report", "table1-sc", "--runs", runs), "Did you mean 'table1-cs'?")


def test_a_bench_without_a_finished_run_is_reported_empty(command: Command, tmp_path: Path):
    runs = tmp_path / "runs"
    entry = write_entry(runs, "cs", "ipal", [80.0]).model_copy(update={"runs": ("not-there",)})
    write_manifest(runs, "table1-cs", [entry])
    write_manifest(runs, "table2-cs", [entry], "table2")
    write_manifest(runs, "figure6-cs", [entry], "figure6")
    assert command("report", "-o", "out").code == 0
    text = (tmp_path / "out" / "table1.md").read_text()
    assert "No run is finished." in text
    assert "| IPAL |  |  |" in text
    assert not (tmp_path / "out" / "figures").exists()


def test_one_seed_and_one_method_are_enough(command: Command, tmp_path: Path):
    entry = write_entry(tmp_path / "runs", "cs", "ipal", [80.0])
    write_manifest(tmp_path / "runs", "table1-cs", [entry], seeds=1)
    assert command("report", "-o", "out").code == 0
    assert "| IPAL | 80.00 | −10.00 |" in (tmp_path / "out" / "table1.md").read_text()


def test_no_torch_is_loaded(runs: Path, tmp_path: Path):
    program = (
        "import sys\nfrom ipal.cli import app\n"
        f"app(['report', '--runs', {str(runs)!r}, '-o', 'out'], standalone_mode=False)\n"
        f"app(['report', '--html', '--runs', {str(runs)!r}], standalone_mode=False)\n"
        "print([name for name in sys.modules if name.partition('.')[0] in ('torch', 'torch_geometric')])"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[]\n"
