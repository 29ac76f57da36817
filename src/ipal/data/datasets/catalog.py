"""The graphs known by name: where they lie under the data root, how to read them, how to get them.

A data root holds `pyg/` (a PyTorch Geometric root, one folder per dataset) and `graphs/` (plain .npz files and
graph folders NAME.graph, each a dataset by its name).
"""

import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ipal.data.datasets import builtin
from ipal.data.datasets.folders import holds_graph
from ipal.data.datasets.readers import (
    Reader,
    read_citeseer,
    read_gnn_benchmark,
    read_ogb,
    read_plain,
    read_reddit,
    write_plain,
)
from ipal.data.datasets.synthetic import RedditShaped, Synthetic, synthetic
from ipal.data.datasets.tables.assemble import read_tables
from ipal.data.datasets.tables.files import pair_in
from ipal.data.names import is_table, split_names
from ipal.errors import ConfigError, DataError, did_you_mean, shortened
from ipal.system.plugins import Registry

CORAFULL_SPLIT = (30, 10, 10, 10, 10)
TWENTY_AND_FIVES = (20, 5, 5, 5, 5)
Split = tuple[int, ...] | None


@dataclass(frozen=True)
class DatasetEntry:
    """A named graph: what it is, and where its file lies and who reads it, or what makes it in memory."""

    name: str
    about: str
    path: str = ""
    """Of its file, under the data root."""
    read: Reader = read_plain
    split: Split = None
    """The benchmark's own split; None for the general rule."""
    download: str = ""
    """The stock class that fetches it, as `ipal data --download` calls it, and what it is given."""
    remark: str = ""
    """What a result on this graph must say about itself."""
    beyond_task: bool = False
    """Whether its features were made by looking at nodes of other tasks."""
    costly: bool = False
    """Whether making or reading it is too much for a mere look at all datasets."""
    make: Callable[..., Any] | None = None
    """Makes it in memory, in place of a file: gives an object with `edge_index`, `y` and `x`, as PyG's Data."""
    sizes: type | None = None
    """What can be said of its size behind a colon, as synthetic:nodes=5000; `make` is given it."""


def _benchmark(name: str, about: str, file: str, download: str, split: Split = None) -> DatasetEntry:
    """A graph in the format of Coauthor, Amazon and CitationFull, where their classes put it."""
    return DatasetEntry(name, about, f"pyg/{file}.npz", read_gnn_benchmark, split, download)


def _plain(name: str, about: str, download: str = "", split: Split = None, **more: Any) -> DatasetEntry:
    """A graph in a plain file."""
    return DatasetEntry(name, about, f"graphs/{name}.npz", split=split, download=download, **more)


