"""Registries, plugin files and entry points, without any of the package's own kinds."""

import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ipal.errors import ConfigError
from ipal.system import plugins
from ipal.system.plugins import Registry
from tests.support import forget_plugins, install_package


@dataclass(frozen=True)
class Fruit:
    name: str
    price: float = 1.0


def _check(fruit: Fruit) -> None:
    if fruit.price < 0:
        raise ValueError("a price below zero")


APPLE = Fruit("apple")
FRUITS: Registry[Fruit] = Registry("fruit", (APPLE,), lambda thing: isinstance(thing, Fruit), _check)
HEAD = "from tests.system.test_plugins import APPLE, Fruit\n"
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Iterator[Write]:
    def file(text: str, name: str = "mine.py") -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(HEAD + textwrap.dedent(text))
        return path

    yield file
    forget_plugins()


def load(path: Path) -> Any:
    return plugins.load(path, [FRUITS])


def test_a_file_is_known_once_it_is_named_and_not_before(write: Write) -> None:
    path = write("pear = Fruit('pear')")
    assert list(FRUITS) == ["apple"]
    assert "pear" not in FRUITS
    module = load(path)
    assert FRUITS["pear"] is module.pear
    assert FRUITS.find("pear") is module.pear
    assert list(FRUITS) == ["apple", "pear"]
    assert len(FRUITS) == 2
    assert plugins.loaded_files() == (path,)


def test_what_a_file_imports_is_not_its_own_and_another_name_of_a_thing_is_no_other(write: Write) -> None:
    load(write("pear = Fruit('pear')\nalso = pear\nown = APPLE"))
    assert FRUITS["apple"] is APPLE
    assert list(FRUITS) == ["apple", "pear"]


def test_a_file_is_run_once(write: Write) -> None:
    path = write("pear = Fruit('pear')")
    assert load(path) is load(path.parent / "." / path.name)


def test_an_origin_is_a_file_with_the_hash_of_what_was_run(write: Write) -> None:
    path = write("pear = Fruit('pear')")
    load(path)
    name, before = FRUITS.origin("pear") or ("", "")
    path.write_text("changed since")
    assert FRUITS.origin("pear") == (name, before) == ("mine.py", before)
    assert len(before) == 64
    assert FRUITS.origin("apple") is None


BAD = {
    "pear = (": "line 2, cannot be loaded: SyntaxError: '(' was never closed",
    "x = 1\nx / 0": "line 3, cannot be loaded: ZeroDivisionError: division by zero",
    "import no_such_library": "line 2, cannot be loaded: ModuleNotFoundError: No module named 'no_such_library'",
    "def f():\n    raise ValueError\nf()": "line 3, cannot be loaded: ValueError",
    "raise SystemExit(3)": "line 2, cannot be loaded: SystemExit: 3",
    "\n\npear = Fruit('apple')": "PATH defines a fruit 'apple', and there is another: rename it",
    "pear = Fruit('pear')\nplum = Fruit('pear')": "PATH defines a fruit 'pear', and there is another",
    "pear = Fruit('a pear')": "A fruit of PATH has the name 'a pear': use letters, digits",
    "pear = Fruit(7)": "A fruit of PATH has the name 7: use letters, digits",
    "pear: Fruit = Fruit('pear', -1)": "The fruit 'pear' of PATH cannot be used as a fruit: ValueError: a price",
    "pear = 1": "PATH defines nothing of its own that has a name (a fruit)",
}


@pytest.mark.parametrize("text", BAD)
def test_a_bad_file_is_one_sentence_with_its_line_and_nothing_stays(text: str, write: Write) -> None:
    path = write(text)
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert str(path) in str(caught.value)
    assert BAD[text].replace("PATH", str(path)) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not plugins.loaded()
    path.write_text(HEAD + "pear = Fruit('pear')")  # put right, it can be loaded
    assert load(path).pear.name == "pear"


def test_no_file_no_python_file_and_no_text(tmp_path: Path, write: Write) -> None:
    (tmp_path / "folder.py").mkdir()
    for path in (tmp_path / "none.py", tmp_path / "folder.py", write("", "mine.txt")):
        with pytest.raises(ConfigError, match="There is no plugin file"):
            load(path)
    (tmp_path / "binary.py").write_bytes(b"\xff\x00\xfe")
    with pytest.raises(ConfigError, match="cannot be loaded: SyntaxError"):
        load(tmp_path / "binary.py")


def test_two_files_of_one_name_or_with_things_of_one_name(write: Write) -> None:
    load(write("pear = Fruit('pear')"))
    with pytest.raises(ConfigError, match=r"Two plugin files have the name mine\.py"):
        load(write("plum = Fruit('plum')", "other/mine.py"))
    with pytest.raises(ConfigError, match=r"theirs\.py defines a fruit 'pear', and there is another"):
        load(write("again = Fruit('pear')", "theirs.py"))
    assert list(FRUITS) == ["apple", "pear"]


def test_an_interrupt_is_none_of_the_files_errors(write: Write) -> None:
    with pytest.raises(KeyboardInterrupt):
        load(write("raise KeyboardInterrupt"))
    assert not plugins.loaded()


