"""Does a trained encoder help the closed form? Average performance (AP) and forgetting (AF) on both test graphs.

    python scripts/encoder_study.py --dataset cs --seeds 0,1,2,3,4 --json study.jsonl

Compared, all trained on isolated task graphs and each tested on isolated and on seen graphs:

    propagated           the method `analytic` as it is, all choices its own
    propagated+frozen    its propagated features, hops and expansion, next to unit embeddings of IPAL's encoder as it is
                         after the base task; the ridge chosen anew
    frozen               these embeddings alone, with the same expansion
    frozen, linear       these embeddings alone, without expansion
    adapted, ...         IPAL's encoder, trained on through every task; rows are its unit embeddings and a constant,
                         without expansion. Sums of earlier tasks belong to an earlier encoder; they are
        ignored          kept as they are: drift is ignored
        to zero          carried into the new space by a ridge map A of the current training nodes, old rows to new:
                         G <- A^T G A, Q <- A^T Q; what these nodes do not show is shrunk to zero
        to identity      likewise, but A is the identity and a ridge map of the change: what they do not show stays
        exact            made anew from the nodes of all tasks: a bound, not exemplar-free
    ipal                 IPAL itself: the same encoder, nearest prototype

IPAL's settings are those of experiments/table1-DATASET.yaml (but for --epochs), everything else is default. The ridge
of A has the least leave-one-out error; no validation or test node chooses anything. The file has one line for every
dataset, variant, test graph and seed, written as it is known, and the table is of all its lines that fit.
"""

import argparse
import dataclasses
import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ipal.learners.analytic.class_sums import SUMS
from ipal.learners.analytic.selection import RIDGES, choose_ridge
from ipal.learners.analytic.solved import Waiting
from ipal.learners.analytic.spread import Spread
from torch import Tensor

from ipal.backend.operators import operators
from ipal.bench.experiment_file import read_experiment
from ipal.data.graph import Graph
from ipal.data.streams import Exam, Task, TaskStream
from ipal.evaluation.evaluate import evaluate
from ipal.evaluation.metrics import Scores, average_forgetting, average_performance
from ipal.learners.analytic.feature_map import FeatureMap
from ipal.learners.analytic.learner import Analytic
from ipal.learners.analytic.lower_half import mirrored
from ipal.learners.analytic.ridge import factorise, left_out_residual, leverage, ridge_weights
from ipal.learners.analytic.rows import Rows
from ipal.learners.ipal import IPAL
from ipal.learners.values import Look
from ipal.nn.losses import unit
from ipal.runs.resolved import Resolved, Resolver

TEST_GRAPHS = ("isolated", "seen")
Record = dict[str, Any]


def embeddings(encoder: IPAL, of: Graph | Task) -> Tensor:
    """Unit rows of a graph's nodes, or of a task's training nodes."""
    with torch.no_grad():
        return unit(encoder.encoder_(operators(of, encoder.runtime_, encoder.encoder_.needs)))


def with_one(encoder: IPAL, of: Graph | Task) -> Tensor:
    return torch.nn.functional.pad(embeddings(encoder, of), (0, 1), value=1.0)


@dataclasses.dataclass(frozen=True)
class EncodedMap(FeatureMap):
    """Embeddings of a frozen encoder, alone or after propagated features."""

    encoder: IPAL
    alone: bool

    @property
    def inputs(self) -> int:
        return self.encoder.encoder_.width + (0 if self.alone else super().inputs)

    def propagated(self, graph: Graph) -> Tensor:
        z = embeddings(self.encoder, graph)
        return z if self.alone else torch.cat([super().propagated(graph), z], dim=1)


class OnEncoder(Analytic):
    """The closed form with an encoder among its features."""

    encoder_: IPAL
    alone_: bool

    def blank(self) -> "OnEncoder":
        blank = super().blank()
        blank.encoder_, blank.alone_ = self.encoder_, self.alone_
        return blank

    def _use(self, spread: Spread, expansion: int) -> None:
        super()._use(spread, expansion)
        self.features_ = EncodedMap(self._map.propagation, spread, expansion, self.encoder_, self.alone_)
        self.sums_ = self.room.first.empty(self.features_.width, self.generator_.device)


