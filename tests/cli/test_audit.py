"""`ipal audit`: every way to name a model, with and without a graph, for people and for scripts."""

import shutil
from pathlib import Path

import pytest

from tests.cli.merge_and_forget_support import graphs_of
from tests.cli.support import GRAPH, interrupted_run
from tests.support import Command, complaint, write_graph

SMALL = ["--method", "analytic", "--set", "analytic.width=256"]


@pytest.fixture
def closed_form(command: Command) -> Path:
    """The folder of a run of the closed form."""
    return Path(command("run", "--dataset", GRAPH, *SMALL, "--json").json["run"]).resolve()


def test_a_model_is_found_by_file_by_folder_and_by_a_part_of_its_name(command, closed_form, tmp_path):
    shutil.copy(closed_form / "model.safetensors", tmp_path / "copy")
    ways = [closed_form / "model.safetensors", closed_form, closed_form.name, "analytic", "copy"]
    reports = [command("audit", way, "--json").json for way in ways]
    assert [Path(report.pop("model")).name for report in reports] == ["model.safetensors"] * 4 + ["copy"]
    assert all(report == reports[0] for report in reports)
    assert reports[0]["method"] == "analytic"
    assert "data" not in reports[0]


def test_a_run_is_audited_in_the_graphs_it_was_taught_in(command, closed_form, tmp_path):
    data = command("audit", "analytic", "--data", GRAPH, "--json").json["data"]
    assert data["as_taught"]
    assert data["stored_rows"]["raw features"] == {
        "looked_for": 240,
        "too_plain": 0,
        "found": 0,
        "where": [],
    }
    assert len(data["attempts"]["classes"]) == 5
    for attempt in data["attempts"]["classes"].values():
        assert attempt["compared"] == attempt["taught"]
    assert data["attempts"]["shared_matrix"]["span"]["members_inside"] == pytest.approx(1)
    shutil.copy(closed_form / "model.safetensors", tmp_path / "copy")
    copy = command("audit", "copy", "--data", GRAPH, "--json").json["data"]
    assert not copy["as_taught"]
    other = command("audit", "analytic", "--data", f"{GRAPH},seed=5", "--json").json["data"]
    assert not other["as_taught"]


def test_a_run_that_was_made_to_forget_is_no_longer_taken_for_what_it_was_taught(command, closed_form):
    forgot = command("forget", "analytic", "--class", "0", *graphs_of(closed_form))
    assert forgot.code == 0, forgot.err
    found = command("audit", "analytic", "--data", GRAPH, "--json").json
    assert "0" not in found["nodes_behind_class"]
    assert not found["data"]["as_taught"]


def test_it_says_in_words_what_is_kept_and_what_that_reveals(command, closed_form):
    plain = command("audit", "analytic")
    assert plain.code == 0, plain.err
    words = " ".join(plain.out.split())
    assert "stores no raw node" in words
    assert "One matrix of products serves all classes" in words
    assert "With --data GRAPH" in words
    words = " ".join(command("audit", "analytic", "--data", GRAPH).out.split())
    assert "Rows of raw features were looked for in the model (240 nodes): none found." in words
    assert "proves nothing" in words


def test_bad_input_is_one_sentence(command, closed_form, tmp_path):
    complaint(command("audit", "nothing"), "There is no run 'nothing'")
    complaint(command("audit", ""), "no run ''")
    complaint(command("audit", "missing.safetensors"), "does not exist")
    (tmp_path / "broken").write_bytes(b"no model")
    complaint(command("audit", "broken"), "damaged")
    complaint(command("audit", "analytic", "--data", "nothing"), "nothing")
    write_graph(tmp_path / "narrow.npz")
    complaint(command("audit", "analytic", "--data", "narrow.npz"), "5 features", "16")
    begun = interrupted_run(tmp_path / "begun")
    complaint(command("audit", begun), "has no model yet")
