"""Optional libraries, which only some commands need."""

from importlib.util import find_spec

from ipal.errors import ConfigError

FIGURES = ("figures", "matplotlib")


def need_extra(extra: str, *modules: str) -> None:
    """Raise an error if a module of an extra is not installed; nothing is imported."""
    if missing := lacking(*modules):
        raise ConfigError(f"This needs {' and '.join(missing)}, which is not installed: pip install 'ipal[{extra}]'.")


def lacking(*modules: str) -> list[str]:
    return [name for name in modules if find_spec(name) is None]
