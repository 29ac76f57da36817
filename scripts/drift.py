"""Drift: how far the features of old classes move while later tasks are learned. Theorem 1 of the IPAL paper, measured.

    python scripts/drift.py --dataset cs --methods pr,pcl,bare,ewc,ipal --set ewc.strength=1e4 --set pr.competing=seen

The model is trained as in any run and never sees an old node again. Only this script embeds the training nodes of old
classes once more, each on its own task's graph as it was learned, before and after every task. It writes a table, and
Figures 1 and 5 of the paper (with the extra `figures`).
"""

import argparse
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from ipal.bench.experiment_file import as_tree, read_preset
from ipal.config import RunConfig, Tree, override, parse_assignment, run_config
from ipal.data.datasets.catalog import data_root
from ipal.data.labels import Labels
from ipal.data.task import Task
from ipal.engine.trainer import numbered
from ipal.errors import ConfigError, DataError, IpalError
from ipal.estimator.model import Model
from ipal.estimator.registry import METHODS
from ipal.methods.base import Trained
from ipal.methods.ipal import IPAL
from ipal.nn import losses
from ipal.report import cells, paper
from ipal.report.cells import CellTable
from ipal.report.figures import COLOURS, blank, write_figure
from ipal.report.statistics import FEWEST, how_many, paired_interval, spread
from ipal.report.tables import Captioned
from ipal.runs import runner
from ipal.runs.resolved import Resolved, Resolver
from ipal.runs.run_folder import RunStore
from ipal.system.files import make_folder, write_atomically

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


MEASURES = {
    "kl": "KL (Eq. 16)",
    "log_det": "log det Σ′ − log det Σ",
    "trace": "tr(Σ′⁻¹Σ − I)",
    "mean_shift": "(μ′−μ)ᵀ Σ′⁻¹ (μ′−μ)",
    "squared_shift": "‖μ′−μ‖²",
    "relative_shift": "‖μ′−μ‖² / variance",
    "cosine": "cosine before, after",
    "kl_ridge_0.01": "KL, ridge 0.01",
    "kl_ridge_0.1": "KL, ridge 0.1",
}
NAMES = {
    "average_performance": "AP, %",
    "learning_accuracy": "accuracy on each task just learned, %",
    **MEASURES,
    "kl_stream": "KL, base task to last",
}
COMPARED = ("kl", "squared_shift", "trace", "relative_shift", "kl_ridge_0.01", "kl_ridge_0.1")
"""The first is that of Theorem 1, the next two are in its proof; the others show the effect of scale and ridge."""
CLASS_MARKERS = "osDPXp*hd8"  # no triangles: those are hard examples


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


@dataclass(frozen=True, eq=False)
class Measurement:
    """One run of one method, measured."""

    config: RunConfig
    scores: Mapping[str, float]
    """Of the whole run; a method that learns less has less to drift for."""
    steps: Sequence[Mapping[str, Any]]
    """Every old class after every later task."""
    hard: Mapping[str, Any] | None
    """Where hard examples of the first task lie, and others."""
    drawn: Mapping[str, Any] | None
    """Training nodes of the first task as points, of seed 0."""

    @property
    def dataset(self) -> str:
        return paper.dataset_title(self.config.dataset)

    @cached_property
    def means(self) -> dict[str, float]:
        """Every measure, mean over old classes and tasks."""
        return {name: float(np.mean([row[name] for row in self.steps])) for name in MEASURES} | dict(self.scores)


