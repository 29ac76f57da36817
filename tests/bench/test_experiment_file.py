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
from tests.support import install_package


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
    assert not given.is_searched
    assert [point.settings for point in given.points] == [{"ipal.gamma": 0.4}]  # epochs are fixed for all
    assert tuned.is_searched
    assert [(p.settings["ipal.gamma"], p.settings["train.epochs"]) for p in tuned.points] == [
        (0.1, 1),
        (0.1, 2),
        (0.4, 1),
        (0.4, 2),
    ]


def test_what_a_grid_leaves_open_is_searched_without_asking(tmp_path):
    path = write(tmp_path, "ipal:\n  ipal.gamma: 0.4\n  grid: {ipal.gamma: [0.1, 0.4], encoder.width: [8, 16]}")
    (row,) = plan(path).benches[0].rows
    assert [point.settings for point in row.points] == [
        {"ipal.gamma": 0.4, "encoder.width": 8},
        {"ipal.gamma": 0.4, "encoder.width": 16},
    ]


def test_settings_for_all_reach_the_entries_of_their_method_alone(tmp_path, monkeypatch):
    text = (
        "from dataclasses import dataclass\nfrom ipal.methods.ipal import IPAL\n"
        "@dataclass(frozen=True, kw_only=True)\nclass Other(IPAL):\n    name, title = 'other', 'Other'\n"
    )
    install_package(tmp_path, monkeypatch, {"another": text}, {"ipal.methods": {"other": "another:Other"}})
    head = f"kind: table1\nall: {{dataset: '{TINY}', ipal.gamma: 0.7, encoder.width: 8}}\n"
    ours, other = read_experiment(write(tmp_path, "ipal:\nother: {other.gamma: 0.2}", head)).entries
    assert {name: s.value for name, s in ours.common.items()} == {
        "dataset": TINY,
        "ipal.gamma": 0.7,
        "encoder.width": 8,
    }
    assert {name: s.value for name, s in other.common.items()} == {"dataset": TINY, "encoder.width": 8}


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
    return {name: setting.value for name, setting in point.items()}


@pytest.mark.parametrize(
    "text",
    [
        "preset: first\nkind: study\nall: {{dataset: '{0}'}}\nentries: {{ewc: {{}}}}",
        "kind: study\nall: {{dataset: '{0}', preset: first}}\nentries: {{ewc: {{}}}}",
        "kind: study\nall: {{dataset: '{0}'}}\nentries: {{ewc: {{preset: first}}}}",
        "preset: gone\nkind: study\nall: {{dataset: '{0}'}}\nentries: {{ewc: {{preset: first}}}}",
    ],
    ids=["at the top", "for all", "of an entry", "of an entry, over that at the top"],
)
def test_a_preset_gives_an_entry_what_was_chosen_for_its_method_but_no_dataset(tmp_path, published, text):
    path = tmp_path / "mine.yaml"
    path.write_text(text.format(TINY))
    entry = only_entry(path)
    assert values(entry) == {"dataset": TINY, "protocol.calibration": 0, "ewc.strength": 7, "train.epochs": 3}
    (row,) = plan(path).benches[0].rows
    assert row.points[0].settings == {"protocol.calibration": 0, "ewc.strength": 7, "train.epochs": 3}
    assert row.defaults == {}


def test_all_that_a_file_says_goes_over_its_preset(tmp_path, published):
    path = tmp_path / "mine.yaml"
    path.write_text(
        f"preset: first\nkind: study\nall: {{dataset: '{TINY}', train.epochs: 1}}\n"
        "entries: {ewc: {ewc.strength: 9}, ipal: {grid: {ipal.gamma: [1, 2]}}}\n"
    )
    ewc, ipal = read_experiment(path).entries
    assert (values(ewc)["train.epochs"], values(ewc)["ewc.strength"]) == (1, 9)
    assert values(ipal)["ipal.gamma"] == 0.4, "chosen, and not searched"
    assert [point["ipal.gamma"].value for point in ipal.points(tune=True)] == [1, 2]
    (tmp_path / "like.yaml").write_text("like: mine.yaml\nall: {dataset: digits}\n")
    ewc, _ = read_experiment(tmp_path / "like.yaml").entries
    assert values(ewc) == values(read_experiment(path).entries[0]) | {"dataset": "digits"}


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("ewc: {preset: frist}", "There is no preset 'frist' (see 'ipal list presets'). Did you mean 'first'?"),
        ("ewc: {preset: [first]}", "There is no preset '['first']'"),
        ("lwf: {preset: first}", "'first' has no entry of the method 'lwf', and one is needed"),
        ("ipal: {preset: second}", "'second' has no value chosen yet for ipal.gamma of ipal: 'ipal bench"),
        ("ipal: {grid: {preset: [first]}}", "Unknown setting 'preset'."),
    ],
)
def test_a_preset_that_does_not_fit_is_refused_with_its_line(tmp_path, published, entry, words):
    path = write(tmp_path, entry)
    with pytest.raises(ConfigError) as caught:
        read_experiment(path)
    assert str(caught.value).startswith(f"{path}, line 7: ")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_preset_with_several_entries_of_a_method_is_no_choice(tmp_path, published):
    write(published, "a: {method: ewc}\nb: {method: ewc}", name="several.yaml")
    with pytest.raises(ConfigError, match="has 2 entries of the method 'ewc', and one is needed"):
        read_experiment(write(tmp_path, "ewc: {preset: several}"))


