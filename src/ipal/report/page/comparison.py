"""The page that compares runs: those that differ in the seed alone make one row, rows of one protocol one table."""

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ipal.report import paper
from ipal.report.cells import Cell, CellTable, table, table_of_choices
from ipal.report.page import plots, verdict
from ipal.report.page.command import as_yaml, command, flat
from ipal.report.page.facts import RunFacts
from ipal.report.page.parts import (
    Chart,
    Fact,
    Page,
    PageSection,
    Picker,
    Spec,
    count,
    number,
    plural,
    seconds,
    sentence,
    signless,
)
from ipal.report.page.scores import matrix_spec
from ipal.report.statistics import listed, marks, spread
from ipal.report.tables import EXEMPLARS, SCORES, arrowed, pretty, shared, size
from ipal.system.documents import write_yaml


@dataclass(frozen=True)
class Group:
    """Runs that differ in the seed alone."""

    label: str
    runs: Sequence[RunFacts]

    @property
    def first(self) -> RunFacts:
        return self.runs[0]

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(facts.config.seed for facts in self.runs)

    @property
    def is_upper_reference(self) -> bool:
        return self.first.is_upper_reference

    @property
    def title(self) -> str:
        return f"{self.label}\u00a0†" if self.first.stores_exemplars else self.label

    @property
    def as_contestant(self) -> verdict.Contestant:
        by_seed = {facts.config.seed: facts.scores["AP"] for facts in self.runs}
        return verdict.Contestant(self.title, by_seed)

    def scores(self, score: str) -> list[float]:
        return [facts.scores[score] for facts in self.runs if score in facts.scores]


@dataclass(frozen=True)
class Comparison:
    """Groups that can be compared: the same graph under the same protocol."""

    key: str
    title: str
    protocol: Mapping[str, Any]
    groups: Sequence[Group]
    differing: Sequence[str]
    """Fields in which the protocols of runs on a graph of this name differ."""
    protocols: int
    """How many they are."""

    @property
    def ranked(self) -> list[Group]:
        """Rows with the seeds that most have, without upper references; none if that is one row."""
        usual = Counter(group.seeds for group in self.groups).most_common(1)[0][0]
        found = [group for group in self.groups if group.seeds == usual and not group.is_upper_reference]
        return found if len(found) > 1 else []

    @property
    def best(self) -> Group | None:
        """By mean AP."""
        return max(self.ranked, key=lambda group: float(np.mean(group.scores("AP"))), default=None)

    @property
    def verdict(self) -> str:
        return verdict.of_comparison(self.title, [group.as_contestant for group in self.ranked])


def several_runs(runs: Sequence[RunFacts], labels: Mapping[str, str], remarks: Sequence[str] = ()) -> Page:
    """A comparison of runs; `labels` are names for some of them, `remarks` are on runs that are missing."""
    comparisons = _comparisons(_grouped(runs, labels))
    clashes = _clashes(comparisons)
    datasets = sorted({one.groups[0].first.dataset for one in comparisons})
    groups = [group for one in comparisons for group in one.groups]
    within = Fact(
        "protocols", str(len(comparisons)), "numbers are compared within one only", tone="warn" if clashes else ""
    )
    return Page(
        title=f"{plural(len(runs), 'run')} compared",
        verdict=verdict.of_comparisons(
            [one.verdict for one in comparisons], [one.best.title for one in comparisons if one.best]
        ),
        subtitle=f"{', '.join(datasets)}. Runs that differ in the seed alone are one row.",
        facts=[
            Fact("runs", str(len(runs)), "finished, each with its own folder"),
            Fact("rows", str(len(groups)), "methods and settings, over seeds"),
            Fact("graphs", str(len(datasets)), ", ".join(datasets)),
            within,
        ],
        warnings=[*clashes, *_data_remarks(runs), *remarks],
        sections=[*(_comparison_section(one, len(comparisons) > 1) for one in comparisons), _runs_section(groups)],
        download={"runs": [facts.as_plain() for facts in runs]},
        name="runs",
    )


# ---------------------------------------------------------------------- groups


def _grouped(runs: Sequence[RunFacts], labels: Mapping[str, str]) -> list[Group]:
    found: dict[str, list[RunFacts]] = {}
    for facts in runs:
        tree = {**facts.config.to_tree(), "seed": None}
        found.setdefault(json.dumps(tree, sort_keys=True), []).append(facts)
    by_seed = [sorted(members, key=lambda facts: facts.config.seed) for members in found.values()]
    firsts = [members[0] for members in by_seed]
    groups = [Group(_label(members[0], firsts, labels), members) for members in by_seed]
    return sorted(groups, key=lambda group: (paper.place(group.first.config.method), group.label))


