"""The command on tables of nodes and edges: names of classes and ids of nodes go in, and come out again."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ipal
from ipal import Analytic
from tests.support import Command, complaint, write_graph

KINDS = ("bot", "human", "shop")


@pytest.fixture
def tables(command: Command, tmp_path: Path) -> str:
    """90 accounts of three kinds; every ninth has no label."""
    random = np.random.default_rng(0)
    with (tmp_path / "nodes.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["id", "label", "size", "country"])
        for number in range(90):
            label = KINDS[number % 3] if number % 9 else ""
            table.writerow(
                [f"acc-{number}", label, f"{random.normal(4 * (number % 3)):.3f}", "DE" if number % 2 else "FR"]
            )
    with (tmp_path / "edges.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["source", "target"])
        for _ in range(200):
            one = int(random.integers(90))
            table.writerow([f"acc-{one}", f"acc-{(one + 3 * int(random.integers(30))) % 90}"])
    return "nodes.csv,edges.csv"


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_run_and_its_predictions_speak_of_the_users_names(command: Command, tables: str, tmp_path: Path) -> None:
    quick = ("--method", "analytic", "--set", "analytic.width=64")
    run = command("run", "--dataset", tables, *quick, "--split", "2,1", "--json").json
    assert run["protocol"]["classes"] == [["bot", "human"], ["shop"]]
    assert set(run["per_class"]) == set(KINDS)
    assert "10 of 90 nodes have no label" in run["data"]["remark"]
    folder = Path(run["run"])
    assert json.loads((folder / "confusion.json").read_text())["classes"] == list(KINDS)
    assert folder.name.startswith(f"{tmp_path.name}-analytic")

    done = command("predict", "latest", "--graph", "./", "-o", "all.csv", "--json").json
    assert set(done["predicted"]) == set(KINDS)
    found = rows(tmp_path / "all.csv")
    assert [row["node"] for row in found] == [f"acc-{number}" for number in range(90)]
    assert {row["predicted"] for row in found} <= set(KINDS)
    right = [row["predicted"] == KINDS[number % 3] for number, row in enumerate(found)]
    assert np.mean(right) > 0.5

    command("predict", "latest", "--graph", tables, "-o", "some.csv", "--nodes", "acc-7,acc-3")
    some = rows(tmp_path / "some.csv")
    assert [row["node"] for row in some] == ["acc-7", "acc-3"]
    assert [row["predicted"] for row in some] == [found[7]["predicted"], found[3]["predicted"]]
    done = command("predict", "latest", "--graph", tables, "-o", "x.csv", "--nodes", "acc-7,acc-77777")
    complaint(done, "'acc-77777'", "the nodes are acc-0")


def test_texts_of_a_table_are_hashed_in_the_model_and_shown_from_the_table(
    command: Command, tables: str, tmp_path: Path
) -> None:
    run = command("run", "--dataset", tables, "--method", "ncm", "--split", "3", "--json").json
    said = command("audit", "latest").out.replace("\n", " ")
    assert "class labels (bot, human, shop), feature names (size, country)" in said
    assert command("audit", "latest", "--json").json["text"]["hashed_categories"] == 2
    assert b"country=DE" not in (Path(run["run"]) / "model.safetensors").read_bytes()
    found = command("explain", "latest", "--graph", tables, "--node", "acc-1", "--json").json
    assert {one["feature"] for one in found["by_feature"]} == {"size", "country=DE", "country=FR"}
    rows = (tmp_path / "nodes.csv").read_text().splitlines()
    mails = [f"{row},{f'p{place}@example.org' if place else 'mail'}" for place, row in enumerate(rows)]
    (tmp_path / "nodes.csv").write_text("\n".join(mails))
    done = command("run", "--dataset", tables, "--method", "ncm", "--split", "3")
    complaint(done, "The column mail has 90 different texts", "at most 20", "leave the column out", underway=True)


def test_every_stream_takes_names(command: Command, tables: str) -> None:
    for stream in ("task", "returning", "domain", "online"):
        small = ["--set", "protocol.stream.batch=10"] if stream == "online" else []
        options = ["--dataset", tables, "--method", "slda", "--set", f"protocol.stream.name={stream}", *small]
        run = command("run", *options, "--json").json
        assert {name for task in run["protocol"]["classes"] for name in task} == set(KINDS), stream


def table(name: str, accounts: list[int], labelled: Callable[[int], bool]) -> str:
    """A month of accounts, as tables: those that are labelled teach."""
    lines = ["id,label,size,country"]
    for number in accounts:
        label = KINDS[number % 3] if labelled(number) else ""
        lines.append(f"acc-{number},{label},{4 * (number % 3) + number / 100},{'DE' if number % 2 else 'FR'}")
    Path(f"{name}-nodes.csv").write_text("\n".join(lines) + "\n")
    edges = [f"acc-{one},acc-{other}" for one in accounts for other in (one + 3, one + 9) if other in accounts]
    Path(f"{name}-edges.csv").write_text("\n".join(["source,target", *edges]) + "\n")
    return f"{name}-nodes.csv,{name}-edges.csv"


def learned_months(*months: str) -> Analytic:
    learner = Analytic(width=32)
    for month in months:
        learner.partial_fit(ipal.graph_from(ipal.load_dataset(month)))
    return learner


@pytest.mark.parametrize("sense", ["--rows", "--nodes"])
def test_nodes_are_forgotten_by_their_ids_in_every_graph_that_has_them(command: Command, sense: str) -> None:
    first = table("first", list(range(60)), lambda number: True)
    second = table("second", list(range(30, 90)), lambda number: number >= 60)  # a part of the first, and new ones
    learned_months(first, second).save("m.safetensors")
    done = command("forget", "m.safetensors", sense, first, sense, second, "--which", "acc-7,acc-40,acc-80")
    assert done.code == 0, done.err
    gone = (7, 40, 80)
    if sense == "--rows":
        never = learned_months(
            table("first", list(range(60)), lambda number: number not in gone),
            table("second", list(range(30, 90)), lambda number: number >= 60 and number not in gone),
        )
    else:
        never = learned_months(
            table("first", [one for one in range(60) if one not in gone], lambda number: True),
            table("second", [one for one in range(30, 90) if one not in gone], lambda number: number >= 60),
        )
    found = ipal.load("m.safetensors")
    asked = ipal.graph_from(ipal.load_dataset(second))
    assert (found.decision_function(asked) == never.decision_function(asked)).all()
    assert found.history_[-1]["nodes"] == 3


def test_ids_that_taught_nowhere_or_are_in_no_graph_are_refused(command: Command) -> None:
    first = table("first", list(range(60)), lambda number: number != 40)
    second = table("second", list(range(30, 90)), lambda number: number >= 60)
    learned_months(first, second).save("m.safetensors")
    forget = ("forget", "m.safetensors", "--rows", first, "--rows", second, "--which")
    complaint(command(*forget, "acc-40"), "changes nothing that the model learned")
    complaint(command(*forget, "acc-3,acc-9999"), "--which names the node 'acc-9999'")
    complaint(command("forget", "m.safetensors", "--nodes", first, "--nodes", second), "--which")
    complaint(command("forget", "m.safetensors", "--nodes", first, "--which", "acc-3"), "learned 1 graph(s) more")


def test_inspect_says_what_was_understood(command: Command, tables: str) -> None:
    (found,) = command("data", tables, "--json").json
    assert found["nodes"] == 90
    assert found["ids"] == ["acc-0", "acc-1", "acc-2"]
    assert found["columns"] == ["size", "country=DE", "country=FR"]
    assert found["classes"] == {"bot": 20, "human": 30, "shop": 30}
    assert found["labelled"] == 80
    assert found["edge_homophily"] == 1
    assert not found["both_ways"]
    assert 0 <= found["isolated"] < 90
    said = command("data", tables).out
    for word in ("acc-0", "country=DE", "80 of 90 nodes", "join nodes of one class"):
        assert word in said


def test_inspect_reads_every_graph_the_command_reads(command: Command, tmp_path: Path) -> None:
    write_graph(tmp_path / "mine.npz", edge_weight=np.linspace(0.5, 2, 120))
    command("data", "mine.npz", "--convert", "mine.graph")
    weighted, folder, made = command("data", "mine.npz", "mine.graph", "digits", "--json").json
    assert 0.5 <= weighted["edge_weights"][0] < weighted["edge_weights"][1]
    assert (weighted["both_ways"], folder["both_ways"]) == (False, True)
    assert made["labelled"] == 1797
    write_graph(tmp_path / "bare.npz", y=None)
    (bare,) = command("data", "bare.npz", "--json").json
    assert (bare["labelled"], bare["classes"], bare["edge_homophily"]) == (0, {}, None)
    complaint(command("data", "nowhere.csv,edges.csv"), "does not exist")
