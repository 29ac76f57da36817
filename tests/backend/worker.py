"""One of several processes, as torchrun starts them: computes things together with the others and alone, and compares.

Apart from the tests, because a start takes seconds: all that needs no start of its own is done in one. The first
process writes what was found as JSON to the path that it is given.
"""

import json
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
import torch.distributed as dist
from torch import Tensor

from ipal.backend.distributed import Team, joined
from ipal.backend.operators import operators
from ipal.backend.runtime import Runtime
from ipal.config import EncoderConfig, ProtocolConfig, Sampling, TrainConfig, run_config
from ipal.data.datasets import load
from ipal.data.graph import Graph
from ipal.data.streams import TaskStream, default_split
from ipal.data.task import Task
from ipal.estimator import files
from ipal.estimator.model import Model
from ipal.estimator.registry import METHODS
from ipal.estimator.settings import LearnerConfig, learner_config, shared_settings
from ipal.nn.encoders import ENCODERS
from ipal.runs import runner
from ipal.runs.run_folder import RunStore
from ipal.runs.runner import Silent
from tests.learning import learn

EVERYTHING = Sampling(nodes=1000, fanouts=("all", "all"))
WEIGHTS = "memory.weights"
SOME = Sampling(nodes=31, fanouts=(3, 2))
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "ipal": ("ipal", {}),
    "ipal without boundaries": ("ipal-online", {}),
    "ipal over propagated features": ("ipal", {"encoder": EncoderConfig(kind="appnp", layers=1, restart=(0.1, 0.3))}),
    # Not IPAL: its distillation is a norm, which has no direction where nothing has changed yet but by rounding.
    "pcl, all in one batch": ("pcl", {"batch": EVERYTHING}),
    "lwf": ("lwf", {}),
    "pcl with attention, all in one batch": ("pcl", {"batch": EVERYTHING, "encoder": EncoderConfig(kind="gat")}),
    "ewc": ("ewc", {"fisher": "batch"}),
    "mas with sage": ("mas", {"encoder": EncoderConfig(kind="sage", hidden=16, width=8)}),
    "twp": ("twp", {}),
    "gem": ("gem", {}),
    "er-gnn": ("er-gnn", {}),
    "analytic": ("analytic", {"width": 64}),
    "analytic, per class": ("analytic", {"sums": "per-class", "width": 40, "steps": 2, "restart": (0.1, 0.4)}),
}


def graph_of(kind: str) -> Graph:
    """23 nodes, directed; few and sparse features stay as they are, others are spread once and for all."""
    random = np.random.default_rng(0)
    x = random.normal(size=(23, 7)).astype(np.float32)
    if kind == "sparse":
        x = sp.random_array((23, 5000), density=0.001, format="csr", dtype=np.float32, rng=random)
    return Graph(x, random.integers(0, 23, (2, 90)))


def derivatives(features: str, kind: str, runtime: Runtime) -> list[Tensor]:
    """Embeddings of a network of three layers, first and second derivatives of what follows from them."""
    graph = graph_of(features)
    generator = torch.Generator().manual_seed(0)
    config = EncoderConfig(kind=kind, layers=3, hidden=6, width=4, dropout=0.2, heads=2)
    encoder = ENCODERS[kind](graph.num_features, config, generator).train()
    task = Task(graph, np.array([1, 2, 5, 11, 20]), np.zeros(5))
    f = encoder(operators(task, runtime, encoder.needs))
    again = encoder(operators(graph, runtime, encoder.needs))
    parameters = list(encoder.parameters())
    first = torch.autograd.grad(f.square().sum() + again.sin().sum(), parameters, create_graph=True)
    second = torch.autograd.grad(sum(gradient.square().sum() for gradient in first), parameters)
    layer = encoder.first_layer(operators(graph, runtime, encoder.needs))
    return [f, again, layer, *first, *second, torch.rand(3, generator=generator)]


