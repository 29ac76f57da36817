"""`ipal export`: what it says, what the file says of itself, and what is refused."""

import json
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor

from ipal.data.streams import TaskStream
from ipal.deploy import export
from ipal.deploy.export import export_onnx
from ipal.errors import ConfigError, StoreError
from ipal.estimator import files
from ipal.methods.ncm import NCM
from tests.deploy.export_support import outputs, session
from tests.learning import learned
from tests.support import Command, complaint


@pytest.fixture
def model(tiny_stream: TaskStream, tmp_path: Path) -> Path:
    files.save(learned(NCM, tiny_stream, 2, steps=1), tmp_path / "ncm.safetensors")
    return tmp_path / "ncm.safetensors"


def test_the_file_says_what_it_is_and_takes_graphs_of_any_size(command: Command, model: Path):
    said = command("export", model, "-o", "ncm.onnx", "--json").json
    assert said["largest_difference"]["scores"] <= said["tolerance"]
    assert said["bytes"] == Path("ncm.onnx").stat().st_size
    written = onnx.load("ncm.onnx")
    onnx.checker.check_model(written, full_check=True)
    about = {entry.key: entry.value for entry in written.metadata_props}
    assert json.loads(about["classes"]) == said["classes"] == [0, 1, 2, 3]
    assert about["method"] == "ncm"
    assert about["num_features"] == "16"
    assert about["opset"] == str(written.opset_import[0].version) == str(said["opset"])
    assert about.keys() >= {"edges", "tolerance", "ipal_version"}
    file = session(Path("ncm.onnx"))
    assert [entry.shape for entry in file.get_inputs()] == [["nodes", 16], [2, "edges"]]
    assert [entry.name for entry in file.get_outputs()] == ["scores", "probabilities", "predicted"]
    for n in (1, 3, 50):
        found = outputs(file, np.ones((n, 16), dtype=np.float32), np.zeros((2, 2 * n), dtype=np.int64))
        assert found["probabilities"].shape == (n, 4)
        assert found["predicted"].shape == (n,)


def test_weights_of_edges_are_an_input_where_asked_for(command: Command, model: Path):
    said = command("export", model, "-o", "ncm.onnx", "--edge-weights", "--json").json
    assert said["inputs"]["edge_weight"] == "float32 (edges)"
    inputs = {entry.name: entry.shape for entry in session(Path("ncm.onnx")).get_inputs()}
    assert inputs == {"x": ["nodes", 16], "edge_index": [2, "edges"], "edge_weight": ["edges"]}


def test_the_same_model_gives_the_same_file(model: Path, tmp_path: Path):
    written = [tmp_path / "a.onnx", tmp_path / "b.onnx"]
    for file in written:
        export_onnx(files.load(model), file)
    assert written[0].read_bytes() == written[1].read_bytes()


def test_a_file_that_exists_is_replaced_only_by_force(command: Command, model: Path):
    Path("ncm.onnx").write_text("mine")
    complaint(command("export", model, "-o", "ncm.onnx"), "exists already", "--force")
    assert Path("ncm.onnx").read_text() == "mine"
    words = " ".join(command("export", model, "-o", "ncm.onnx", "--force").out.split())
    for part in ("opset 18", "x: float32 (nodes, 16)", "on 20 random graphs", "(allowed 1e-04)", "ncm.onnx"):
        assert part in words
    assert Path("ncm.onnx").stat().st_size > 1000


def test_what_cannot_be_exported_is_refused(command: Command, model: Path):
    complaint(command("export", "nothing", "-o", "a.onnx"), "no run 'nothing'")
    complaint(command("export", model, "-o", "no/a.onnx"), "does not exist")
    complaint(command("export", model, "-o", "."), "is a folder")
    model.write_bytes(model.read_bytes()[:-10])
    complaint(command("export", model, "-o", "a.onnx"), "damaged")
    assert not Path("a.onnx").exists()


def test_too_large_a_model_is_refused(command: Command, model: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(export, "MOST_BYTES", 100)
    complaint(command("export", model, "-o", "a.onnx"), "less than 2 GiB")


@dataclass(frozen=True, kw_only=True)
class Numbered(NCM):
    """A method of one's own whose scores depend on how often it was asked."""

    asked: ClassVar[count] = count()

    def forward(self, *inputs: Any) -> Tensor:
        return super().forward(*inputs) + next(self.asked)


@dataclass(frozen=True, kw_only=True)
class Untraced(NCM):
    """A method of one's own that computes with NumPy."""

    def forward(self, memory: Any, graph: Any, compute: Any, nodes: Any = None) -> Tensor:
        return torch.from_numpy(compute.propagated(graph, 1, 0.5) @ memory.mean.T.numpy())


def test_a_file_that_says_something_else_than_the_model_is_not_kept(tiny_stream: TaskStream, tmp_path: Path):
    with pytest.raises(StoreError, match="gives other scores than the model"):
        export_onnx(learned(Numbered, tiny_stream, 2, steps=1), tmp_path / "a.onnx")
    with pytest.raises(ConfigError, match="its predictions use `propagated`"):
        export_onnx(learned(Untraced, tiny_stream, 2), tmp_path / "a.onnx")
    assert not list(tmp_path.iterdir())


def test_a_model_that_went_astray_is_not_exported(model: Path, tmp_path: Path):
    astray = files.load(model)
    astray.state.memory.sum[0, 0] = float("nan")
    with pytest.raises(StoreError, match="itself gives NaN"):
        export_onnx(astray, tmp_path / "a.onnx")
