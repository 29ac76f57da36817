"""`scripts/drift.py` from end to end, on a graph that is learned in a moment."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ipal.config import run_config
from scripts import drift
from scripts.drift import MEASURES, Measurement, measure, plan, summary, verdicts
from tests.support import Command

GRAPH = "synthetic:nodes=240,classes=6,features=16"
Drift = Callable[..., str]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Drift:
    """The program as it is called on the command line; gives what it prints."""

    def call(*arguments: object) -> str:
        options = ("--dataset", GRAPH, "-o", tmp_path / "drift", *arguments)
        monkeypatch.setattr(sys, "argv", ["drift.py", *map(str, options)])
        drift.main()
        return capsys.readouterr().out

    return call


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without figures, which take longer than what is measured."""
    monkeypatch.setattr(drift, "write_figure", lambda stem, draw: [])


def test_it_measures_and_draws(script: Drift, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Any] = []
    monkeypatch.setattr(drift, "summary", lambda every: found.append(summary(every)) or found[0])
    said = script("--seeds", 2, "--set", "train.epochs=2", "--set", "ipal.k=3")
    assert list(found[0]["methods"]) == ["pr", "pcl", "ipal"]
    for numbers in found[0]["methods"].values():
        assert numbers["kl"]["mean"] > 0
        halves = sum(numbers[term]["mean"] for term in ("log_det", "trace", "mean_shift")) / 2
        assert numbers["kl"]["mean"] == pytest.approx(halves)
        assert 0 < numbers["cosine"]["mean"] <= 1
    assert [row["measure"] for row in found[0]["comparison"]][:3] == ["kl", "squared_shift", "trace"]
    assert found[0]["hard"]["k"] == 3
    figures = {f"{stem}.{kind}" for stem in ("figure1", "figure5") for kind in ("svg", "png")}
    assert {path.name for path in (tmp_path / "drift").iterdir()} == {"drift.md", "drift.tex", "drift.csv", *figures}
    latex = (tmp_path / "drift" / "drift.tex").read_text()
    assert latex.isascii()
    assert len(latex.partition("\\caption{")[2].partition("\n")[0].split()) < 30
    page = (tmp_path / "drift" / "drift.md").read_text()
    assert "ridge of 0.001 times" in page
    assert "scripts/drift.py --dataset synthetic" in page
    assert "PCL < PR in KL (Eq. 16)" in page
    assert "PCL < PR in KL (Eq. 16)" in said


def test_interrupted_it_leaves_nothing(script: Drift, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(run: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(drift, "measure", interrupt)
    with pytest.raises(KeyboardInterrupt):
        script()
    assert not (tmp_path / "drift").exists()


def test_the_learner_is_the_one_that_runs_measure(script: Drift, command: Command, undrawn: None) -> None:
    run = command("run", "--dataset", GRAPH, "--set", "train.epochs=2", "--method", "pcl", "--json").json
    said = script("--set", "train.epochs=2", "--methods", "pcl", "--seeds", 1)
    assert f"| AP, % | {drift.number(run['average_performance'])} |" in said
    assert "‖μ′−μ‖²" in said


def test_without_steps_nothing_drifts() -> None:
    (run,) = plan({"dataset": GRAPH, "train": {"epochs": 0}}, ["pcl"], 1, None)
    numbers = measure(run).means
    assert numbers["kl"] == pytest.approx(0, abs=1e-9)
    assert numbers["cosine"] == pytest.approx(1)


def test_a_base_task_of_one_class_has_no_boundary() -> None:
    tree = {"dataset": GRAPH, "split": [1, 5], "train": {"epochs": 1}}
    (run,) = plan(tree, ["ipal"], 1, None)
    found = measure(run)
    assert found.hard == {"k": 10}
    assert found.drawn["is_hard"].sum() == 10


def test_settings_of_a_method_are_for_it_alone() -> None:
    runs = plan({"dataset": GRAPH, "pr": {"samples": 3}}, ["pr", "pcl"], 2, None)
    assert [(run.config.method, run.config.seed) for run in runs] == [("pr", 0), ("pr", 1), ("pcl", 0), ("pcl", 1)]
    assert [run.config.settings.get("samples") for run in runs] == [3, 3, None, None]


def test_hard_examples_lie_outside_and_have_low_margins() -> None:
    (run,) = plan({"dataset": GRAPH, "ipal": {"k": 4}}, ["ipal"], 1, None)
    found = measure(run)
    assert found.drawn["is_hard"].sum() == 2 * 4
    assert found.hard["distance"][0] > found.hard["distance"][1]
    assert found.hard["margin"][0] < found.hard["margin"][1]


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
    script: Drift,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    arguments: tuple[str, ...],
    words: tuple[str, ...],
) -> None:
    with pytest.raises(SystemExit) as ended:
        script(*arguments)
    assert ended.value.code == 2
    said = capsys.readouterr().err.splitlines()[-1]
    for word in words:
        assert word in said
    assert not (tmp_path / "drift").exists()