def test_an_experiment_is_no_preset_of_itself(published):
    with pytest.raises(ConfigError, match=r"line 7: There is no preset 'mine'"):
        read_experiment(write(published, "ewc: {preset: mine}", name="mine.yaml"))


def test_every_value_chosen_in_a_published_table_is_a_preset():
    names = [name for name in config_files.presets() if name.startswith("table1-cs")]
    assert names == ["table1-cs", "table1-cs-seen"]
    for name in names:
        for entry in read_experiment(config_files.presets()[name]).entries:
            if entry.label == entry.method:
                assert read_preset(name, entry.method) == entry.given


# ---------------------------------------------------------------------- complaints


# HEAD has five lines, `entries:` is the sixth: the entry stands in line 7.
WRONG_ENTRIES = {
    "a setting": ("ipal:\n  ipal.gamam: 1", 8, "Unknown setting 'ipal.gamam'. Did you mean 'ipal.gamma'?"),
    "a nested setting": ("ipal:\n  train:\n    epoch: 1", 9, "Did you mean 'train.epochs'?"),
    "a setting in a grid": ("ipal:\n  grid:\n    ipal.gama: [1]", 9, "Did you mean 'ipal.gamma'?"),
    "a method by its label": ("ipla: {}", 7, "Unknown method 'ipla'. Did you mean 'ipal'?"),
    "a method by its name": ("a:\n  method: ipl", 8, "Unknown method 'ipl'. Did you mean 'ipal'?"),
    "a label twice": ("ipal:\n  ipal.gamma: 1\nipal: {}", 9, "'ipal' was given before, in line 7."),
    "a setting twice": ("ipal:\n  ipal.gamma: 1\n  ipal.gamma: 2", 9, "'ipal.gamma' was given before, in line 8."),
    "a setting both ways": ("ipal:\n  ipal: {gamma: 1}\n  ipal.gamma: 2", 9, "given before, in line 8."),
    "an empty grid": ("ipal:\n  grid:\n    ipal.gamma: []", 9, "The grid of 'ipal.gamma' must be a list"),
    "no list in a grid": ("ipal:\n  grid:\n    ipal.gamma: 1", 9, "The grid of 'ipal.gamma' must be a list"),
    "a grid that is none": ("ipal:\n  grid: 5", 8, "Here must be 'name: value' lines."),
    "a value": ("ipal:\n  ipal.gamma: 1\n  train.epochs: -1", 9, "The setting 'train.epochs' cannot be -1"),
    "a method's value": ("ipal:\n  encoder.width: 8\n  ipal.gamma: -2", 9, "'ipal.gamma' cannot be -2"),
    "a value in a list": ("ipal:\n  train.epochs: 1\n  protocol.class_order: [a, [b]]", 9, "protocol.class_order"),
    "a value in a grid": ("ipal:\n  grid:\n    ipal.gamma:\n    - 1\n    - -2", 11, "'ipal.gamma' cannot be -2"),
    "a value in a chosen grid": (
        "ipal:\n  ipal.gamma: 1\n  grid: {ipal.gamma: [1, x]}",
        9,
        "'ipal.gamma' cannot be 'x'",
    ),
    "a seed": ("ipal:\n  seed: 1", 8, "'seed' cannot be set here"),
    "another dataset": ("ipal:\n  dataset: cs", 8, "'dataset' cannot be set here"),
    "a method in a grid": ("ipal:\n  grid: {method: [ipal]}", 8, "'method' cannot be set here"),
}


@pytest.mark.parametrize(("entries", "line", "words"), WRONG_ENTRIES.values(), ids=WRONG_ENTRIES.keys())
def test_a_wrong_entry_is_refused_with_its_line_and_the_nearest_name(tmp_path, entries, line, words):
    path = write(tmp_path, entries)
    with pytest.raises(ConfigError) as caught:
        read_experiment(path)
    assert str(caught.value).startswith(f"{path}, line {line}: "), caught.value
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


