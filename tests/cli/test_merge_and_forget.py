"""`ipal merge` and `ipal forget`: the same model as one that learned both, or never learned it; all else refused."""

import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray

import ipal
from ipal import IPAL, Analytic, ProtocolConfig, TrainConfig
from ipal.data.datasets import Dataset, load
from ipal.data.streams import TaskStream
from ipal.errors import StoreError
from ipal.runs.run_folder import RunFolder
from tests.support import Command, complaint, sparse_parts

SMALL: dict[str, Any] = {"hops": (1, 2), "expansion": 48, "ridge": 0.1, "passes": 0}
SET = [f"analytic.{setting}" for setting in ("hops=[1,2]", "expansion=48", "ridge=0.1", "sums=per-class", "passes=0")]
RUN = ["--method", "analytic", *(part for setting in SET for part in ("--set", setting)), "--threads", 1]
PER_CLASS, POOLED = "per-class", "pooled"
BOTH = pytest.mark.parametrize("sums", [PER_CLASS, POOLED])
Mask = NDArray[np.bool_]


# ---------------------------------------------------------------------- helpers


def model(sums: str = PER_CLASS, **changes: Any) -> Analytic:
    return Analytic(**{**SMALL, "sums": sums, **changes})


def view(graph: Dataset, nodes: NDArray[Any] | None = None, **more: Any) -> Any:
    """A subgraph (or all) as what the library learns from."""
    nodes = np.arange(len(graph.y)) if nodes is None else nodes
    part = graph.graph.induced(nodes)
    return SimpleNamespace(x=part.x, edge_index=part.edges, y=more.pop("y", graph.y[nodes]), **more)


def those(graph: Dataset, *classes: int) -> NDArray[Any]:
    return np.flatnonzero(np.isin(graph.y, classes))


def saved(learner: Any, name: str) -> Any:
    learner.save(name)
    return learner


def write(path: str, data: Any, **more: Any) -> Path:
    """A graph as a plain file, its masks under the names that the command reads."""
    arrays = {"x": data.x, "edge_index": data.edge_index, "y": data.y, **more}
    np.savez(path, **{name: value for name, value in arrays.items() if value is not None})
    return Path(path)


def some(graph: Dataset, *numbers: int) -> Mask:
    mask = np.zeros(len(graph.y), dtype=bool)
    mask[list(numbers)] = True
    return mask


def assert_same(one: Analytic, other: Analytic, graph: Dataset) -> None:
    """The same classes, counts, weights (to 1e-6 of their size) and predictions, in whichever order of classes."""
    assert one.nodes_behind_class() == other.nodes_behind_class()
    order = [other.labels_.index(label) for label in one.labels_]
    assert (one.weights_ - other.weights_[:, order]).norm() <= 1e-6 * other.weights_.norm()
    assert (one.predict(view(graph)) == other.predict(view(graph))).all()


def loaded(path: object) -> Analytic:
    learner = ipal.load(str(path))
    assert isinstance(learner, Analytic)
    return learner


@pytest.fixture
def taught(command: Command, tiny: Dataset) -> Callable[..., Analytic]:
    """A model that learned the whole tiny graph, as m.safetensors."""
    return lambda sums=PER_CLASS, **more: saved(model(sums).partial_fit(view(tiny, **more)), "m.safetensors")


@pytest.fixture
def pair(command: Command, tiny: Dataset) -> Callable[..., None]:
    """a.safetensors with classes 0 to 2, b.safetensors with 3 to 5; b may have other settings."""

    def make(sums: str = PER_CLASS, changes: dict[str, Any] | None = None) -> None:
        saved(model(sums).partial_fit(view(tiny, those(tiny, 0, 1, 2))), "a.safetensors")
        saved(model(**{"sums": sums, **(changes or {})}).partial_fit(view(tiny, those(tiny, 3, 4, 5))), "b.safetensors")

    return make


# ---------------------------------------------------------------------- merge