OWN: tuple[DatasetEntry, ...] = (
    DatasetEntry(
        "digits",
        "8-nearest-neighbour graph over scikit-learn's digits; needs no file",
        split=(4, 2, 2, 2),
        make=builtin.digits,
    ),
    DatasetEntry(
        "synthetic",
        "communities of a chosen size, as synthetic:nodes=5000,classes=10; needs no file",
        make=synthetic,
        sizes=Synthetic,
    ),
    DatasetEntry(
        "reddit-shaped",
        "made up in Reddit's size (115 million edges, 3 GB of memory), or reddit-shaped:scale=0.1; needs no file",
        split=(21, 5, 5, 5, 5),
        remark="made up in Reddit's size and shape: results are not Reddit-CL results",
        costly=True,
        make=lambda size: synthetic(size.as_synthetic()),
        sizes=RedditShaped,
    ),
    _benchmark(
        "cs",
        "Coauthor CS: co-authorship of computer scientists (CS-CL)",
        "CS/raw/ms_academic_cs",
        "Coauthor:CS",
        (5, 2, 2, 2, 2, 2),
    ),
    _benchmark(
        "corafull",
        "CoraFull: citations among 70 topics (CoraFull-CL)",
        "cora/raw/cora",
        "CitationFull:Cora",
        CORAFULL_SPLIT,
    ),
    DatasetEntry(
        "arxiv",
        "ogbn-arxiv: citations of Arxiv papers in computer science (Arxiv-CL)",
        "pyg/ogbn_arxiv/raw",
        read_ogb,
        TWENTY_AND_FIVES,
        "OGB:ogbn-arxiv",
    ),
    DatasetEntry(
        "reddit",
        "Reddit: posts joined by common commenters, the 41st class dropped (Reddit-CL)",
        "pyg/Reddit/raw",
        read_reddit,
        TWENTY_AND_FIVES,
        "Reddit:",
    ),
    _benchmark(
        "physics",
        "Coauthor Physics: co-authorship of physicists",
        "Physics/raw/ms_academic_phy",
        "Coauthor:Physics",
    ),
    _benchmark(
        "computers",
        "Amazon Computers: products bought together",
        "Computers/raw/amazon_electronics_computers",
        "Amazon:Computers",
        (4, 2, 2, 2),
    ),
    _benchmark(
        "photo",
        "Amazon Photo: products bought together",
        "Photo/raw/amazon_electronics_photo",
        "Amazon:Photo",
    ),
    _benchmark("dblp", "DBLP: citations among four fields", "dblp/raw/dblp", "CitationFull:DBLP"),
    _benchmark("cora-ml", "Cora-ML: citations within machine learning", "cora_ml/raw/cora_ml", "CitationFull:Cora_ML"),
    _plain("cora", "Cora: citations among seven topics (the graph of Planetoid)", "Planetoid:Cora"),
    _plain(
        "citeseer",
        "CiteSeer: citations among six topics (the graph of Planetoid)",
        "Planetoid:CiteSeer",
        read=read_citeseer,
        remark="nodes without a word have no label in the source",
    ),
    _plain("pubmed", "PubMed: citations among three kinds of diabetes (the graph of Planetoid)", "Planetoid:PubMed"),
    _plain(
        "flickr",
        "Flickr: users who follow each other, with tags; many edges between classes",
        "AttributedGraphDataset:flickr",
        (3, 2, 2, 2),
    ),
    _plain(
        "blogcatalog",
        "BlogCatalog: bloggers who follow each other, with words; many edges between classes",
        "AttributedGraphDataset:blogcatalog",
        (2, 2, 2),
    ),
    _plain(
        "wiki",
        "Wiki: pages of Wikipedia that link to each other, with words",
        "AttributedGraphDataset:wiki",
        (5, 3, 3, 3, 3),
    ),
    _plain("actor", "Actor: actors named on the same page; edges say little about classes", "Actor:"),
    _plain(
        "chameleon",
        "Chameleon without duplicates: 890 pages of Wikipedia by traffic; edges say little about classes",
    ),
    _plain(
        "corafull-proxy",
        "CoraFull's edges and labels with a spectral embedding in place of its features",
        split=CORAFULL_SPLIT,
        remark="features are a spectral embedding of the whole graph's similarities, not CoraFull's own: "
        "they looked beyond the task, and results on them are not CoraFull-CL results",
        beyond_task=True,
    ),
    _plain(
        "arxiv-structure",
        "ogbn-arxiv's edges and labels with structural features in place of its own",
        split=TWENTY_AND_FIVES,
        remark="features are structural, not ogbn-arxiv's own: results are not Arxiv-CL results",
        beyond_task=True,
    ),
)


def _check(entry: DatasetEntry) -> None:
    if not (entry.make or entry.path):
        raise ConfigError("it says neither make= nor path=")


CATALOG = Registry("dataset", OWN, lambda thing: isinstance(thing, DatasetEntry), _check)


def made_in_memory(name: str) -> DatasetEntry | None:
    """The entry `synthetic` of `synthetic:nodes=5000`; None where the graph is not made in memory."""
    kind, colon, _ = name.partition(":")
    entry = CATALOG.get(kind)
    return entry if entry and entry.make and (entry.sizes or not colon) else None


def data_root(given: Path | None = None) -> Path:
    """The folder given, or the environment variable IPAL_DATA, or ~/.cache/ipal."""
    return given or Path(os.environ.get("IPAL_DATA") or Path.home() / ".cache" / "ipal")


def graph_files(root: Path) -> dict[str, Path]:
    """The plain .npz graphs and graph folders under the data root, by name."""
    inside = root / "graphs"
    return {path.stem: path for path in sorted([*inside.glob("*.npz"), *inside.glob("*.graph")])}


def names_in(text: str, root: Path) -> list[str]:
    """The graphs that a name stands for: one, or several separated by commas."""
    names = [text] if text in graph_files(root) else split_names(text)
    if len(names) > 1 and not all(names):
        raise DataError(
            f"'{shortened(text)}' leaves a name empty: separate names of graphs by single commas, as cora-ml,dblp."
        )
    twice = [name for place, name in enumerate(names) if name in names[:place]]
    if twice:
        raise DataError(f"'{shortened(text)}' names {twice[0]} twice: name every graph once.")
    return names


