"""The page that compares runs: those that differ in the seed alone make one row, rows of one protocol one table."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import yaml

from ipal.report import paper
from ipal.report.collect import PROTOCOL_FIELDS, plain_name
from ipal.report.page import plots
from ipal.report.page.command import as_yaml, command, flat
from ipal.report.page.facts import Facts
from ipal.report.page.parts import (
    Cell,
    Chart,
    Fact,
    Page,
    Picker,
    Section,
    Spec,
    Table,
    count,
    number,
    plural,
    seconds,
    sentence,
    signless,
    words,
)
from ipal.report.page.scores import matrix_spec
from ipal.report.statistics import marks, spread
from ipal.report.tables import SCORES, arrowed, pretty, size

EXEMPLARS = "† stores raw nodes of earlier tasks."


@dataclass(frozen=True)
class Group:
    """Runs that differ in the seed alone."""

    label: str
    runs: tuple[Facts, ...]

    @property
    def first(self) -> Facts:
        return self.runs[0]

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(facts.config.seed for facts in self.runs)

    @property
    def is_upper_reference(self) -> bool:
        return plain_name(self.first.config.method) == "joint"

    @property
    def stores_exemplars(self) -> bool:
        return bool(self.first.result["retained"]["stores_exemplars"])

    @property
    def title(self) -> str:
        return f"{self.label}\u00a0†" if self.stores_exemplars else self.label

    def scores(self, score: str) -> list[float]:
        return [facts.run.scores[score] for facts in self.runs if score in facts.run.scores]


@dataclass(frozen=True)
class Comparison:
    """Groups that can be compared: the same graph under the same protocol."""

    key: str
    title: str
    protocol: Mapping[str, Any]
    groups: tuple[Group, ...]


def several_runs(runs: Sequence[Facts], labels: Mapping[str, str], remarks: Sequence[str] = ()) -> Page:
    """A comparison of runs; `labels` are names for some of them, `remarks` are on runs that are missing."""
    exams = _exams(_grouped(runs, labels))
    datasets = {exam.groups[0].first.dataset for exam in exams}
    groups = [group for exam in exams for group in exam.groups]
    return Page(
        title=f"{plural(len(runs), 'run')} compared",
        subtitle=f"{', '.join(sorted(datasets))}. Runs that differ in the seed alone are one row.",
        facts=(
            Fact("runs", str(len(runs)), "finished, each with its own folder"),
            Fact("rows", str(len(groups)), "methods and settings, over seeds"),
            Fact("graphs", str(len(datasets)), ", ".join(sorted(datasets))),
            Fact(
                "protocols",
                str(len(exams)),
                "numbers are compared within one only",
                tone="warn" if _clashes(exams) else "",
            ),
        ),
        warnings=(*_clashes(exams), *_data_remarks(runs), *remarks),
        sections=(*(_exam_section(exam) for exam in exams), _runs_section(groups)),
        download={"runs": [facts.as_plain() for facts in runs]},
        name="runs",
    )


# ---------------------------------------------------------------------- groups


def _grouped(runs: Sequence[Facts], labels: Mapping[str, str]) -> list[Group]:
    found: dict[str, list[Facts]] = {}
    for facts in runs:
        tree = {**facts.config.to_tree(), "seed": None}
        found.setdefault(json.dumps(tree, sort_keys=True), []).append(facts)
    by_group = [sorted(one, key=lambda facts: facts.config.seed) for one in found.values()]
    names = _labels([one[0] for one in by_group], labels)
    groups = [Group(name, tuple(one)) for name, one in zip(names, by_group, strict=True)]
    return sorted(groups, key=lambda group: (_place(group.first.config.method), group.label))


def _labels(firsts: Sequence[Facts], given: Mapping[str, str]) -> list[str]:
    """The method, and where one graph has it more than once, the settings in which its rows differ."""
    names = []
    for facts in firsts:
        rivals = [
            dict(flat(other.config.to_tree()))
            for other in firsts
            if (other.config.method, other.config.dataset) == (facts.config.method, facts.config.dataset)
        ]
        own = dict(flat(facts.config.to_tree()))
        # Protocol, split and graph have sections of their own.
        differing = [
            name
            for name in own
            if not name.startswith(("protocol.", "split", "dataset", "seed"))
            and any(other.get(name) != own[name] for other in rivals)
        ]
        settings = ", ".join(f"{name.rpartition('.')[2]}={as_yaml(own[name])}" for name in differing)
        label = given.get(facts.name, facts.config.method)
        title = paper.METHODS.get(plain_name(label), label)
        names.append(f"{title}, {settings}" if settings and facts.name not in given else title)
    return names


def _place(method: str) -> int:
    methods = list(paper.METHODS)
    return methods.index(plain_name(method)) if plain_name(method) in methods else len(methods)


def _exams(groups: Sequence[Group]) -> list[Comparison]:
    found: dict[str, list[Group]] = {}
    for group in groups:
        facts = group.first
        same = [facts.config.dataset, facts.config.dataset_hash, _protocol(facts)]
        found.setdefault(json.dumps(same, sort_keys=True), []).append(group)
    by_dataset = Counter(one[0].first.config.dataset for one in found.values())
    exams = []
    for index, members in enumerate(found.values()):
        facts = members[0].first
        rivals = [one[0].first for one in found.values() if one[0].first.config.dataset == facts.config.dataset]
        odd = {
            name: value
            for name, value in _protocol(facts).items()
            if any(_protocol(other)[name] != value for other in rivals)
        }
        title = facts.dataset
        if by_dataset[facts.config.dataset] > 1:
            title += ": " + (", ".join(f"{name} {_in_words(value)}" for name, value in odd.items()) or "another graph")
        exams.append(Comparison(f"exam{index + 1}", title, _protocol(facts), tuple(members)))
    return exams


def _protocol(facts: Facts) -> dict[str, Any]:
    protocol = facts.run.protocol
    return {name: protocol.get(name) for name in (*PROTOCOL_FIELDS, "split")}


def _in_words(value: Any) -> str:
    return "+".join(map(str, value)) if isinstance(value, list) else value if isinstance(value, str) else as_yaml(value)


def _clashes(exams: Sequence[Comparison]) -> list[str]:
    """Warnings about one graph under several protocols."""
    found = []
    for dataset in dict.fromkeys(exam.groups[0].first.config.dataset for exam in exams):
        own = [exam for exam in exams if exam.groups[0].first.config.dataset == dataset]
        if len(own) > 1:
            odd = [name for name in own[0].protocol if len({json.dumps(exam.protocol[name]) for exam in own}) > 1]
            differ = f"differ in {', '.join(odd)}" if odd else "are on different graphs of this name"
            found.append(
                f"{own[0].groups[0].first.dataset} has runs under {len(own)} protocols, which {differ}. Their numbers "
                "do not mean the same: each protocol has a section of its own, and nothing is ranked across them."
            )
    return found


def _data_remarks(runs: Sequence[Facts]) -> list[str]:
    found = {facts.dataset: facts.run.data_remark for facts in runs if facts.run.data_remark}
    return [sentence(f"{dataset}: {remark}") for dataset, remark in found.items()]


# ---------------------------------------------------------------------- one protocol


def _exam_section(exam: Comparison) -> Section:
    machines = sorted({facts.run.machine for group in exam.groups for facts in group.runs})
    protocol = ", ".join(f"{name.replace('_', ' ')} {_in_words(value)}" for name, value in exam.protocol.items())
    notes = [f"Protocol: {protocol}."]
    notes.append(
        f"Time and memory were measured on {'different machines' if len(machines) > 1 else 'one machine'}: "
        f"{'; '.join(machines)}."
    )
    return Section(
        exam.key,
        exam.title,
        lead=(
            "AP and AF on test nodes in %, mean ± sample standard deviation over seeds. Best in bold, second "
            "underlined, among rows with the same seeds; Joint, the upper reference, is not ranked. "
            + EXEMPLARS
            * any(group.stores_exemplars for group in exam.groups)
        ),
        tables=(_comparison(exam), _metrics(exam)),
        tables_first=True,
        charts=(_dynamics(exam), _matrices(exam)),
        notes=tuple(notes),
    )


def _comparison(exam: Comparison) -> Table:
    usual = Counter(group.seeds for group in exam.groups).most_common(1)[0][0]
    ranked = {
        score: marks(
            [
                float(np.mean(group.scores(score))) if group.seeds == usual and not group.is_upper_reference else None
                for group in exam.groups
            ]
        )
        for score in SCORES
    }
    # A single row is not ranked.
    is_contest = sum(group.seeds == usual and not group.is_upper_reference for group in exam.groups) > 1
    rows = []
    for index, group in enumerate(exam.groups):
        scores = [
            Cell("–", None)
            if score == "AF" and group.is_upper_reference
            else _spread(group.scores(score), ranked[score][index] if is_contest else "")
            for score in SCORES
        ]
        free = group.first.is_exemplar_free
        rows.append(
            (
                words(group.title),
                *scores,
                Cell(_seeds(group.seeds), float(len(group.seeds))),
                _mean(group, "seconds", seconds),
                _mean(group, "peak_bytes", lambda peak, group=group: size(peak) + _shared(group)),
                _mean(group, "retained_bytes", size),
                words("yes" if free else "no"),
            )
        )
    columns = ("method", "AP ↑", "AF ↑", "seeds", "time of a run", "peak memory", "retained", "exemplar-free")
    return Table(f"Comparison on {exam.title}", columns, tuple(rows))


def _metrics(exam: Comparison) -> Table:
    """The metrics that the comparison does not have."""
    found = (score for group in exam.groups for facts in group.runs for score in facts.run.scores)
    titles = [title for title in dict.fromkeys(found) if title not in SCORES]
    rows = ((words(group.title), *(_spread(group.scores(title), "") for title in titles)) for group in exam.groups)
    return Table(f"Further metrics on {exam.title}", ("method", *map(arrowed, titles)), tuple(rows))


def _spread(values: Sequence[float], mark: str) -> Cell:
    summary = spread(values)
    if summary is None:
        return Cell("–", None)
    return Cell(signless(pretty(summary)), summary.mean, mark, deviation=summary.deviation)


def _mean(group: Group, field: str, show: Any) -> Cell:
    value = float(np.mean([getattr(facts.run, field) for facts in group.runs]))
    return Cell(show(value), value)


def _shared(group: Group) -> str:
    """Remark on a peak of memory that several runs share."""
    most = round(max(facts.run.taking_turns for facts in group.runs))
    return f" ({most} runs together)" if most > 1 else ""


def _seeds(seeds: Sequence[int]) -> str:
    in_a_row = len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1))
    return f"{seeds[0]} to {seeds[-1]}" if in_a_row else ", ".join(map(str, seeds))


def _dynamics(exam: Comparison) -> Chart:
    names = plots.tasks(len(exam.protocol["split"]))
    bands: list[Spec] = []
    lines: list[Spec] = []
    rows = []
    for index, group in enumerate(exam.groups):
        curves = np.stack([facts.run.curve for facts in group.runs])
        summaries = [spread(column) for column in curves.T.tolist()]
        means = [one.mean for one in summaries if one]
        deviations = [(one.deviation or 0.0) for one in summaries if one]
        is_main = group.label == "IPAL"
        drawn = plots.line(group.title, names, means, index, hover="%{y:.2f} % after %{x}", is_main=is_main)
        drawn["legendgroup"] = group.title
        lines.append(drawn)
        if len(group.runs) > 1:
            low = [mean - deviation for mean, deviation in zip(means, deviations, strict=True)]
            high = [mean + deviation for mean, deviation in zip(means, deviations, strict=True)]
            bands.append(plots.band(names, low, high, drawn))
        rows += [
            (words(group.title), words(name), number(one.mean), number(one.deviation), count(len(group.runs)))
            for name, one in zip(names, summaries, strict=True)
            if one
        ]
    layout = {
        "height": max(440, 170 + 23 * len(lines)),
        "xaxis": plots.named_axis("after learning", names),
        "yaxis": plots.percent_axis("AP", [value for line in lines for value in line["y"]]),
    }
    return Chart(
        f"{exam.key}-dynamics",
        "AP after each task",
        "A line is the mean over seeds, its band one sample standard deviation to each side. Falling less is "
        "forgetting less; click a name to hide it, twice to see it alone.",
        {"data": [*bands, *lines], "layout": layout},
        Table("AP after each task", ("method", "after", "mean AP %", "deviation", "runs"), tuple(rows)),
    )


def _matrices(exam: Comparison) -> Chart:
    specs, rows, choices = [], [], []
    names = plots.tasks(len(exam.protocol["split"]))
    for choice, group in enumerate(exam.groups):
        matrix = np.mean([facts.run.matrix for facts in group.runs], axis=0)
        plain: list[list[float | None]] = [[None if np.isnan(v) else float(v) for v in row] for row in matrix]
        specs.append(matrix_spec(plain))
        for after, row in enumerate(plain):
            for on, value in enumerate(row):
                if value is not None:
                    rows.append((words(group.title), words(names[after]), words(names[on]), number(value)))
                    choices.append(choice)
    main = next((index for index, group in enumerate(exam.groups) if group.label == "IPAL"), 0)
    return Chart(
        f"{exam.key}-matrix",
        "Accuracy matrix",
        "Mean over seeds. A row is a moment, a column a task that is asked about; AP is the mean of the last row.",
        {},
        Table("Mean accuracy", ("method", "after", "on", "accuracy %"), tuple(rows), tuple(choices)),
        picker=Picker("Shown", tuple(group.title for group in exam.groups), tuple(specs), chosen=main),
    )


# ---------------------------------------------------------------------- all runs


def _runs_section(groups: Sequence[Group]) -> Section:
    rows = tuple(
        (
            words(facts.name),
            words(group.title),
            words(facts.dataset),
            count(facts.config.seed),
            number(facts.run.scores["AP"]),
            number(facts.run.scores["AF"]),
        )
        for group in groups
        for facts in group.runs
    )
    folded = tuple(
        (
            f"{group.title} on {group.first.dataset}: configuration and command",
            f"{command(group.first.config)}\n\n{yaml.safe_dump(group.first.config.to_tree(), sort_keys=False)}",
        )
        for group in groups
    )
    columns = ("run", "method", "graph", "seed", "AP %", "AF")
    return Section(
        "runs",
        "All runs",
        lead="Every run by the name of its folder. Below, the configuration of the first seed of every row.",
        tables=(Table("Runs", columns, rows),),
        folded=folded,
    )
