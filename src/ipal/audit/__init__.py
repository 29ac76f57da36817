"""What a model keeps, which classes that reveals and, given a graph, whether its nodes can be found.

The result is plain data, with remarks on what is not measured.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ipal.audit.attacks import Found, Known, from_matrix, from_mean, stored_rows
from ipal.data.datasets import Dataset
from ipal.data.feature_names import BETWEEN
from ipal.data.graph import Graph, Nodes
from ipal.data.labels import Labels, labelled
from ipal.errors import shortened
from ipal.estimator.files import snapshot
from ipal.estimator.learner import Learner
from ipal.estimator.model import Model, model_of
from ipal.methods.base import Remembered
from ipal.runs.resolved import Resolved

__all__ = ["View", "as_taught", "audit"]

FEW = 10
"""A mean of fewer nodes reveals much about each."""
SMALLEST = 5
"""Most classes whose rows are compared."""
MOST_ROWS = 2000
"""Most rows of a class in an attempt, and of all others."""
UP_TO = "its rows are determined up to a rotation, and who is among them can be tested"


@dataclass(frozen=True, eq=False)
class View:
    """A graph whose nodes a model may have seen, and which of them to examine."""

    graph: Graph
    nodes: Nodes
    labels: Labels
    """Of these nodes."""
    taught: NDArray[np.bool_]
    """Which of these nodes are training nodes of the model."""


def as_taught(resolved: Resolved) -> list[View]:
    """The graphs of a run's tasks as they were learned from, so that rows are those that went into the model."""
    views = []
    for index, classes in enumerate(resolved.stream.classes):
        task = resolved.stream.task(index)
        y = resolved.dataset.y[task.origin]
        mine = np.flatnonzero(np.isin(y, classes))
        views.append(View(task.graph, mine, y[mine], np.isin(mine, task.nodes)))
    return views


def audit(
    learner: Learner | Model, dataset: Dataset | None = None, views: Sequence[View] | None = None
) -> dict[str, Any]:
    """Audit a model: what it keeps and, with a dataset, which nodes can be found.

    Parameters
    ----------
    learner : Learner or Model
        What is audited.
    dataset : Dataset, optional
        A graph whose nodes the model may have seen.
    views : sequence of View, optional
        Its training graphs, of `as_taught`. Default: they are unknown, and all labelled nodes are examined.

    Returns
    -------
    dict
        Plain data, with remarks.
    """
    model = model_of(learner)
    retained, kept = model.memory_report(), model.remembered()
    passing = retained["only_while_learning"]
    found: dict[str, Any] = {
        "method": model.name,
        "classes": len(model.classes_),
        "retained": {
            "items": retained["items"] + passing,
            "bytes": retained["bytes"] + sum(item["bytes"] for item in passing),
            "stores_exemplars": retained["stores_exemplars"],
        },
        "nodes_behind_class": retained["nodes_behind_class"],
        "text": _text(model),
        "flagged": {name: words for name, one in kept.items() if (words := _risks(one))},
    }
    found["remarks"] = _remarks(found, model, kept)
    if dataset is not None:
        found["data"] = _against(model, kept, dataset, views)
    return found


# ---------------------------------------------------------------------- what follows from the numbers of nodes alone


def _risks(kept: Remembered) -> dict[str, str]:
    """What the number of nodes of a class reveals: a short name and a sentence each."""
    count, width = kept.count, kept.mean.shape[0]
    if count == 1:
        return {"one-node": "one node: what is kept of the class is this node's own row, as it was when it was learned"}
    risks = {}
    if count < FEW:
        risks["few-nodes"] = f"few nodes ({count}): their mean says much about each of them"
    if kept.second is not None and count < width:
        risks["fewer-than-width"] = (
            f"fewer nodes ({count}) than the {width} columns of the matrix kept of the class: {UP_TO}"
        )
    return risks


def _text(model: Model) -> dict[str, Any]:
    """The words of users' tables that are in the model: in clear, and the number of those that are hashed."""
    columns = model.columns
    return {
        "class_labels": [label for label in model.labels if isinstance(label, str)],
        "feature_names": list(dict.fromkeys(name.partition(BETWEEN)[0] for name in columns)),
        "hashed_categories": sum(BETWEEN in name for name in columns),
    }