def test_two_runs_on_different_classes_are_merged_to_the_model_that_learned_both(
    command: Command, tiny: Dataset, tmp_path: Path
) -> None:
    folders = []
    for name, classes in (("low", (0, 1, 2)), ("high", (3, 4, 5))):
        write(f"{name}.npz", view(tiny, those(tiny, *classes)))
        folders.append(Path(command("run", "--dataset", f"{name}.npz", *RUN, "--split", "2,1", "--json").json["run"]))
    done = command("merge", "low-analytic", folders[1], "-o", "c.safetensors")
    assert done.code == 0, done.err
    for word in ("2 models merged: 6 classes", "low-analytic", folders[1].name[:20], "c.safetensors"):
        assert word in done.out

    both = loaded(folders[0] / "model.safetensors")
    other = load("high.npz")
    for index in range(2):
        for _ in both.learn(TaskStream(other.graph, other.y, (2, 1), ProtocolConfig(), 0).task(index)):
            pass
    merged = loaded("c.safetensors")
    assert_same(merged, both, tiny)
    assert merged.labels_ == both.labels_ == [0, 1, 2, 3, 4, 5]

    by_file = command("merge", folders[0] / "model.safetensors", "high", "-o", "d.safetensors", "--json").json
    assert by_file["model"] == str(tmp_path / "d.safetensors")
    assert by_file["nodes_behind_class"] == both.nodes_behind_class()
    assert [list(part["nodes_behind_class"]) for part in by_file["merged"]] == [["0", "1", "2"], ["3", "4", "5"]]
    assert by_file["merged"][1]["model"] == str(folders[1].resolve() / "model.safetensors")
    assert_same(loaded("d.safetensors"), both, tiny)


@BOTH
def test_models_with_different_classes_are_merged_whichever_sums_they_keep(
    command: Command, pair: Callable[..., None], tiny: Dataset, sums: str
) -> None:
    pair(sums)
    command("merge", "a.safetensors", "b.safetensors", "-o", "c.safetensors", "--json").json  # noqa: B018
    both = loaded("a.safetensors").partial_fit(view(tiny, those(tiny, 3, 4, 5)))
    assert_same(loaded("c.safetensors"), both, tiny)


def test_three_models_that_share_all_classes_are_merged_to_the_one_that_learned_at_once(
    command: Command, tiny: Dataset
) -> None:
    third = np.arange(len(tiny.y)) % 3
    for index in range(3):
        saved(model().partial_fit(view(tiny, train_mask=third == index)), f"{index}.safetensors")
    done = command("merge", *(f"{index}.safetensors" for index in range(3)), "-o", "c.safetensors")
    whole = model().partial_fit(view(tiny))
    assert_same(loaded("c.safetensors"), whole, tiny)
    counts = [loaded(f"{index}.safetensors").nodes_behind_class()["0"] for index in range(3)]
    for share in counts:
        assert f"safetensors ({share})" in done.out
    assert str(sum(counts)) in done.out


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hops": (1,)}, ["number of hops", "(1, 2)", "(1,)"]),
        ({"expansion": 32}, ["expansion", "48", "32"]),
        ({"seed": 7}, ["seed", "0", "7"]),
        ({"sketch": 8}, ["analytic.sketch", "512", "8"]),
        ({"ridge": 0.5}, ["analytic.ridge", "0.1", "0.5"]),
        ({"sums": POOLED}, ["analytic.sums", "per-class", "pooled"]),
    ],
    ids=str,
)
def test_models_with_different_settings_are_not_merged(
    command: Command, pair: Callable[..., None], changes: dict[str, Any], words: list[str]
) -> None:
    pair(changes=changes)
    complaint(command("merge", "a.safetensors", "b.safetensors", "-o", "c.safetensors"), "cannot be merged", *words)
    assert not Path("c.safetensors").exists()


def test_models_on_other_features_or_with_other_kinds_of_labels_are_not_merged(
    command: Command, pair: Callable[..., None], tiny: Dataset
) -> None:
    pair()
    narrow = view(tiny, those(tiny, 3, 4))
    narrow.x = narrow.x[:, :9]
    saved(model().partial_fit(narrow), "narrow.safetensors")
    complaint(command("merge", "a.safetensors", "narrow.safetensors", "-o", "c"), "number of features", "16", "9")
    saved(model().partial_fit(view(tiny, y=tiny.y.astype(str))), "named.safetensors")
    complaint(command("merge", "a.safetensors", "named.safetensors", "-o", "c"), "numbers", "strings")


