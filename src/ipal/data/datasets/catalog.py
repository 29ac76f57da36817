"""The graphs known by name (catalog.yaml): where they lie under the data root, how to read them, how to get them.

A data root holds `pyg/` (a PyTorch Geometric root, one folder per dataset) and `graphs/` (plain .npz files and
graph folders NAME.graph, each a dataset by its name).
"""

import importlib
import os
import zipfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ipal.data.datasets import builtin, readers
from ipal.data.datasets.folders import holds_graph
from ipal.data.datasets.readers import RawGraph, read_plain, write_plain
from ipal.data.datasets.tables import pair_in, read_tables
from ipal.data.names import is_table, split_names
from ipal.errors import DataError, did_you_mean, shortened
from ipal.system.documents import parse_yaml
from ipal.system.plugins import Registry


@dataclass(frozen=True)
class DatasetEntry:
    """A named graph: what it is, and where its file lies and who reads it, or what makes it in memory."""

    name: str
    """What `--dataset` calls it."""
    about: str
    """What it is, in a sentence."""
    path: str = ""
    """Of its file, under the data root."""
    read: Callable[[Path], RawGraph] = read_plain
    """Makes a `RawGraph` of the path of the file."""
    split: tuple[int, ...] | None = None
    """The benchmark's own split; None for the general rule."""
    download: str = ""
    """The stock class that fetches it, as `ipal data --download` calls it, and what it is given."""
    remark: str = ""
    """What a result on this graph must say about itself."""
    make: Callable[..., RawGraph] | None = None
    """Makes it in memory, in place of a file."""
    sizes: dict[str, Any] | None = None
    """What can be said behind a colon, as synthetic:nodes=5000, by default; keywords of `make`."""


