"""What a model keeps, which classes that reveals and, given a graph, whether nodes can be found or reconstructed.

The result is plain data, with remarks on what is not measured.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ipal.analysis.audit.inputs import CHANGE, FIRST_LAYER, features_revealed, occurring
from ipal.analysis.audit.recover import Known, from_matrix, from_mean, from_shared_matrix
from ipal.analysis.audit.search import Found, stored_rows
from ipal.data.datasets import Dataset
from ipal.data.feature_names import BETWEEN
from ipal.data.graph import Graph, Nodes
from ipal.data.labels import Labels, labelled
from ipal.engine.trainer import fresh_network
from ipal.errors import shortened
from ipal.estimator.files import snapshot
from ipal.estimator.learner import Learner
from ipal.estimator.model import Model, model_of
from ipal.methods.base import Remembered, Trained
from ipal.runs.resolved import Resolved

__all__ = ["Evidence", "View", "as_taught", "audit", "whole"]

FEW = 10
"""A mean of fewer nodes reveals much about each."""
SMALLEST = 5
"""Most classes whose rows are reconstructed."""
MOST_ROWS = 2000
"""Most rows of one kind in an attempt."""


@dataclass(frozen=True, eq=False)
class View:
    """A graph whose nodes a model may have seen, and which of them to examine."""

    graph: Graph
    nodes: Nodes
    labels: Labels
    """Of these nodes."""
    taught: NDArray[np.bool_] | None
    """Which of these nodes are training nodes of the model; None if unknown."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """A dataset to audit a model against."""

    dataset: Dataset
    views: tuple[View, ...]

    @property
    def is_as_taught(self) -> bool:
        return all(view.taught is not None for view in self.views)

    def nodes_behind_class(self) -> dict[str, int]:
        """Number of training nodes of each class, if known."""
        taught = [view.labels[view.taught] for view in self.views if view.taught is not None]
        labels, counts = np.unique(np.concatenate(taught or [np.zeros(0, dtype=np.int64)]), return_counts=True)
        return dict(zip(map(str, labels.tolist()), counts.tolist(), strict=True))


def whole(dataset: Dataset) -> Evidence:
    """The whole graph, if the training graphs of the model are unknown."""
    nodes = np.flatnonzero(labelled(dataset.y))
    return Evidence(dataset, (View(dataset.graph, nodes, dataset.y[nodes], None),))


def as_taught(resolved: Resolved) -> Evidence:
    """The graphs of a run's tasks as they were learned from, so that rows are those that went into the model."""
    views = []
    for index, classes in enumerate(resolved.stream.classes):
        task = resolved.stream.task(index)
        y = resolved.dataset.y[task.origin]
        mine = np.flatnonzero(np.isin(y, classes))
        views.append(View(task.graph, mine, y[mine], np.isin(mine, task.nodes)))
    return Evidence(resolved.dataset, tuple(views))


def audit(learner: Learner | Model, evidence: Evidence | None = None) -> dict[str, Any]:
    """Audit a model: what it keeps and, with evidence, which nodes can be found or reconstructed."""
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
        "remarks": _remarks(model, kept),
    }
    if evidence is not None:
        found["data"] = _against(model, kept, evidence)
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
            f"fewer nodes ({count}) than the {width} columns of the matrix kept of the class: its rows are determined "
            "up to a rotation, and who is among them can be tested"
        )
    return risks


def _text(model: Model) -> dict[str, Any]:
    """The words of users' tables that are in the model: in clear, and the number of those that are hashed."""
    columns = model.schema.columns
    return {
        "class_labels": [label for label in model.labels if isinstance(label, str)],
        "feature_names": list(dict.fromkeys(name.partition(BETWEEN)[0] for name in columns)),
        "hashed_categories": sum(BETWEEN in name for name in columns),
    }


def _text_in_words(text: Mapping[str, Any]) -> str:
    """The same as a sentence."""
    hashed = text["hashed_categories"]
    lists = {what.replace("_", " "): words for what, words in text.items() if what != "hashed_categories" and words}
    clear = [f"{what} ({shortened(', '.join(words))})" for what, words in lists.items()]
    said = f"Kept in clear text: {', '.join(clear) or 'nothing'}."
    return said + f" Hashed: {hashed} categories of text columns; a hash can be compared with a guess." * bool(hashed)


def _remarks(model: Model, kept: Mapping[str, Remembered]) -> list[str]:
    """Remarks on the result."""
    remarks = [_text_in_words(_text(model))]
    if model.stores_exemplars:
        remarks.append("This method stores raw nodes of earlier tasks: anyone who has the model has them.")
    shared = [one for one in kept.values() if one.shared is not None]
    if shared:
        width, total = shared[0].mean.shape[0], sum(one.count for one in shared)
        remarks.append(
            "One matrix of products serves all classes: the classes' own are not kept apart in this model. Who also "
            "has the model from before a task can subtract the two, and has the matrix of that task's classes alone; "
            "of one class, if it came alone."
        )
        if len(shared) == 1:
            remarks.append("Only one class was learned: the shared matrix is its own.")
        if total < width:
            remarks.append(
                f"All {total} training nodes together are fewer than the {width} columns of that matrix: their rows "
                "are determined up to a rotation, and who is among them can be tested."
            )
    if not kept and not model.stores_exemplars:
        remarks.append("Nothing is kept by class: no sum or mean of nodes.")
    report = model.memory_report()
    if any(item["kind"] == "optimizer" for item in report["only_while_learning"]):
        remarks.append(
            "The optimiser's moments are in it: they tell which features occur in the nodes learned last. No "
            "prediction needs them; save without them before you pass the model on."
        )
    if any(item["kind"] == "encoder" for item in report["items"]):
        remarks.append(
            "Of what trained weights give away, only this is measured, against a graph: whole rows, and which features "
            "occur in the nodes learned last, or in any of them."
        )
    return remarks