def test_a_shared_class_is_refused_with_pooled_sums_and_a_model_twice_with_any(command: Command, tiny: Dataset) -> None:
    for name in "ab":
        saved(model(POOLED).partial_fit(view(tiny, those(tiny, 0, ord(name) - 96))), f"{name}.safetensors")
    sentence = complaint(command("merge", "a.safetensors", "b.safetensors", "-o", "c"), "class 0", "per-class")
    assert "Both models" in sentence
    complaint(command("merge", "a.safetensors", "./a.safetensors", "-o", "c"), "twice")
    os.symlink("a.safetensors", "link.safetensors")
    complaint(command("merge", "a.safetensors", "link.safetensors", "-o", "c"), "twice")
    complaint(command("merge", "a.safetensors", "-o", "c"), "at least two")
    assert not Path("c").exists()


def test_what_is_in_the_way_of_the_merged_model_stays_unless_forced(
    command: Command, pair: Callable[..., None], tmp_path: Path
) -> None:
    pair()
    Path("c.safetensors").write_text("my notes")
    complaint(command("merge", "a.safetensors", "b.safetensors", "-o", "c.safetensors"), "exists already", "--force")
    assert Path("c.safetensors").read_text() == "my notes"
    assert command("merge", "a.safetensors", "b.safetensors", "-o", "c.safetensors", "--force").code == 0
    assert len(loaded("c.safetensors").labels_) == 6
    Path("folder").mkdir()
    complaint(command("merge", "a.safetensors", "b.safetensors", "-o", "folder", "--force"), "is a folder")
    complaint(command("merge", "a.safetensors", "b.safetensors", "-o", "none/c"), "none does not exist")
    assert command("merge", "a.safetensors", "b.safetensors").code == 2, "-o is needed"


def test_a_model_that_cannot_be_found_or_read_is_named(command: Command, pair: Callable[..., None]) -> None:
    pair()
    for arguments in (("merge", "a.safetensors", "{}", "-o", "c"), ("forget", "{}", "--class", 0)):

        def naming(name: str, arguments: Any = arguments) -> Any:
            return command(*(name if argument == "{}" else argument for argument in arguments))

        complaint(naming("none.safetensors"), "none.safetensors does not exist")
        complaint(naming("nobody"), "no run 'nobody'", "ipal list runs")
        complaint(naming(""), "empty")
        Path("notes.txt").write_text("hello")
        complaint(naming("notes.txt"), "notes.txt", "no saved state")
        assert not Path("c").exists()


def test_other_methods_can_neither_be_merged_nor_forget(
    command: Command, pair: Callable[..., None], tiny: Dataset
) -> None:
    pair()
    saved(IPAL(train=TrainConfig(epochs=0)).partial_fit(view(tiny)), "ipal.safetensors")
    before = Path("ipal.safetensors").read_bytes()
    for arguments in (("merge", "a.safetensors", "ipal.safetensors", "-o", "c"), ("forget", "ipal.safetensors")):
        more = ["--class", 0] if arguments[0] == "forget" else []
        complaint(command(*arguments, *more), "method 'ipal'", "only models of analytic", "exactly")
    assert Path("ipal.safetensors").read_bytes() == before


# ---------------------------------------------------------------------- forget: exact, each in its sense


def test_a_forgotten_class_is_as_if_its_nodes_had_never_taught(
    command: Command, taught: Callable[..., Analytic], tiny: Dataset, tmp_path: Path
) -> None:
    before = taught().nodes_behind_class()
    done = command("forget", "m.safetensors", "--class", 1, "--class", 4, "--class", 4, "--json").json
    never = model().partial_fit(view(tiny, train_mask=~np.isin(tiny.y, [1, 4])))
    assert_same(loaded("m.safetensors"), never, tiny)
    assert done == {
        "model": str(tmp_path / "m.safetensors"),
        "read_from": str(tmp_path / "m.safetensors"),
        "by": "class",
        "nodes_behind_class": {"before": before, "after": never.nodes_behind_class()},
        "forgotten_classes": ["1", "4"],
    }
    shown = command("forget", "m.safetensors", "--class", 0)
    for word in ("nodes before", "forgotten", "3 other classes", "as before", "m.safetensors"):
        assert word in shown.out
    assert shown.err == ""


