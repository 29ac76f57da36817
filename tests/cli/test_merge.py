"""`ipal merge`: the same model as one that learned both; all else refused, as by `ipal forget`."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ipal import IPAL, ProtocolConfig, TrainConfig
from ipal.data.datasets import Dataset, load
from ipal.data.streams import TaskStream
from tests.cli.merge_and_forget_support import (
    RUN,
    assert_same,
    counts,
    data_of,
    loaded,
    model,
    saved,
    those,
    view,
    write,
)
from tests.support import Command, complaint

# ---------------------------------------------------------------------- merge


def test_two_runs_on_different_classes_are_merged_to_the_model_that_learned_both(
    command: Command, tiny: Dataset, tmp_path: Path
) -> None:
    folders = []
    for name, classes in (("low", (0, 1, 2)), ("high", (3, 4, 5))):
        write(f"{name}.npz", view(tiny, those(tiny, *classes)))
        folders.append(Path(command("run", "--dataset", f"{name}.npz", *RUN, "--split", "2,1", "--json").json["run"]))
    done = command("merge", "low-analytic", folders[1], "-o", "c.safetensors")
    assert done.code == 0, done.err
    assert "2 models merged: 6 classes" in done.out

    both = loaded(folders[0] / "model.safetensors")
    other = load("high.npz")
    for index in range(2):
        both.partial_fit(data_of(TaskStream(other.graph, other.y, (2, 1), ProtocolConfig(), 0).task(index)))
    merged = loaded("c.safetensors")
    assert_same(merged, both, tiny)
    assert merged.classes_.tolist() == both.classes_.tolist() == [0, 1, 2, 3, 4, 5]

    by_file = command("merge", folders[0] / "model.safetensors", "high", "-o", "d.safetensors", "--json").json
    assert by_file["model"] == str(tmp_path / "d.safetensors")
    assert by_file["nodes_behind_class"] == counts(both)
    assert_same(loaded("d.safetensors"), both, tiny)


def test_three_models_that_share_all_classes_are_merged_to_the_one_that_learned_at_once(
    command: Command, tiny: Dataset
) -> None:
    third = np.arange(len(tiny.y)) % 3
    for index in range(3):
        saved(model().partial_fit(view(tiny, train_mask=third == index)), f"{index}.safetensors")
    done = command("merge", *(f"{index}.safetensors" for index in range(3)), "-o", "c.safetensors")
    whole = model().partial_fit(view(tiny))
    assert_same(loaded("c.safetensors"), whole, tiny)
    assert str(counts(whole)["0"]) in done.out


def test_a_model_is_not_merged_with_itself(command: Command, tiny: Dataset) -> None:
    for name in "ab":
        saved(model().partial_fit(view(tiny, those(tiny, 0, ord(name) - 96))), f"{name}.safetensors")
    complaint(command("merge", "a.safetensors", "./a.safetensors", "-o", "c"), "twice")
    os.symlink("a.safetensors", "link.safetensors")
    complaint(command("merge", "a.safetensors", "link.safetensors", "-o", "c"), "twice")
    complaint(command("merge", "a.safetensors", "-o", "c"), "at least two")
    assert not Path("c").exists()


def test_other_methods_can_neither_be_merged_nor_forget(
    command: Command, pair: Callable[..., None], tiny: Dataset
) -> None:
    pair()
    saved(IPAL(train=TrainConfig(epochs=0)).partial_fit(view(tiny)), "ipal.safetensors")
    before = Path("ipal.safetensors").read_bytes()
    write("g.npz", view(tiny))
    forget = ("forget", "ipal.safetensors", "--class", 0, "--graph", "g.npz")
    complaint(command(*forget), "method 'ipal' cannot forget", "analytic, ncm, slda")
    complaint(command("merge", "a.safetensors", "ipal.safetensors", "-o", "c"), "'analytic'", "'ipal'")
    assert Path("ipal.safetensors").read_bytes() == before
