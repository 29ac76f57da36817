"""How far the features of old classes drift while later tasks are learned: Theorem 1 of the IPAL paper, measured.

The model is trained as in any run and never sees an old node again. Only this module embeds the
training nodes of old classes once more, each on its own task's graph as it was learned, before and after every task.
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from ipal.config import Tree, run_config
from ipal.data.labels import Labels
from ipal.data.task import Task
from ipal.engine.trainer import numbered
from ipal.errors import ConfigError, DataError
from ipal.estimator.model import Model
from ipal.estimator.registry import METHODS
from ipal.methods.base import Trained
from ipal.nn import losses
from ipal.runs import runner
from ipal.runs.resolved import Resolved, Resolver
from ipal.runs.run_folder import RunStore

Array = NDArray[np.float64]
RIDGE = 1e-3
"""Added to the diagonal of both covariances, in units of the mean variance before: embeddings fill few of their
dimensions, and a class may have fewer nodes than dimensions, so that a bare covariance has no inverse."""
OTHER_RIDGES = (1e-2, 1e-1)
"""The KL is also measured with these, to show the effect of the choice."""
HOW = (
    "Training nodes of every old class, embedded on their own task's graph before and after each later task; Gaussians "
    f"with full covariance plus a ridge of {RIDGE:g} times the class's mean variance before. Only ‖μ′−μ‖² depends on "
    "the scale of embeddings."
)
SHOWN = 900
"""Most nodes of a figure."""
DIRECTIONS = 50
"""Principal directions that t-SNE begins from."""


class Divergence(NamedTuple):
    """A KL divergence and its three terms; it is half their sum."""

    kl: float
    log_det: float
    trace: float
    mean_shift: float


def gaussian_kl(mu: Array, S: Array, mu_after: Array, S_after: Array) -> Divergence:
    r"""KL divergence of the Gaussian after a task from the one before it.

    .. math:: \frac12 \Big( \log \frac{\det \Sigma'}{\det \Sigma} + \mathrm{tr}(\Sigma'^{-1} \Sigma - I)
        + (\mu' - \mu)^\top \Sigma'^{-1} (\mu' - \mu) \Big)

    Source: the IPAL paper, Eq. 16. Its n is inside the trace here, as in the proof's second quantity.
    """
    root, root_after = np.linalg.cholesky(S), np.linalg.cholesky(S_after)
    log_det = 2 * float(np.log(np.diagonal(root_after)).sum() - np.log(np.diagonal(root)).sum())
    trace = float(np.square(solve_triangular(root_after, root, lower=True)).sum()) - len(mu)
    mean_shift = float(np.square(solve_triangular(root_after, mu_after - mu, lower=True)).sum())
    return Divergence((log_det + trace + mean_shift) / 2, log_det, trace, mean_shift)


def fitted_gaussian(f: Array, ridge: float) -> tuple[Array, Array]:
    """Mean and full covariance (divisor n) of the rows of `f`, `ridge` added to the diagonal."""
    mu = f.mean(axis=0)
    return mu, (f - mu).T @ (f - mu) / len(f) + ridge * np.eye(f.shape[1])


def class_drift(before: Array, after: Array) -> dict[str, float] | None:
    """What one class's embeddings did; None where they do not differ among themselves and have no covariance."""
    variance = float(before.var(axis=0).mean())
    if not variance > 0:
        return None
    try:
        kl, *others = (
            gaussian_kl(*fitted_gaussian(before, share * variance), *fitted_gaussian(after, share * variance))
            for share in (RIDGE, *OTHER_RIDGES)
        )
    except np.linalg.LinAlgError as error:
        raise DataError(
            "The embeddings of a class grew so much in one task that their covariance has no inverse: try a smaller "
            "train.lr_next."
        ) from error
    squared = float(np.square(after.mean(axis=0) - before.mean(axis=0)).sum())
    lengths = np.linalg.norm(before, axis=1) * np.linalg.norm(after, axis=1)
    return {
        **kl._asdict(),
        "squared_shift": squared,
        "relative_shift": squared / variance,
        "cosine": float(np.mean((before * after).sum(axis=1) / np.maximum(lengths, 1e-12))),
        **{f"kl_ridge_{share:g}": other.kl for share, other in zip(OTHER_RIDGES, others, strict=True)},
    }


# ---------------------------------------------------------------------- measurements


def plan(tree: Mapping[str, Any], methods: Sequence[str], seeds: int, root: Path | None) -> list[Resolved]:
    """The runs to measure. Settings under a method's name are its alone."""
    runs, resolver = list[Resolved](), Resolver(root)
    for method in dict.fromkeys(methods):
        if not issubclass(METHODS.find(method), Trained):
            raise ConfigError(f"'{method}' trains no encoder: its features stay where they are, so nothing can drift.")
        mine: Tree = {key: value for key, value in tree.items() if key == method or key not in methods}
        runs += [resolver.resolve(run_config({**mine, "method": method, "seed": seed})) for seed in range(seeds)]
    if not runs:
        raise ConfigError("There is nothing to measure: name at least one method, as --methods pr,pcl.")
    if len(runs[0].stream) < 2:
        raise ConfigError(
            f"All classes of '{runs[0].dataset.name}' are learned in one task: with no later task there is no drift. "
            "Take a split of several tasks, for example --set split=[4,2]."
        )
    return runs


def measure(run: Resolved) -> dict[str, Any]:
    """Make a run in a temporary folder, and measure every old class at every task; of seed 0 also points to draw."""
    drift = _Drift()
    with tempfile.TemporaryDirectory(prefix="ipal-drift-") as aside:
        result = runner.run(run, RunStore(Path(aside)).folder_for(run.config), drift)
    first, last, labels = drift.at_first, drift.now[0], drift.tasks[0].labels
    from_base = [row["kl"] for row in _by_class(labels, first, last)]
    if not drift.steps or not from_base:
        raise DataError("No old class has two training nodes with different features: there is no drift to measure.")
    return {
        "config": run.config,
        "scores": {name: result["metrics"][name] for name in ("average_performance", "learning_accuracy")}
        | {"kl_stream": float(np.mean(from_base))},
        "steps": drift.steps,
        "hard": drift.hard,
        "drawn": _drawn(labels, first, last, drift.is_hard) if run.config.seed == 0 else None,
    }


class _Drift(runner.Silent):
    """Embeds the training nodes of all tasks so far once more after every task."""

    def __init__(self) -> None:
        self.tasks: list[Task] = []
        self.at_first: Array = np.zeros(0)
        self.now: list[Array] = []
        self.steps: list[dict[str, float]] = []
        self.hard: dict[str, Any] | None = None
        self.is_hard: NDArray[np.bool_] | None = None

    def learned(self, index: int, task: Task, model: Model) -> None:
        self.tasks.append(task)
        before, self.now = self.now, [_embeddings(model, old) for old in self.tasks]
        for old, f_before, f_after in zip(self.tasks, before, self.now, strict=False):
            self.steps += _by_class(old.labels, f_before, f_after)
        if index == 0:
            self.at_first = self.now[0]
            if model.method.hard_examples:
                self.hard, self.is_hard = hard_examples(model, self.at_first, task)


def hard_examples(model: Model, f: Array, task: Task) -> tuple[dict[str, Any], NDArray[np.bool_]]:
    """The hard examples of the classes just learned, as the method chooses them, and where they and the others lie.

    distance: to the class mean, in units of the class's mean. margin: cosine to the own prototype minus the best other.
    """
    k, measure = model.method.hard_examples or (0, "")
    prototypes = torch.stack([one.mean for one in model.remembered().values()])
    cosines = losses.cosine(torch.from_numpy(f), prototypes.double().cpu())
    rows = torch.from_numpy(numbered(task, model.labels).labels)
    members = rows[None, :] == torch.arange(len(model.labels))[:, None]
    nodes, _ = losses.hardest(losses.hardness(cosines.T, measure), members, k)
    hard = np.zeros(len(f), dtype=np.bool_)
    hard[nodes.numpy()] = True
    if hard.all() or len(members) < 2:
        return {"k": k}, hard  # nothing to compare with
    margin = (cosines.gather(1, rows[:, None])[:, 0] - cosines.masked_fill(members.T, -torch.inf).amax(dim=1)).numpy()
    distance = np.zeros(len(f))
    for mine in members.numpy():
        away = np.linalg.norm(f[mine] - f[mine].mean(axis=0), axis=1)
        distance[mine] = away / max(float(away.mean()), 1e-12)
    means = [(float(one[hard].mean()), float(one[~hard].mean())) for one in (distance, margin)]
    return {"k": k, "distance": means[0], "margin": means[1]}, hard


def _embeddings(model: Model, task: Task) -> Array:
    assert model.network is not None, "the run was planned"
    f = model.compute.embeddings(model.network, task).cpu().numpy().astype(np.float64)
    if not np.isfinite(f).all():
        raise DataError(f"'{model.name}' learned embeddings that are not finite: try a smaller train.lr_base.")
    return f


def _by_class(labels: Labels, before: Array, after: Array) -> list[dict[str, float]]:
    found = (class_drift(before[labels == label], after[labels == label]) for label in np.unique(labels))
    return [numbers for numbers in found if numbers is not None]


def flattened(f: Array) -> Array:
    """Rows as points in the plane by t-SNE, near ones (by cosine) near each other."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    unit = f / np.maximum(np.linalg.norm(f, axis=1, keepdims=True), 1e-12)
    if len(f) < 8:  # too few for neighbourhoods
        return np.pad(unit, ((0, 0), (0, 2)))[:, :2]
    reduced = PCA(min(DIRECTIONS, *unit.shape), random_state=0).fit_transform(unit)
    places = TSNE(perplexity=min(30.0, (len(f) - 1) / 4), random_state=0, init="pca").fit_transform(reduced)
    return np.asarray(places, np.float64)


def _drawn(labels: Labels, before: Array, after: Array, hard: NDArray[np.bool_] | None) -> dict[str, Any]:
    """Nodes of the first task when learned: on the plane of their largest variance, there also at the end; by t-SNE."""
    from sklearn.decomposition import PCA

    pca, random = PCA(min(2, *before.shape)).fit(before), np.random.default_rng(0)
    places = np.stack([np.pad(pca.transform(f), ((0, 0), (0, 1)))[:, :2] for f in (before, after)])
    some = random.permutation(len(labels))[:SHOWN]
    found: dict[str, Any] = {
        "share": float(np.nan_to_num(pca.explained_variance_ratio_).sum()),
        "labels": labels[some],
        "places": places[:, some],
        "means": np.stack([places[:, labels == name].mean(axis=1) for name in np.unique(labels)]),
    }
    if hard is not None:
        others = random.permutation(np.flatnonzero(~hard))
        shown = np.sort(np.concatenate([np.flatnonzero(hard), others])[:SHOWN])
        found |= {"hard_labels": labels[shown], "is_hard": hard[shown], "hard_places": flattened(before[shown])}
    return found
