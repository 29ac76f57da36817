"""What an HTML page shows of a finished run beyond its folder: from model and graph.

Computed each time, because a run folder stores no nodes.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ipal.analysis.audit import as_taught, audit
from ipal.config import RunConfig
from ipal.data.streams import Stream
from ipal.data.task import Task
from ipal.errors import IpalError
from ipal.estimator.files import load
from ipal.estimator.model import Model
from ipal.methods.base import HardExamples
from ipal.nn import losses
from ipal.runs.resolved import Resolved, check_settings, resolve
from ipal.runs.run_folder import RunFolder

SHOWN = 1200
"""Most nodes that are drawn."""
HARD = 10
"""Hard examples of a class, for methods without such a setting."""
MOST_BYTES = 2**30
"""Most nodes of a task's graph: of larger ones no nodes are drawn."""
DIRECTIONS = 50
"""Principal directions that t-SNE begins from."""


def look_closely(
    folder: RunFolder, root: Path | None = None, *, nodes: bool = True, search: bool = False
) -> dict[str, Any]:
    """What the model keeps and, with its graph, how nodes lie around prototypes; with `search`, an audit on the graph.

    What cannot be shown becomes a remark, not an error.
    """
    model = load(folder.model)
    # The defaults, which only the method knows.
    plain = check_settings(RunConfig(dataset="any", method=model.name)).to_tree()
    defaults = {name: plain[name] for name in ("encoder", "train", model.name)}
    closer: dict[str, Any] = {"defaults": defaults, "remarks": []}
    resolved: Resolved | None = None
    if nodes or search:
        try:
            resolved = resolve(folder.config(), root or folder.data_root())
        except IpalError as error:
            closer["remarks"].append(f"Nodes cannot be shown without the graph. {error}")
    closer["audit"] = audit(model, as_taught(resolved) if resolved and search else None)
    if resolved and nodes:
        try:
            closer["plane"] = plane(model, resolved.stream, resolved.config.seed)
        except _NotDrawnError as reason:
            closer["remarks"].append(str(reason))
    return closer


class _NotDrawnError(Exception):
    """Why there is no view of the nodes, as a sentence."""


def plane(model: Model, stream: Stream, seed: int) -> dict[str, Any]:
    """Training nodes of every class, embedded on their own tasks' graphs as learned from, and prototypes, in 2-d."""
    names = np.array(list(dict.fromkeys(str(label) for classes in stream.classes for label in classes)))
    most = max(2 * HARD, SHOWN // len(names))
    with torch.no_grad():
        drawn = [_drawn(model, stream.task(index), most, seed) for index in range(len(stream))]
    f, labels, predicted, hard = (np.concatenate(parts) for parts in zip(*drawn, strict=True))
    kept = model.remembered()
    stored = all(name in kept for name in names)
    means = [kept[name].mean.cpu().float().numpy() if stored else f[labels == name].mean(axis=0) for name in names]
    both = np.concatenate([f, np.stack(means)])
    if not np.isfinite(both).all():
        raise _NotDrawnError("The nodes are not drawn: their embeddings are not finite numbers.")
    x, y = flattened(both, seed).T.round(3).tolist()
    n = len(f)
    return {
        "points": {
            "x": x[:n],
            "y": y[:n],
            "class": labels.tolist(),
            "predicted": predicted.tolist(),
            "hard": hard.tolist(),
        },
        "prototypes": {"x": x[n:], "y": y[n:], "class": names.tolist()},
        "prototypes_are": "stored prototypes" if stored else "means of the nodes shown (the model stores none)",
        "about": (
            f"{n} training nodes, embedded by the final model on their own tasks' graphs, drawn by t-SNE of their "
            "cosines: near ones are near, but far distances and sizes of clusters mean nothing. Hard examples are the "
            f"training nodes {_hard_in_words(model)}."
        ),
    }


def _drawn(model: Model, task: Task, most: int, seed: int) -> tuple[NDArray[Any], ...]:
    """Embeddings, labels and predictions of some nodes of a task, and which of them are hard examples."""
    _check_size(model, task.graph.num_nodes)
    scores = model.scores(model.checked(task.graph))
    number, measure = _hard_examples(model)
    certainty = scores if model.method.hard_examples else model.probabilities(scores, task.graph).log()
    mine = torch.from_numpy(task.nodes).to(scores.device)
    difficulty = losses.hardness(certainty[mine].T, measure).cpu().numpy()
    chosen, hard = _choose(difficulty, task.labels, number, most, np.random.default_rng(seed))
    rows = mine[torch.from_numpy(chosen).to(mine.device)]
    f = model.embed(task.graph)[rows].cpu().float().numpy()
    return f, task.labels[chosen].astype(str), model.likeliest(scores[rows]).astype(str), hard


def _choose(
    difficulty: NDArray[Any], labels: NDArray[Any], k: int, most: int, random: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The `k` hardest of each class and others at random, `most` in all; and which of them are the hard ones."""
    chosen, hard = [], []
    for label in np.unique(labels):
        mine = np.flatnonzero(labels == label)
        ranked = mine[np.argsort(-difficulty[mine], kind="stable")]
        others = random.permutation(ranked[k:])[: max(0, most - k)]
        chosen.append(np.concatenate([ranked[:k], others]))
        hard.append(np.arange(len(chosen[-1])) < min(k, len(mine)))
    return np.concatenate(chosen), np.concatenate(hard)


def flattened(f: NDArray[Any], seed: int) -> NDArray[Any]:
    """Rows as points in the plane, near ones (by cosine) near each other."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    unit = f / np.maximum(np.linalg.norm(f, axis=1, keepdims=True), 1e-12)
    if len(f) < 8:  # too few for neighbourhoods
        return np.asarray(np.pad(unit, ((0, 0), (0, 2)))[:, :2])
    reduced = PCA(min(DIRECTIONS, *unit.shape), random_state=seed).fit_transform(unit)
    perplexity = min(30.0, (len(f) - 1) / 4)
    points: NDArray[Any] = TSNE(perplexity=perplexity, random_state=seed, init="pca").fit_transform(reduced)
    return points


def _check_size(model: Model, num_nodes: int) -> None:
    kept = model.remembered()
    width = len(next(iter(kept.values())).mean) if kept else model.num_features
    if 4 * width * num_nodes > MOST_BYTES:
        raise _NotDrawnError(
            f"The nodes are not drawn: embeddings of {num_nodes} nodes take more than {MOST_BYTES >> 30} GiB at once."
        )


def _hard_examples(model: Model) -> HardExamples:
    return model.method.hard_examples or HardExamples(HARD, "entropy")


def _hard_in_words(model: Model) -> str:
    what = {
        "entropy": "whose class is least certain (largest entropy)",
        "margin": "whose two likeliest classes are closest",
        "energy": "of the highest energy",
    }
    number, measure = _hard_examples(model)
    return f"{what[measure]}, {number} of each class"
