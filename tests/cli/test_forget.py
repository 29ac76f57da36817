"""`ipal forget`: the same model as one that never learned it; all else refused, and nothing is changed."""

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray

from ipal import Analytic, ProtocolConfig
from ipal.data.datasets import Dataset, load
from ipal.data.graph import checked_graph
from ipal.data.streams import TaskStream
from tests.cli.merge_and_forget_support import (
    BOTH,
    PER_CLASS,
    POOLED,
    RUN,
    apart,
    assert_same,
    counts,
    data_of,
    loaded,
    model,
    saved,
    those,
    view,
    write,
)
from tests.support import Command, complaint, sparse_parts

Mask = NDArray[np.bool_]


def some(graph: Dataset, *numbers: int) -> Mask:
    mask = np.zeros(len(graph.y), dtype=bool)
    mask[list(numbers)] = True
    return mask


# ---------------------------------------------------------------------- forget: exact, each in its sense


def test_a_forgotten_class_is_as_if_its_nodes_had_never_taught(
    command: Command, taught: Callable[..., Analytic], tiny: Dataset, tmp_path: Path
) -> None:
    before = counts(taught())
    done = command("forget", "m.safetensors", "--class", 1, "--class", 4, "--class", 4, "--json").json
    never = model().partial_fit(view(tiny, train_mask=~np.isin(tiny.y, [1, 4])))
    assert_same(loaded("m.safetensors"), never, tiny)
    assert done == {
        "model": str(tmp_path / "m.safetensors"),
        "read_from": str(tmp_path / "m.safetensors"),
        "by": "class",
        "nodes_behind_class": {"before": before, "after": counts(never)},
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
    assert done["nodes_behind_class"]["after"] == counts(never)


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
    assert apart(rows_only, never) > 1e-3, "the graph matters here"
    assert "forgotten" in shown.out


def test_weights_of_edges_count_in_what_is_forgotten(command: Command, tiny: Dataset) -> None:
    graph = tiny.graph
    weights = np.random.default_rng(0).uniform(0.1, 3, graph.num_edges).astype(np.float32)
    heavy = checked_graph(graph.x, graph.edges, undirected=True, weights=weights)
    leaving = some(tiny, 0, 1, 2, 60, 130)
    stay = np.flatnonzero(~leaving)
    rest = heavy.induced(stay)
    learned, never = (
        model().partial_fit(SimpleNamespace(x=part.x, edge_index=part.edges, edge_weight=part.edge_weight, y=y))
        for part, y in ((heavy, tiny.y), (rest, tiny.y[stay]))
    )
    saved(learned, "m.safetensors")
    write("g.npz", view(tiny), forget=leaving, edge_weight=weights)
    assert command("forget", "m.safetensors", "--nodes", "g.npz").code == 0
    assert_same(loaded("m.safetensors"), never, tiny)


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
    part = data_of(task)
    write("task.npz", part, train=part.train_mask)
    Path("leaving.txt").write_text("".join(f"{node}\n" for node in [*task.nodes[:3], 0]) + "\n")
    done = command("forget", "low", "--nodes", "task.npz", "--which", "leaving.txt")
    assert done.code == 0, done.err
    assert "result.json was measured before" in done.err
    assert "forgot by nodes" in (folder / "log.txt").read_text()

    stay = np.setdiff1d(np.arange(len(part.y)), [*task.nodes[:3], 0])
    rest = task.graph.induced(stay)
    never = model().partial_fit(
        SimpleNamespace(x=rest.x, edge_index=rest.edges, y=part.y[stay], train_mask=part.train_mask[stay])
    )
    never.partial_fit(data_of(stream.task(1)))
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
    assert apart(loaded("./--rows.st"), never) <= 1e-6
    assert counts(loaded("./--nodes.st")) == counts(never)
    assert command("forget", "m.safetensors", "--class", "cow", "--json").json["forgotten_classes"] == ["cow"]
    assert "cow" not in loaded("m.safetensors").classes_.tolist()
    assert "[/bee]" in command("forget", "m.safetensors", "--class", "[/bee]").out, "a name is no markup"

    numbered = write("n.npz", view(tiny))
    complaint(command("forget", "m.safetensors", "--rows", numbered, "--which", 3), "numbers", "strings")


def test_through_a_link_the_file_itself_forgets(command: Command, taught: Callable[..., Analytic]) -> None:
    taught()
    os.symlink("m.safetensors", "link.safetensors")
    assert command("forget", "link.safetensors", "--class", 0).code == 0
    assert Path("link.safetensors").is_symlink()
    assert 0 not in loaded("m.safetensors").classes_.tolist()


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
    saved(model(width=8).partial_fit(view(graph)), "m.safetensors")
    write("g.npz", view(graph), forget=np.arange(600) < 60)
    assert command("forget", "m.safetensors", option, "g.npz").code == 0
    once = Path("m.safetensors").read_bytes()
    complaint(command("forget", "m.safetensors", option, "g.npz"), "said to have taught", "forgotten before")
    assert Path("m.safetensors").read_bytes() == once


def test_rows_that_did_not_teach_or_are_all_are_refused(refused: Callable[..., str], tiny: Dataset) -> None:
    train = np.arange(len(tiny.y)) > 0
    write("g.npz", view(tiny), train=train)
    refused(["--rows", "g.npz", "--which", "0,5"], "Node 0", "array train", "never taught", train_mask=train)
    write("all.npz", view(tiny), forget=np.ones(len(tiny.y), dtype=bool))
    refused(["--rows", "all.npz"], "Nothing would be left")


@BOTH
def test_a_node_and_a_class_are_forgotten_with_only_some_of_the_training_nodes_named(
    command: Command, taught: Callable[..., Analytic], tiny: Dataset, sums: str
) -> None:
    taught(sums)
    node = np.flatnonzero(tiny.y == 1)[0]
    write("part.npz", view(tiny), train=some(tiny, *np.flatnonzero(tiny.y == 1)[:4]))
    assert command("forget", "m.safetensors", "--rows", "part.npz", "--which", node).code == 0
    never = model(sums).partial_fit(view(tiny, train_mask=~some(tiny, node)))
    assert_same(loaded("m.safetensors"), never, tiny)
    write("class.npz", view(tiny), forget=tiny.y == 4, train=tiny.y == 4)
    assert command("forget", "m.safetensors", "--rows", "class.npz", "--json").json["forgotten_classes"] == ["4"]
    never = model(sums).partial_fit(view(tiny, train_mask=~some(tiny, node) & (tiny.y != 4)))
    assert_same(loaded("m.safetensors"), never, tiny)


# ---------------------------------------------------------------------- help


def test_the_help_says_in_which_sense_each_is_exact(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setenv("TERMINAL_WIDTH", "300")
    shown = " ".join(command("forget", "--help").out.split())
    for words in (
        "Exact for its own nodes",
        "Exact for a model that never learned from their labels",
        "Exact for a model that learned from the graph without them",
        "Calibration, and the losses that the ridge follows from, stay as they were measured",
    ):
        assert words in shown