@BOTH
def test_forgotten_rows_are_as_if_they_had_never_taught_in_the_same_graph(
    command: Command, taught: Callable[..., Analytic], tiny: Dataset, sums: str
) -> None:
    train = np.arange(len(tiny.y)) % 4 != 0
    leaving = some(tiny, 1, 2, 3, 5, 77) | (train & (tiny.y == 2))
    taught(sums, train_mask=train)
    write("g.npz", view(tiny), forget=leaving, train=train)
    done = command("forget", "m.safetensors", "--rows", "g.npz", "--json").json
    never = model(sums).partial_fit(view(tiny, train_mask=train & ~leaving))
    assert_same(loaded("m.safetensors"), never, tiny)
    assert done["by"] == "rows"
    assert done["forgotten_classes"] == ["2"]
    assert done["nodes_behind_class"]["after"] == never.nodes_behind_class()


@BOTH
@pytest.mark.parametrize("edges", ["undirected", "directed"])
def test_forgotten_nodes_are_as_if_they_had_never_been_in_the_graph(
    command: Command, tiny: Dataset, sums: str, edges: str
) -> None:
    one_way = tiny.graph.edges[:, tiny.graph.edges[0] < tiny.graph.edges[1]]
    graph = load("synthetic:nodes=240,classes=6,features=16,signal=3,seed=1")
    data = view(graph)
    train = np.arange(len(tiny.y)) % 3 != 0
    leaving = some(tiny, 0, 1, 2, 60, 130) | (tiny.y == 5)
    assert (leaving & ~train).any(), "nodes that never taught can leave the graph too"
    stay = np.flatnonzero(~leaving)
    if edges == "directed":
        object.__setattr__(graph, "graph", type(graph.graph)(graph.graph.x, one_way))
        data = view(graph)
    saved(model(sums).partial_fit(SimpleNamespace(**vars(data), train_mask=train)), "m.safetensors")
    # The file holds each edge once: the command makes them go both ways unless told not to.
    write("g.npz", data, forget=leaving, train=train, edge_index=one_way)
    option = ["--directed"] * (edges == "directed")
    shown = command("forget", "m.safetensors", "--nodes", "g.npz", *option)
    assert shown.code == 0, shown.err
    never = model(sums).partial_fit(view(graph, stay, train_mask=train[stay]))
    assert_same(loaded("m.safetensors"), never, graph)
    rows_only = model(sums).partial_fit(view(graph, train_mask=train & ~leaving))
    assert (rows_only.weights_ - never.weights_).norm() > 1e-3 * never.weights_.norm(), "the graph matters here"
    assert "forgotten" in shown.out


@BOTH
def test_a_whole_graph_can_go_and_a_node_that_nobody_felt(command: Command, tiny: Dataset, sums: str) -> None:
    low, high = view(tiny, those(tiny, 0, 1, 2)), view(tiny, those(tiny, 3, 4, 5))
    alone = len(high.y)
    high = SimpleNamespace(x=np.vstack([high.x, high.x[:1]]), edge_index=high.edge_index, y=np.append(high.y, 3))
    train = np.arange(alone + 1) < alone
    never = model(sums).partial_fit(SimpleNamespace(**vars(high), train_mask=train))
    both = model(sums).partial_fit(low).partial_fit(SimpleNamespace(**vars(high), train_mask=train))
    saved(both, "m.safetensors")
    write("low.npz", low, forget=np.ones(len(low.y), dtype=bool))
    write("high.npz", high, train=train)
    assert command("forget", "m.safetensors", "--nodes", "low.npz").code == 0
    assert_same(loaded("m.safetensors"), never, tiny)
    assert command("forget", "m.safetensors", "--nodes", "high.npz", "--which", alone).code == 0
    assert_same(loaded("m.safetensors"), never, tiny)


