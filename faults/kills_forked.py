"""Runs of every method, killed at random moments and resumed: the same bits as never killed.

Each run is a fork of a process that has loaded everything and the graph. Its reference is made once, by the first that
needs it.
"""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from faults.children import PATIENCE, fork, must_succeed
from faults.core import Case, Failed, Part, Plan
from faults.runs import must_be_equal

# Hard enough that accuracies are no round hundreds: equal numbers then mean equal runs.
GRAPH = "synthetic:nodes=150,classes=6,features=12,signal=0.3,homophily=0.2"
TIMED = "timed.npz"
"""The same with a time for every node, written beside the runs."""
SMALL = {"train": {"epochs": 3, "lr_base": 0.01}, "encoder": {"layers": 2, "hidden": 8, "width": 8}}
VARIANTS: dict[str, dict[str, Any]] = {
    "ipal, mini-batches": {"method": "ipal", "protocol": {"batch": {"nodes": 20, "fanouts": [3, 3]}}},
    "ipal, seen graphs": {"method": "ipal", "protocol": {"train_graph": "seen", "test_graph": "seen"}},
    "ewc, dropout": {"method": "ewc", "encoder": {**SMALL["encoder"], "dropout": 0.3}},
    "lwf, mini-batches": {"method": "lwf", "protocol": {"batch": {"nodes": 20, "fanouts": [3, "all"]}}},
    "joint, shuffled": {"method": "joint", "protocol": {"class_order": "shuffled", "visibility": "inductive"}},
    "pr, moments reset": {"method": "pr", "train": {**SMALL["train"], "moments": "reset"}},
    "analytic, seen graphs": {"method": "analytic", "protocol": {"train_graph": "seen"}},
    "er-gnn, domains": {"method": "er-gnn", "protocol": {"stream": "domain"}},
    "pcl, returning classes": {"method": "pcl", "protocol": {"stream": "returning"}},
    "ipal, online": {"method": "ipal", "protocol": {"stream": {"name": "online", "batch": 8}}},
    "ipal-online, online": {"method": "ipal-online", "protocol": {"stream": {"name": "online", "batch": 8}}},
    "analytic, online": {"method": "analytic", "protocol": {"stream": {"name": "online", "batch": 8}}},
    "ncm, blurry": {"method": "ncm", "protocol": {"stream": {"name": "online", "batch": 8, "sigma": 2}}},
    "ewc, blurry": {"method": "ewc", "protocol": {"stream": {"name": "online", "batch": 8, "sigma": 2}}},
    "analytic, graphs": {"dataset": f"{GRAPH},{GRAPH},seed=1", "method": "analytic", "protocol": {"stream": "graphs"}},
    "ipal, graphs": {"dataset": f"{GRAPH},{GRAPH},seed=1", "method": "ipal", "protocol": {"stream": "graphs"}},
    "analytic, periods": {"dataset": TIMED, "method": "analytic", "protocol": {"stream": "time"}},
    "ewc, periods": {"dataset": TIMED, "method": "ewc", "protocol": {"stream": "time"}},
}
MOST_KILLS = 3


@dataclass(frozen=True)
class Prepared:
    """What all cases share."""

    folder: Path
    runs: list[Any]
    """Configuration and graph of every variant."""


def prepare(plan: Plan) -> Prepared:
    import numpy as np

    from ipal.config import run_config
    from ipal.data.datasets import load
    from ipal.estimator.registry import METHODS
    from ipal.runs.resolved import Resolver

    known, file = load(GRAPH), plan.folder / TIMED
    time_of = np.random.default_rng(plan.seed).integers(0, 12, len(known.y))
    np.savez(file, x=known.graph.x, edge_index=known.graph.edges, y=known.y, time=time_of)
    wanted = [{"method": name} for name in METHODS] + list(VARIANTS.values())
    narrow = {"analytic": {"analytic": {"width": 32}}}  # on so small a graph many columns only take longer
    own = [{**SMALL, **narrow.get(tree["method"], {}), **tree} for tree in wanted]
    trees = [{"dataset": GRAPH, "threads": 1, "seed": plan.seed, **tree} for tree in own]
    trees = [{**tree, "dataset": str(file)} if tree["dataset"] == TIMED else tree for tree in trees]
    resolver = Resolver()
    return Prepared(plan.folder, [resolver.resolve(run_config(tree)) for tree in trees])


def attempt(prepared: Prepared, case: Case) -> None:
    which = case.number % len(prepared.runs)
    reference, seconds = _reference(prepared, which)
    store = case.folder / "runs"
    store.mkdir()
    for _ in range(case.random.randint(1, MOST_KILLS)):
        child = fork(lambda: _run(prepared, which, store), store)
        if child.lives(case.random.uniform(0, seconds)):
            child.kill()
        ended = child.end(PATIENCE)
        if ended.code and not ended.was_killed:
            raise Failed(f"{reference.name}: {ended.in_short()}")
    must_succeed(fork(lambda: _run(prepared, which, store), store).end(PATIENCE), f"{reference.name}, resumed")
    try:
        must_be_equal(store / reference.name, reference)
    except Failed as failure:
        raise Failed(f"{reference.name}: {failure}") from failure


def _reference(prepared: Prepared, which: int) -> tuple[Path, float]:
    """The folder of the run that was never killed, and how long it took."""
    store = prepared.folder / f"reference-{which}"
    with FileLock(prepared.folder / f"reference-{which}.lock"):
        if not store.exists():
            store.mkdir()
            child = fork(lambda: _run(prepared, which, store), store)
            must_succeed(child.end(PATIENCE), "reference")
            facts = {"seconds": time.perf_counter() - child.begin}
            (prepared.folder / f"reference-{which}.json").write_text(json.dumps(facts))
    seconds = json.loads((prepared.folder / f"reference-{which}.json").read_text())["seconds"]
    return next(path.parent for path in store.glob("*/config.yaml")), seconds


def _run(prepared: Prepared, which: int, store: Path) -> None:
    from ipal.runs import runner
    from ipal.runs.run_folder import RunStore

    resolved = prepared.runs[which]
    runner.run(resolved, RunStore(store).folder_for(resolved.config), Nobody(), checkpoint_every=1)


class Nobody:
    """Watches a run, and does not care."""

    def started(self, tasks: int, epochs: int, done: int) -> None: ...
    def epoch(self, task: int, terms: dict[str, float]) -> None: ...
    def learned(self, *_: object) -> None: ...
    def task(self, index: int, row: Any) -> None: ...


PART = Part("kills-forked", count=800, slice=2, seconds=240, prepare=prepare, attempt=attempt)
