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

import ipal
from ipal import NCM, SLDA, Analytic, ProtocolConfig
from ipal.data.datasets import Dataset, load
from ipal.data.graph import checked_graph
from ipal.data.streams import TaskStream
from tests.cli.merge_and_forget_support import (
    BOTH,
    PER_CLASS,
    RUN,
    apart,
    assert_same,
    counts,
    data_of,
    graphs_of,
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
    write("g.npz", view(tiny))
    classes = ["--class", 1, "--class", 4, "--class", 4]
    done = command("forget", "m.safetensors", *classes, "--graph", "g.npz", "--json").json
    never = model().partial_fit(view(tiny, train_mask=~np.isin(tiny.y, [1, 4])))
    assert_same(loaded("m.safetensors"), never, tiny)
    assert done == {
        "model": str(tmp_path / "m.safetensors"),
        "read_from": str(tmp_path / "m.safetensors"),
        "by": "class",
        "nodes_behind_class": {"before": before, "after": counts(never)},
        "forgotten_classes": ["1", "4"],
    }
    write("g.npz", view(tiny), train=~np.isin(tiny.y, [1, 4]))
    shown = command("forget", "m.safetensors", "--class", 0, "--graph", "g.npz")
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
    assert command("forget", "m.safetensors", "--nodes", "high.npz", "--nodes", "low.npz").code == 0, "in any order"
    assert_same(loaded("m.safetensors"), never, tiny)
    assert command("forget", "m.safetensors", "--nodes", "high.npz", "--which", alone).code == 0
    assert_same(loaded("m.safetensors"), never, tiny)


def test_a_task_of_a_run_forgets_nodes_and_the_run_says_so(command: Command, tiny: Dataset) -> None:
    write("low.npz", view(tiny, those(tiny, 0, 1, 2)))
    folder = Path(command("run", "--dataset", "low.npz", *RUN, "--split", "2,1", "--json").json["run"])
    graph = load("low.npz")
    stream = TaskStream(graph.graph, graph.y, (2, 1), ProtocolConfig(), 0)
    task = stream.task(0)
    part, files = data_of(task), graphs_of(folder, "--nodes")
    write("task-0.npz", part, train=part.train_mask, forget=np.isin(np.arange(len(part.y)), [*task.nodes[:3], 0]))
    done = command("forget", "low", *files)
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
    forget = ("forget", "m.safetensors", "--graph", "g.npz", "--class")
    assert command(*forget, "cow", "--json").json["forgotten_classes"] == ["cow"]
    assert "cow" not in loaded("m.safetensors").classes_.tolist()
    write("g.npz", data, **sparse_parts("x", data.x, "values"), x=None, train=names != "cow")
    assert "[/bee]" in command(*forget, "[/bee]").out, "a name is no markup"

    numbered = write("n.npz", view(tiny))
    complaint(command("forget", "m.safetensors", "--rows", numbered, "--which", 3), "numbers", "strings")


def test_through_a_link_the_file_itself_forgets(
    command: Command, taught: Callable[..., Analytic], tiny: Dataset
) -> None:
    taught()
    write("g.npz", view(tiny))
    os.symlink("m.safetensors", "link.safetensors")
    assert command("forget", "link.safetensors", "--class", 0, "--graph", "g.npz").code == 0
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
    refused(["--class", 0, "--graph", "g.npz", "--which", 3], "--which", "not with --class")
    refused(["--class", 0], "--class and --graph go together")
    refused(["--rows", "g.npz", "--graph", "g.npz"], "--class and --graph go together")


@BOTH
def test_a_class_that_is_unknown_not_in_the_graph_or_the_last_is_not_forgotten(
    refused: Callable[..., str], tiny: Dataset, sums: str
) -> None:
    graph = ["--graph", write("g.npz", view(tiny))]
    refused(["--class", 9, *graph], "Class 9 was never learned", "0, 1, 2, 3, 4, 5", sums=sums)
    refused(["--class", 1, "--class", "cow", *graph], "Class cow was never learned", sums=sums)
    refused([*(part for c in range(6) for part in ("--class", c)), *graph], "at least one class", sums=sums)
    some_of_it = write("some.npz", view(tiny), train=tiny.y != 1)
    refused(["--class", 1, "--graph", some_of_it], "No training node of these graphs is of class 1", sums=sums)


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
    refused([option, "all.npz"], "This graph is none that taught the model", "train_mask", train_mask=half)
    others = np.flatnonzero(~half & (tiny.y == 1))[:10]
    write("other.npz", view(tiny), forget=some(tiny, *others[:5]), train=some(tiny, *others))
    refused([option, "other.npz"], "This graph is none that taught the model", train_mask=half)
    moved = view(tiny)
    moved.x = moved.x + np.eye(*moved.x.shape, dtype=np.float32)
    write("moved.npz", moved, forget=some(tiny, 0, 2), train=half)
    refused([option, "moved.npz"], "This graph is none that taught the model", "features", train_mask=half)


@pytest.mark.parametrize("option", ["--rows", "--nodes"])
def test_the_same_nodes_are_not_forgotten_twice_also_where_the_sums_do_not_show_it(
    command: Command, option: str
) -> None:
    graph = load("synthetic:nodes=600,classes=2,features=4,signal=1,seed=1")
    saved(model(width=8).partial_fit(view(graph)), "m.safetensors")
    write("g.npz", view(graph), forget=np.arange(600) < 60)
    assert command("forget", "m.safetensors", option, "g.npz").code == 0
    once = Path("m.safetensors").read_bytes()
    complaint(command("forget", "m.safetensors", option, "g.npz"), "none that taught the model", "forgotten since")
    assert Path("m.safetensors").read_bytes() == once


def test_rows_that_did_not_teach_or_are_all_are_refused(refused: Callable[..., str], tiny: Dataset) -> None:
    train = np.arange(len(tiny.y)) > 0
    write("g.npz", view(tiny), train=train)
    refused(["--rows", "g.npz", "--which", "0,5"], "Node 0", "array train", "never taught", train_mask=train)
    write("marked.npz", view(tiny), train=train, forget=~train)
    refused(["--rows", "marked.npz"], "Node 0", "array train", "never taught", train_mask=train)
    write("all.npz", view(tiny), forget=np.ones(len(tiny.y), dtype=bool))
    refused(["--rows", "all.npz"], "Nothing would be left")


# ---------------------------------------------------------------------- several graphs


@pytest.fixture
def grown(command: Command, tiny: Dataset) -> SimpleNamespace:
    """A graph that grows by 60 nodes a month, three times; m.safetensors has learned each month's new nodes in it."""
    months = [view(tiny, np.arange(n), train_mask=np.arange(n) >= n - 60) for n in (120, 180, 240)]
    learner = model()
    for number, month in enumerate(months):
        learner.partial_fit(month)
        write(f"{number}.npz", month, train=month.train_mask)
    saved(learner, "m.safetensors")
    return SimpleNamespace(months=months, learner=learner)


def without(month: Any, leaving: Any, sense: str) -> Any:
    """A month in which these nodes never taught, or never were."""
    if sense == "--rows":
        return SimpleNamespace(**{**vars(month), "train_mask": month.train_mask & ~leaving})
    stay = np.flatnonzero(~leaving)
    kept = np.isin(month.edge_index, stay).all(axis=0)
    return SimpleNamespace(
        x=month.x[stay],
        edge_index=np.searchsorted(stay, month.edge_index[:, kept]),
        y=month.y[stay],
        train_mask=month.train_mask[stay],
    )


@pytest.mark.parametrize("sense", ["--rows", "--nodes"])
@pytest.mark.parametrize("first", [0, 1, 2])
def test_nodes_are_forgotten_in_all_graphs_from_the_first_one_that_they_were_in(
    command: Command, grown: SimpleNamespace, tiny: Dataset, first: int, sense: str
) -> None:
    node = 60 * (first + 1) + 5  # taught in that month; a neighbour in those that follow
    files = [part for month in (2, 1, 0)[: 3 - first] for part in (sense, f"{month}.npz")]
    done = command("forget", "m.safetensors", *files, "--which", f"{node},{node + 1}", "--json")
    assert done.code == 0, done.err
    never = model()
    for number, month in enumerate(grown.months):
        leaving = np.isin(np.arange(len(month.y)), [node, node + 1]) & (number >= first)
        never.partial_fit(without(month, leaving, sense))
    found = loaded("m.safetensors")
    assert_same(found, never, tiny)
    assert (found.decision_function(view(tiny)) == never.decision_function(view(tiny))).all(), "to the bit"
    assert [one["what"] for one in found.history_] == ["learned"] * 3 + ["forgot"]
    assert found.history_[-1]["nodes"] == 2


@pytest.mark.parametrize("option", ["--nodes", "--rows"])
def test_a_later_graph_that_is_missing_is_asked_for(command: Command, grown: SimpleNamespace, option: str) -> None:
    before = Path("m.safetensors").read_bytes()
    for given, missing in (((0,), "2 graph(s)"), ((0, 2), "1 graph(s)"), ((1,), "1 graph(s)")):
        files = [part for month in given for part in (option, f"{month}.npz")]
        complaint(
            command("forget", "m.safetensors", *files, "--which", 60 * (given[0] + 1)),
            f"learned {missing} more",
            "give all graphs from the first one that the nodes were in",
            "missing: the graph with 60 training nodes",
        )
    complaint(
        command("forget", "m.safetensors", "--class", 1, "--graph", "0.npz", "--graph", "1.npz"), "learned 1 graph(s)"
    )
    assert Path("m.safetensors").read_bytes() == before


def test_a_class_is_forgotten_in_all_its_graphs(command: Command, grown: SimpleNamespace, tiny: Dataset) -> None:
    graphs = [part for month in range(3) for part in ("--graph", f"{month}.npz")]
    assert command("forget", "m.safetensors", "--class", 1, *graphs, "--json").json["forgotten_classes"] == ["1"]
    never = model()
    for month in grown.months:
        never.partial_fit(without(month, month.y == 1, "--rows"))
    assert_same(loaded("m.safetensors"), never, tiny)


@pytest.mark.filterwarnings("ignore:These training nodes of this graph were learned before")
def test_a_graph_that_was_learned_twice_is_given_once(command: Command, tiny: Dataset) -> None:
    train, node = tiny.y < 3, int(np.flatnonzero(tiny.y == 1)[0])
    month, less = view(tiny, train_mask=train), view(tiny, train_mask=train & ~some(tiny, node))
    saved(model().partial_fit(month).partial_fit(month), "m.safetensors")
    write("g.npz", month, train=train)
    forget = ("forget", "m.safetensors", "--rows", "g.npz", "--which", node)
    complaint(command(*forget, "--rows", "g.npz"), "given twice")
    assert command(*forget).code == 0
    assert_same(loaded("m.safetensors"), model().partial_fit(less).partial_fit(less), tiny)
    assert loaded("m.safetensors").history_[-1]["nodes"] == 2


@pytest.mark.parametrize("after", ["merge", "merge-classes"])
def test_what_was_merged_forgets_no_more(
    command: Command, pair: Callable[..., None], tiny: Dataset, after: str
) -> None:
    pair()
    merge = ["merge", "a.safetensors", "b.safetensors", "-o", "c.safetensors"]
    united = ["merge-classes", "b.safetensors", 3, 4, "--into", 4, "-o", "c.safetensors"]
    assert command(*(merge if after == "merge" else united)).code == 0
    high = view(tiny, those(tiny, 3, 4, 5))
    write("high.npz", high, y=high.y if after == "merge" else np.where(high.y == 3, 4, high.y))
    before = Path("c.safetensors").read_bytes()
    said = complaint(command("forget", "c.safetensors", "--nodes", "high.npz", "--which", 3))
    assert ("were merged since" if after == "merge" else "none that taught") in said
    assert Path("c.safetensors").read_bytes() == before


@pytest.mark.parametrize("method", [NCM, SLDA])
def test_other_methods_with_sums_forget_too(command: Command, tiny: Dataset, method: Any) -> None:
    train = np.arange(len(tiny.y)) % 2 == 0
    saved(method().partial_fit(view(tiny, train_mask=train)), "m.safetensors")
    write("g.npz", view(tiny), train=train)
    assert command("forget", "m.safetensors", "--rows", "g.npz", "--which", "2,4").code == 0
    never = method().partial_fit(view(tiny, train_mask=train & ~some(tiny, 2, 4)))
    found = ipal.load("m.safetensors")
    assert (found.decision_function(view(tiny)) == never.decision_function(view(tiny))).all()


# ---------------------------------------------------------------------- help


def test_the_help_says_what_is_exact_and_what_is_needed(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setenv("TERMINAL_WIDTH", "300")
    shown = " ".join(command("forget", "--help").out.split())
    for words in (
        "it becomes the one that was never taught what is forgotten",
        "Sums, ridge, calibration and history are those of that model",
        "from the first one concerned to the last one learned, as they were learned",
        "as if they had never been there",
    ):
        assert words in shown
