"""Times, domains and parts that a dataset brings: read, checked, hashed, kept, and what streams make of them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipal.data.dataset import Dataset
from ipal.data.datasets import convert, load, look
from ipal.data.streams import TEST, TRAIN, VALIDATION
from ipal.errors import DataError
from tests.data.support import stream_of
from tests.support import Command, complaint, write_graph

TIME, DOMAIN, SPLIT = np.arange(40) // 4 + 2000, np.arange(40) % 3, np.tile([0, 0, 1, 2, -1], 8)
GIVEN = {"parts": "given"}


# ---------------------------------------------------------------------- read and kept


def test_a_file_brings_them_by_name(tmp_path: Path) -> None:
    dataset = load(str(write_graph(tmp_path / "a.npz", time=TIME, domain=DOMAIN.astype(float), split=SPLIT)))
    assert list(dataset.facts) == ["time", "domain", "split"]
    for known, given in zip(dataset.facts.values(), (TIME, DOMAIN, SPLIT), strict=True):
        np.testing.assert_array_equal(known, given)
    assert all(values.dtype == np.int64 for values in dataset.facts.values())
    assert look(str(tmp_path / "a.npz"), tmp_path)["of_every_node"] == ["time", "domain", "split"]


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("time", TIME + 0.5, "'time' must be 40 whole numbers, one per node, as years"),
        ("domain", DOMAIN - 1, "'domain' must be 40 whole numbers, one per node, 0 or more"),
        ("split", SPLIT + 1, "0 training, 1 validation, 2 test, -1 not used"),
    ],
)
def test_what_is_no_number_for_every_node_is_refused(name: str, values: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=words):
        load(str(write_graph(tmp_path / "a.npz", **{name: values})))


def test_the_hash_covers_them_and_is_as_it_was_without(tmp_path: Path) -> None:
    plain = write_graph(tmp_path / "a.npz")
    assert load(str(plain)).hash == "fc1d2617c476632a54a5e5e48bb44f78b391a7e7e321b92f65c69e44cc2d0f1f"
    brought = [{}, {"time": TIME}, {"time": TIME + 1}, {"domain": TIME}, {"split": SPLIT}, {"split": SPLIT % 3}]
    brought.append({"time": TIME, "domain": DOMAIN, "split": SPLIT})
    assert len({load(str(write_graph(plain, **arrays))).hash for arrays in brought}) == len(brought)


def test_a_folder_keeps_them(tmp_path: Path) -> None:
    source = str(write_graph(tmp_path / "a.npz", time=TIME, domain=DOMAIN, split=SPLIT))
    convert(source, tmp_path / "a.graph")
    before, after = load(source), load(str(tmp_path / "a.graph"))
    assert after.facts.keys() == before.facts.keys() == {"time", "domain", "split"}
    for name, values in before.facts.items():
        np.testing.assert_array_equal(after.facts[name], values)
    assert after.hash == before.hash
    file = tmp_path / "a.graph" / "split.npy"
    np.save(file, np.roll(SPLIT, 1))
    with pytest.raises(DataError, match="was changed after it was written"):
        load(str(tmp_path / "a.graph"))
    np.save(file, SPLIT[:-1])
    with pytest.raises(DataError, match=r"split\.npy does not fit the other arrays"):
        load(str(tmp_path / "a.graph"))


# ---------------------------------------------------------------------- given parts


def test_given_parts_are_taken_as_they_are(tiny: Dataset) -> None:
    parts = np.random.default_rng(0).integers(-1, 3, 240)
    streams = [stream_of(replace(tiny, facts={"split": parts}), **GIVEN, class_order="label") for _ in range(2)]
    np.testing.assert_array_equal(streams[0].part, parts)
    assert (streams[0].task_of[parts == -1] == -1).all()
    task = streams[0].task(0)
    assert (parts[task.origin[task.nodes]] == TRAIN).all()
    assert (parts[task.origin] >= 0).all(), "what is not used is not in the graph"
    (test_split,) = streams[0].test_splits(0)
    assert len(test_split.test.nodes) == ((streams[0].task_of == 0) & (parts == TEST)).sum()


def test_given_parts_are_not_for_nodes_without_a_label(tiny: Dataset) -> None:
    parts, bare = np.arange(len(tiny.y)) % 3, np.arange(len(tiny.y)) % 7 == 0
    stream = stream_of(replace(tiny, y=np.where(bare, -1, tiny.y), facts={"split": parts}), **GIVEN)
    assert (stream.part[bare] == -1).all()
    np.testing.assert_array_equal(stream.part[~bare], parts[~bare])
    for index in range(len(stream)):
        task = stream.task(index)
        assert not bare[task.origin].any(), "neither taught nor in the graph"
        assert (task.labels >= 0).all()


def test_without_given_parts_a_sentence_says_what_to_do(command: Command) -> None:
    words = ("protocol.parts=given needs", "add an array 'split'", "protocol.parts=drawn")
    complaint(command("run", "--dataset", "digits", "--set", "protocol.parts=given"), *words)


@pytest.mark.parametrize("part", [TRAIN, VALIDATION, TEST])
def test_a_class_without_one_of_the_parts_follows_small_classes(part: int, command: Command, tmp_path: Path) -> None:
    split = np.tile([0, 1, 2, 0, -1], 8)
    split[(np.arange(40) // 10 == 2) & (split == part)] = -1  # of class 2
    write_graph(tmp_path / "a.npz", split=split)
    run = ("run", "--dataset", "a.npz", "--method", "ncm", "--set", "protocol.parts=given")
    words = ("Too few training, validation or test nodes for class 2 (10 node(s))", "small_classes=drop")
    complaint(command(*run), *words)
    result = command(*run, "--set", "protocol.small_classes=drop", "--json").json
    assert result["protocol"]["dropped_classes"] == [2]
    assert result["protocol"]["parts"] == "given"


# ---------------------------------------------------------------------- the stream by domain


def test_domains_of_the_dataset_come_in_ascending_order(tiny: Dataset) -> None:
    domain = np.random.default_rng(0).choice([7, 2, 30, 11], 240)
    stream = stream_of(replace(tiny, facts={"domain": domain}), "domain")
    assert len(stream) == 4
    for index, number in enumerate([2, 7, 11, 30]):
        np.testing.assert_array_equal(stream.task(index).origin, np.flatnonzero(domain == number))
    again = stream_of(replace(tiny, facts={"domain": domain}), {"name": "domain", "parts": 4})
    assert again.split_hash == stream.split_hash
