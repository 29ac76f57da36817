"""Configuration files: what is read, and what is refused by name."""

from pathlib import Path

import pytest

from ipal.errors import ConfigError
from ipal.runs.config_files import read_config_file


@pytest.mark.parametrize(
    ("text", "found"),
    [("dataset: cs\ntrain: {epochs: 3}\n", {"dataset": "cs", "train": {"epochs": 3}}), ("# nothing yet\n", {})],
)
def test_a_configuration_file_is_read(tmp_path: Path, text: str, found: dict[str, object]) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(text)
    assert read_config_file(path) == found


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"- a\n- b\n", "'name: value' lines"),
        (b"a: b: c\n", "line 1 is not valid YAML"),
        (b"\xff\xfe\x00a", "cannot be read as text"),
        (b"a: \x00", "is not valid YAML"),
    ],
    ids=str,
)
def test_a_file_that_holds_no_settings_is_refused_by_name(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_config_file(path)
    assert str(path) in str(caught.value)
    assert words in str(caught.value)


def test_a_missing_file_and_a_folder_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml does not exist"):
        read_config_file(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="cannot be read as text"):
        read_config_file(tmp_path)


def test_yaml_that_would_run_code_is_refused_and_not_run(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    path = tmp_path / "a.yaml"
    path.write_text(f"dataset: !!python/object/apply:os.mkdir ['{marker}']\n")
    with pytest.raises(ConfigError):
        read_config_file(path)
    assert not marker.exists()
