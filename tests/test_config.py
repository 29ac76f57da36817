"""The configuration: layers, names, messages, and a digest that stands for all of it."""

import os
import subprocess
import sys
from dataclasses import dataclass, make_dataclass
from typing import Any

import pytest
import yaml

import ipal
from ipal.config import (
    attribute_docs,
    override,
    parse_assignment,
    run_config,
)
from ipal.errors import ConfigError, did_you_mean, nearest

BASE: dict[str, Any] = {"dataset": "digits"}


def complaint(tree: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        run_config(tree)
    message = str(caught.value)
    assert "\n" not in message
    return message


# ---------------------------------------------------------------------- digest


def test_the_digest_is_the_same_whatever_the_order_of_the_settings() -> None:
    tree = {"dataset": "cs", "seed": 3, "train": {"epochs": 5, "lr_base": 0.1}, "ipal": {"k": 1, "beta": 2}}
    turned = {"ipal": {"beta": 2, "k": 1}, "train": {"lr_base": 0.1, "epochs": 5}, "seed": 3, "dataset": "cs"}
    assert run_config(tree).digest == run_config(turned).digest


def test_the_digest_is_the_same_in_every_process() -> None:
    # Python salts its own hashes anew in every process: the digest must not lean on them.
    program = "from ipal.config import run_config; print(run_config({'dataset': 'cs', 'ipal': {'k': 3}}).digest)"
    here = run_config({"dataset": "cs", "ipal": {"k": 3}}).digest
    for salt in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": salt}
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
        assert done.stdout.strip() == here, done.stderr


CHANGES: dict[str, Any] = {
    "dataset": "cs",
    "split": [4, 6],
    "method": "other",
    "seed": 1,
    "protocol.stream": "task",
    "protocol.calibration": 0,
    "protocol.class_order": "shuffled",
    "protocol.train_share": 0.5,
    "encoder.kind": "sage",
    "encoder.last_activation": "relu",
    "train.epochs": 51,
    "train.lr_base": 0.0011,
    "train.relative": True,
    "ipal.gamma": 0.71,
}


@pytest.mark.parametrize("path", CHANGES)
def test_every_setting_that_decides_numbers_changes_the_digest(path: str) -> None:
    change = CHANGES[path]
    for part in reversed(path.split(".")):
        change = {part: change}
    config = run_config(override(BASE, change))
    assert config.digest != run_config(BASE).digest
    # The way it goes through config.yaml: the digest must come back, or a run could not be resumed.
    read = run_config(yaml.safe_load(yaml.safe_dump(config.to_tree(), sort_keys=False)))
    assert (read, read.digest) == (config, config.digest)


# ---------------------------------------------------------------------- layers


def test_a_layer_replaces_leaves_and_leaves_the_rest() -> None:
    below = {"seed": 1, "train": {"epochs": 5, "lr_base": 0.1}, "split": [2, 2]}
    above = {"train": {"epochs": 7}, "split": [4]}
    assert override(below, above) == {"seed": 1, "train": {"epochs": 7, "lr_base": 0.1}, "split": [4]}
    assert below == {"seed": 1, "train": {"epochs": 5, "lr_base": 0.1}, "split": [2, 2]}, "the lower layer was changed"
    assert above == {"train": {"epochs": 7}, "split": [4]}, "the upper layer was changed"


# ---------------------------------------------------------------------- --set


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("ipal.gamma=0.7", {"ipal": {"gamma": 0.7}}),
        ("seed=3", {"seed": 3}),
        ("train.epochs=1e2", {"train": {"epochs": 1e2}}),
        (" seed =3", {"seed": 3}),
        ("ipal.boundary=false", {"ipal": {"boundary": False}}),
        ("ipal.distillation=none", {"ipal": {"distillation": "none"}}),
        ("split=[2, 2]", {"split": [2, 2]}),
        ("split=null", {"split": None}),
        ("dataset=synthetic:nodes=5", {"dataset": "synthetic:nodes=5"}),
    ],
)
def test_an_assignment_becomes_a_tree(text: str, tree: dict[str, Any]) -> None:
    assert parse_assignment(text) == tree


def test_a_number_with_a_leading_zero_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--set train\.epochs=010 holds 010, .* write 10, or quote it"):
        parse_assignment("train.epochs=010")