# ---------------------------------------------------------------------- what a graph shows


def _against(model: Model, kept: Mapping[str, Remembered], evidence: Evidence) -> dict[str, Any]:
    """Search the state for rows, and reconstruct rows from it."""
    tensors = snapshot(model, moments=True).tensors
    raw = stored_rows(tensors, model.checked(evidence.dataset.graph).x)
    order = sorted((name for name in kept if kept[name].count), key=lambda name: kept[name].count)
    smallest = order[:SMALLEST]
    # A column in which only one node has a value makes a matrix of products show that node's whole row.
    matrices = {f"products of class {name}": one() for name in smallest if (one := kept[name].second) is not None}
    shared = next((one.shared for one in kept.values() if one.shared is not None), None)
    matrices |= {} if shared is None else {"products of all classes": shared()}
    rows = _Rows(smallest, len(evidence.views))
    by_view = []
    for view in evidence.views:
        with torch.no_grad():
            represented = model.embed(view.graph)[torch.from_numpy(view.nodes).to(model.device)]
        by_view.append(stored_rows(tensors, represented.cpu().numpy(), matrices))
        rows.take(view, represented)
    classes = {}
    for name in smallest:
        known = rows.known(name)
        if len(known.members):
            classes[name] = _reconstructed(kept[name], known)
    attempts: dict[str, Any] = {"classes": classes}
    if shared is not None:
        total = sum(one.count for one in kept.values())
        attempts["shared_matrix"] = from_shared_matrix(shared(), total, rows.known(None))
    return {
        "name": evidence.dataset.name,
        "nodes": evidence.dataset.graph.num_nodes,
        "as_taught": evidence.is_as_taught,
        "inputs": _inputs(tensors, evidence),
        "inputs_of_all": _inputs_of_all(model, evidence),
        "stored_rows": {"raw features": _counted([raw]), "the model's own representation": _counted(by_view)},
        "attempts": attempts,
    }


def _inputs(tensors: Mapping[str, Tensor], evidence: Evidence) -> dict[str, Any]:
    """What the first layer reveals about the features of the nodes learned last."""
    if not evidence.is_as_taught:
        return {"skipped": "it is not known which nodes were learned last"}
    last = evidence.views[-1]
    return features_revealed(tensors, occurring(last.graph.x[last.nodes]))


def _inputs_of_all(model: Model, evidence: Evidence) -> dict[str, Any]:
    """What the change of the first layer reveals about the features of all nodes learned, if the seed is known."""
    if not evidence.is_as_taught:
        return {"skipped": "it is not known which nodes were learned"}
    occurs = np.any([occurring(view.graph.x) for view in evidence.views], axis=0)
    change = {}
    now = {} if model.network is None else model.network.tensors()
    if isinstance(model.method, Trained) and FIRST_LAYER in now:
        generator = torch.Generator(model.device).manual_seed(model.config.seed)
        change[CHANGE] = now[FIRST_LAYER] - fresh_network(model.method, model.setup, generator).tensors()[FIRST_LAYER]
    return features_revealed(change, occurs)


def _counted(found: list[Found]) -> dict[str, Any]:
    return {
        "looked_for": sum(one.looked_for for one in found),
        "too_plain": sum(one.too_plain for one in found),
        "found": sum(len(one.nodes) for one in found),
        "where": sorted(set().union(*(one.where for one in found))),
    }


def _reconstructed(kept: Remembered, known: Known) -> dict[str, Any]:
    numbers = {"taught": kept.count, "compared": len(known.members), "from_mean": from_mean(kept.mean, known)}
    return numbers if kept.second is None else {**numbers, "from_matrix": from_matrix(kept, known)}


class _Rows:
    """Rows gathered from one view after the other: some of every small class, some of the others."""

    def __init__(self, classes: list[str], views: int) -> None:
        self._classes = classes
        self._most = -(-MOST_ROWS // views)
        self._random = np.random.default_rng(0)
        self._kept: dict[tuple[str | None, str], list[Tensor]] = {}

    def take(self, view: View, rows: Tensor) -> None:
        names = np.array([str(label) for label in view.labels.tolist()])
        taught = np.ones(len(names), dtype=bool) if view.taught is None else view.taught
        for name in self._classes:
            own = names == name
            self._keep(name, "members", rows, own & taught)
            self._keep(name, "untaught", rows, own & ~taught)
            self._keep(name, "others", rows, ~own)
        self._keep(None, "members", rows, taught)
        self._keep(None, "others", rows, ~taught)
        self._width = rows.shape[1]

    def known(self, name: str | None) -> Known:
        """The rows of a class against others; of all classes, training rows against the others."""
        parts = [self._kept.get((name, kind), []) for kind in ("members", "untaught", "others")]
        empty = torch.zeros(0, self._width)
        return Known(*(torch.cat(some) if some else empty for some in parts))

    def _keep(self, name: str | None, kind: str, rows: Tensor, which: NDArray[np.bool_]) -> None:
        chosen = np.sort(self._random.permutation(np.flatnonzero(which))[: self._most])
        if len(chosen):
            self._kept.setdefault((name, kind), []).append(rows[torch.from_numpy(chosen).to(rows.device)].cpu())
