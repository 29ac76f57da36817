"""Experiment files: what they expand to, and complaints that name the line."""

from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
import pytest

from ipal.bench.experiment_file import ExperimentEntry, read_experiment, read_preset
from ipal.data import datasets
from ipal.data.graph import Graph
from ipal.errors import ConfigError, IpalError
from ipal.runs import config_files
from tests.bench.support import HEAD, TINY, plan, write


def only_entry(path) -> ExperimentEntry:
    (entry,) = read_experiment(path).entries
    return entry


# ---------------------------------------------------------------------- what a file means


def test_a_grid_is_every_combination_and_every_seed(tmp_path):
    path = write(tmp_path, "ipal:\n  grid: {ipal.gamma: [0.1, 1], encoder.width: [8, 16, 32]}")
    suite = plan(path)
    (row,) = suite.benches[0].rows
    combinations = [(point.settings["ipal.gamma"], point.settings["encoder.width"]) for point in row.points]
    assert combinations == [(0.1, 8), (0.1, 16), (0.1, 32), (1, 8), (1, 16), (1, 32)]
    assert [len(point.runs) for point in row.points] == [2] * 6
    assert len(suite.jobs) == 12
    seeds = [suite.jobs[run].config.seed for run in row.points[3].runs]
    assert seeds == [0, 1]
    config = suite.jobs[row.points[3].runs[1]].config
    assert (config.settings["gamma"], config.encoder.width, config.train.epochs) == (1, 8, 1)


def test_dotted_and_nested_settings_mean_the_same(tmp_path):
    dotted = plan(write(tmp_path, "a: {method: ipal, ipal.gamma: 0.7, train.lr_base: 0.01}", name="a.yaml"))
    nested = plan(write(tmp_path, "a: {method: ipal, ipal: {gamma: 0.7}, train: {lr_base: 0.01}}", name="b.yaml"))
    assert dotted.jobs.keys() == nested.jobs.keys()
    assert dotted.benches[0].rows[0].points == nested.benches[0].rows[0].points


def test_what_is_chosen_is_not_searched_unless_asked_for(tmp_path):
    path = write(tmp_path, "ipal:\n  ipal.gamma: 0.4\n  grid: {ipal.gamma: [0.1, 0.4], train.epochs: [1, 2]}")
    (given,) = plan(path).benches[0].rows
    (tuned,) = plan(path, tune=True).benches[0].rows
    assert not given.searched
    assert [point.settings for point in given.points] == [{"ipal.gamma": 0.4}]  # epochs are fixed for all
    found = [(p.settings["ipal.gamma"], p.settings["train.epochs"]) for p in tuned.points]
    assert found == [(0.1, 1), (0.1, 2), (0.4, 1), (0.4, 2)]
    path = write(tmp_path, "ipal:\n  ipal.gamma: 0.4\n  grid: {ipal.gamma: [0.1, 0.4], encoder.width: [8, 16]}")
    (row,) = plan(path).benches[0].rows
    found = [(p.settings["ipal.gamma"], p.settings["encoder.width"]) for p in row.points]
    assert found == [(0.4, 8), (0.4, 16)], "what the file leaves open is searched without asking"


def test_settings_for_all_reach_the_entries_of_their_method_alone(tmp_path):
    head = f"kind: table1\nall: {{dataset: '{TINY}', ipal.gamma: 0.7, encoder.width: 8}}\n"
    ours, other = read_experiment(write(tmp_path, "ipal:\newc: {ewc.strength: 2}", head)).entries
    assert ours.given == {"dataset": TINY, "ipal.gamma": 0.7, "encoder.width": 8}
    assert other.given == {"dataset": TINY, "encoder.width": 8, "ewc.strength": 2}


def test_a_run_that_two_entries_share_is_made_once(tmp_path):
    suite = plan(write(tmp_path, "ipal:\nsame: {method: ipal, ipal.gamma: 3}"))
    assert len(suite.jobs) == 2


@pytest.mark.parametrize(("text", "seeds"), [("3", (0, 1, 2)), ("[4, 0]", (4, 0)), (None, (0, 1, 2, 3, 4))])
def test_seeds(tmp_path, text, seeds):
    head = f"kind: table1\nall: {{dataset: '{TINY}'}}\n" + (f"seeds: {text}\n" if text else "")
    assert read_experiment(write(tmp_path, "ipal:", head)).seeds == seeds


# ---------------------------------------------------------------------- presets


@pytest.fixture
def published(tmp_path, monkeypatch):
    """A folder of experiments in place of those of the package."""
    folder = tmp_path / "published"
    folder.mkdir()
    entries = "ewc: {ewc.strength: 7, train.epochs: 3}\nipal:\n  ipal.gamma: 0.4\n  grid: {ipal.gamma: [0.1, 0.4]}"
    write(folder, entries, "kind: table1\nall: {dataset: cs, protocol.calibration: 0}\n", "first.yaml")
    (folder / "second.yaml").write_text("like: first.yaml\nall: {dataset: dblp}\n")
    monkeypatch.setattr(config_files, "PRESETS", folder)
    return folder