@pytest.mark.parametrize("text", ["train.epochs=true", "seed=false", "split=[true, 2]", "encoder.restart=[0.1, true]"])
def test_true_and_false_are_no_numbers(text: str) -> None:
    assert "true and false are no numbers" in complaint(override(BASE, parse_assignment(text)))
    with pytest.raises(ConfigError, match=r"'ipal\.gamma' cannot be True"):
        ipal.IPAL(gamma=True)


# ---------------------------------------------------------------------- the method's settings


def test_the_methods_settings_stand_under_the_methods_name() -> None:
    config = run_config(BASE | {"method": "other", "other": {"a": 1}})
    assert config.settings == {"a": 1}
    tree = config.to_tree()
    assert tree["other"] == {"a": 1}
    assert "settings" not in tree


def test_settings_under_the_word_settings_are_refused_and_the_place_is_named() -> None:
    assert "are under 'ipal'" in complaint(BASE | {"settings": {"gamma": 1}})


# ---------------------------------------------------------------------- messages


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"sed": 1}, ["Unknown setting 'sed'", "'seed'"]),
        ({"zzz": 1}, ["Unknown setting 'zzz'", "Known:", "seed, split, threads, train."]),
        ({"train": {"lr_base": 0}}, ["'train.lr_base'", "greater than 0"]),
        ({"train": 5}, ["'train'", "5"]),
        ({"protocol": {"test_graph": "all"}}, ["'protocol.test_graph'", "'all'", "'isolated' or 'seen'"]),
        ({"protocol": {"train_share": 1.5}}, ["'protocol.train_share'", "less than 1"]),
        ({"method": 5}, ["'method'", "string"]),
    ],
    ids=str,
)
def test_a_wrong_setting_is_named_with_its_value_and_what_it_can_be(tree: dict[str, Any], words: list[str]) -> None:
    message = complaint(override(BASE, tree))
    for word in words:
        assert word in message


@pytest.mark.parametrize(("name", "number"), [("lr_base", "inf"), ("lr_next", "nan"), ("weight_decay", "-inf")])
def test_a_number_that_is_none_is_refused(name: str, number: str) -> None:
    # An infinite learning rate would only show as NaN after an hour.
    assert f"'train.{name}'" in complaint(BASE | {"train": {name: float(number)}})


def test_where_nothing_is_known_nothing_is_suggested() -> None:
    assert did_you_mean("x", []) == ""
    assert did_you_mean("gama", ["gamma", "beta"]) == " Did you mean 'gamma'?"
    assert did_you_mean("train", ["run", "track", "list"]) == " Known: list, run, track."
    assert did_you_mean("CS", ["cs", "cora"]) == " Did you mean 'cs'?"
    names = ["seed", "train.epochs", "train.lr_base", "ipal.gamma", "ipal.k", "ipal.products", "other.gamma"]
    assert did_you_mean("ipal.epochs", names) == " Did you mean 'train.epochs'?"
    assert did_you_mean("epochs", names) == " Did you mean 'train.epochs'?"
    assert did_you_mean("gama", names) == " Did you mean 'ipal.gamma'?"
    assert did_you_mean("other.gama", names) == " Did you mean 'other.gamma'?"
    assert did_you_mean("trian", names) == " Did you mean 'train'?"
    assert did_you_mean("ipal.dbp", names) == " Known: ipal.gamma, ipal.k, ipal.products."
    assert nearest("ipal.dbp", names) is None
    assert did_you_mean("x", ["gamma", "beta", "gamma"]) == " Known: beta, gamma."


def test_a_setting_of_several_kinds_says_what_each_would_take_and_others_stay_out_of_it():
    with pytest.raises(ConfigError) as refused:
        run_config({"dataset": "digits", "protocol": {"class_order": "lable"}})
    assert "'label' or 'shuffled', or input should be a valid tuple" in str(refused.value)
    with pytest.raises(ConfigError) as refused:
        run_config({"dataset": "digits", "train": {"epochs": -1, "lr_base": -1}})
    said = "'train.epochs' cannot be -1: input should be greater than or equal to 0."
    assert str(refused.value).endswith(said)


@dataclass
class Above:
    one: int = 1
    """the first"""
    two: int = 2


def test_docs_of_attributes_are_those_below_them_also_of_bases_and_of_classes_in_functions():
    @dataclass
    class Below(Above):
        three: int = 3
        """
        the third,
        on two lines
        """

    class Plain:
        four: int = 4
        """not of a class of data"""

    assert attribute_docs(Below) == {"one": "the first", "three": "the third,\non two lines"}
    assert attribute_docs(Plain) == {}
    assert attribute_docs(make_dataclass("Made", [("five", int)])) == {}
