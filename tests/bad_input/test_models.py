"""Saved models that are damaged, foreign or of another version are refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ipal
from ipal import IPAL, IpalError, StoreError
from ipal.state import State
from tests.bad_input.support import some_data


def test_a_model_file_that_is_not_there_or_a_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"none\.safetensors does not exist"):
        ipal.load(tmp_path / "none.safetensors")
    with pytest.raises(StoreError):
        ipal.load(tmp_path)


@pytest.mark.parametrize("content", [b"", b"hello", bytes(64), b"{}" * 50], ids=str)
def test_a_file_that_is_no_model_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"model\.safetensors"):
        ipal.load(path)


def test_a_model_file_that_is_cut_short_is_refused_wherever_it_is_cut(saved: Path) -> None:
    whole = saved.read_bytes()
    for length in [*range(0, 3000, 101), *range(3000, len(whole), 20011), len(whole) - 1]:
        saved.write_bytes(whole[:length])
        with pytest.raises(StoreError, match=r"model\.safetensors"):
            ipal.load(saved)


def test_a_model_file_with_flipped_bytes_is_never_believed(saved: Path, fitted: IPAL) -> None:
    whole = saved.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    expected = fitted.predict_proba(some_data())
    escaped: dict[str, int] = {}
    for place in [*range(300), *range(300, header, 7), *range(header, len(whole), 9001)]:
        flipped = bytearray(whole)
        flipped[place] ^= 0x01
        saved.write_bytes(flipped)
        try:
            learner = State.load(saved)
            # Only what means nothing may change unnoticed: the blanks that fill the header.
            assert whole[place : place + 1] == b" ", f"byte {place} of {header} changed unnoticed"
            assert learner.facts["method"] == "ipal"
        except StoreError:
            pass
        except Exception as error:
            escaped[f"{type(error).__name__}: {error}"[:90]] = place
    assert not escaped
    saved.write_bytes(whole)
    assert np.array_equal(ipal.load(saved).predict_proba(some_data()), expected)


def test_a_model_of_another_format_version_is_refused_with_both_versions(saved: Path) -> None:
    saved.write_bytes(saved.read_bytes().replace(b"ipal-state-1", b"ipal-state-9"))
    with pytest.raises(StoreError, match=r"'ipal-state-9'.*'ipal-state-1'.*the version that wrote it"):
        ipal.load(saved)


def test_a_safetensors_file_of_somebody_else_is_refused(tmp_path: Path) -> None:
    import safetensors.torch

    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file({"weight": torch.zeros(3)}, path)
    with pytest.raises(StoreError, match="format"):
        ipal.load(path)
    safetensors.torch.save_file({"weight": torch.zeros(3)}, path, metadata={"format": "pt"})
    with pytest.raises(StoreError, match="'pt'"):
        ipal.load(path)


@pytest.mark.parametrize("facts", [{}, {"method": None}, {"method": "other"}, {"progress": {}}])
def test_a_saved_model_of_another_kind_is_refused(tmp_path: Path, facts: dict[str, Any]) -> None:
    path = tmp_path / "model.safetensors"
    State({"weight": torch.zeros(3)}, facts).save(path)
    with pytest.raises(StoreError, match=r"model\.safetensors"):
        ipal.load(path)
    with pytest.raises(StoreError, match=r"model\.safetensors holds .* not 'ipal'"):
        IPAL.load(path)


def test_a_model_whose_parts_are_missing_is_refused(saved: Path) -> None:
    state = State.load(saved)
    for name in state.tensors:
        if not name.startswith("optimizer"):
            State({key: value for key, value in state.tensors.items() if key != name}, state.facts).save(saved)
            with pytest.raises(StoreError):
                ipal.load(saved)


def test_a_model_with_settings_of_another_version_is_refused(saved: Path) -> None:
    state = State.load(saved)
    settings = {**state.facts["settings"], "newer": 1}
    State(state.tensors, {**state.facts, "settings": settings}).save(saved)
    with pytest.raises(IpalError, match="newer"):
        ipal.load(saved)


def test_a_model_cannot_be_saved_where_there_is_no_folder(fitted: IPAL, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"none/model\.safetensors"):
        fitted.save(tmp_path / "none" / "model.safetensors")
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"file/model\.safetensors"):
        fitted.save(tmp_path / "file" / "model.safetensors")
    with pytest.raises(StoreError):
        fitted.save(tmp_path)