# ---------------------------------------------------------------------- classes


class Animal:
    name: str

    def __init_subclass__(cls) -> None:
        cls.__abstractmethods__ = frozenset({"sound"} - set(dir(cls)))  # type: ignore[attr-defined]


def _is_animal(thing: object) -> bool:
    return isinstance(thing, type) and issubclass(thing, Animal)


ANIMALS: Registry[type[Animal]] = Registry("animal", (), _is_animal)


def test_a_class_without_a_name_of_its_own_is_a_base(write: Write) -> None:
    text = """
    from tests.system.test_plugins import Animal
    class Loud(Animal):
        sound = "!"
    class Dog(Loud):
        name = "dog"
    class Puppy(Dog):
        sound = "?"
    """
    plugins.load(write(text), [ANIMALS])
    assert list(ANIMALS) == ["dog"]


def test_a_class_that_is_not_complete_says_what_it_lacks(write: Write) -> None:
    path = write("from tests.system.test_plugins import Animal\n\nclass Fish(Animal):\n    name = 'fish'")
    with pytest.raises(ConfigError, match=r"'fish' of .*mine\.py is no complete animal: it lacks sound\."):
        plugins.load(path, [ANIMALS])


# ---------------------------------------------------------------------- entry points


PACKAGED = {"orchard": HEAD + "pear = Fruit('pear')\nplum = Fruit('plum', -1)\n"}


def test_an_entry_point_is_found_by_name_and_loaded_when_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_package(tmp_path, monkeypatch, PACKAGED, {"ipal.fruits": {"pear": "orchard:pear"}})
    assert "pear" in FRUITS
    assert list(FRUITS) == ["apple", "pear"]
    assert list(FRUITS.here()) == ["apple"]
    assert FRUITS.origin("pear") == ("orchard", "1.0")
    assert "orchard" not in sys.modules
    assert FRUITS.find("pear") == Fruit("pear")
    assert "orchard" in sys.modules


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("pear", "nowhere:pear", "cannot be loaded: ModuleNotFoundError: No module named 'nowhere'"),
        ("pear", "orchard:none", "cannot be loaded: AttributeError"),
        ("pear", "orchard:HEAD", "cannot be loaded: AttributeError"),
        ("pear", "orchard:plum", "is no fruit of that name"),
        ("pear", "orchard:Fruit", "is no fruit of that name"),
        ("plum", "orchard:plum", "cannot be used as a fruit: ValueError: a price below zero"),
    ],
)
def test_a_bad_entry_point_is_one_sentence_with_its_package(
    name: str, value: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_package(tmp_path, monkeypatch, PACKAGED, {"ipal.fruits": {name: value}})
    with pytest.raises(ConfigError) as caught:
        FRUITS.find(name)
    assert f"The fruit '{name}' ({value}) of the package orchard 1.0 {words}" in str(caught.value)


def test_a_package_cannot_take_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_package(tmp_path, monkeypatch, PACKAGED, {"ipal.fruits": {"apple": "orchard:pear"}})
    with pytest.raises(ConfigError, match=r"package orchard 1\.0 names a fruit 'apple', and there is another"):
        list(FRUITS)
    assert FRUITS["apple"] is APPLE


def test_an_unknown_name_is_told_the_nearest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_package(tmp_path, monkeypatch, PACKAGED, {"ipal.fruits": {"pear": "orchard:pear"}})
    with pytest.raises(ConfigError, match=r"Unknown fruit 'paer'\. Did you mean 'pear'\?"):
        FRUITS.find("paer")
    assert "orchard" not in sys.modules


# ---------------------------------------------------------------------- what was made with a plugin


def test_what_needs_a_plugin_asks_for_it_and_warns_where_it_has_changed(write: Write) -> None:
    path = write("pear = Fruit('pear')")
    with pytest.raises(ConfigError, match=r"This run was made with the plugin mine\.py, .*--plugin mine\.py"):
        plugins.require({"mine.py": "0"}, "This run")
    load(path)
    recorded = dict([FRUITS.origin("pear") or ("", "")])
    plugins.require(recorded, "This run")
    with pytest.warns(UserWarning, match=r"This run was made with another version of the plugin mine\.py"):
        plugins.require({"mine.py": "0"}, "This run")


def test_what_needs_a_package_asks_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="plugin orchard, which is not loaded: install the package orchard"):
        plugins.require({"orchard": "1.0"}, "This run")
    install_package(tmp_path, monkeypatch, PACKAGED, {})
    plugins.require({"orchard": "1.0"}, "This run")
    with pytest.warns(UserWarning, match="another version of the plugin orchard"):
        plugins.require({"orchard": "2.0"}, "This run")


@pytest.mark.parametrize("named", [None, 3, [], {"package": "1.0"}, {"../../mine.py": 7}])
def test_a_model_from_anywhere_can_name_files_only(named: Any) -> None:
    found = plugins.named_in({"plugins": named})
    assert found == ({"mine.py": "7"} if isinstance(named, dict) and "package" not in named else {})
