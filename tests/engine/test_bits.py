"""What is kept has one memory layout and one form on disk: the bits of later products depend on nothing else.

BLAS may round the same product differently for another layout of the same numbers, or for memory that begins elsewhere.
Which kernels do is a matter of the processor: here the layout itself is looked at.
"""

import os
import subprocess
import sys
from math import prod
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from torch import Tensor

import ipal
from ipal.backend.operators import operators
from ipal.backend.propagated import unit_columns
from ipal.backend.runtime import Runtime
from ipal.closed_form.feature_map import FeatureMap
from ipal.closed_form.method import Analytic
from ipal.data.graph import Graph
from ipal.data.streams import TaskStream
from ipal.estimator import files
from ipal.estimator.model import Model
from ipal.estimator.registry import METHODS
from ipal.methods.ewc import EWC
from ipal.state.snapshot import Snapshot
from ipal.state.value import flatten, moment_tensors, network_tensors
from ipal.system import memory_budget
from tests.estimator.test_estimator import assert_same_bits, data_of, make
from tests.learning import learn, learned

HERE = Runtime.of()
# Stored nodes are NumPy's: what is saved of them is a copy.
NUMPYS = ("memory.data.", "memory.tasks.", "memory.buffer.")


def row_major(shape: torch.Size) -> tuple[int, ...]:
    return tuple(prod(shape[place + 1 :]) for place in range(len(shape)))


def assert_laid_out(model: Model) -> None:
    """All tensors that a model keeps, as they lie in memory."""
    state = model.state
    tensors = network_tensors(state.network) | moment_tensors(state.network, state.optimizer)
    tensors |= flatten(state.memory, "memory") | flatten(model.calibration or None, "calibration")
    for name, tensor in tensors.items():
        if tensor.numel() and not name.startswith(NUMPYS):
            assert tensor.stride() == row_major(tensor.shape), name
            assert tensor.data_ptr() % 64 == 0, name


@pytest.mark.parametrize(
    ("method", "options"),
    [(method, {}) for method in METHODS.values()] + [(Analytic, {"width": 16}), (EWC, {"fisher": "batch"})],
    ids=lambda value: value.name if isinstance(value, type) else "-".join(map(str, value.values())) or "default",
)
def test_all_that_is_kept_lies_in_memory_as_it_does_after_loading(method, options, tiny_stream: TaskStream, tmp_path):
    learner = make(method, **options)
    for index in range(3):
        assert_laid_out(learner.partial_fit(data_of(tiny_stream, index)).model_)
    learner.save(tmp_path / "m")
    assert_laid_out(files.load(tmp_path / "m"))


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_a_checkpoint_is_a_value_that_going_on_does_not_change(method, tiny_stream: TaskStream):
    model = learned(method, tiny_stream, 1)
    saved = files.checkpoint(model)
    before = {name: tensor.clone() for name, tensor in saved.tensors.items()}
    learn(files.restored(model.config, saved, HERE, whole=True, source="it"), tiny_stream.task(1))
    for name, tensor in saved.tensors.items():
        assert torch.equal(tensor, before[name]), name


def test_loaded_models_merge_and_forget_to_the_bits_of_those_in_memory(tiny_stream: TaskStream, tmp_path):
    left, right = (make(Analytic, steps=1).partial_fit(data_of(tiny_stream, index)) for index in range(2))
    loaded = []
    for name, learner in (("left", left), ("right", right)):
        learner.save(tmp_path / name)
        loaded.append(ipal.load(tmp_path / name))
    task = data_of(tiny_stream, 0)
    task.forget_mask = task.train_mask & (task.y == 0)
    for learner in (left, loaded[0]):
        ipal.forget_rows(learner, task)
        assert_laid_out(learner.model_)
    assert_same_bits(left, loaded[0])
    both, again = ipal.merge_models(left, right), ipal.merge_models(*loaded)
    assert_same_bits(both, again)
    for learner in (both, again):
        learner.partial_fit(data_of(tiny_stream, 2))
    assert_same_bits(both, again)


def test_features_begin_where_torch_begins_its_own_memory():
    # Of NumPy's arrays one in four does by chance.
    random = np.random.default_rng(0)
    graphs = [Graph(random.normal(size=(n, 3)).astype(np.float32), np.zeros((2, 0), np.int64)) for n in range(4, 20)]
    rooms = [memory_budget.Budget().room((n, 3), np.float32) for n in range(4, 20)]
    assert {room.ctypes.data % 64 for room in rooms} == {0}
    for graph in graphs:
        features = operators(graph, HERE).features.aggregated["symmetric"]
        assert isinstance(features, Tensor)
        assert features.data_ptr() % 64 == 0
        np.testing.assert_allclose(features.numpy(), graph.x)  # no edge: each node is its own mean
        for width in (4, 2 * graph.num_nodes):  # projected, and as they are
            (part,) = FeatureMap(3, width, 1, (0.2,), 0, HERE).parts
            assert part.directions.data_ptr() % 64 == 0
            directions = torch.from_numpy(part.columns.projection) if part.columns.is_projected else None
            assert [some.data_ptr() % 64 for _, some in unit_columns(graph, directions, HERE)] == [0]


# ---------------------------------------------------------------------- files


def test_a_saved_state_is_a_plain_safetensors_file(tmp_path):
    tensors = {"b": torch.arange(3.0), "a": torch.eye(2, dtype=torch.float64), "none": torch.zeros(0, 4)}
    Snapshot(tensors, {"name": "é", "numbers": [1, 2]}).save(tmp_path / "s")
    with safetensors.safe_open(tmp_path / "s", "pt") as file:
        assert file.metadata().keys() == {"format", "facts", "checksum"}
        for name, tensor in tensors.items():
            assert torch.equal(file.get_tensor(name), tensor)
    loaded = Snapshot.load(tmp_path / "s")
    assert loaded.facts == {"name": "é", "numbers": [1, 2]}
    assert all(torch.equal(loaded.tensors[name], tensor) for name, tensor in tensors.items())


RUNS = """
import sys
from contextlib import suppress
from ipal.cli import main
runs, data = sys.argv[1], "synthetic:nodes=120,classes=4,features=8"
for method, setting in (("ipal", "train.epochs=3"), ("ewc", "train.epochs=3"), ("analytic", "analytic.width=64")):
    sys.argv = ["ipal", "run", "--dataset", data, "--method", method, "--set", setting, "--runs", runs]
    with suppress(SystemExit):
        main()
assert "torch._dynamo" not in sys.modules, "learning loads no compiler: it takes seconds"
"""


def test_equal_runs_have_equal_files_of_models_in_any_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    here, there = tmp_path / "here", tmp_path / "there"
    other = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    environment = {**os.environ, "PYTHONHASHSEED": other, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", RUNS, str(there)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert "Error" not in done.stderr, done.stderr
    monkeypatch.setattr(sys, "argv", ["-c", str(here)])
    exec(RUNS.partition("assert")[0], {})
    models = sorted(path.relative_to(here) for path in here.glob("*/model.safetensors"))
    assert len(models) == 3
    for model in models:
        assert (here / model).read_bytes() == (there / model).read_bytes(), model