def test_a_task_of_a_run_forgets_nodes_and_the_run_says_so(command: Command, tiny: Dataset) -> None:
    write("low.npz", view(tiny, those(tiny, 0, 1, 2)))
    folder = Path(command("run", "--dataset", "low.npz", *RUN, "--split", "2,1", "--json").json["run"])
    graph = load("low.npz")
    stream = TaskStream(graph.graph, graph.y, (2, 1), ProtocolConfig(), 0)
    task = stream.task(0)
    labels = np.full(task.graph.num_nodes, -1)  # unknown, but for the nodes that taught
    labels[task.nodes] = task.labels
    train = labels >= 0
    part = SimpleNamespace(x=task.graph.x, edge_index=task.graph.edges, y=labels)
    write("task.npz", part, train=train)
    Path("leaving.txt").write_text("".join(f"{node}\n" for node in [*task.nodes[:3], 0]) + "\n")
    done = command("forget", "low", "--nodes", "task.npz", "--which", "leaving.txt")
    assert done.code == 0, done.err
    assert "result.json was measured before" in done.err
    assert "forgot by nodes" in (folder / "log.txt").read_text()

    stay = np.setdiff1d(np.arange(len(labels)), [*task.nodes[:3], 0])
    rest = task.graph.induced(stay)
    never = model().partial_fit(
        SimpleNamespace(x=rest.x, edge_index=rest.edges, y=labels[stay], train_mask=train[stay])
    )
    for _ in never.learn(stream.task(1)):
        pass
    assert_same(loaded(folder / "model.safetensors"), never, tiny)
    assert command("show", "low", "--json").json["method"] == "analytic"


def test_sparse_features_and_names_as_labels(command: Command, tiny: Dataset) -> None:
    names = np.asarray(["ant", "[/bee]", "cow", "dog", "eel", "fox"])[tiny.y]
    data = view(tiny, y=names)
    data.x = sp.csr_array(np.where(data.x > 1, data.x, 0))
    saved(model().partial_fit(data), "m.safetensors")
    leaving = some(tiny, 3, 17, 25)
    write("g.npz", data, **sparse_parts("x", data.x, "values"), x=None)
    for option in ("--rows", "--nodes"):
        done = command("forget", "m.safetensors", option, "g.npz", "--which", "3, 17,25,3", "-o", f"{option}.st")
        assert done.code == 0, done.err
        assert "still remembers" in done.err
    never = model().partial_fit(SimpleNamespace(**vars(data), train_mask=~leaving))
    assert (loaded("./--rows.st").weights_ - never.weights_).norm() <= 1e-6 * never.weights_.norm()
    assert loaded("./--nodes.st").nodes_behind_class() == never.nodes_behind_class()
    assert command("forget", "m.safetensors", "--class", "cow", "--json").json["forgotten_classes"] == ["cow"]
    assert "cow" not in loaded("m.safetensors").labels_
    assert "[/bee]" in command("forget", "m.safetensors", "--class", "[/bee]").out, "a name is no markup"

    numbered = write("n.npz", view(tiny))
    complaint(command("forget", "m.safetensors", "--rows", numbered, "--which", 3), "numbers", "strings")


def test_through_a_link_the_file_itself_forgets(command: Command, taught: Callable[..., Analytic]) -> None:
    taught()
    os.symlink("m.safetensors", "link.safetensors")
    assert command("forget", "link.safetensors", "--class", 0).code == 0
    assert Path("link.safetensors").is_symlink()
    assert 0 not in loaded("m.safetensors").labels_


# ---------------------------------------------------------------------- forget: refused, and nothing is changed


@pytest.fixture
def refused(command: Command, taught: Callable[..., Analytic]) -> Callable[..., str]:
    """A refusal that leaves the model's file as it was, to the byte."""

    def check(arguments: list[object], *words: str, sums: str = PER_CLASS, **more: Any) -> str:
        taught(sums, **more)
        before, files = Path("m.safetensors").read_bytes(), sorted(Path().iterdir())
        sentence = complaint(command("forget", "m.safetensors", *arguments), *words)
        assert Path("m.safetensors").read_bytes() == before
        assert sorted(Path().iterdir()) == files
        return sentence

    return check


