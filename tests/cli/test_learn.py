"""`ipal learn`: months on the command line give the model that Python gives; the rest is refused, unchanged."""

from pathlib import Path

import numpy as np
import pytest

import ipal
from ipal import Analytic
from tests.cli.merge_and_forget_support import SMALL
from tests.support import Command, complaint

MODEL = ("learn", "m.safetensors", "--graph")


@pytest.fixture
def months() -> tuple[str, str]:
    """Tables of two months: the second has all nodes of the first, one of them with its first label, and new ones."""
    for month, count in (("one", 60), ("two", 90)):
        label = [("bot", "human")[n % 2] if n < 60 else "shop" for n in range(count)]
        if month == "one":
            label[7] = ""
        rows = [f"acc-{n},{label[n]},{3 * (n % 2) + n / 50},{n // 60}" for n in range(count)]
        Path(f"{month}-nodes.csv").write_text("\n".join(["id,label,size,age", *rows]) + "\n")
        edges = [f"acc-{n},acc-{(n + step) % count}" for n in range(count) for step in (2, 6)]
        Path(f"{month}-edges.csv").write_text("\n".join(["source,target", *edges]) + "\n")
    return "one-nodes.csv,one-edges.csv", "two-nodes.csv,two-edges.csv"


def graphs(months: tuple[str, str]) -> list[ipal.GraphData]:
    """What is learned of both, as Python reads it."""
    one, two = (ipal.graph_from(ipal.load_dataset(month)) for month in months)
    two.train_mask[np.isin(two.ids, one.ids[one.train_mask])] = False
    return [one, two]


def by_python(months: tuple[str, str]) -> Analytic:
    learner = Analytic(**SMALL)
    for data in graphs(months):
        learner.partial_fit(data)
    return learner


def begun(command: Command, month: str) -> None:
    settings = [part for name, value in SMALL.items() for part in ("--set", f"analytic.{name}={value!r}")]
    plain = [part.replace("(", "[").replace(")", "]") for part in settings]
    assert command(*MODEL, month, "--method", "analytic", *plain).code == 0


def test_months_are_learned_as_in_python(command: Command, months: tuple[str, str]) -> None:
    one, two = months
    begun(command, one)
    done = command(*MODEL, two, "--since", one, "--json").json
    assert done["nodes_behind_class"] == {
        "before": {"bot": 30, "human": 29},
        "after": {"bot": 30, "human": 30, "shop": 30},
    }
    found, wanted = ipal.load("m.safetensors"), by_python(months)
    data = ipal.graph_from(ipal.load_dataset(two))
    assert np.array_equal(found.decision_function(data), wanted.decision_function(data))
    assert [event["what"] for event in found.history_] == ["learned", "learned"]


def test_what_was_learned_since_is_forgotten_exactly(command: Command, months: tuple[str, str]) -> None:
    one, two = months
    begun(command, one)
    command(*MODEL, two, "--since", one)
    gone = ["acc-3", "acc-7", "acc-80"]
    done = command("forget", "m.safetensors", "--rows", one, "--rows", two, "--which", ",".join(gone))
    assert done.code == 0, done.err
    never = Analytic(**SMALL)
    for data in graphs(months):
        data.train_mask[np.isin(data.ids, gone)] = False
        never.partial_fit(data)
    data = ipal.graph_from(ipal.load_dataset(two))
    assert np.array_equal(ipal.load("m.safetensors").decision_function(data), never.decision_function(data))


def test_labels_that_may_count_twice_are_said(command: Command, months: tuple[str, str]) -> None:
    begun(command, months[0])
    assert "--since" in command(*MODEL, months[1], "-o", "twice.safetensors").err
    assert ipal.load("twice.safetensors").memory_report()["nodes_behind_class"]["bot"] == 60


def test_graphs_without_ids_are_compared_by_numbers(command: Command, months: tuple[str, str]) -> None:
    for name, data in zip(("one.npz", "two.npz"), graphs(months), strict=True):
        np.savez(name, x=data.x, edge_index=data.edge_index, y=data.y)
    begun(command, "one.npz")
    done = command(*MODEL, "two.npz", "--since", "one.npz", "--json").json
    assert done["nodes_behind_class"]["after"] == {"bot": 30, "human": 30, "shop": 30}
    complaint(command(*MODEL, "two.npz", "--since", months[0]), "Only one of these two graphs has ids")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("two", "--since", "two"), "there is nothing to learn"),
        (("two", "--set", "analytic.width=9"), "--set goes with --method"),
        (("two", "--method", "ncm"), "exists already"),
        (("two", "--method", "ncm", "-o", "other.safetensors"), "leave out -o"),
        (("nowhere.npz",), "nowhere.npz"),
    ],
)
def test_misuse_is_one_sentence_and_changes_nothing(
    command: Command, months: tuple[str, str], more: tuple[str, ...], words: str
) -> None:
    begun(command, months[0])
    before = Path("m.safetensors").read_bytes()
    complaint(command(*MODEL, *(months[1] if part == "two" else part for part in more)), words)
    assert Path("m.safetensors").read_bytes() == before
    complaint(command("learn", "new.safetensors", "--graph", months[0], "--method", "nmc"), "Did you mean 'ncm'")
    complaint(command("learn", "new.safetensors", "--graph", months[0]), "new.safetensors")
    assert not Path("new.safetensors").exists()