def values(entry: ExperimentEntry) -> dict[str, Any]:
    (point,) = entry.points(tune=False)
    return point


@pytest.mark.parametrize(
    "text",
    [
        "preset: first\nkind: study\nall: {{dataset: '{0}'}}\nentries: {{ewc: {{}}}}",
        "kind: study\nall: {{dataset: '{0}'}}\nentries: {{ewc: {{preset: first}}}}",
        "preset: gone\nkind: study\nall: {{dataset: '{0}'}}\nentries: {{ewc: {{preset: first}}}}",
    ],
    ids=["at the top", "of an entry", "of an entry, over that at the top"],
)
def test_a_preset_gives_an_entry_what_was_chosen_for_its_method_but_no_dataset(tmp_path, published, text):
    path = tmp_path / "mine.yaml"
    path.write_text(text.format(TINY))
    entry = only_entry(path)
    assert values(entry) == {"dataset": TINY, "protocol.calibration": 0, "ewc.strength": 7, "train.epochs": 3}
    (row,) = plan(path).benches[0].rows
    assert row.points[0].settings == {"protocol.calibration": 0, "ewc.strength": 7, "train.epochs": 3}


def test_all_that_a_file_says_goes_over_its_preset(tmp_path, published):
    path = tmp_path / "mine.yaml"
    path.write_text(
        f"preset: first\nkind: study\nall: {{dataset: '{TINY}', train.epochs: 1}}\n"
        "entries: {ewc: {ewc.strength: 9}, ipal: {grid: {ipal.gamma: [1, 2]}}}\n"
    )
    ewc, ipal = read_experiment(path).entries
    assert (values(ewc)["train.epochs"], values(ewc)["ewc.strength"]) == (1, 9)
    assert values(ipal)["ipal.gamma"] == 0.4, "chosen, and not searched"
    assert [point["ipal.gamma"] for point in ipal.points(tune=True)] == [1, 2]
    (tmp_path / "like.yaml").write_text("like: mine.yaml\nall: {dataset: digits}\n")
    ewc, _ = read_experiment(tmp_path / "like.yaml").entries
    assert values(ewc) == values(read_experiment(path).entries[0]) | {"dataset": "digits"}


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("ewc: {preset: frist}", "There is no preset 'frist' (see 'ipal list presets'). Did you mean 'first'?"),
        ("lwf: {preset: first}", "'first' has 0 entries of the method 'lwf', and one is needed"),
        ("ipal: {preset: second}", "'second' has no value chosen yet for ipal.gamma of ipal"),
        ("ipal: {grid: {preset: [first]}}", "Unknown setting 'preset'."),
    ],
)
def test_a_preset_that_does_not_fit_is_refused(tmp_path, published, entry, words):
    path = write(tmp_path, entry)
    with pytest.raises(ConfigError) as caught:
        read_experiment(path)
    assert str(caught.value).startswith(f"{path}, entry '")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_experiment_is_no_preset_of_itself(published):
    with pytest.raises(ConfigError, match="There is no preset 'mine'"):
        read_experiment(write(published, "ewc: {preset: mine}", name="mine.yaml"))


def test_every_value_chosen_in_a_published_table_is_a_preset():
    names = [name for name in config_files.presets() if name.startswith("table1-cs")]
    assert names == ["table1-cs", "table1-cs-seen"]
    for name in names:
        for entry in read_experiment(config_files.presets()[name]).entries:
            if entry.label == entry.method:
                assert read_preset(name, entry.method) == entry.given


# ---------------------------------------------------------------------- complaints


WRONG_ENTRIES = {
    "a setting": ("ipal:\n  ipal.gamam: 1", "Unknown setting 'ipal.gamam'. Did you mean 'ipal.gamma'?"),
    "a method by its label": ("ipla: {}", "Unknown method 'ipla'. Did you mean 'ipal'?"),
    "a label twice": ("ipal:\n  ipal.gamma: 1\nipal: {}", "line 7 says 'ipal' twice"),
    "a setting both ways": ("ipal:\n  ipal: {gamma: 1}\n  ipal.gamma: 2", "'ipal.gamma' is given twice"),
    "an empty grid": ("ipal:\n  grid: {ipal.gamma: []}", "The grid of 'ipal.gamma' must be a list"),
    "a value": ("ipal:\n  train.epochs: -1", "The setting 'train.epochs' cannot be -1"),
    "a seed": ("ipal:\n  seed: 1", "'seed' cannot be set here"),
    "a key that is no name": ("? [a, b]\n: {}", "line 7 holds something other than plain data"),
}


@pytest.mark.parametrize(("entries", "words"), WRONG_ENTRIES.values(), ids=WRONG_ENTRIES.keys())
def test_a_wrong_entry_is_refused_with_the_nearest_name(tmp_path, entries, words):
    path = write(tmp_path, entries)
    with pytest.raises(ConfigError) as caught:
        read_experiment(path)
    assert str(path) in str(caught.value)
    assert "line 7" in words or "twice" in words or ", entry 'ip" in str(caught.value)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