def test_exactly_one_sense_must_be_given(refused: Callable[..., str]) -> None:
    for arguments in ([], ["--class", 0, "--rows", "g.npz"], ["--rows", "g.npz", "--nodes", "g.npz"]):
        refused(arguments, "exactly one of --class, --rows and --nodes")
    refused(["--class", 0, "--which", 3], "--which", "not with --class")
    refused(["--class", 0, "--directed"], "--directed", "not with --class")


def test_a_class_that_is_unknown_not_apart_or_the_last_is_not_forgotten(refused: Callable[..., str]) -> None:
    refused(["--class", 9], "Class 9 was never learned", "0, 1, 2, 3, 4, 5")
    refused(["--class", 1, "--class", "cow"], "Class cow was never learned")
    refused(["--class", 1], "Pooled sums", "class 1", "--rows", sums=POOLED)
    refused([part for c in range(6) for part in ("--class", c)], "at least one class")


@pytest.mark.parametrize(
    ("arrays", "more", "words"),
    [
        ({}, [], ["no array forget", "--which"]),
        ({"forget": np.zeros(240, dtype=bool)}, [], ["No node is marked"]),
        ({"forget": np.ones(5, dtype=bool)}, [], ["array forget", "240 nodes", "(5,)"]),
        ({"forget": np.ones(240, dtype=int)}, [], ["array forget", "True or False", "int64"]),
        ({"train": np.ones(9, dtype=bool)}, ["--which", 3], ["array train", "240 nodes", "(9,)"]),
        ({"train": np.zeros(240, dtype=bool)}, ["--which", 3], ["array train", "no node"]),
        ({"forget": np.ones(240, dtype=bool)}, ["--which", 3], ["only once"]),
        ({}, ["--which", 240], ["node 240", "0 to 239"]),
        ({}, ["--which", "3,-1"], ["node -1", "0 to 239"]),
        ({}, ["--which", "3,x"], ["'3,x' is neither"]),
        ({}, ["--which", ""], ["'' is neither"]),
        ({}, ["--which", "words.txt"], ["Line 2 of words.txt"]),
        ({}, ["--which", "bytes.txt"], ["bytes.txt", "as text"]),
        ({"x": None}, ["--which", 3], ["no features", "depend on all of its nodes"]),
        ({"x": np.ones((240, 3))}, ["--which", 3], ["3 features", "16"]),
        ({"y": np.zeros(7, dtype=int)}, ["--which", 3], ["7 labels for 240 nodes"]),
        ({"y": np.full(240, 8)}, ["--which", 3], ["Class 8 was never learned"]),
        ({"y": np.full(240, 0.5)}, ["--which", 3], ["whole numbers or strings"]),
        ({"edge_index": np.full((2, 1), 240)}, ["--which", 3], ["node 240"]),
        ({"edge_index": None}, ["--which", 3], ["lacks", "edge_index"]),
    ],
    ids=lambda value: str(value)[:30],
)
@pytest.mark.parametrize("option", ["--rows", "--nodes"])
def test_a_graph_that_does_not_say_who_is_to_go_is_refused(
    refused: Callable[..., str],
    tiny: Dataset,
    arrays: dict[str, Any],
    more: list[object],
    words: list[str],
    option: str,
) -> None:
    write("g.npz", view(tiny), **arrays)
    Path("words.txt").write_text("3\nseven\n")
    Path("bytes.txt").write_bytes(b"\xff\xfe\x00")
    refused([option, "g.npz", *more], *words)


def test_a_graph_file_that_is_not_there_or_none_is_named(refused: Callable[..., str]) -> None:
    refused(["--rows", "none.npz", "--which", 3], "none.npz does not exist")
    Path("text.npz").write_text("hello")
    refused(["--nodes", "text.npz", "--which", 3], "text.npz", "not a readable .npz")


