"""`ipal explain`: a table, JSON, a figure, and sentences for what is wrong."""

from pathlib import Path

import pytest

from ipal.data.datasets import load
from ipal.learners import load_learner
from ipal.learners.explain import explained
from tests.cli.support import GRAPH
from tests.support import Command, complaint


def test_it_prints_what_the_library_finds(command: Command, finished: Path) -> None:
    learner = load_learner(finished / "model.safetensors")
    expected = explained(learner, load(GRAPH).graph, 7).as_plain_data(3)
    assert command("explain", finished.name, "--graph", GRAPH, "--node", 7, "--top", 3, "--json").json == expected
    text = command("explain", finished.name, "--graph", GRAPH, "--node", 7, "--top", 3).out
    assert expected["summary"] in text
    assert "itself" in text
    assert "1 hop away" in text
    for one in expected["evidence"]:
        assert f"{one['feature']} of node {one['node']}" in text
        assert f"{one['contribution']:+.4g}" in text


def test_another_class_to_compare_with(command: Command, finished: Path) -> None:
    asked = ("explain", finished.name, "--graph", GRAPH, "--node", 7, "--json")
    first = command(*asked).json
    other = next(name for name in first["scores"] if name not in (str(first["predicted"]), str(first["against"])))
    second = command(*asked, "--against", other).json
    assert str(second["against"]) == other
    assert second["margin"] == pytest.approx(first["scores"][str(first["predicted"])] - first["scores"][other])


@pytest.mark.parametrize(("name", "begins"), [("why.png", b"\x89PNG"), ("why.svg", b"<?xml")])
def test_a_figure_is_drawn_and_not_replaced_unasked(
    name: str, begins: bytes, command: Command, finished: Path, tmp_path: Path
) -> None:
    asked = ("explain", finished.name, "--graph", GRAPH, "--node", 7, "--figure", name)
    assert name in command(*asked).out
    first = (tmp_path / name).read_bytes()
    assert first.startswith(begins)
    complaint(command(*asked), "exists already")
    command(*asked, "--force")
    assert (tmp_path / name).read_bytes() == first


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--node", 240), "node 240, but the nodes are 0 to 239"),
        (("--node", "1,2"), "one node"),
        (("--node", "x"), "'x'"),
        (("--node", 7, "--against", "zebra"), "Class zebra was never learned; known are"),
        (("--node", 7, "--figure", "why.pdf"), "a .png or .svg file"),
        (("--node", 7, "--figure", "no/why.png"), "does not exist"),
        (("--node", 7, "--top", 0), "--top"),
    ],
)
def test_wrong_options_get_a_sentence(
    options: tuple[object, ...], words: str, command: Command, finished: Path
) -> None:
    complaint(command("explain", finished.name, "--graph", GRAPH, *options), words)