class Played:
    """IPAL once more, from its states after every task."""

    def __init__(self, states: list[IPAL]) -> None:
        self.states, self.tasks = states, []

    @property
    def now(self) -> IPAL:
        return self.states[len(self.tasks) - 1]

    def learn(self, task: Task) -> Iterator[Any]:
        self.tasks.append(task)
        yield from ()

    def look(self, graph: Graph, nodes: Tensor | None = None) -> Look:
        return self.now.look(graph, nodes)


class Adapted(Played):
    """Balanced ridge on the embeddings of an encoder that changes with every task."""

    def __init__(self, states: list[IPAL], carry: str) -> None:
        super().__init__(states)
        self.carry, device = carry, states[0].generator_.device
        self.generator = torch.Generator(device).manual_seed(states[0].seed)
        self.sums = self.no_sums = SUMS["pooled"].empty(states[0].encoder_.width + 1, device)

    def learn(self, task: Task) -> Iterator[Any]:
        before = self.now
        yield from super().learn(task)
        if self.carry == "exact":
            self.sums = self.no_sums
        elif self.carry != "ignored" and len(self.tasks) > 1:
            A = drift_map(with_one(before, task), with_one(self.now, task), keep=self.carry == "to identity")
            moved = A.T @ mirrored(self.sums.gram) @ A
            self.sums = dataclasses.replace(self.sums, gram=moved, total=self.sums.total @ A)
        names = list(map(str, self.now.labels_))
        for each in self.tasks if self.carry == "exact" else [task]:
            rows = Rows(with_one(self.now, each), self.now.rows(each.labels), Tensor.double)
            self.sums = self.sums.grown(len(names)).exchanged(None, rows, names)
        gram, cross = self.sums.balanced()
        judges = Waiting.none(gram.device).then(rows, self.sums.count, self.generator)
        ridge, _ = choose_ridge(gram, cross, judges.judges(rows.expand, self.sums.count))
        self.weights = ridge_weights(factorise(gram, ridge), cross)

    def look(self, graph: Graph, nodes: Tensor | None = None) -> Look:
        rows = with_one(self.now, graph)
        scores = (rows if nodes is None else rows[nodes.to(rows.device)]).double() @ self.weights
        return Look(self.now.likeliest(scores), None, scores)


def drift_map(old: Tensor, new: Tensor, keep: bool) -> Tensor:
    """From old rows to new ones, with the ridge of least leave-one-out error; the constant stays itself."""
    old, new = old.double(), new.double()
    prior = torch.eye(old.shape[1], dtype=torch.float64, device=old.device)
    if not keep:
        prior[:-1] = 0
    missing, weights = new - old @ prior, torch.ones_like(old[:, 0])
    found = {}
    for ridge in RIDGES:
        factor = factorise(old.T @ old, ridge)
        change, half = ridge_weights(factor, old.T @ missing), factor.half(old.T)
        residual = left_out_residual(missing, old @ change, leverage(half, half, weights))
        found[float(residual.square().sum())] = change
    return prior + found[min(found)]


def measure(student: Any, tasks: list[Task], exams: dict[str, list[list[Exam]]], accuracy: str) -> list[Record]:
    """One training, scored on both test graphs after every task."""
    matrices = {test_graph: np.full((len(tasks), len(tasks)), np.nan) for test_graph in exams}
    for index, task in enumerate(tasks):
        for _ in student.learn(task):
            pass
        for test_graph, M in matrices.items():
            M[index, : index + 1] = evaluate(student, exams[test_graph][index], accuracy).row.test
    scores = {test_graph: Scores(M) for test_graph, M in matrices.items()}
    return [{"test_graph": g, "AP": average_performance(s), "AF": average_forgetting(s)} for g, s in scores.items()]


