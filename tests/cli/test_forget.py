"""`ipal forget`: the same model as one that never learned it; all else refused, and nothing is changed."""

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
from ipal.data.streams import TaskStream
from tests.cli.merge_and_forget_support import (
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
        "done": "forgot",
        "nodes_behind_class": {"before": before, "after": counts(never)},
    }
    write("g.npz", view(tiny), train=~np.isin(tiny.y, [1, 4]))
    shown = command("forget", "m.safetensors", "--class", 0, "--graph", "g.npz")
    for word in ("nodes before", "gone", "m.safetensors"):
        assert word in shown.out
    assert shown.err == ""


def test_forgotten_rows_are_as_if_they_had_never_taught_in_the_same_graph(
    command: Command, taught: Callable[..., Analytic], tiny: Dataset
) -> None:
    train = np.arange(len(tiny.y)) % 4 != 0
    leaving = some(tiny, 1, 2, 3, 5, 77) | (train & (tiny.y == 2))
    taught(train_mask=train)
    write("g.npz", view(tiny), forget=leaving, train=train)
    done = command("forget", "m.safetensors", "--rows", "g.npz", "--json").json
    never = model().partial_fit(view(tiny, train_mask=train & ~leaving))
    assert_same(loaded("m.safetensors"), never, tiny)
    assert done["nodes_behind_class"]["after"] == counts(never)


def test_forgotten_nodes_are_as_if_they_had_never_been_in_the_graph(
    command: Command, taught: Callable[..., Analytic], tiny: Dataset
) -> None:
    train = np.arange(len(tiny.y)) % 3 != 0
    leaving = some(tiny, 0, 1, 2, 60, 130) | (tiny.y == 5)
    assert (leaving & ~train).any(), "nodes that never taught can leave the graph too"
    stay, edges = np.flatnonzero(~leaving), tiny.graph.edges
    taught(train_mask=train)
    # The file holds each edge once: the command makes them go both ways, as the model learned them.
    write("g.npz", view(tiny), forget=leaving, train=train, edge_index=edges[:, edges[0] < edges[1]])
    shown = command("forget", "m.safetensors", "--nodes", "g.npz")
    assert shown.code == 0, shown.err
    never = model().partial_fit(view(tiny, stay, train_mask=train[stay]))
    assert_same(loaded("m.safetensors"), never, tiny)
    rows_only = model().partial_fit(view(tiny, train_mask=train & ~leaving))
    assert apart(rows_only, never) > 1e-3, "the graph matters here"
    assert "gone" in shown.out


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
    assert "forgot: " in (folder / "log.txt").read_text()

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
    assert command(*forget, "cow").code == 0
    assert "cow" not in loaded("m.safetensors").classes_.tolist()
    write("g.npz", data, **sparse_parts("x", data.x, "values"), x=None, train=names != "cow")
    assert "[/bee]" in command(*forget, "[/bee]").out, "a name is no markup"

    numbered = write("n.npz", view(tiny))
    complaint(command("forget", "m.safetensors", "--rows", numbered, "--which", 3), "Class 0 was never learned")


# ---------------------------------------------------------------------- forget: refused, and nothing is changed


@pytest.fixture
def refused(command: Command, taught: Callable[..., Analytic]) -> Callable[..., str]:
    """A refusal that leaves the model's file as it was, to the byte."""

    def check(arguments: list[object], *words: str, **more: Any) -> str:
        taught(**more)
        before, files = Path("m.safetensors").read_bytes(), sorted(Path().glob("[!.]*"))
        sentence = complaint(command("forget", "m.safetensors", *arguments), *words)
        assert Path("m.safetensors").read_bytes() == before
        assert sorted(Path().glob("[!.]*")) == files
        return sentence

    return check


def test_exactly_one_sense_must_be_given(refused: Callable[..., str]) -> None:
    for arguments in ([], ["--class", 0, "--rows", "g.npz"], ["--rows", "g.npz", "--nodes", "g.npz"]):
        refused(arguments, "exactly one of --class, --rows and --nodes")
    refused(["--class", 0, "--graph", "g.npz", "--which", 3], "--class goes with --graph", "--which")
    refused(["--class", 0], "--class goes with --graph")
    refused(["--rows", "g.npz", "--graph", "g.npz"], "--class goes with --graph")


def test_a_class_that_is_unknown_not_in_the_graph_or_the_last_is_not_forgotten(
    refused: Callable[..., str], tiny: Dataset
) -> None:
    graph = ["--graph", write("g.npz", view(tiny))]
    refused(["--class", 9, *graph], "Class 9 was never learned", "0, 1, 2, 3, 4, 5")
    refused(["--class", 1, "--class", "cow", *graph], "Class cow was never learned")
    refused([*(part for c in range(6) for part in ("--class", c)), *graph], "at least one class")
    some_of_it = write("some.npz", view(tiny), train=tiny.y != 1)
    refused(["--class", 1, "--graph", some_of_it], "This changes nothing that the model learned")


@pytest.mark.parametrize(
    ("arrays", "more", "words"),
    [
        ({}, [], ["an array forget", "--which"]),
        ({"forget": np.zeros(240, dtype=bool)}, [], ["No node is marked"]),
        ({"forget": np.ones(5, dtype=bool)}, [], ["array forget", "240 nodes", "(5,)"]),
        ({"train": np.zeros(240, dtype=bool)}, ["--which", 3], ["array train marks none"]),
        ({"forget": np.ones(240, dtype=bool)}, ["--which", 3], ["Say once"]),
        ({}, ["--which", 240], ["node '240'", "0 to 239"]),
        ({"x": None}, ["--which", 3], ["no features", "depend on all of its nodes"]),
        ({"y": np.full(240, 8)}, ["--which", 3], ["Class 8 was never learned"]),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_graph_that_does_not_say_who_is_to_go_is_refused(
    refused: Callable[..., str],
    tiny: Dataset,
    arrays: dict[str, Any],
    more: list[object],
    words: list[str],
) -> None:
    write("g.npz", view(tiny), **arrays)
    refused(["--rows", "g.npz", *more], *words)


def test_nodes_that_were_never_learned_are_refused(refused: Callable[..., str], tiny: Dataset) -> None:
    half = np.arange(len(tiny.y)) % 2 == 0
    write("all.npz", view(tiny), forget=tiny.y == 1)
    refused(["--rows", "all.npz"], "none that the model learned", "train_mask", train_mask=half)