def _own() -> tuple[DatasetEntry, ...]:
    known: dict[str, dict[str, Any]] = parse_yaml(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
    for entry in known.values():
        entry["read"] = getattr(readers, entry.get("read", "read_plain"))
        entry["make"] = getattr(builtin, entry["make"]) if "make" in entry else None
        entry["split"] = tuple(entry["split"]) if "split" in entry else None
    return tuple(DatasetEntry(name, **entry) for name, entry in known.items())


CATALOG = Registry("dataset", _own(), lambda thing: isinstance(thing, DatasetEntry))


def data_root(given: Path | None = None) -> Path:
    """The folder given, or the environment variable IPAL_DATA, or ~/.cache/ipal."""
    return given or Path(os.environ.get("IPAL_DATA") or Path.home() / ".cache" / "ipal")


def graph_files(root: Path) -> dict[str, Path]:
    """The plain .npz graphs and graph folders under the data root, by name."""
    inside = root / "graphs"
    return {path.stem: path for path in sorted([*inside.glob("*.npz"), *inside.glob("*.graph")])}


def names_in(text: str, root: Path) -> list[str]:
    """The graphs that a name stands for: one, or several separated by commas."""
    return [text] if text in graph_files(root) else split_names(text)


def find(name: str, root: Path) -> DatasetEntry:
    """The entry of a named graph, of one that is made in memory, or of a file, whether or not it is there."""
    kind, colon, _ = name.partition(":")
    known = CATALOG.get(kind)
    if known and (not colon or known.sizes is not None):
        return known
    files = graph_files(root)
    if name in files:
        return DatasetEntry(name, f"graph file {files[name].name}", f"graphs/{files[name].name}")
    if is_table(name):
        pair = [_existing(part.strip()) for part in ([name] if os.path.exists(name) else name.split(","))]
        if len(pair) != 2:
            raise DataError(f"'{shortened(name)}' is one table, and a graph is two: name both, as nodes.csv,edges.csv.")
        return _tables(",".join(map(str, pair)), pair)
    if name.endswith((".npz", ".graph")) or "/" in name or (name and pair_in(Path(name))):
        path = _existing(name)
        if pair := pair_in(path):
            return _tables(str(path), pair)
        if path.is_dir() and not holds_graph(path):
            raise DataError(
                f"The folder {path} holds no graph: put nodes.csv and edges.csv there (or .parquet), or write one with "
                "'ipal data NAME --convert FOLDER'."
            )
        # Known by its full path, which is itself under any root, so that a run finds it again from any folder.
        return DatasetEntry(str(path), f"graph file {path.name}", str(path))
    how = "A file is given by its .npz path, a folder by its own with a slash, tables as nodes.csv,edges.csv."
    raise DataError(f"Unknown dataset '{name}'.{did_you_mean(name, [*CATALOG, *files])} {how}")


def _tables(name: str, pair: Sequence[Path]) -> DatasetEntry:
    nodes, edges = pair
    return DatasetEntry(name, f"tables {nodes.name} and {edges.name}", str(nodes), partial(read_tables, edges=edges))


def _existing(name: str) -> Path:
    path = Path(name)
    with suppress(OSError, RuntimeError, ValueError):  # nobody's home, links in a circle, a name that no file has
        path = path.expanduser().resolve()
        if path.exists():
            return path
    raise DataError(f"The graph file {path} does not exist.")


def describe(name: str, root: Path) -> dict[str, Any]:
    """A named graph as plain facts: what it is, whether it is here, where, how to get it."""
    entries = {one: find(one, root) for one in names_in(name, root)}
    missing = {one: entry for one, entry in entries.items() if not (entry.make or (root / entry.path).exists())}
    several = len(entries) > 1
    entry = next(iter(entries.values()))
    return {
        "name": name,
        "about": "graphs side by side" if several else entry.about,
        "split": None if several else entry.split,
        "here": not missing,
        "path": ", ".join("made in memory" if one.make else str(root / one.path) for one in entries.values()),
        **({"how_to_get": " ".join(how_to_get(*one, root) for one in missing.items())} if missing else {}),
    }


def how_to_get(name: str, entry: DatasetEntry, root: Path) -> str:
    """What to do for a graph that is not there."""
    way = f"run 'ipal data --download {name}', or " if entry.download else ""
    return (
        f"The graph '{name}' is not at {root / entry.path}: {way}put the file there, "
        "or name another data root with --data-root or IPAL_DATA."
    )


def download(name: str, root: Path) -> None:
    """Fetch a graph with PyTorch Geometric's (or OGB's) own class, which knows where it lies.

    Raw files that would need unpickling are read by that class alone, and what it made is written as a plain file.
    """
    for one in names_in(name, root):
        entry = find(one, root)
        stock, _, argument = entry.download.partition(":")
        if not stock:
            instead = "it is made in memory" if entry.make else f"bring its file to {root / entry.path}"
            raise DataError(f"'{one}' cannot be downloaded: {instead}.")
        try:
            _fetch(stock, argument, root, root / entry.path)
        except ImportError as error:
            package = str(error.name).partition(".")[0]
            extra = package if package in ("ogb", "pandas") else "pyg"
            raise DataError(f"Downloading '{one}' needs {package}: pip install 'ipal[{extra}]'.") from error
        except (OSError, RuntimeError, ValueError, zipfile.BadZipFile) as error:
            raise DataError(f"'{one}' could not be downloaded ({error}): {how_to_get(one, entry, root)}") from error


def _fetch(stock: str, argument: str, root: Path, path: Path) -> None:
    if stock == "OGB":  # its class also unpickles a cache of its own making; only its raw files are read here
        importlib.import_module("ogb.nodeproppred").PygNodePropPredDataset(argument, root=str(root / "pyg"))
        return
    # Names of the others differ from those of these in capitals alone, which some disks do not tell apart.
    folder = root / "pyg" if stock in ("Coauthor", "Amazon", "CitationFull") else root / "pyg" / stock
    made = getattr(importlib.import_module("torch_geometric.datasets"), stock)(str(folder), *filter(None, [argument]))
    if path.parent.name == "graphs":
        write_plain(path, made[0])