def _label(facts: RunFacts, others: Sequence[RunFacts], given: Mapping[str, str]) -> str:
    """The method, and where one graph has it more than once, the settings in which its rows differ."""
    if facts.name in given:
        return facts.titled(given[facts.name])
    config = facts.config
    same = [one.config for one in others if (one.config.method, one.config.dataset) == (config.method, config.dataset)]
    rivals = [dict(flat(other.to_tree())) for other in same]
    # Protocol, split and graph have sections of their own.
    settings = [
        f"{name.rpartition('.')[2]}={as_yaml(value)}"
        for name, value in flat(config.to_tree())
        if not name.startswith(("protocol.", "split", "dataset", "seed"))
        and any(other.get(name) != value for other in rivals)
    ]
    return ", ".join([facts.title, *settings])


def _comparisons(groups: Sequence[Group]) -> list[Comparison]:
    found: dict[str, list[Group]] = {}
    for group in groups:
        config = group.first.config
        same = [config.dataset, config.dataset_hash, group.first.rules]
        found.setdefault(json.dumps(same, sort_keys=True), []).append(group)
    comparisons = []
    for index, members in enumerate(found.values(), start=1):
        facts, protocol = members[0].first, members[0].first.rules
        rivals = [one[0].first for one in found.values() if one[0].first.config.dataset == facts.config.dataset]
        odd = [name for name in protocol if any(other.rules[name] != protocol[name] for other in rivals)]
        which = ", ".join(f"{name} {_in_words(protocol[name])}" for name in odd) or "another graph"
        title = facts.dataset + f": {which}" * (len(rivals) > 1)
        comparisons.append(Comparison(f"comparison{index}", title, protocol, members, odd, len(rivals)))
    return comparisons


def _in_words(value: Any) -> str:
    return "+".join(map(str, value)) if isinstance(value, list) else value if isinstance(value, str) else as_yaml(value)


def _clashes(comparisons: Sequence[Comparison]) -> list[str]:
    """Warnings about one graph under several protocols."""
    found = {}
    for one in (one for one in comparisons if one.protocols > 1):
        facts = one.groups[0].first
        differ = f"differ in {', '.join(one.differing)}" if one.differing else "are on different graphs of this name"
        found[facts.config.dataset] = (
            f"{facts.dataset} has runs under {one.protocols} protocols, which {differ}. Their numbers do not mean the "
            "same: each protocol has a section of its own, and nothing is ranked across them."
        )
    return list(found.values())


def _data_remarks(runs: Sequence[RunFacts]) -> list[str]:
    found = {facts.dataset: facts.data_remark for facts in runs if facts.data_remark}
    return [sentence(f"{dataset}: {remark}") for dataset, remark in found.items()]


# ---------------------------------------------------------------------- one protocol


def _comparison_section(comparison: Comparison, with_verdict: bool) -> PageSection:
    machines = sorted({facts.machine for group in comparison.groups for facts in group.runs})
    protocol = ", ".join(f"{name.replace('_', ' ')} {_in_words(value)}" for name, value in comparison.protocol.items())
    return PageSection(
        comparison.key,
        comparison.title,
        lead=(
            f"{comparison.verdict} "
            * with_verdict
            + "AP and AF on test nodes in %, mean ± sample standard deviation over seeds. Best in bold, second "
            "underlined, among rows with the same seeds; Joint, the upper reference, is not ranked. "
            + EXEMPLARS
            * any(group.first.stores_exemplars for group in comparison.groups)
        ),
        tables=[_comparison_table(comparison), _metrics(comparison)],
        tables_first=True,
        charts=[_dynamics(comparison), _matrices(comparison)],
        notes=[
            f"Protocol: {protocol}.",
            f"Time and memory were measured on {'different machines' if len(machines) > 1 else 'one machine'}: "
            f"{'; '.join(machines)}.",
        ],
    )


def _comparison_table(comparison: Comparison) -> CellTable:
    cells = {score: _score_cells(comparison, score) for score in SCORES}
    rows = [
        (
            Cell(group.title, group.title, "best" if group is comparison.best else ""),
            *(cells[score][index] for score in SCORES),
            Cell(listed(group.seeds), float(len(group.seeds))),
            _mean(group, "seconds", seconds),
            _mean(group, "peak_bytes", size, shared([facts.taking_turns for facts in group.runs])),
            _mean(group, "retained_bytes", size),
            "yes" if group.first.is_exemplar_free else "no",
        )
        for index, group in enumerate(comparison.groups)
    ]
    columns = ("method", "AP ↑", "AF ↑", "seeds", "time of a run", "peak memory", "retained", "exemplar-free")
    return table(f"Comparison on {comparison.title}", columns, rows)


