"""Registries and entry points, without any of the package's own kinds."""

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from ipal.errors import ConfigError
from ipal.system.plugins import Registry
from tests.support import install_package


@dataclass(frozen=True)
class Fruit:
    name: str
    price: float = 1.0


def _check(fruit: Fruit) -> None:
    if fruit.price < 0:
        raise ValueError("a price below zero")


APPLE = Fruit("apple")
ORCHARD = {
    "orchard": "from tests.system.test_plugins import Fruit\npear = Fruit('pear')\nplum = Fruit('plum', -1)\n"
    "fig = Fruit('fig')\nobject.__setattr__(fig, '__abstractmethods__', {'taste'})\n",
    "broken": "raise SystemExit(3)\n",
}


def fruits(folder: Path, monkeypatch: pytest.MonkeyPatch, **entries: str) -> Registry[Fruit]:
    install_package(folder, monkeypatch, ORCHARD, {"ipal.fruits": entries})
    return Registry("fruit", (APPLE,), lambda thing: isinstance(thing, Fruit), _check)


def test_an_entry_point_is_found_by_name_and_loaded_when_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = fruits(tmp_path, monkeypatch, pear="orchard:pear")
    assert list(known) == ["apple", "pear"]
    assert len(known) == 2
    assert "pear" in known
    assert (known.package("apple"), known.package("pear")) == (None, "the package orchard 1.0")
    with pytest.raises(ConfigError, match=r"Unknown fruit 'paer'\. Did you mean 'pear'\?"):
        known.find("paer")
    assert known.find("apple") is APPLE
    assert "orchard" not in sys.modules
    assert known.find("pear") == Fruit("pear")
    assert "orchard" in sys.modules


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("pear", "nowhere:pear", "ModuleNotFoundError: No module named 'nowhere'"),
        ("pear", "broken:pear", "SystemExit: 3"),
        ("pear", "orchard:none", "AttributeError: module 'orchard' has no attribute 'none'"),
        ("pear", "orchard:plum", "it is no fruit of that name"),
        ("pear", "orchard:Fruit", "it is no fruit of that name"),
        ("fig", "orchard:fig", "it lacks taste"),
        ("plum", "orchard:plum", "ValueError: a price below zero"),
    ],
)
def test_a_bad_entry_point_is_one_sentence_with_its_package(
    name: str, value: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = fruits(tmp_path, monkeypatch, **{name: value})
    with pytest.raises(ConfigError) as caught:
        known.find(name)
    expected = f"The fruit '{name}' ({value}) of the package orchard 1.0 cannot be used: {words}."
    assert str(caught.value) == expected
