"""How often the class of a node changes when its strongest evidence is deleted, beside as much chosen at random.

The model has learned all tasks. Of the test nodes of the whole graph some are drawn at random, whatever their class.
Evidence is what `explain` divides the margin among: every feature, not zero, of every node within reach; or every such
node with all its features. A tenth of it is deleted (set to zero, at least one), and the node predicted anew from the
start: rows are normalised again.
"""

import argparse
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from timing import learn

from ipal.config import ProtocolConfig
from ipal.data.datasets import load
from ipal.data.graph import Graph
from ipal.data.neighbourhood import neighbourhood
from ipal.data.streams import TaskStream, default_split
from ipal.deploy.predict import predict
from ipal.estimator.explain import Explanation, explain
from ipal.estimator.model import Model
from ipal.estimator.registry import METHODS
from ipal.estimator.settings import learner_config, shared_settings

SHARE = 0.1
UNITS = ("feature", "node")
SMALL = "synthetic:nodes=240,classes=6,features=16,signal=3,seed=1"


@dataclass
class Counts:
    """Of nodes, of those whose class changed, and the same of random deletions."""

    nodes: int = 0
    named: int = 0
    drawn: int = 0
    at_random: int = 0

    def add(self, other: "Counts") -> None:
        self.nodes += other.nodes
        self.named += other.named
        self.drawn += other.drawn
        self.at_random += other.at_random

    def __str__(self) -> str:
        named, random = self.named / self.nodes, self.at_random / self.drawn
        ratio = f"ratio {named / random:6.1f} x" if random else f"ratio above {named * self.drawn:.0f} x"
        return f"named {100 * named:5.1f} %   random {100 * random:5.2f} %   {ratio}   ({self.nodes} nodes)"


def model_of(method: str, stream: TaskStream, seed: int, epochs: int) -> Model:
    kind = METHODS.find(method)
    trained = {"train": {"epochs": epochs}} if "train" in shared_settings(kind) else {}
    config = learner_config(kind, {"seed": seed, **trained})
    model = learn(config, None, stream.task(0))
    for index in range(1, len(stream)):
        model = learn(config, model, stream.task(index))
    return model


def units(found: Explanation, unit: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The unit that each piece of evidence belongs to, and the contribution of each unit."""
    pieces = found.evidence.tocoo()
    if unit == "feature":
        return np.arange(pieces.nnz), pieces.data
    names, belongs = np.unique(pieces.row, return_inverse=True)
    return belongs, np.bincount(belongs, weights=pieces.data, minlength=len(names))


def without(graph: Graph, found: Explanation, gone: NDArray[np.bool_]) -> Graph:
    """The graph without some pieces of evidence."""
    pieces, x = found.evidence.tocoo(), sp.csr_array(graph.x)
    places = found.nodes[pieces.row[gone]], pieces.col[gone]
    left = (x - x.multiply(sp.csr_array((np.ones(gone.sum(), np.float32), places), shape=x.shape))).tocsr()
    left.eliminate_zeros()
    kept = left if isinstance(graph.x, sp.csr_array) else left.toarray()
    return Graph(kept, graph.neighbours, symmetric=graph.symmetric)


def changes(model: Model, graph: Graph, found: Explanation, gone: NDArray[np.bool_]) -> bool:
    """Whether the node has another class without some pieces of evidence."""
    return bool(predict(model, without(graph, found, gone), [found.node]).labels[0] != found.predicted)


def check(model: Model, graph: Graph, node: int, draws: int, random: np.random.Generator) -> dict[str, Counts]:
    """One node, by every unit of evidence."""
    part = neighbourhood(graph, [node], model.reach)
    found, counts = explain(model, part.graph, int(part.nodes[0])), {}
    for unit in UNITS:
        belongs, contribution = units(found, unit)
        number = max(1, round(SHARE * len(contribution)))
        named = np.isin(belongs, np.argsort(-contribution)[:number])
        drawn = [np.isin(belongs, random.permutation(len(contribution))[:number]) for _ in range(draws)]
        is_changed = [changes(model, part.graph, found, gone) for gone in (named, *drawn)]
        counts[unit] = Counts(1, is_changed[0], draws, sum(is_changed[1:]))
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graphs", nargs="+", default=["cora-ml", "photo", "dblp"])
    parser.add_argument("--methods", nargs="+", default=["analytic", "ncm", "ipal"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--nodes", type=int, default=100, help="test nodes of every seed")
    parser.add_argument("--draws", type=int, default=3, help="random deletions of every node")
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--size", choices=["full", "small"], default="full", help="small: for a test, without real data"
    )
    parser.add_argument("--repeats", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    if chosen.size == "small":
        chosen.graphs, chosen.methods, chosen.seeds, chosen.nodes = [SMALL], ["ncm"], 1, 20
    for name in chosen.graphs:
        dataset = load(name)
        for method in chosen.methods:
            total = {unit: Counts() for unit in UNITS}
            for seed in range(chosen.seeds):
                split = dataset.split or default_split(dataset.num_classes)
                stream = TaskStream(dataset.graph, dataset.y, split, ProtocolConfig(), seed=seed)
                model = model_of(method, stream, seed, chosen.epochs)
                test = np.flatnonzero(stream.part == 2)
                random = np.random.default_rng(seed)
                for node in random.permutation(test)[: chosen.nodes].tolist():
                    for unit, counts in check(model, dataset.graph, node, chosen.draws, random).items():
                        total[unit].add(counts)
            for unit, counts in total.items():
                print(f"{name:10s} {method:10s} by {unit:8s} {counts}", flush=True)


if __name__ == "__main__":
    main()