WRONG_HEADS = {
    "a part": ("seed: 5\n" + HEAD, "Unknown setting 'seed'. Did you mean 'seeds'?"),
    "a kind": (HEAD.replace("table2", "tabel2"), "The setting 'kind' cannot be 'tabel2'"),
    "no kind": (HEAD.replace("kind: table2\n", ""), "The part 'kind' is missing."),
    "no dataset": ("kind: table1\nall: {train.epochs: 1}\n", "The part 'all: dataset' is missing."),
    "no seeds": (HEAD.replace("seeds: 2", "seeds: 0"), "'seeds' cannot be 0"),
    "a seed": (HEAD.replace("seeds: 2", "seeds: [0, -1]"), "'seeds"),
}


@pytest.mark.parametrize(("head", "words"), WRONG_HEADS.values(), ids=WRONG_HEADS.keys())
def test_a_wrong_head_is_refused(tmp_path, head, words):
    with pytest.raises(ConfigError) as caught:
        read_experiment(write(tmp_path, "ipal:", head))
    assert str(tmp_path / "x.yaml") in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (HEAD.replace(TINY, "sc"), ", entry 'ipal': "),
        (HEAD + "  split: [3, 2]\n", ", entry 'ipal': The split 3+2 adds up to 5 classes"),
    ],
)
def test_what_only_the_dataset_can_tell_is_said_before_anything_runs(tmp_path, head, words):
    path = write(tmp_path, "ipal:", head)
    with pytest.raises(IpalError) as caught:
        plan(path, root=tmp_path)
    assert words in str(caught.value)
    assert not (tmp_path / "runs").exists()


def test_a_file_like_another_takes_over_its_rows_and_grids_but_not_what_was_chosen(tmp_path):
    write(tmp_path, "ipal:\n  ipal.gamma: 0.4\n  encoder.width: 8\n  grid: {ipal.gamma: [0.1, 0.4]}", name="a.yaml")
    path = tmp_path / "b.yaml"
    path.write_text("like: a.yaml\nall: {dataset: digits}\n")
    entry = only_entry(path)
    assert entry.own == {"encoder.width": 8}
    assert [point["ipal.gamma"] for point in entry.points(tune=False)] == [0.1, 0.4]
    assert (entry.given["dataset"], entry.given["train.epochs"]) == ("digits", 1)


def test_a_label_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"no entry 'ipla'. Did you mean 'ipal'"):
        plan(write(tmp_path, "ipal:"), only=["ipla"])


def test_files_that_take_each_other_over_are_refused(tmp_path):
    (tmp_path / "a.yaml").write_text("like: b.yaml\nall: {dataset: digits}\n")
    (tmp_path / "b.yaml").write_text("like: a.yaml\nall: {dataset: digits}\n")
    with pytest.raises(ConfigError, match=r"b\.yaml: There is no other experiment file .*a\.yaml"):
        read_experiment(tmp_path / "a.yaml")


# ---------------------------------------------------------------------- more than anybody means


@pytest.mark.parametrize("seeds", ["1000000000", "9" * 4000, "[0" + ", 1" * 1000 + "]"], ids=["many", "digits", "list"])
def test_seeds_beyond_number_are_refused_before_they_are_listed(tmp_path, seeds):
    with pytest.raises(ConfigError, match=r"'seeds' cannot be|digits"):
        read_experiment(write(tmp_path, "ipal:", HEAD.replace("seeds: 2", f"seeds: {seeds}")))


def test_a_grid_beyond_number_is_refused_before_its_points_are_made(tmp_path):
    values = "[" + ", ".join(str(1 + place) for place in range(100)) + "]"
    path = write(tmp_path, f"ipal:\n  grid: {{ipal.gamma: {values}, ipal.tau: {values}, train.epochs: {values}}}")
    with pytest.raises(ConfigError, match=r"asks for 2000000 runs \(2 seeds.*at most 10000"):
        read_experiment(path)


def test_seeds_of_the_command_count_too(tmp_path):
    path = write(tmp_path, "ipal:\n  grid: {train.epochs: [" + ", ".join(map(str, range(1, 41))) + "]}")
    with pytest.raises(ConfigError, match="asks for 12000 runs"):
        plan(path, seeds=tuple(range(300)))


def test_a_name_too_long_for_a_file_is_no_other_file(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(f"like: {'x' * 5000}\nall: {{dataset: digits}}\n")
    with pytest.raises(ConfigError, match="There is no other experiment file"):
        read_experiment(path)


class OnDisk(np.ndarray[Any, Any]):
    """Features of which some rows may be read, and which are too large for anything as large to be made of them."""

    def __array_ufunc__(self, function: np.ufunc, *_: Any, **__: Any) -> NoReturn:
        raise AssertionError(f"np.{function.__name__} of all features")


def test_nothing_as_large_as_the_features_is_made_for_a_plan(tmp_path, monkeypatch):
    data = datasets.load(TINY)
    graph = Graph(data.graph.x.view(OnDisk), data.graph.neighbours, symmetric=True)
    mapped = replace(data, graph=graph, known_hash=data.hash)
    monkeypatch.setattr(datasets, "load", lambda *_, **__: mapped)
    assert len(plan(write(tmp_path, "ipal: {}\nanalytic: {}")).jobs) == 4
