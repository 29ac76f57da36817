"""The HTML page of runs, as `ipal run --html` and `ipal report --html` write it."""

from pathlib import Path
from typing import Any

from ipal.cli import render
from ipal.errors import ConfigError
from ipal.runs.run_folder import RunFolder


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
    from ipal.report.page import choose, default_path, make_page
    from ipal.report.page.write import check_path

    chosen = choose(names, runs)
    path = out or default_path(chosen.folders)
    check_path(path)  # before a graph is read
    closer = None
    if len(chosen.folders) == 1:
        closer = _closer(chosen.folders[0], root, nodes, search)
    elif search:
        raise ConfigError("--audit examines the model of one run: name a single run.")
    make_page(chosen.folders, path, closer, labels=chosen.labels, remarks=chosen.remarks)
    render.note(f"Open {path} in a browser.")


def _closer(folder: RunFolder, root: Path | None, nodes: bool, search: bool) -> dict[str, Any]:
    """What the page shows of model and graph; None for a run folder without its model."""
    from ipal.report.page.facts import read_facts

    read_facts(folder)  # errors of the folder come before heavy imports
    if not folder.model.exists():
        return {"remarks": ["The model was not examined: model.safetensors is missing from the run's folder."]}
    from ipal.analysis.run_view import look_closely

    return look_closely(folder, root, nodes=nodes, search=search)