@pytest.mark.parametrize("option", ["--rows", "--nodes"])
def test_nodes_that_were_never_learned_are_refused(refused: Callable[..., str], tiny: Dataset, option: str) -> None:
    half = np.arange(len(tiny.y)) % 2 == 0
    write("all.npz", view(tiny), forget=tiny.y == 1)
    refused([option, "all.npz"], "Class 0 was learned from", "said to have taught", "training nodes", train_mask=half)
    others = np.flatnonzero(~half & (tiny.y == 1))[:10]
    write("other.npz", view(tiny), forget=some(tiny, *others[:5]), train=some(tiny, *others))
    refused([option, "other.npz"], "not those that were learned", "graph has changed", train_mask=half)


@pytest.mark.parametrize("option", ["--rows", "--nodes"])
def test_the_same_nodes_are_not_forgotten_twice_also_where_the_sums_do_not_show_it(
    command: Command, option: str
) -> None:
    graph = load("synthetic:nodes=600,classes=2,features=4,signal=1,seed=1")
    saved(model(expansion=0).partial_fit(view(graph)), "m.safetensors")
    write("g.npz", view(graph), forget=np.arange(600) < 60)
    assert command("forget", "m.safetensors", option, "g.npz").code == 0
    once = Path("m.safetensors").read_bytes()
    complaint(command("forget", "m.safetensors", option, "g.npz"), "said to have taught", "forgotten before")
    assert Path("m.safetensors").read_bytes() == once


def test_rows_that_did_not_teach_or_cannot_be_weighted_or_are_all_are_refused(
    refused: Callable[..., str], tiny: Dataset
) -> None:
    train = np.arange(len(tiny.y)) > 0
    write("g.npz", view(tiny), train=train)
    refused(["--rows", "g.npz", "--which", "0,5"], "Node 0", "array train", "never taught", train_mask=train)
    write("part.npz", view(tiny), train=some(tiny, *np.flatnonzero(tiny.y == 1)[:4]))
    node = np.flatnonzero(tiny.y == 1)[0]
    refused(["--rows", "part.npz", "--which", node], "Pooled sums", "class 1", "per-class", sums=POOLED)
    write("all.npz", view(tiny), forget=np.ones(len(tiny.y), dtype=bool))
    refused(["--rows", "all.npz"], "Nothing would be left")


# ---------------------------------------------------------------------- forget: files


def test_another_file_may_take_what_is_left_but_replaces_none_unless_forced(
    command: Command, taught: Callable[..., Analytic], tmp_path: Path
) -> None:
    taught()
    before = Path("m.safetensors").read_bytes()
    done = command("forget", "m.safetensors", "--class", 1, "-o", "less.safetensors", "--json")
    assert done.json["model"] == str(tmp_path / "less.safetensors")
    assert done.json["read_from"] == str(tmp_path / "m.safetensors")
    assert "still remembers" in done.err
    assert Path("m.safetensors").read_bytes() == before
    assert loaded("less.safetensors").labels_ == [0, 2, 3, 4, 5]
    complaint(command("forget", "m.safetensors", "--class", 2, "-o", "less.safetensors"), "exists already", "--force")
    assert loaded("less.safetensors").labels_ == [0, 2, 3, 4, 5]
    assert command("forget", "m.safetensors", "--class", 2, "-o", "less.safetensors", "--force").code == 0
    assert loaded("less.safetensors").labels_ == [0, 1, 3, 4, 5]


