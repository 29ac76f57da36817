"""`ipal rename` and `relabel`: the model that was taught so; the rest is refused, unchanged."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ipal
from ipal import Analytic
from ipal.data.datasets import Dataset
from tests.cli.merge_and_forget_support import assert_same, counts, loaded, model, saved, view, write
from tests.support import Command, complaint


def test_a_renamed_class_in_a_file(
    command: Command, taught: Callable[..., Analytic], tiny: Dataset, tmp_path: Path
) -> None:
    before = counts(taught())
    done = command("rename", "m.safetensors", 1, "--to", 40, "--json").json
    assert done["model"] == str(tmp_path / "m.safetensors")
    assert done["nodes_behind_class"]["before"] == before
    assert_same(loaded("m.safetensors"), model().partial_fit(view(tiny, y=np.where(tiny.y == 1, 40, tiny.y))), tiny)
    shown = command("rename", "m.safetensors", 40, "--to", 41, "-o", "other.safetensors")
    assert "41" in shown.out
    assert 40 in loaded("m.safetensors").classes_.tolist()
    assert 41 in loaded("other.safetensors").classes_.tolist()


def test_classes_merged_split_and_corrected_in_files(
    command: Command, taught: Callable[..., Analytic], tiny: Dataset
) -> None:
    taught()
    parts = np.where((tiny.y == 2) & (np.arange(len(tiny.y)) % 2 == 0), 9, tiny.y)
    write("parts.npz", view(tiny), new_y=parts)
    assert "relabelled" in command("relabel", "m.safetensors", "--graph", "parts.npz").out
    assert_same(loaded("m.safetensors"), model().partial_fit(view(tiny, y=parts)), tiny)
    right = np.where(np.arange(len(tiny.y)) % 9 == 0, 3, parts)
    write("right.npz", view(tiny, y=parts), new_y=right)
    assert "relabelled" in command("relabel", "m.safetensors", "--graph", "right.npz").out
    assert_same(loaded("m.safetensors"), model().partial_fit(view(tiny, y=right)), tiny)
    command("rename", "m.safetensors", 9, 2, "--to", 2)
    united = np.where(right == 9, 2, right)
    assert_same(loaded("m.safetensors"), model().partial_fit(view(tiny, y=united)), tiny)
    assert [one["what"] for one in loaded("m.safetensors").history_] == ["learned", "relabelled", "merged"]


def test_names_that_are_strings_and_other_methods(command: Command, tiny: Dataset) -> None:
    names = np.array([f"class {label}" for label in tiny.y])
    saved(ipal.NCM().partial_fit(view(tiny, y=names)), "m.safetensors")
    command("rename", "m.safetensors", "class 1", "--to", "7")
    assert "7" in ipal.load("m.safetensors").classes_.tolist()
    saved(ipal.PCL(train={"epochs": 1}).partial_fit(view(tiny)), "p.safetensors")
    before = Path("p.safetensors").read_bytes()
    write("right.npz", view(tiny), new_y=tiny.y + 1)
    assert "'pcl' cannot forget or correct labels exactly" in complaint(
        command("relabel", "p.safetensors", "--graph", "right.npz")
    )
    assert Path("p.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("rename", "m.safetensors", 99, "--to", 1), "Class 99 was never learned"),
        (("rename", "m.safetensors", 0, "--to", "zero"), "are whole numbers"),
        (("rename", "m.safetensors", 0, "--to", 1), "known already"),
        (("relabel", "m.safetensors", "--graph", "plain.npz"), "has no array new_y"),
        (("relabel", "m.safetensors", "--graph", "same.npz"), "changes nothing that the model learned"),
        (("relabel", "m.safetensors", "--graph", "words.npz"), "was never learned"),
        (("rename", "m.safetensors", 0, "--to", 9, "-o", "m.safetensors"), "exists already"),
    ],
)
def test_misuse_is_one_sentence_and_changes_nothing(
    command: Command, taught: Callable[..., Analytic], tiny: Dataset, arguments: tuple[object, ...], words: str
) -> None:
    taught()
    write("plain.npz", view(tiny, y=tiny.y + 50))
    write("same.npz", view(tiny), new_y=tiny.y)
    names = np.char.add("class ", tiny.y.astype(str))
    write("words.npz", view(tiny, y=names), new_y=tiny.y)
    before = Path("m.safetensors").read_bytes()
    assert words in complaint(command(*arguments))
    assert Path("m.safetensors").read_bytes() == before


def test_a_run_keeps_its_log_and_its_result(command: Command, finished: Path) -> None:
    result = (finished / "result.json").read_bytes()
    name = ipal.load(finished / "model.safetensors").classes_.tolist()[0]
    assert "result.json" in command("rename", finished.name, name, "--to", 70).err
    assert "renamed" in (finished / "log.txt").read_text()
    assert (finished / "result.json").read_bytes() == result


# ---------------------------------------------------------------------- ipal show MODEL


def test_a_model_file_is_shown_with_its_history(
    command: Command, taught: Callable[..., Analytic], tiny: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    known = counts(taught())
    write("g.npz", view(tiny))
    command("forget", "m.safetensors", "--class", 1, "--graph", "g.npz")
    command("rename", "m.safetensors", 2, "--to", 40)
    found = command("show", "m.safetensors", "--json").json
    assert found["method"] == "analytic"
    assert found["classes"] == {"40" if name == "2" else name: n for name, n in known.items() if name != "1"}
    assert found["bytes"] == Path("m.safetensors").stat().st_size
    assert [(one["what"], one["classes"], one["into"], one["nodes"]) for one in found["history"]] == [
        ("learned", [name for name in known if name != "1"], [], len(tiny.y) - known["1"]),
        ("forgot", [], [], known["1"]),
        ("renamed", ["2"], ["40"], 0),
    ]
    assert {one["time"] for one in found["history"]} == {"2023-11-14T22:13:20Z"}
    shown = " ".join(command("show", "m.safetensors").out.split())
    for words in ("2023-11-14 22:13:20Z", "2 -> 40", "forgot", "no node is stored", "analytic"):
        assert words in shown


def test_a_model_of_a_run_has_a_history_without_times(command: Command, finished: Path) -> None:
    found = command("show", finished / "model.safetensors", "--json").json
    assert [one["what"] for one in found["history"]] == ["learned"] * len(found["history"])
    assert {one["time"] for one in found["history"]} == {None}
    assert sum(len(one["classes"]) for one in found["history"]) == len(found["classes"])
    assert complaint(command("show", finished / "config.yaml"))