def measure(run: Resolved) -> Measurement:
    """Make a run in a temporary folder, and measure every old class at every task; of seed 0 also points to draw."""
    drift = _Drift()
    with tempfile.TemporaryDirectory(prefix="ipal-drift-") as aside:
        result = runner.run(run, RunStore(Path(aside)).folder_for(run.config), drift)
    first, last, labels = drift.at_first, drift.now[0], drift.tasks[0].labels
    from_base = [row["kl"] for row in _by_class(labels, first, last)]
    if not drift.steps or not from_base:
        raise DataError("No old class has two training nodes with different features: there is no drift to measure.")
    scores = {name: result["metrics"][name] for name in ("average_performance", "learning_accuracy")}
    drawn = _drawn(labels, first, last, drift.is_hard) if run.config.seed == 0 else None
    return Measurement(run.config, scores | {"kl_stream": float(np.mean(from_base))}, drift.steps, drift.hard, drawn)


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
            if isinstance(model.method, IPAL):
                self.hard, self.is_hard = hard_examples(model, model.method, self.at_first, task)


def hard_examples(model: Model, method: IPAL, f: Array, task: Task) -> tuple[dict[str, Any], NDArray[np.bool_]]:
    """The hard examples of the classes just learned, as the method chooses them, and where they and the others lie.

    distance: to the class mean, in units of the class's mean. margin: cosine to the own prototype minus the best other.
    """
    prototypes = torch.stack([one.mean for one in model.remembered().values()])
    cosines = losses.cosine(torch.from_numpy(f), prototypes.double().cpu())
    rows = torch.from_numpy(numbered(task, model.labels).labels)
    members = rows[None, :] == torch.arange(len(model.labels))[:, None]
    nodes, _ = losses.hardest(losses.hardness(cosines.T, method.hardness), members, method.k)
    hard = np.zeros(len(f), dtype=np.bool_)
    hard[nodes.numpy()] = True
    if hard.all() or len(members) < 2:
        return {"k": method.k}, hard  # nothing to compare with
    margin = (cosines.gather(1, rows[:, None])[:, 0] - cosines.masked_fill(members.T, -torch.inf).amax(dim=1)).numpy()
    distance = np.zeros(len(f))
    for mine in members.numpy():
        away = np.linalg.norm(f[mine] - f[mine].mean(axis=0), axis=1)
        distance[mine] = away / max(float(away.mean()), 1e-12)
    means = [(float(one[hard].mean()), float(one[~hard].mean())) for one in (distance, margin)]
    return {"k": method.k, "distance": means[0], "margin": means[1]}, hard


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


# ---------------------------------------------------------------------- tables and figures


def make_report(every: Sequence[Measurement], how: str, out: Path, command: str) -> tuple[dict[str, Any], list[Path]]:
    """All tables and figures: the numbers as plain data, and the files written, the page first."""
    make_folder(out)
    numbers = summary(every)
    made = Captioned("drift", table(numbers, caption(every)), [command], verdicts(numbers), how)
    figures = {"figure1": planes, "figure5": boundary}
    images = [path for name, draw in figures.items() for path in write_figure(out / name, partial(draw, every))]
    shown = "\n\n".join(f"![{path.stem}]({path.name})" for path in images if path.suffix == ".png")
    files = made.files
    files["drift.md"] += f"\n{shown}\n" if shown else ""
    for name, text in files.items():
        write_atomically(out / name, text)
    return numbers, [*(out / name for name in files), *images]


# ---------------------------------------------------------------------- numbers


def summary(every: Sequence[Measurement]) -> dict[str, Any]:
    """Mean and deviation over seeds; PR against PCL."""
    methods = dict[str, dict[str, Any]]()
    for method in dict.fromkeys(one.config.method for one in every):
        means = [one.means for one in every if one.config.method == method]
        methods[method] = {name: one._asdict() for name in NAMES if (one := spread([each[name] for each in means]))}
    hard = [one.hard for one in every if one.hard]
    return {
        "seeds": sorted({one.config.seed for one in every}),
        "methods": methods,
        "comparison": [_compare(every, name) for name in COMPARED] if {*methods} >= {*paper.THEOREM1} else [],
        "hard": {name: np.mean([row[name] for row in hard], axis=0).tolist() for name in hard[0]} if hard else None,
    }