WRONG_HEADS = {
    "a part": ("seed: 5\n" + HEAD, "line 1: Unknown name 'seed'. Did you mean 'seeds'?"),
    "a kind": (HEAD.replace("table2", "tabel2"), "line 1: Unknown kind 'tabel2'. Did you mean 'table2'?"),
    "a part twice": (HEAD + "seeds: 3\n", "line 6: 'seeds' was given before, in line 2."),
    "no kind": (HEAD.replace("kind: table2\n", ""), "The part 'kind' is missing."),
    "no dataset": ("kind: table1\nall: {train.epochs: 1}\n", "line 2: The setting 'dataset' is missing."),
    "no seeds": (HEAD.replace("seeds: 2", "seeds: 0"), "line 2: 'seeds' takes"),
    "a seed": (HEAD.replace("seeds: 2", "seeds: [0, -1]"), "line 2: 'seeds' takes"),
    "a setting of all": (HEAD + "  ipal.gamam: 1\n", "line 6: Unknown setting 'ipal.gamam'."),
    "a value of all": (HEAD.replace("epochs: 1", "epochs: x"), "line 5: The setting 'train.epochs' cannot be 'x'"),
    "no YAML": ("kind: [\n", "is not valid YAML"),
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
        (HEAD.replace(TINY, "sc"), ", line 4: "),
        (HEAD + "  split: [3, 2]\n", ", line 6: The split 3+2 adds up to 5 classes"),
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
    assert {name: setting.value for name, setting in entry.fixed.items()} == {"encoder.width": 8}
    assert [point["ipal.gamma"].value for point in entry.points(tune=False)] == [0.1, 0.4]
    assert (entry.common["dataset"].value, entry.common["train.epochs"].value) == ("digits", 1)


def test_a_value_taken_over_is_blamed_on_the_file_it_stands_in(tmp_path):
    write(tmp_path, "ipal:\n  protocol.test_graph: seen\n  split: [3, 2]", name="a.yaml")
    (tmp_path / "b.yaml").write_text(f"like: a.yaml\nall: {{dataset: '{TINY}'}}\n")
    with pytest.raises(ConfigError) as caught:
        plan(tmp_path / "b.yaml")
    assert str(caught.value).startswith(f"{tmp_path / 'a.yaml'}, line 9: The split 3+2")


def test_a_label_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"no entry 'ipla'. Did you mean 'ipal'"):
        plan(write(tmp_path, "ipal:"), only=["ipla"])


def test_files_that_take_each_other_over_are_refused(tmp_path):
    (tmp_path / "a.yaml").write_text("like: b.yaml\nall: {dataset: digits}\n")
    (tmp_path / "b.yaml").write_text("like: a.yaml\nall: {dataset: digits}\n")
    with pytest.raises(ConfigError, match=r"b\.yaml, line 1: There is no other experiment file .*a\.yaml"):
        read_experiment(tmp_path / "a.yaml")


# ---------------------------------------------------------------------- more than anybody means


@pytest.mark.parametrize("seeds", ["1000000000", "9" * 4000, "[0" + ", 1" * 1000 + "]"], ids=["many", "digits", "list"])
def test_seeds_beyond_number_are_refused_before_they_are_listed(tmp_path, seeds):
    path = tmp_path / "a.yaml"
    path.write_text(f"kind: study\nseeds: {seeds}\nall: {{dataset: digits}}\nentries: {{ipal: }}\n")
    with pytest.raises(ConfigError, match=r"seeds, at most 1000|digits"):
        read_experiment(path)


def test_a_grid_beyond_number_is_refused_before_its_points_are_made(tmp_path):
    values = "[" + ", ".join(str(1 + place) for place in range(100)) + "]"
    path = write(tmp_path, f"ipal:\n  grid: {{ipal.gamma: {values}, ipal.tau: {values}, train.epochs: {values}}}")
    with pytest.raises(ConfigError, match=r"asks for 2000000 runs \(2 seeds.*at most 10000"):
        read_experiment(path)


def test_seeds_of_the_command_count_too(tmp_path):
    path = write(tmp_path, "ipal:\n  grid: {train.epochs: [" + ", ".join(map(str, range(1, 41))) + "]}")
    with pytest.raises(ConfigError, match="asks for 12000 runs"):
        plan(path, seeds=tuple(range(300)))


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ("ipal: {method: []}", r"Unknown method '\[\]'"),
        ("? [a, b]\n: {}", "'name: value' lines"),
        ("ipal: {ipal.gamma: 9" + "9" * 9999 + "}", "10000 digits"),
    ],
    ids=["method", "key", "digits"],
)
def test_entries_of_the_wrong_kind_are_refused(tmp_path, entries, words):
    with pytest.raises(ConfigError, match=words):
        read_experiment(write(tmp_path, entries))


def test_a_name_too_long_for_a_file_is_no_other_file(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(f"like: {'x' * 5000}\nall: {{dataset: digits}}\n")
    with pytest.raises(ConfigError, match="line 1: There is no other experiment file"):
        read_experiment(path)


class OnDisk(np.ndarray[Any, Any]):
    """Features of which some rows may be read, and which are too large for anything as large to be made of them."""

    def __array_ufunc__(self, function: np.ufunc, *_: Any, **__: Any) -> NoReturn:
        raise AssertionError(f"np.{function.__name__} of all features")


def test_nothing_as_large_as_the_features_is_made_for_a_plan(tmp_path, monkeypatch):
    data = datasets.load(TINY)
    graph = Graph.of(data.graph.x.view(OnDisk), data.graph.neighbours, symmetric=True)
    mapped = replace(data, graph=graph, known_hash=data.hash)
    monkeypatch.setattr(datasets, "load", lambda *_, **__: mapped)
    assert len(plan(write(tmp_path, "ipal: {}\nanalytic: {}")).jobs) == 4