def learned(name: str, settings: dict[str, Any], runtime: Runtime) -> tuple[dict[str, Tensor], list[Any]]:
    """What a method knows after three tasks, and what it says of all nodes."""
    dataset = load("synthetic:nodes=239,classes=6,features=50,signal=3,seed=1")
    stream = TaskStream(dataset.graph, dataset.y, default_split(6), ProtocolConfig(), seed=0)
    method = METHODS.find(name)
    trained = {"train": TrainConfig(epochs=2)} if "train" in shared_settings(method) else {}
    model: LearnerConfig | Model = learner_config(method, {"seed": 3, **trained, **settings})
    said = []
    for index in range(len(stream)):
        model = learn(model, stream.task(index), runtime=runtime)
        said.append(model.predict_graph(dataset.graph).labels.tolist())
    assert isinstance(model, Model)
    return dict(files.snapshot(model, moments=True).tensors), said


def apart(together: Tensor, reference: Tensor) -> float:
    """Largest difference, in units of the largest value."""
    if together.shape != reference.shape:
        return float("inf")
    if not reference.numel():
        return 0.0
    size = reference.double().abs().max().clamp_min(1e-30)
    return float((together.double() - reference.double()).abs().max() / size)


def is_alike(tensors: dict[str, Tensor], team: Team) -> bool:
    """Whether all processes hold the same bits, by what each of them finds."""
    own = b"".join(tensors[name].contiguous().numpy().tobytes() for name in sorted(tensors))
    same: list[bool | None] = [None] * team.size
    dist.all_gather_object(same, team.broadcast(lambda: own) == own)
    return all(same)


def compare(found: dict[str, Any], team: Team) -> None:
    ours, alone = Runtime.of(team=team), Runtime.of()
    for case in product(("dense", "sparse"), ENCODERS):
        together, reference = derivatives(*case, ours), derivatives(*case, alone)
        pairs = zip(together, reference, strict=True)
        found["derivatives"][" ".join(case)] = [apart(a.detach(), b.detach()) for a, b in pairs]
    for title, (name, settings) in CASES.items():
        state, said = learned(name, settings, ours)
        reference_state, reference_said = learned(name, settings, alone)
        found["methods"][title] = {
            "same tensors": state.keys() == reference_state.keys(),
            "apart": max(apart(state[key], reference_state[key]) for key in reference_state),
            "weights apart": apart(state[WEIGHTS], reference_state[WEIGHTS]) if WEIGHTS in state else None,
            "said": float(np.mean(np.array(said) == np.array(reference_said))),
            "alike": is_alike(state, team),
        }
    sampled = {"batch": SOME, "encoder": EncoderConfig(dropout=0.2)}
    state, said = learned("ipal", sampled, ours)
    again, _ = learned("ipal", sampled, ours)
    truth = load("synthetic:nodes=239,classes=6,features=50,signal=3,seed=1").y
    found["sampled"] = {
        "alike": is_alike(state, team),
        "repeatable": all(torch.equal(state[key], again[key]) for key in state),
        "right": float(np.mean(np.array(said[-1]) == truth)),
    }


def whole_run(arguments: dict[str, Any], runs: Path, team: Team) -> None:
    resolved = runner.resolve(run_config(arguments))
    folder = RunStore(runs).folder_for(resolved.config)
    runner.run(resolved, folder, Silent(), checkpoint_every=1, runtime=resolved.runtime(team))


def main(out: Path, arguments: dict[str, Any], runs: Path) -> None:
    torch.set_num_threads(1)
    found: dict[str, Any] = {"derivatives": {}, "methods": {}}
    with joined() as us:
        found["processes"] = us.size
        compare(found, us)
        whole_run(arguments, runs, us)
        us.barrier()
        first: list[bool | None] = [None] * us.size
        dist.all_gather_object(first, us.is_first_to_report())
        found["first to tell"] = sum(map(bool, first))
        if us.is_main:
            out.write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]), Path(sys.argv[3]))