def _metrics(comparison: Comparison) -> CellTable:
    """The metrics that the comparison does not have."""
    found = (score for group in comparison.groups for facts in group.runs for score in facts.scores)
    titles = [title for title in dict.fromkeys(found) if title not in SCORES]
    rows = [(group.title, *(_spread(group.scores(title)) for title in titles)) for group in comparison.groups]
    return table(f"Further metrics on {comparison.title}", ("method", *map(arrowed, titles)), rows)


def _score_cells(comparison: Comparison, score: str) -> list[Cell]:
    """One score of every group, best and second marked among those that are ranked."""
    ranked = comparison.ranked
    means = [float(np.mean(group.scores(score))) if group in ranked else None for group in comparison.groups]
    return [
        Cell("–", None) if score == "AF" and group.is_upper_reference else _spread(group.scores(score), mark)
        for group, mark in zip(comparison.groups, marks(means), strict=True)
    ]


def _spread(values: Sequence[float], mark: str = "") -> Cell:
    summary = spread(values)
    if summary is None:
        return Cell("–", None)
    return Cell(signless(pretty(summary)), summary.mean, mark, deviation=summary.deviation)


def _mean(group: Group, field: str, show: Callable[[float], str], remark: str = "") -> Cell:
    value = float(np.mean([getattr(facts, field) for facts in group.runs]))
    return Cell(show(value) + remark, value)


def _dynamics(comparison: Comparison) -> Chart:
    names = plots.tasks(len(comparison.protocol["split"]))
    lines: list[Spec] = []
    rows = []
    for index, group in enumerate(comparison.groups):
        curves = np.stack([facts.curve for facts in group.runs])
        summaries = [one for column in curves.T.tolist() if (one := spread(column))]
        means, hover = [one.mean for one in summaries], "{y:.2f} % after {x}"
        lines.append(plots.line(group.title, names, means, index, hover, is_main=group is comparison.best))
        if len(group.runs) > 1:
            low, high = ([one.mean + sign * (one.deviation or 0.0) for one in summaries] for sign in (-1, 1))
            lines[-1] |= {"low": low, "high": high}
        rows += [
            (group.title, name, number(one.mean), number(one.deviation), count(len(group.runs)))
            for name, one in zip(names, summaries, strict=True)
        ]
    down = plots.percent_axis("AP", [value for line in lines for value in line["y"]])
    across = plots.named_axis("after learning", names)
    return Chart(
        f"{comparison.key}-dynamics",
        "AP after each task",
        "A line is the mean over seeds, its band one sample standard deviation to each side; the thick line is the "
        "method with the best AP. Falling less is forgetting less; click a name to hide it, twice to see it alone.",
        plots.spec(lines, 440, across, down),
        table("AP after each task", ("method", "after", "mean AP %", "deviation", "runs"), rows),
    )


def _matrices(comparison: Comparison) -> Chart:
    specs, rows = [], []
    names = plots.tasks(len(comparison.protocol["split"]))
    for group in comparison.groups:
        matrix = np.mean([facts.matrix for facts in group.runs], axis=0).tolist()
        specs.append(matrix_spec([[None if math.isnan(value) else value for value in row] for row in matrix]))
        rows.append(
            [
                (group.title, names[after], names[on], number(value))
                for after, row in enumerate(matrix)
                for on, value in enumerate(row)
                if not math.isnan(value)
            ]
        )
    main = next((index for index, group in enumerate(comparison.groups) if group is comparison.best), 0)
    return Chart(
        f"{comparison.key}-matrix",
        "Accuracy matrix",
        "Mean over seeds. A row is a moment, a column a task that is tested; AP is the mean of the last row.",
        {},
        table_of_choices("Mean accuracy", ("method", "after", "on", "accuracy %"), rows),
        picker=Picker("Shown", [group.title for group in comparison.groups], specs, chosen=main),
    )


# ---------------------------------------------------------------------- all runs


def _runs_section(groups: Sequence[Group]) -> PageSection:
    rows = [
        (
            facts.name,
            group.title,
            facts.dataset,
            count(facts.config.seed),
            *(number(facts.scores[s]) for s in SCORES),
        )
        for group in groups
        for facts in group.runs
    ]
    folded = [
        (
            f"{group.title} on {group.first.dataset}: configuration and command",
            f"{command(group.first.config)}\n\n{write_yaml(group.first.config.to_tree())}",
        )
        for group in groups
    ]
    return PageSection(
        "runs",
        "All runs",
        lead="Every run by the name of its folder. Below, the configuration of the first seed of every row.",
        tables=[table("Runs", ("run", "method", "graph", "seed", "AP %", "AF"), rows)],
        folded=folded,
    )
