"""Graphs of every form, and small encoders of every kind."""

from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from ipal.backend.operators import operators
from ipal.config import EncoderConfig
from ipal.data.graph import Graph, checked_graph
from ipal.data.task import Task
from ipal.nn.encoders import ENCODERS, Encoder
from tests.nn.support import HERE

KINDS = tuple(ENCODERS)
READING_NEIGHBOURS = tuple(kind for kind, encoder in ENCODERS.items() if encoder.reads_neighbours())
RANDOM = np.random.default_rng(0)


def graph(x: Any, edges: Any, *, undirected: bool = True, weights: Any = None) -> Graph:
    x = x if isinstance(x, sp.csr_array) else np.asarray(x, dtype=np.float32)
    return checked_graph(x, np.array(edges, dtype=np.int64), undirected=undirected, weights=weights)


def few_words(n: int, width: int) -> sp.csr_array:
    return sp.csr_array(RANDOM.random((n, width), np.float32) * (RANDOM.random((n, width)) < 0.02))


def edges_among(n: int, number: int) -> np.ndarray:
    return RANDOM.integers(0, n, (2, number))


DENSE = RANDOM.normal(size=(30, 7)).astype(np.float32)
GRAPHS = {
    "undirected": graph(DENSE, edges_among(30, 60)),
    "directed": graph(DENSE, edges_among(30, 60), undirected=False),
    "isolated nodes": graph(DENSE, edges_among(12, 30)),
    "no edges": graph(DENSE, np.zeros((2, 0))),
    "sparse features": graph(few_words(30, 200), edges_among(30, 60), undirected=False),
    "half sparse features": graph(sp.csr_array(DENSE * (DENSE > 0)), edges_among(30, 60)),
}
LIGHT_AND_HEAVY = np.random.default_rng(1).uniform(0.05, 4, 60)
WEIGHTED = {
    "weighted": graph(DENSE, edges_among(30, 60), weights=LIGHT_AND_HEAVY),
    "weighted, directed": graph(DENSE, edges_among(30, 60), undirected=False, weights=LIGHT_AND_HEAVY),
    "weighted, sparse features": graph(few_words(30, 200), edges_among(30, 60), weights=LIGHT_AND_HEAVY),
}


def encoder(kind: str, num_features: int, *, seed: int = 0, **config: Any) -> Encoder:
    config = {"hidden": 8, "width": 4, "heads": 2, **config}
    made = ENCODERS[kind](num_features, EncoderConfig(kind=kind, **config), torch.Generator().manual_seed(seed))
    with torch.no_grad():  # or much would be at zero
        for parameter in made.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed + 1))
    return made.eval()


def embedded(network: Encoder, of: Graph | Task) -> Tensor:
    found: Tensor = network(operators(of, HERE, network.needs))
    return found