def _compare(every: Sequence[Measurement], measure: str) -> dict[str, Any]:
    pr, pcl = (
        {one.config.seed: one.means[measure] for one in every if one.config.method == name} for name in paper.THEOREM1
    )
    interval, verdict = paired_interval(pr, pcl), "undecided"
    if interval and not interval.low <= 0 <= interval.high:
        verdict = "supported" if interval.low > 0 else "contradicted"
    return {"measure": measure, "verdict": verdict, **(interval._asdict() if interval else {})}


def caption(every: Sequence[Measurement]) -> str:
    """What was measured, in one sentence."""
    first, train = every[0], every[0].config.train
    same = f"{train.epochs} epochs a task" if all(one.config.train == train for one in every) else "training DIFFERS"
    return (
        f"{first.dataset}, tasks of {'+'.join(map(str, first.config.split or ()))} classes, {same}: drift of old "
        f"classes, mean over classes and tasks ± standard deviation over {how_many(one.config.seed for one in every)}."
    )


def table(numbers: Mapping[str, Any], caption: str = "") -> CellTable:
    """Measures down, methods across."""
    methods = numbers["methods"]
    rows = [
        (
            title,
            *(cells.Cell(number(**one[key]), one[key]["mean"], "", one[key]["deviation"]) for one in methods.values()),
        )
        for key, title in NAMES.items()
    ]
    return cells.table(caption, ("measure", *map(paper.title, methods)), rows)


def verdicts(numbers: Mapping[str, Any]) -> list[str]:
    """One sentence for each quantity that should be lower for PCL than for PR, and on where hard examples lie."""
    lines = []
    for row in numbers["comparison"]:
        found = f"with fewer than {FEWEST} seeds there is no interval"
        if "difference" in row:
            found = f"PR − PCL {number(row['difference'])} [{number(row['low'])}, {number(row['high'])}] (95 %)"
        lines.append(f"PCL < PR in {MEASURES[row['measure']]}: {row['verdict']}; {found}.")
    hard = numbers["hard"]
    if hard and "distance" in hard:
        ratio, margin = hard["distance"][0] / hard["distance"][1], hard["margin"]
        lines.append(
            f"Hard examples of the base task ({hard['k']:.0f} a class) lie {ratio:.2f} times as far from the class "
            f"mean as others; margin (cosine to own prototype, less the best other) {margin[0]:.2f}, {margin[1]:.2f}."
        )
    return lines


def number(mean: float, deviation: float | None = None) -> str:
    """With digits after the point by its size, no exponent."""
    digits = 0 if abs(mean) >= 100 else 2 if abs(mean) >= 1 else 4
    return f"{mean:.{digits}f}" + ("" if deviation is None else f" ± {deviation:.{digits}f}")


# ---------------------------------------------------------------------- figures


def planes(every: Sequence[Measurement]) -> Figure:
    """Figure 1: base-task features when just learned and after the last task, arrows from old to new class means."""
    shown = [(one, one.drawn) for one in every if one.drawn]
    figure = blank(0.4 + 2.6 * len(shown), 5.6)
    panels = figure.subplots(2, len(shown), squeeze=False, sharex="col", sharey="col")
    for column, (one, drawn) in zip(panels.T, shown, strict=True):
        for axes, places in zip(column, drawn["places"], strict=True):
            _scatter(axes, drawn["labels"], places)
        for was, now in drawn["means"]:
            for axes in column:
                axes.plot(*was, "o", color="white", markeredgecolor="black", markersize=4, zorder=6)
            arrow = {"arrowstyle": "-|>", "mutation_scale": 7, "linewidth": 1.2, "shrinkA": 0, "shrinkB": 0}
            column[1].annotate("", now, was, arrowprops=arrow, zorder=5)
        share = f"{100 * drawn['share']:.0f} % of variance in the plane"
        column[0].set_title(f"{paper.title(one.config.method)}\n{share}", fontsize=9)
    panels[0, 0].set_ylabel("base task just learned")
    panels[1, 0].set_ylabel("after the last task")
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=6, markerscale=2)
    figure.suptitle(
        f"{every[0].dataset}, seed 0: base-task features on the two main axes (PCA) of each method's\n"
        "own features before; ○ class mean before, arrows lead from there to the mean after",
        fontsize=9,
    )
    return figure


