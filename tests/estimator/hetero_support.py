"""Small graphs of several types, and the same as one type."""

from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data, HeteroData

from ipal.estimator.learner import Learner
from ipal.estimator.learners import learner_class
from ipal.methods.base import Method
from tests.learning import config

FEW: dict[str, dict[str, Any]] = {"analytic": {"width": 32, "steps": 2}}
CITES, WRITES, BACK = ("paper", "cites", "paper"), ("author", "writes", "paper"), ("paper", "rev_writes", "author")
PAPERS, AUTHORS, CLASSES = 72, 36, 3


def library(seed: int = 0, *, classes: Any = range(CLASSES), authors: bool = True) -> HeteroData:
    """Papers of some classes that cite one another, and their authors, who have other features."""
    random = np.random.default_rng(seed)
    data, labels = HeteroData(), np.repeat(list(classes), PAPERS // len(list(classes)))
    data["paper"].x = _features(random, labels, 6)
    data["paper"].y = torch.from_numpy(labels)
    data["paper"].train_mask = torch.from_numpy(random.random(len(labels)) < 0.6)
    data[CITES].edge_index = _edges(random, labels, labels)
    if authors:
        at = np.repeat(list(classes), AUTHORS // len(list(classes)))
        data["author"].x = _features(random, at, 4)
        data[WRITES].edge_index = _edges(random, at, labels)
    return data


def small(method: type[Learner] | type[Method], **options: Any) -> Any:
    """A learner of a method that learns quickly."""
    own = method._method if issubclass(method, Learner) else method
    return learner_class(own)(**config(own, epochs=2, **{**FEW.get(own.name, {}), **options}).given)


def _features(random: np.random.Generator, labels: Any, width: int) -> torch.Tensor:
    return torch.from_numpy(random.normal(size=(len(labels), width)) + np.eye(8, width)[labels]).float()


def _edges(random: np.random.Generator, sources: Any, targets: Any) -> torch.Tensor:
    """Mostly between nodes of one class, each pair once; nothing leads to itself."""
    likely = np.where(sources[:, None] == targets[None], 0.12, 0.02)
    if sources is targets:
        np.fill_diagonal(likely, 0)
    return torch.from_numpy(np.stack((random.random(likely.shape) < likely).nonzero()))


def with_weights(data: HeteroData, **weights: Any) -> HeteroData:
    """By the name of an edge type: a number, or one for each edge."""
    found = data.clone()
    for store in found.edge_stores:
        if store._key[1] in weights:
            store.edge_weight = torch.as_tensor(weights[store._key[1]]).float() * torch.ones(store.edge_index.shape[1])
    return found


def stacked(data: HeteroData, *kinds: tuple[str, str, str]) -> Data:
    """The same as one type: papers first, features in columns of their own; edges of these types, as they are used."""
    papers, authors = data["paper"].num_nodes, data["author"].num_nodes if "author" in data.node_types else 0
    x = torch.block_diag(data["paper"].x, *([data["author"].x] if authors else []))
    edges = []
    for kind in kinds or data.edge_types:
        ends = data[kind].edge_index + torch.tensor(
            [[papers * (kind[0] == "author")], [papers * (kind[2] == "author")]]
        )
        edges.append(ends if kind == CITES else torch.cat([ends, ends.flip(0)], dim=1))
    mask = torch.cat([data["paper"].train_mask, torch.zeros(authors, dtype=torch.bool)])
    labels = torch.cat([data["paper"].y, torch.zeros(authors, dtype=torch.int64)])
    return Data(x=x.to_sparse_csr() if authors else x, edge_index=torch.cat(edges, dim=1), y=labels, train_mask=mask)