def _remarks(found: Mapping[str, Any], model: Model, kept: Mapping[str, Remembered]) -> list[str]:
    """Remarks on the result."""
    text = found["text"]
    clear = {"class labels": text["class_labels"], "feature names": text["feature_names"]}
    words = ", ".join(f"{what} ({shortened(', '.join(some))})" for what, some in clear.items() if some)
    remarks = [f"Kept in clear text: {words or 'nothing'}."]
    if hashed := text["hashed_categories"]:
        remarks[0] += f" Hashed: {hashed} categories of text columns; a hash can be compared with a guess."
    if found["retained"]["stores_exemplars"]:
        remarks.append("This method stores raw nodes of earlier tasks: anyone who has the model has them.")
    elif not kept:
        remarks.append("Nothing is kept by class: no sum or mean of nodes.")
    if shared := [one for one in kept.values() if one.shared is not None]:
        width, total = shared[0].mean.shape[0], sum(one.count for one in shared)
        remarks.append(
            "One matrix of products serves all classes. Who also has the model from before a task can subtract the "
            "two, and has the matrix of that task's classes alone; of one class, if it came alone."
        )
        if total < width:
            remarks.append(
                f"All {total} training nodes together are fewer than the {width} columns of that matrix: {UP_TO}."
            )
    kinds = {item["kind"] for item in found["retained"]["items"]}
    if "optimizer" in kinds:
        remarks.append(
            "The optimiser's moments are in it: they tell which features occur in the nodes learned last. No "
            "prediction needs them; save without them before you pass the model on."
        )
    if "encoder" in kinds:
        remarks.append(
            "Of what trained weights reveal, only whole rows are searched for, against a graph. The change of the "
            "first layer since its seed, which is in the file, tells which features occur in the nodes learned."
        )
    return remarks


# ---------------------------------------------------------------------- what a graph shows


def _against(
    model: Model, kept: Mapping[str, Remembered], dataset: Dataset, taught_in: Sequence[View] | None
) -> dict[str, Any]:
    """Search the state for rows, and for training nodes."""
    nodes, tensors = np.flatnonzero(labelled(dataset.y)), snapshot(model, moments=True).tensors
    views = taught_in or [View(dataset.graph, nodes, dataset.y[nodes], np.ones(len(nodes), dtype=np.bool_))]
    raw = stored_rows(tensors, model.checked(dataset.graph).x)
    smallest = sorted((name for name in kept if kept[name].count), key=lambda name: kept[name].count)[:SMALLEST]
    # A column in which only one node has a value makes a matrix of products show that node's whole row.
    matrices = {f"products of class {name}": one() for name in smallest if (one := kept[name].second) is not None}
    shared = next((one.shared() for one in kept.values() if one.shared is not None), None)
    matrices |= {} if shared is None else {"products of all classes": shared}
    by_view, samples, random = [], [], np.random.default_rng(0)
    for view in views:
        with torch.no_grad():
            rows = model.embed(view.graph)[torch.from_numpy(view.nodes).to(model.device)].cpu()
        by_view.append(stored_rows({**tensors, **matrices}, rows.numpy()))
        samples.append(_sample(view, rows, smallest, -(-MOST_ROWS // len(views)), random))
    rows, names, taught = (
        torch.cat([one[0] for one in samples]),
        *map(np.concatenate, zip(*(one[1:] for one in samples), strict=True)),
    )
    classes = dict[str, dict[str, Any]]()
    for name in smallest:
        own, mine = names == name, kept[name]
        known = Known(rows[own & taught], rows[own & ~taught], rows[~own])
        if not len(known.members):
            continue
        attempt = {"taught": mine.count, "compared": len(known.members), "from_mean": from_mean(mine.mean, known)}
        if (matrix := matrices.get(f"products of class {name}")) is not None:
            attempt["from_matrix"] = from_matrix(matrix, mine.count, known)
        classes[name] = attempt
    attempts: dict[str, Any] = {"classes": classes}
    if shared is not None:
        total = sum(one.count for one in kept.values())
        attempts["shared_matrix"] = from_matrix(shared, total, Known(rows[taught], rows[:0], rows[~taught]))
    return {
        "name": dataset.name,
        "nodes": dataset.graph.num_nodes,
        "as_taught": taught_in is not None,
        "stored_rows": {"raw features": _counted([raw]), "the model's own representation": _counted(by_view)},
        "attempts": attempts,
    }


def _counted(found: list[Found]) -> dict[str, Any]:
    return {
        "looked_for": sum(one.looked_for for one in found),
        "too_plain": sum(one.too_plain for one in found),
        "found": sum(len(one.nodes) for one in found),
        "where": sorted(set().union(*(one.where for one in found))),
    }


def _sample(
    view: View, rows: Tensor, classes: list[str], most: int, random: np.random.Generator
) -> tuple[Tensor, NDArray[Any], NDArray[np.bool_]]:
    """Some rows of every small class and of the others together; their classes, and which are training nodes."""
    names = np.array([str(label) for label in view.labels.tolist()])
    groups = np.where(np.isin(names, classes), names, "")
    order, chosen = random.permutation(len(names)), []
    for group in np.unique(groups):
        for kind in (view.taught, ~view.taught):
            chosen.append(order[((groups == group) & kind)[order]][:most])
    some = np.sort(np.concatenate(chosen))
    return rows[torch.from_numpy(some)], names[some], view.taught[some]