def boundary(every: Sequence[Measurement]) -> Figure | None:
    """Figure 5: the classes of the base task just after it was learned; hard examples are triangles."""
    one = next((one for one in every if one.drawn and "is_hard" in one.drawn), None)
    if one is None or one.drawn is None or one.hard is None:
        return None
    figure = blank(5.4, 4.9)
    axes = figure.subplots()
    labels, places, hard = (one.drawn[name] for name in ("hard_labels", "hard_places", "is_hard"))
    _scatter(axes, labels[~hard], places[~hard])
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=6, markerscale=2)
    _scatter(axes, labels[hard], places[hard], s=60, marker="^", alpha=1, edgecolors="black", linewidths=0.8, zorder=4)
    axes.set_title(
        f"{one.dataset}, seed 0: base task just learned by {paper.title(one.config.method)}\n"
        f"t-SNE by cosine of {len(labels)} training nodes; △ the {one.hard['k']} hardest of each class",
        fontsize=9,
    )
    return figure


def _scatter(axes: Axes, labels: NDArray[Any], places: NDArray[Any], **look: Any) -> None:
    """Points by class."""
    for index, name in enumerate(np.unique(labels)):
        own = {"marker": CLASS_MARKERS[index % len(CLASS_MARKERS)], "color": COLOURS[index % len(COLOURS)]}
        style = {"s": 9, "alpha": 0.55, "linewidths": 0, **own, **look}
        axes.scatter(*places[labels == name].T, label=f"class {name}", **style)
    axes.set(xticks=[], yticks=[])


# ---------------------------------------------------------------------- the program


def main() -> None:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--dataset", required=True, help="name of a graph, or the path of an .npz file")
    parser.add_argument("--methods", default="pr,pcl,ipal", help="methods with an encoder, separated by commas")
    parser.add_argument("--seeds", type=int, default=5, help="how many: 0, 1, 2, …")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting; may be repeated")
    parser.add_argument("--out", "-o", type=Path, default=Path("drift"), help="folder for tables and figures")
    parser.add_argument("--data-root", type=Path, help="folder with the graphs")
    asked = parser.parse_args()
    try:
        planned = plan(settings(asked), names(asked.methods), asked.seeds, data_root(asked.data_root))
        every = []
        for number, run in enumerate(planned, 1):
            print(f"run {number} of {len(planned)}: {run.config.method}, seed {run.config.seed}", file=sys.stderr)
            every.append(measure(run))
        command = shlex.join(["python", "scripts/drift.py", *sys.argv[1:]])
        numbers, written = make_report(every, HOW, asked.out, command)
    except IpalError as error:
        parser.error(str(error))
    print(cells.markdown(table(numbers)), *verdicts(numbers), f"Files: {', '.join(map(str, written))}", sep="\n")


def names(methods: str) -> list[str]:
    return [name for part in methods.split(",") if (name := part.strip())]


def settings(asked: argparse.Namespace) -> Tree:
    """All methods train alike, as the preset says; settings of one method are its alone."""
    alike = as_tree(read_preset("drift-cs", "ipal"))
    tree: Tree = {"dataset": asked.dataset, **{name: alike[name] for name in ("encoder", "train")}}
    tree |= {name: alike[name] for name in names(asked.methods) if name in alike}
    for assignment in asked.set:
        tree = override(tree, parse_assignment(assignment))
    if {"method", "seed"} & tree.keys():
        raise ConfigError("Several methods and seeds are measured: name them with --methods and --seeds, not --set.")
    return tree


if __name__ == "__main__":
    main()
