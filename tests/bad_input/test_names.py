"""Wrong names, options and configuration files get one clear sentence and exit code 2."""

from pathlib import Path

import pytest

from tests.bad_input.support import GRAPH, SMALL
from tests.support import Command, complaint

# ---------------------------------------------------------------------- names and options


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "--dataset", "digit"], ["Unknown dataset 'digit'", "'digits'"]),
        (["run", "--dataset", "zzzzzz"], ["Unknown dataset 'zzzzzz'", "Known:", "digits", ".npz path"]),
        (["run"], ["--dataset digits", "ipal list datasets"]),
        (["list", "methds"], ["'methds' cannot be listed", "'methods'"]),
        (["data", "--download"], ["Missing argument", "ipal data --help"]),
        (["run", "--dataset", "synthetic:nodes=x"], ["'nodes'", "'x'"]),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else None,
)
def test_an_unknown_name_is_met_with_the_closest(command: Command, arguments: list[str], words: list[str]) -> None:
    complaint(command(*arguments), *words)


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("train.epoch=3", ["Unknown setting 'train.epoch'", "'train.epochs'"]),
        ("train.epochs=abc", ["'train.epochs'", "'abc'", "integer"]),
        ("train.epochs=[1", ["--set train.epochs=[1", "quote"]),
        ("ipal.tau=0", ["'ipal.tau'", "greater than 0"]),
        ("protocol.class_order=random", ["'protocol.class_order'", "'label' or 'shuffled'"]),
        ("protocol.class_order=[1,2]", ["protocol.class_order", "each of the 6 classes once", "0, 1, 2, 3, 4, 5"]),
        ("protocol.train_share=0.9", ["protocol.train_share", "leave nothing for the test"]),
        ("train.epochs", ["NAME=VALUE", "'train.epochs'"]),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_wrong_assignment_is_named_and_nothing_is_left_behind(
    command: Command, tmp_path: Path, assignment: str, words: list[str]
) -> None:
    complaint(command("run", "--dataset", GRAPH, "--set", assignment), *words)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "--dataste", "digits"],
        ["rn"],
        ["run", "--dataset", "digits", "--seed", "one"],
        ["run", "--dataset", "digits", "--checkpoint-every", "0"],
        ["show"],
    ],
    ids=" ".join,
)
def test_options_that_do_not_fit_end_with_exit_code_2_and_where_help_is(command: Command, arguments: list[str]) -> None:
    complaint(command(*arguments), "(see '", "--help')")


@pytest.mark.parametrize("split", ["5;2", "a,b", "", "2,,2", "2.5,3.5", "2 2 2"])
def test_a_malformed_split_is_refused(command: Command, split: str) -> None:
    complaint(command("run", "--dataset", GRAPH, "--split", split), "split")


@pytest.mark.parametrize("split", ["2,2", "4,4", "6,1", "1"])
def test_a_split_that_does_not_add_up_is_met_with_one_that_does(command: Command, tmp_path: Path, split: str) -> None:
    total = sum(map(int, split.split(",")))
    words = (split.replace(",", "+"), f"adds up to {total} classes", "the graph has 6", "2,2,2")
    complaint(command("run", "--dataset", GRAPH, "--split", split), *words)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("device", ["cuda:99", "gpu", "cuda:x", "meta", "mps:7", ""])
def test_a_device_that_is_not_there_is_refused_before_anything_starts(
    command: Command, tmp_path: Path, device: str
) -> None:
    complaint(command("run", *SMALL, "--device", device), "device", "cpu")
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------------- configuration files


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("dataset: [1\n", ["bad.yaml", "not valid YAML"]),
        ("dataset: digits\ntrain: {epochs: many}\n", ["'train.epochs'", "'many'"]),
        ("seed: 1\n", ["--dataset digits"]),
    ],
)
def test_a_wrong_configuration_file_is_named(command: Command, tmp_path: Path, content: str, words: list[str]) -> None:
    (tmp_path / "bad.yaml").write_text(content)
    complaint(command("run", "--config", "bad.yaml"), *words)
