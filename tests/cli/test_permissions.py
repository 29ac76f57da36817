"""Files of models are private, and edits keep the permissions that a model has."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ipal import NCM, Analytic
from ipal.data.datasets import Dataset
from tests.cli.merge_and_forget_support import saved, view, write
from tests.cli.support import interrupted_run
from tests.support import Command


def mode(path: Path | str) -> int:
    return Path(path).stat().st_mode & 0o777


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_models_checkpoints_and_exports_are_private(command: Command, tiny: Dataset) -> None:
    saved(NCM().partial_fit(view(tiny)), "m.safetensors")
    assert mode("m.safetensors") == 0o600
    assert command("export", "m.safetensors", "-o", "m.onnx").code == 0
    assert mode("m.onnx") == 0o600
    run = interrupted_run(Path("runs"))
    assert mode(run / "checkpoint.safetensors") == 0o600
    assert command("resume", run.name).code == 0
    assert mode(run / "model.safetensors") == 0o600
    assert mode(run / "config.yaml") == 0o644


EDITS: dict[str, list[object]] = {
    "rename": ["rename", "m.safetensors", 1, "--to", 40],
    "forget": ["forget", "m.safetensors", "--nodes", "graph.npz", "--which", "3,5"],
    "merge": ["merge", "a.safetensors", "b.safetensors", "-o", "m.safetensors", "--force"],
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_keeps_the_permissions_of_a_model(
    command: Command, taught: Callable[..., Analytic], pair: Callable[..., None], tiny: Dataset, edit: str
) -> None:
    taught()
    pair()
    write("graph.npz", view(tiny))
    Path("m.safetensors").chmod(0o640)
    before = Path("m.safetensors").read_bytes()
    assert command(*EDITS[edit]).code == 0
    assert Path("m.safetensors").read_bytes() != before
    assert mode("m.safetensors") == 0o640
    if edit == "rename":
        assert command("rename", "m.safetensors", 2, "--to", 50, "-o", "new.safetensors").code == 0
        assert mode("new.safetensors") == 0o600
