"""`ipal.explain`."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ipal.data.graph_data import GraphData
from ipal.estimator.convert.arrays import single
from ipal.estimator.explain import Explanation, explained
from ipal.estimator.learner import Learner
from ipal.estimator.model import model_of

if TYPE_CHECKING:  # for their names alone: importing them takes seconds
    from torch_geometric.data import Data


def explain(learner: Learner, data: "Data", node: Any, *, against: Any = None) -> Explanation:
    """Which neighbours and features spoke for the class of a node, rather than for another.

    Parameters
    ----------
    learner : Learner
        A fitted learner.
    data : Data or GraphData
        A graph with `x` and `edge_index`.
    node : int or str
        The id of the node, or its number where the graph has no ids.
    against : int or str, optional
        The class to compare with. Default: the next best.

    Returns
    -------
    Explanation
    """
    model, other = model_of(learner), None if against is None else single(against, "A class")
    ids = data.ids if isinstance(data, GraphData) else None
    name = single(node, "A node")
    number = name if ids is None else int(data.nodes([name])[0])
    return replace(explained(model, model.checked(data), number, other), ids=ids)
