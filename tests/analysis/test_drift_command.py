"""`ipal drift` from end to end, on a graph that is learned in a moment."""

from pathlib import Path
from typing import Any

import pytest

from ipal.analysis.feature_drift import measure, plan
from ipal.config import run_config
from ipal.report.drift import MEASURES, Measurement, summary, verdicts
from tests.support import Command, complaint

GRAPH = "synthetic:nodes=240,classes=6,features=16"
SMALL = ("drift", "--dataset", GRAPH, "--seeds", 2, "--set", "train.epochs=2", "--set", "ipal.k=3")


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without figures, which take longer than what is measured."""
    monkeypatch.setattr("ipal.report.drift.write_figure", lambda stem, draw: [])


def test_the_command_measures_and_draws(command: Command, tmp_path: Path) -> None:
    done = command(*SMALL, "--json").json
    assert list(done["methods"]) == ["pr", "pcl", "ipal"]
    for numbers in done["methods"].values():
        assert numbers["kl"]["mean"] > 0
        halves = sum(numbers[term]["mean"] for term in ("log_det", "trace", "mean_shift")) / 2
        assert numbers["kl"]["mean"] == pytest.approx(halves)
        assert 0 < numbers["cosine"]["mean"] <= 1
    assert [row["measure"] for row in done["comparison"]][:3] == ["kl", "squared_shift", "trace"]
    assert done["hard"]["k"] == 3
    names = {Path(name).name for name in done["files"]}
    figures = {f"{stem}.{kind}" for stem in ("figure1", "figure5") for kind in ("svg", "png")}
    assert names == {"drift.md", "drift.tex", "drift.csv", *figures}
    latex = (tmp_path / "drift" / "drift.tex").read_text()
    assert latex.isascii()
    assert len(latex.partition("\\caption{")[2].partition("\n")[0].split()) < 30
    page = (tmp_path / "drift" / "drift.md").read_text()
    assert "ridge of 0.001 times" in page
    assert "ipal drift --dataset synthetic" in page
    assert "PCL < PR in KL (Eq. 16)" in page


def test_interrupted_it_leaves_nothing(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(run: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("ipal.analysis.feature_drift.measure", interrupt)
    assert command(*SMALL).code == 130
    assert not (tmp_path / "drift").exists()


def test_the_learner_is_the_one_that_runs_measure(command: Command, tmp_path: Path, undrawn: None) -> None:
    options = ("--dataset", GRAPH, "--set", "train.epochs=2")
    run = command("run", *options, "--method", "pcl", "--json").json
    done = command("drift", *options, "--methods", "pcl", "--seeds", 1, "--json")
    assert done.json["methods"]["pcl"]["average_performance"]["mean"] == pytest.approx(run["average_performance"])
    assert "‖μ′−μ‖²" in command("drift", *options, "--methods", "pcl", "--seeds", 1).out


def test_without_steps_nothing_drifts(command: Command) -> None:
    options = ("--dataset", GRAPH, "--methods", "pcl", "--seeds", 1, "--set", "train.epochs=0")
    numbers = command("drift", *options, "--json").json["methods"]["pcl"]
    assert numbers["kl"]["mean"] == pytest.approx(0, abs=1e-9)
    assert numbers["cosine"]["mean"] == pytest.approx(1)


def test_a_base_task_of_one_class_has_no_boundary() -> None:
    tree = {"dataset": GRAPH, "split": [1, 5], "train": {"epochs": 1}}
    (run,) = plan(tree, ["ipal"], 1, None)
    found = measure(run)
    assert found["hard"] == {"k": 10}
    assert found["drawn"]["is_hard"].sum() == 10


def test_settings_of_a_method_are_for_it_alone() -> None:
    runs = plan({"dataset": GRAPH, "pr": {"samples": 3}}, ["pr", "pcl"], 2, None)
    assert [(run.config.method, run.config.seed) for run in runs] == [("pr", 0), ("pr", 1), ("pcl", 0), ("pcl", 1)]
    assert [run.config.settings.get("samples") for run in runs] == [3, 3, None, None]


def test_hard_examples_lie_outside_and_have_low_margins() -> None:
    (run,) = plan({"dataset": GRAPH, "ipal": {"k": 4}}, ["ipal"], 1, None)
    found = measure(run)
    assert found["drawn"]["is_hard"].sum() == 2 * 4
    assert found["hard"]["distance"][0] > found["hard"]["distance"][1]
    assert found["hard"]["margin"][0] < found["hard"]["margin"][1]


def test_verdicts_say_what_was_measured() -> None:
    def measured(method: str, seed: int, value: float) -> Measurement:
        row = {"task": 1, "class": 0, **dict.fromkeys(MEASURES, value)}
        config = {"method": method, "seed": seed, "dataset": "mine", "split": [1, 1]}
        scores = {"average_performance": 50.0, "learning_accuracy": 60.0, "kl_stream": value}
        return Measurement(run_config(config), scores, steps=[row], hard=None, drawn=None)

    def verdict(pr: tuple[float, ...], pcl: tuple[float, ...]) -> str:
        both = (("pr", pr), ("pcl", pcl))
        numbers = summary([measured(name, seed, each) for name, values in both for seed, each in enumerate(values)])
        return verdicts(numbers)[0]

    assert "supported; PR − PCL 4.00" in verdict((5.0, 5.1, 4.9, 5.0, 5.0), (1.0,) * 5)
    assert "contradicted" in verdict((1.0, 1.1, 1.0, 1.0, 1.0), (5.0,) * 5)
    assert "undecided; PR − PCL" in verdict((1.0, 5.0, 2.0, 2.0, 2.0), (2.0, 1.0, 4.0, 2.0, 2.0))
    few = verdict((5.0, 5.1, 4.9, 5.0), (1.0,) * 4)
    assert "undecided; with fewer than 5 seeds there is no interval" in few


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--methods", "pr,plc"), ("'plc'", "Did you mean 'pcl'?")),
        (("--methods", "ncm"), ("'ncm' trains no encoder",)),
        (("--methods", ","), ("nothing to measure",)),
        (("--set", "split=[6]"), ("one task", "no drift")),
        (("--set", "seed=3"), ("--seeds",)),
        (("--set", "train.epoch=3"), ("'train.epochs'",)),
        (("--methods", "pr,pcl", "--set", "ipal.gamma=1"), ("ipal",)),
    ],
)
def test_what_cannot_be_measured_is_refused(
    command: Command, tmp_path: Path, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    complaint(command("drift", "--dataset", GRAPH, *arguments), *words)
    assert not (tmp_path / "drift").exists()
