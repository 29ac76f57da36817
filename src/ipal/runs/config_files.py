"""Settings in YAML files: those of the user, and where the presets are that come with the package."""

from pathlib import Path

from ipal.config import Tree
from ipal.errors import ConfigError
from ipal.system.documents import MOST_YAML, DocumentError, parse_yaml
from ipal.system.files import read_bounded

IN_WHEEL, IN_SOURCE = (Path(__file__).parents[up] / "experiments" for up in (1, 3))
PRESETS = IN_WHEEL if IN_WHEEL.is_dir() else IN_SOURCE
"""The folder of the experiment files."""


def read_config_file(path: Path) -> Tree:
    """The settings of a YAML file."""
    try:
        tree = parse_yaml(read_bounded(path, MOST_YAML).decode())
    except FileNotFoundError as error:
        raise ConfigError(f"The configuration file {path} does not exist.") from error
    except DocumentError as error:
        raise ConfigError(f"The configuration file {path}{error.place} {error}.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The configuration file {path} cannot be read as text.") from error
    if tree is None:
        return {}
    if not isinstance(tree, dict) or not all(isinstance(key, str) for key in tree):
        raise ConfigError(f"The configuration file {path} must hold settings as 'name: value' lines.")
    return tree


def presets() -> dict[str, Path]:
    """The experiment files that come with the package, by the names that `--preset` takes."""
    return {path.stem: path for path in sorted(PRESETS.glob("*.yaml"), key=lambda path: path.stem)}
