"""Choosing by validation scores, the manifest, the estimate: on stored results, nothing is trained."""

import json

import pytest

from ipal.bench.jobs import local
from ipal.bench.suite import choose, execute
from ipal.errors import StoreError
from ipal.runs.manifest import GridPoint, manifest_path, read_manifest
from tests.bench.support import TINY, Silent, plan, store_result, write

GRID = "ipal:\n  ipal.gamma: 0.1\n  grid: {ipal.gamma: [0.1, 0.4, 1]}"


def settled(path, scores, **options):
    """A bench whose runs are all finished, with these (validation, test) scores for each point."""
    suite = plan(path, **options)
    runs = path.parent / "runs"
    for _, row in suite.rows:
        for point, (validation, test) in zip(row.points, scores, strict=True):
            for run in point.runs:
                store_result(runs, run, validation, test)
    execute(suite, 1, Silent(), local())
    return suite.benches[0]


def test_only_validation_scores_choose(tmp_path):
    bench = settled(write(tmp_path, GRID), [(50, 99), (80, 10), (70, 100)], tune=True)
    (row,) = bench.rows
    assert row.chosen.settings == {"ipal.gamma": 0.4}
    assert bench.summary(row)["average_performance"]["mean"] == 10
    assert row.differs == {"ipal.gamma": 0.4}


def test_the_mean_over_seeds_decides_and_the_first_among_equals_is_taken():
    a, b, c = (GridPoint(settings={"x": i}, runs=(f"{i}-0", f"{i}-1")) for i in range(3))
    scores = {"0-0": 10, "0-1": 90, "1-0": 60, "1-1": 60, "2-0": 60, "2-1": 60}
    assert choose([a, b, c], scores) is b
    assert choose([c, b, a], scores) is c


def test_a_point_with_a_missing_run_cannot_be_chosen():
    a, b = (GridPoint(settings={"x": i}, runs=(f"{i}-0", f"{i}-1")) for i in range(2))
    assert choose([a, b], {"0-0": 99, "1-0": 1, "1-1": 1}) is b
    assert choose([a], {"0-0": 99}) is None


def test_a_choice_as_the_file_has_it_is_no_difference(tmp_path):
    entries = "ipal:\n  train.lr_base: 1e-3\n  grid: {train.lr_base: [1e-3, 1e-2]}"
    bench = settled(write(tmp_path, entries), [(80, 1), (50, 1)], tune=True)
    assert bench.rows[0].chosen.settings == {"train.lr_base": 0.001}
    assert bench.rows[0].differs == {}


def test_a_damaged_result_keeps_its_point_from_being_chosen_and_is_told(tmp_path):
    path = write(tmp_path, GRID)
    suite = plan(path, tune=True)
    (row,) = suite.benches[0].rows
    for point in row.points:
        for run in point.runs:
            store_result(tmp_path / "runs", run, 50, 50)
    broken = row.points[0].runs[1]
    (tmp_path / "runs" / broken / "result.json").write_text("{")
    execute(suite, 1, Silent(), local())
    assert row.chosen is row.points[1]
    assert row.failures.keys() == {broken}


# ---------------------------------------------------------------------- the manifest


def test_the_manifest_says_what_was_tried_and_chosen(tmp_path):
    bench = settled(write(tmp_path, GRID), [(50, 1), (80, 1), (70, 1)], tune=True)
    found = read_manifest(manifest_path(tmp_path / "runs", "x"))
    assert (found.name, found.kind, found.dataset, found.seeds) == ("x", "table2", TINY, (0, 1))
    assert found.command == f"ipal bench {tmp_path / 'x.yaml'} --tune"
    (entry,) = found.entries
    assert (entry.method, entry.stores_exemplars) == ("ipal", False)
    assert entry.settings == {"ipal.gamma": 0.4}
    assert entry.runs == bench.rows[0].points[1].runs
    assert entry.grid == {"ipal.gamma": (0.1, 0.4, 1)}
    assert [point.settings["ipal.gamma"] for point in entry.tried] == [0.1, 0.4, 1]


def test_entries_left_out_stay_as_an_earlier_bench_left_them(tmp_path):
    path = write(tmp_path, "ipal:\nb: {method: ipal, ipal.gamma: 1}\nc: {method: ipal, ipal.gamma: 2}")
    settled(path, [(1, 1)], only=["b"])
    settled(path, [(1, 1)], only=["c"])
    entries = read_manifest(manifest_path(tmp_path / "runs", "x")).entries
    assert [(entry.label, len(entry.runs)) for entry in entries] == [("ipal", 0), ("b", 2), ("c", 2)]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "There is no manifest"),
        (b"{", "is damaged"),
        (b'{"name": "x"}', "is damaged"),
        (b'{"other": 2}', "of another version"),
    ],
)
def test_a_damaged_manifest_gets_a_sentence_and_is_replaced_by_the_next_bench(tmp_path, content, words):
    path = manifest_path(tmp_path / "runs", "x")
    path.parent.mkdir(parents=True)
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(StoreError, match=words):
        read_manifest(path)
    settled(write(tmp_path, "ipal:"), [(1, 1)])
    assert read_manifest(path).entries[0].label == "ipal"


# ---------------------------------------------------------------------- what is shown


def test_a_dry_run_writes_nothing(command, tmp_path):
    write(tmp_path, GRID)
    done = command("bench", "x.yaml", "--tune", "--dry-run")
    assert done.code == 0
    assert "6 different runs, 0 finished" in done.out
    assert not (tmp_path / "runs").exists()
    settled(tmp_path / "x.yaml", [(1, 1)])
    before = sorted((tmp_path / "runs").rglob("*"))
    assert "6 different runs, 2 finished" in command("bench", "x.yaml", "--tune", "--dry-run").out
    assert sorted((tmp_path / "runs").rglob("*")) == before


def test_the_row_is_shown_and_a_better_choice_is_told(command, tmp_path):
    settled(write(tmp_path, GRID), [(50, 1), (80, 33.25), (70, 1)], tune=True)
    done = command("bench", "x.yaml", "--tune")
    assert done.code == 0
    assert "33.25 ± 0.00" in done.out
    assert "x.yaml, ipal: the search chose ipal.gamma: 0.4" in done.err
    (row,) = command("bench", "x.yaml", "--json").json["x"]
    assert row["settings"] == {"ipal.gamma": 0.1}
    assert json.dumps(row["average_performance"]) == '{"mean": 1.0, "sd": 0.0}'