def study(run: Resolved) -> Iterator[tuple[str, list[Record]]]:
    """All variants for one seed. Graphs are made once, and keep what was propagated over them."""
    config, dataset = run.config, run.dataset
    protocols = [config.protocol.model_copy(update={"test_graph": test_graph}) for test_graph in TEST_GRAPHS]
    streams = [TaskStream(dataset.graph, dataset.y, config.split, protocol, config.seed) for protocol in protocols]
    tasks = [streams[0].task(index) for index in range(len(streams[0]))]
    exams = {s.protocol.test_graph: [s.exams(index) for index in range(len(s))] for s in streams}
    given = (tasks, exams, config.protocol.accuracy)

    plain = Analytic(seed=config.seed, device=config.device)
    scores = measure(plain, *given)
    chosen = {name: plain.map_[name] for name in ("hops", "restart", "expansion")}
    yield "propagated", [score | chosen for score in scores]

    ipal, states = run.learner(), []
    for task in tasks:
        for _ in ipal.learn(task):
            pass
        states.append(run.learner())
        states[-1].restore(ipal.state())
    yield "ipal", measure(Played(states), *given)
    for carry in ("ignored", "to zero", "to identity", "exact"):
        yield f"adapted, {carry}", measure(Adapted(states, carry), *given)
    for variant in ("frozen, linear", "frozen", "propagated+frozen"):
        expansion = 0 if variant == "frozen, linear" else chosen["expansion"]
        like = {name: chosen[name] for name in ("hops", "restart")}
        student = OnEncoder(seed=config.seed, device=config.device, expansion=expansion, **like)
        student.encoder_, student.alone_ = states[0], variant != "propagated+frozen"
        yield variant, measure(student, *given)


def table(records: list[Record]) -> str:
    """Mean ± standard deviation over seeds; AP also as its difference from `propagated`, seed by seed."""

    def cell(values: list[float], sign: str = "") -> str:
        return f"{statistics.fmean(values):{sign}.2f}" + (f" ± {statistics.stdev(values):.2f}" if values[1:] else "")

    heads = [f"{test_graph} {score}" for test_graph in TEST_GRAPHS for score in ("AP", "AF", "AP − propagated")]
    lines = [f"| variant | seeds | {' | '.join(heads)} |", "| --- " * (2 + len(heads)) + "|"]
    by = {(each["variant"], each["test_graph"], each["seed"]): each for each in records}
    for variant in dict.fromkeys(variant for variant, _, _ in by):
        seeds, cells = sorted(seed for name, graph, seed in by if (name, graph) == (variant, "seen")), []
        for test_graph in TEST_GRAPHS:
            own, base = ([by[which, test_graph, seed] for seed in seeds] for which in (variant, "propagated"))
            cells += [cell([each[score] for each in own]) for score in ("AP", "AF")]
            cells.append(cell([mine["AP"] - plain["AP"] for mine, plain in zip(own, base, strict=True)], "+"))
        lines.append(f"| {variant} | {','.join(map(str, seeds))} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--epochs", type=int, help="of IPAL, in place of the tuned number")
    parser.add_argument("--json", type=Path, help="file of lines to add to")
    options = parser.parse_args()
    file = read_experiment(Path(__file__).parents[1] / "experiments" / f"table1-{options.dataset}.yaml")
    entry = next(entry for entry in file.entries if entry.label == "ipal")
    stored = options.json.read_text().splitlines() if options.json and options.json.exists() else []
    records, resolver = [json.loads(line) for line in stored], Resolver()
    for seed in map(int, options.seeds.split(",")):
        config = file.config(entry, entry.points(tune=False)[0], seed)
        train = config.train if options.epochs is None else config.train.model_copy(update={"epochs": options.epochs})
        run = resolver.resolve(config.model_copy(update={"device": options.device, "train": train}))
        torch.set_num_threads(config.threads)
        whose = {"dataset": options.dataset, "epochs": train.epochs}
        for variant, scores in study(run):
            for score in scores:
                records.append({**whose, "seed": seed, "variant": variant, **score})
                print(json.dumps(records[-1]), flush=True)
                if options.json:
                    with options.json.open("a") as out:
                        out.write(json.dumps(records[-1]) + "\n")
    print(f"\n{whose}\n\n{table([each for each in records if whose.items() <= each.items()])}")


if __name__ == "__main__":
    main()
