"""A search with seeds of its own: the chosen settings are then run with the seeds that are reported."""

from typing import Any

import pytest

from ipal.bench.suite import BenchRow, Suite, execute
from ipal.runs.manifest import manifest_path, read_manifest
from tests.bench.support import TINY, Silent, plan, store_result, write
from tests.support import complaint

HEAD = f"kind: table1\nseeds: 2\ntuning_seeds: 3\nall: {{dataset: '{TINY}'}}\n"


class Scoring:
    """An engine that makes no run, and says that all went well."""

    def __init__(self, best: float) -> None:
        self.best, self.made = best, []

    def __call__(self, jobs, size, started):
        for job in jobs:
            strength = job.config.settings["strength"]
            self.made.append((strength, job.config.seed))
            store_result(job.runs, job.name, 90 - abs(strength - self.best) / 100, 50.0)
            yield job, None


def searched(tmp_path, best: float, grid: str = "[1, 10, 100]") -> tuple[BenchRow, Scoring, Suite]:
    path = write(tmp_path, f"ewc: {{grid: {{ewc.strength: {grid}}}}}", HEAD)
    suite, engine = plan(path, tune=True), Scoring(best)
    execute(suite, 1, Silent(), engine)
    ((_, row),) = suite.rows
    return row, engine, suite


def test_settings_are_chosen_by_tuning_seeds_and_reported_with_others(tmp_path) -> None:
    row, engine, suite = searched(tmp_path, best=12)
    assert {seed for _, seed in engine.made[:9]} == {100, 101, 102}
    assert engine.made[9:] == [(10.0, 0), (10.0, 1)]
    assert row.chosen.settings == {"ewc.strength": 10.0}
    entry = read_manifest(manifest_path(tmp_path / "runs", "x")).entries[0]
    assert [len(point.runs) for point in entry.tried] == [3, 3, 3]
    assert entry.runs == row.chosen.runs
    assert len(entry.runs) == 2
    assert not set(entry.runs) & {run for point in entry.tried for run in point.runs}
    assert len(suite.benches[0].summary(row)["runs"]) == 2


def test_what_settings_were_chosen_by_is_never_shown_as_a_result(tmp_path) -> None:
    """Two rows: when the first is done, the manifest is written, and the second has been tuned but not run."""
    other = "\nother: {method: ewc, ewc.strength: 5}"
    path = write(tmp_path, "ewc: {grid: {ewc.strength: [1, 10]}}" + other, HEAD)
    suite, shown = plan(path, tune=True), list[set[str]]()
    known = manifest_path(tmp_path / "runs", "x")

    class Watching(Silent):
        def settled(self, bench: Any, row: Any) -> None:
            shown.append({run for entry in read_manifest(known).entries for run in entry.runs})

    execute(suite, 1, Watching(), Scoring(10))
    tuned = {run for _, row in suite.rows for point in row.points for run in point.runs if row.searched}
    assert len(shown) == 2
    assert not any(runs & tuned for runs in shown)


def test_seeds_on_the_command_line_serve_for_both(tmp_path) -> None:
    path = write(tmp_path, "ewc: {grid: {ewc.strength: [1, 10]}}", HEAD)
    engine = Scoring(10)
    execute(plan(path, tune=True, seeds=(7,)), 1, Silent(), engine)
    assert engine.made == [(1.0, 7), (10.0, 7)]


@pytest.mark.parametrize(
    ("given", "words"), [("[1, 100]", "Seed 1 is reported and tuned by"), ("many", "'tuning_seeds' cannot be 'many'")]
)
def test_wrong_tuning_seeds_are_refused(command, tmp_path, given: str, words: str) -> None:
    write(tmp_path, "ewc:", HEAD.replace("tuning_seeds: 3", f"tuning_seeds: {given}"))
    complaint(command("bench", "x.yaml"), "x.yaml", words)
