"""The HTML page of runs, as `ipal run --html` and `ipal report --html` write it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from ipal.cli import render
from ipal.errors import ConfigError
from ipal.runs.run_folder import RunFolder
from ipal.system.optional import need_extra


def write_page(
    names: list[str],
    runs: Path,
    out: Path | None = None,
    root: Path | None = None,
    *,
    nodes: bool = True,
    search: bool = False,
) -> None:
    """Write the page of these runs and print its path."""
    need_extra("html", "jinja2")
    from ipal.report.page import choose, default_path, make_page
    from ipal.report.page.write import check_path

    chosen, remarks = choose(names, runs)
    path = out or default_path(chosen)
    check_path(path)  # before a graph is read
    if len(chosen) == 1:
        chosen = [replace(chosen[0], closer=_closer(chosen[0].folder, root, nodes, search))]
    elif search:
        raise ConfigError("--audit examines the model of one run: name a single run.")
    make_page(chosen, path, remarks)
    render.note(f"Open {path} in a browser.")


def _closer(folder: RunFolder, root: Path | None, nodes: bool, search: bool) -> dict[str, Any]:
    """What the page shows of model and graph."""
    if not folder.model.exists():
        return {"remarks": ["The model was not examined: model.safetensors is missing from the run's folder."]}
    from ipal.analysis.run_view import look_closely

    return look_closely(folder, root, nodes=nodes, search=search)
