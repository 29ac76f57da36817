"""Methods, encoders and datasets of an installed package; docs/extend.md shows the other kinds."""

import sys
from pathlib import Path

import pytest

import ipal as library
from ipal.config import run_config
from ipal.errors import StoreError
from ipal.runs import runner
from ipal.runs.run_folder import RunStore
from tests.cli.support import assert_same_model
from tests.support import Command, Watcher, complaint, install_package

METHOD = """
from dataclasses import dataclass
import ipal
@dataclass(frozen=True, kw_only=True)
class Mine(ipal.Classifier):
    name, title = "mine", "Mine"
"""
TOYS = (
    METHOD
    + """
import numpy as np
from ipal.data.datasets.readers import RawGraph
from ipal.nn.encoders import GCN

class Narrow(GCN):
    name = "narrow"

def make():
    random, y = np.random.default_rng(0), np.repeat([0, 1, 2, 3], 30)
    return RawGraph(random.integers(0, 120, (2, 300)), y, random.normal(size=(120, 6)), 'none')

shops = ipal.DatasetEntry("shops", "", make=make, split=(2, 2))
failing = ipal.DatasetEntry("failing", "", make=lambda: int("no"))
empty = ipal.DatasetEntry("empty", "", make=dict)
"""
)
ENTRIES = {
    "ipal.methods": {"mine": "toys:Mine"},
    "ipal.encoders": {"narrow": "toys:Narrow"},
    "ipal.datasets": {"shops": "toys:shops", "failing": "toys:failing", "empty": "toys:empty"},
}
SET = ("--set", "train.epochs=3", "--set", "encoder.kind=narrow")


def stopped(runs: Path) -> Path:
    """A run of the package's method, interrupted in its second task."""
    settings = {"train": {"epochs": 3}, "encoder": {"kind": "narrow"}}
    resolved = runner.resolve(run_config({"dataset": "shops", "method": "mine", **settings}))
    folder = RunStore(runs).folder_for(resolved.config)
    with pytest.raises(KeyboardInterrupt):
        runner.run(resolved, folder, Watcher(4), checkpoint_every=2)
    return folder.path


def test_a_run_of_a_package(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_package(tmp_path / "site", monkeypatch, {"toys": TOYS}, ENTRIES)
    for group, entries in ENTRIES.items():
        listed = [line.split() for line in command("list", group.removeprefix("ipal.")).out.splitlines()]
        assert {line[0] for line in listed if line[-5:] == ["from", "the", "package", "toys", "1.0"]} == set(entries)
    assert "toys" not in sys.modules, "loaded before one of its names is asked for"
    run = command("run", "--dataset", "shops", "--method", "mine", *SET, "--json").json
    other = stopped(tmp_path / "stopped")
    assert command("resume", other).code == 0
    assert_same_model(other, Path(run["run"]))
    words = "The dataset 'failing' could not be made (ValueError: "
    complaint(command("run", "--dataset", "failing"), words)
    complaint(command("run", "--dataset", "empty"), "'empty' gave a dict", "RawGraph")


def test_what_was_made_with_a_package_asks_for_it(command: Command, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as meanwhile:
        install_package(tmp_path / "site", meanwhile, {"toys": TOYS}, ENTRIES)
        folder = stopped(tmp_path / "runs")
        learner = library.learner_class(sys.modules["toys"].Mine)(train={"epochs": 1})
        learner.partial_fit(library.graph_from(library.load_dataset("shops"))).save(tmp_path / "mine.safetensors")
    complaint(command("resume", folder), "Unknown method 'mine'")
    with pytest.raises(StoreError, match="of the method 'mine', which is not known here: install the package"):
        library.load(tmp_path / "mine.safetensors")


BAD = {
    "of a taken name": (METHOD.replace('"mine"', '"train"'), "the name 'train' is that of a setting"),
    "not complete": (METHOD.replace("Classifier", "Trained"), "it lacks classify, loss"),
    "without settings": (METHOD.replace("@dataclass(frozen=True, kw_only=True)\n", ""), "it lacks @dataclass"),
    "without a default": (METHOD + "    a: float\n", "The setting 'a' has no default"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_method_is_one_sentence(
    what: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, words = BAD[what]
    name = "train" if "train" in words else "mine"
    install_package(tmp_path / "site", monkeypatch, {"mine": text}, {"ipal.methods": {name: "mine:Mine"}})
    said = f"The method '{name}' (mine:Mine) of the package mine 1.0 cannot be used: {words}"
    complaint(command("run", "--dataset", "digits", "--method", name), said)
