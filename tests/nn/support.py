"""Operators in double precision, for finite differences."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from ipal.backend.operators import Features, Need, Operators, operators
from ipal.backend.runtime import Runtime
from ipal.backend.sparse import SparsePair
from ipal.data.graph import Graph
from ipal.data.task import Task

HERE = Runtime.of()

CPU = torch.device("cpu")


def double_operators(
    graph: Graph, nodes: list[int] | None = None, needs: Sequence[Need] = ("symmetric",), *, keep_sparse: bool = False
) -> Operators:
    """Of a graph, or of some of its nodes; sparse features stay as they are also where they are many."""
    of = graph if nodes is None else Task(graph, np.array(nodes), np.zeros(len(nodes)))
    made = operators(of, HERE, needs)
    if keep_sparse:
        made = dataclasses.replace(made, features=Features(SparsePair.of(sp.csr_array(graph.x), CPU), {}))
    found: Operators = _doubled(made)
    return found


def _doubled(of: Any) -> Any:
    if isinstance(of, Tensor):
        return of.double() if of.is_floating_point() else of
    if isinstance(of, dict):
        return {name: _doubled(value) for name, value in of.items()}
    if isinstance(of, tuple):
        return tuple(map(_doubled, of))
    if dataclasses.is_dataclass(of):
        return dataclasses.replace(of, **{name: _doubled(value) for name, value in vars(of).items()})
    return of