def find(name: str, root: Path) -> DatasetEntry:
    """The entry of a named graph or of a file, whether or not it is there."""
    if name in CATALOG:
        return CATALOG[name]
    files = graph_files(root)
    if name in files:
        return DatasetEntry(name, f"graph file {files[name].name}", f"graphs/{files[name].name}", read_plain)
    if is_table(name):
        return _of_tables(name)
    if name.endswith((".npz", ".graph")) or "/" in name or (name and pair_in(Path(name))):
        path = _resolved(name)
        if path.is_dir() and pair_in(path):
            return DatasetEntry(str(path), f"tables in {path.name}", str(path), read_tables)
        if path.is_dir() and not holds_graph(path):
            raise DataError(
                f"The folder {path} holds no graph: put nodes.csv and edges.csv there (or .parquet), or write one with "
                "'ipal data NAME --convert FOLDER'."
            )
        if not path.exists():
            raise DataError(f"The graph file {path} does not exist.")
        # An absolute path under any root is itself.
        return DatasetEntry(str(path), f"graph file {path.name}", str(path), read_plain)
    known = [*CATALOG, *files]
    how = "A file is given by its .npz path, a folder by its own with a slash, tables as nodes.csv,edges.csv."
    raise DataError(f"Unknown dataset '{name}'.{did_you_mean(name, known)} {how}")


def _of_tables(name: str) -> DatasetEntry:
    """A table of nodes and a table of edges, in this order, with a comma."""
    parts = name.split(",") if not os.path.exists(name) else [name]
    if len(parts) != 2:
        raise DataError(
            f"'{shortened(name)}' is one table, and a graph is two: name both, nodes first, as nodes.csv,edges.csv, or "
            "the folder of nodes.csv and edges.csv."
        )
    nodes, edges = (_resolved(part.strip()) for part in parts)
    for path in (nodes, edges):
        if not os.path.exists(path):
            raise DataError(f"The table {path} does not exist.")
    about = f"tables {nodes.name} and {edges.name}"
    return DatasetEntry(f"{nodes},{edges}", about, str(nodes), partial(read_tables, edges=edges))


def _resolved(name: str) -> Path:
    try:
        return Path(name).expanduser().resolve()
    except (RuntimeError, ValueError) as error:  # nobody's home, links in a circle, a name that no file has
        raise DataError(f"There is no graph file '{shortened(name)}'.") from error


def all_names(root: Path) -> list[str]:
    """Every name that `--dataset` takes, besides paths and what installed packages offer."""
    return list(dict.fromkeys([*CATALOG.own, *graph_files(root)]))


def describe(name: str, root: Path) -> dict[str, Any]:
    """A named graph as plain facts: what it is, whether it is here, where, how to get it."""
    names = names_in(name, root)
    if len(names) > 1:
        return _described_together(name, [describe(one, root) for one in names])
    if (entry := made_in_memory(name)) is not None:
        here, path = True, "built in" if entry.name in CATALOG.own else "made in memory"
    else:
        entry = find(name, root)
        path = str(root / entry.path)
        here = Path(path).exists()
    facts = {"name": name, "about": entry.about, "split": entry.split, "here": here, "path": path}
    return facts if here else facts | {"how_to_get": how_to_get(name, entry, root)}


def _described_together(name: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
    missing = " ".join(part["how_to_get"] for part in parts if not part["here"])
    facts = {"name": name, "about": "graphs side by side", "split": None, "here": not missing}
    facts["path"] = ", ".join(part["path"] for part in parts)
    return facts | ({"how_to_get": missing} if missing else {})


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
    names = names_in(name, root)
    if len(names) > 1:
        for one in names:
            download(one, root)
        return
    if made_in_memory(name) is not None:
        raise DataError(f"'{name}' is made in memory: it needs no file and no download.")
    entry = find(name, root)
    stock, _, argument = entry.download.partition(":")
    if not stock:
        raise DataError(f"'{name}' cannot be downloaded: bring its file to {root / entry.path}.")
    try:
        fetched = _download(stock, argument, root / "pyg")
        if Path(entry.path).parent.name == "graphs":
            write_plain(root / entry.path, fetched[0])
    except ImportError as error:
        package = str(error.name).partition(".")[0]
        package, extra = (package, package) if package in ("ogb", "pandas") else ("torch-geometric", "pyg")
        raise DataError(f"Downloading '{name}' needs {package}: pip install 'ipal[{extra}]'.") from error
    except (OSError, RuntimeError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"'{name}' could not be downloaded ({error}): {how_to_get(name, entry, root)}") from error


def _download(stock: str, argument: str, pyg: Path) -> Any:
    import importlib

    if stock == "OGB":
        # The class also unpickles a cache of its own making; only the raw files it leaves are read here.
        ogb = importlib.import_module("ogb.nodeproppred")
        return ogb.PygNodePropPredDataset(argument, root=str(pyg))
    made = getattr(importlib.import_module("torch_geometric.datasets"), stock)
    # Names of the others differ from those of these in capitals alone, which are one where a disk does not tell them.
    folder = pyg if stock in ("Coauthor", "Amazon", "CitationFull") else pyg / stock
    return made(str(folder), *filter(None, [argument]))
