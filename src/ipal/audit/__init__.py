"""What a model keeps, which classes that reveals and, given a graph, whether its nodes can be found.

The result is plain data, with remarks on what is not measured.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ipal.audit.attacks import Found, from_matrix, from_mean, stored_rows
from ipal.data.datasets import Dataset
from ipal.data.feature_names import BETWEEN
from ipal.data.graph import Graph, Nodes
from ipal.data.labels import Labels, labelled
from ipal.data.streams import TaskStream
from ipal.errors import shortened
from ipal.estimator.files import snapshot
from ipal.estimator.learner import Learner
from ipal.estimator.model import Model, model_of
from ipal.methods.base import Remembered

FEW = 10
"""A mean of fewer nodes reveals much about each."""
SMALLEST = 5
"""Most classes whose rows are compared."""
MOST_ROWS = 2000
"""Most rows of a class in an attempt, and of all others."""
UP_TO = "its rows are determined up to a rotation, and who is among them can be tested"


def audit(learner: Learner | Model, dataset: Dataset | None = None, stream: TaskStream | None = None) -> dict[str, Any]:
    """Audit a model: what it keeps and, with a dataset, which nodes can be found.

    Parameters
    ----------
    learner : Learner or Model
        What is audited.
    dataset : Dataset, optional
        A graph whose nodes the model may have seen.
    stream : TaskStream, optional
        The tasks of this graph that it learned. Default: they are unknown, and all labelled nodes are examined.

    Returns
    -------
    dict
        Plain data, with remarks.
    """
    model = model_of(learner)
    report, kept = model.memory_report(), model.remembered()
    items = report["items"] + report["only_while_learning"]
    found: dict[str, Any] = {
        "method": model.name,
        "classes": len(model.classes_),
        "retained": {
            "items": items,
            "bytes": sum(item["bytes"] for item in items),
            "stores_exemplars": report["stores_exemplars"],
        },
        "nodes_behind_class": report["nodes_behind_class"],
        "text": {
            "class_labels": [label for label in model.labels if isinstance(label, str)],
            "feature_names": list(dict.fromkeys(name.partition(BETWEEN)[0] for name in model.columns)),
            "hashed_categories": sum(BETWEEN in name for name in model.columns),
        },
        "flagged": {name: words for name, one in kept.items() if (words := _risks(one))},
    }
    found["remarks"] = _remarks(found, model, kept)
    if dataset is not None:
        found["data"] = _against(model, kept, dataset, stream)
    return found


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


def _remarks(found: Mapping[str, Any], model: Model, kept: Mapping[str, Remembered]) -> list[str]:
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


def _against(
    model: Model, kept: Mapping[str, Remembered], dataset: Dataset, stream: TaskStream | None
) -> dict[str, Any]:
    """Search the state for rows, and for training nodes."""
    tensors = snapshot(model, moments=True).tensors
    raw = stored_rows(tensors, model.checked(dataset.graph).x)
    smallest = sorted((name for name in kept if kept[name].count), key=lambda name: kept[name].count)[:SMALLEST]
    # A column in which only one node has a value makes a matrix of products show that node's whole row.
    matrices = {f"products of class {name}": one() for name in smallest if (one := kept[name].second) is not None}
    shared = next((one.shared() for one in kept.values() if one.shared is not None), None)
    matrices |= {} if shared is None else {"products of all classes": shared}
    own_rows, samples, random = [], [], np.random.default_rng(0)
    most = MOST_ROWS if stream is None else -(-MOST_ROWS // len(stream))
    for graph, nodes, labels, taught in _examined(dataset, stream):
        with torch.no_grad():
            rows = model.embed(graph)[torch.from_numpy(nodes).to(model.device)].cpu().numpy()
        own_rows.append(stored_rows({**tensors, **matrices}, rows))
        names = labels.astype(str)
        some = _sample(np.where(np.isin(names, smallest), names, ""), taught, most, random)
        samples.append((rows[some], names[some], taught[some]))
    rows, names, taught = (np.concatenate(parts) for parts in zip(*samples, strict=True))

    def known(own: NDArray[np.bool_]) -> list[Tensor]:
        return [torch.from_numpy(rows[some]) for some in (own & taught, own & ~taught, ~own)]

    attempts: dict[str, Any] = {"classes": {}}
    for name in smallest:
        mine, (members, *rest) = kept[name], known(names == name)
        if len(members):
            found = {"taught": mine.count, "compared": len(members), "from_mean": from_mean(mine.mean, members)}
            if (matrix := matrices.get(f"products of class {name}")) is not None:
                found["from_matrix"] = from_matrix(matrix, mine.count, members, *rest)
            attempts["classes"][name] = found
    if shared is not None:
        attempts["shared_matrix"] = from_matrix(shared, sum(one.count for one in kept.values()), *known(taught))
    return {
        "name": dataset.name,
        "nodes": dataset.graph.num_nodes,
        "as_taught": stream is not None,
        "stored_rows": {"raw features": _counted([raw]), "the model's own representation": _counted(own_rows)},
        "attempts": attempts,
    }


def _examined(dataset: Dataset, stream: TaskStream | None) -> Iterator[tuple[Graph, Nodes, Labels, NDArray[np.bool_]]]:
    """Graphs as the model learned from them; nodes to examine, their labels, and which are training nodes."""
    if stream is None:
        nodes = np.flatnonzero(labelled(dataset.y))
        yield dataset.graph, nodes, dataset.y[nodes], np.ones(len(nodes), dtype=np.bool_)
        return
    for index, classes in enumerate(stream.classes):
        task = stream.task(index)
        y = dataset.y[task.origin]
        nodes = np.flatnonzero(np.isin(y, classes))
        yield task.graph, nodes, y[nodes], np.isin(nodes, task.nodes)


def _sample(groups: Labels, taught: NDArray[np.bool_], most: int, random: np.random.Generator) -> Nodes:
    """Some nodes of every group: training nodes, and others."""
    groups, order = np.char.add(groups, np.where(taught, "+", "-")), random.permutation(len(groups))
    return np.sort(np.concatenate([order[groups[order] == group][:most] for group in np.unique(groups)]))


def _counted(found: list[Found]) -> dict[str, Any]:
    return {
        "looked_for": sum(one.looked_for for one in found),
        "too_plain": sum(one.too_plain for one in found),
        "found": sum(len(one.nodes) for one in found),
        "where": sorted(set().union(*(one.where for one in found))),
    }