@pytest.mark.parametrize("place", ["os.fsync", "os.replace", "ipal.system.files.create"])
def test_the_model_is_whole_where_a_write_fails(
    command: Command, taught: Callable[..., Analytic], monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    taught()
    before, files = Path("m.safetensors").read_bytes(), {*Path().iterdir(), Path(".m.safetensors.lock")}

    def full(*_: object, **__: object) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(place, full)
        complaint(command("forget", "m.safetensors", "--class", 1), "No room", "m.safetensors")
    assert Path("m.safetensors").read_bytes() == before
    assert set(Path().iterdir()) == files
    assert command("forget", "m.safetensors", "--class", 1).code == 0
    assert loaded("m.safetensors").labels_ == [0, 2, 3, 4, 5]


def test_what_another_process_forgot_meanwhile_is_not_brought_back(
    command: Command, taught: Callable[..., Analytic], monkeypatch: pytest.MonkeyPatch
) -> None:
    taught()
    forget_class = Analytic.forget_class

    def slow(learner: Analytic, label: object) -> Analytic:
        loaded_again = loaded("m.safetensors")
        forget_class(loaded_again, 5).save("m.safetensors")
        return forget_class(learner, label)

    monkeypatch.setattr(Analytic, "forget_class", slow)
    complaint(command("forget", "m.safetensors", "--class", 1), "changed by another process", "repeat")
    assert loaded("m.safetensors").labels_ == [0, 1, 2, 3, 4]


PAUSED = """
import sys, time
from pathlib import Path
from ipal import Analytic
from ipal.cli import main

def paused(learner, path, save=Analytic.save):
    Path("writing").touch()
    while not Path("go on").exists():
        time.sleep(0.01)
    save(learner, path)

Analytic.save = paused
sys.argv = ["ipal", *sys.argv[1:]]
main()
"""


@contextmanager
def about_to_write(*arguments: object) -> Iterator[None]:
    """The command in another process, which has checked everything and waits before it writes."""
    process = subprocess.Popen([sys.executable, "-c", PAUSED, *map(str, arguments)], stdout=subprocess.DEVNULL)
    try:
        while not Path("writing").exists():
            assert process.poll() is None
            time.sleep(0.01)
        yield
        Path("go on").touch()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def test_two_processes_that_forget_at_once_lose_neither_wish(command: Command, taught: Callable[..., Analytic]) -> None:
    taught()
    with about_to_write("forget", "m.safetensors", "--class", 1):
        complaint(command("forget", "m.safetensors", "--class", 5), "m.safetensors is being worked on", "wait")
    assert loaded("m.safetensors").labels_ == [0, 2, 3, 4, 5]
    assert command("forget", "m.safetensors", "--class", 5).code == 0
    assert loaded("m.safetensors").labels_ == [0, 2, 3, 4]


def test_the_model_of_a_run_is_changed_under_the_lock_of_the_run(command: Command, tiny: Dataset) -> None:
    write("low.npz", view(tiny, those(tiny, 0, 1, 2)))
    run = command("run", "--dataset", "low.npz", *RUN, "--split", "2,1", "--json").json["run"]
    with about_to_write("forget", run, "--class", 1):
        complaint(command("forget", run, "--class", 2), "being worked on by another process")
        with pytest.raises(StoreError, match="being worked on"), RunFolder(Path(run)).locked():
            pass
    assert loaded(Path(run) / "model.safetensors").labels_ == [0, 2]


def test_two_merges_into_one_new_file_do_not_replace_each_other(command: Command, pair: Callable[..., None]) -> None:
    pair()
    merge = ("merge", "a.safetensors", "b.safetensors", "-o", "c.safetensors")
    with about_to_write(*merge):
        complaint(command(*merge), "being worked on by another process")
    complaint(command(*merge), "exists already")


def test_an_unfinished_run_has_no_model_yet(command: Command, taught: Callable[..., Analytic], tiny: Dataset) -> None:
    taught()
    write("low.npz", view(tiny, those(tiny, 0, 1, 2)))
    folder = Path(command("run", "--dataset", "low.npz", *RUN, "--json").json["run"])
    (folder / "result.json").unlink()
    complaint(command("forget", "low", "--class", 1), "no model yet", "ipal resume low-analytic")
    complaint(command("merge", "m.safetensors", folder, "-o", "c"), "no model yet")


# ---------------------------------------------------------------------- help


def test_the_help_says_in_which_sense_each_is_exact(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setenv("TERMINAL_WIDTH", "300")
    shown = " ".join(command("forget", "--help").out.split())
    for words in (
        "Exact for its own nodes",
        "Exact for a model that never learned from their labels",
        "Exact for a model that learned from the graph without them",
        "Hops, expansion, ridge and calibration stay as they were chosen",
    ):
        assert words in shown
