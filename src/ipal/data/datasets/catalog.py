"""The graphs known by name: where they lie under the data root, how to read them, how to get them.

A data root holds `pyg/` (a PyTorch Geometric root, one folder per dataset) and `graphs/` (plain .npz files and
graph folders NAME.graph, each a dataset by its name).
"""

import os
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipal.data.datasets.folders import holds_graph
from ipal.data.datasets.readers import Reader, read_gnn_benchmark, read_ogb, read_plain, read_reddit
from ipal.errors import DataError, did_you_mean, shortened

CORAFULL_SPLIT = (30, 10, 10, 10, 10)
TWENTY_AND_FIVES = (20, 5, 5, 5, 5)


@dataclass(frozen=True)
class Entry:
    """A named graph: what it is, where its file lies, who reads it."""

    about: str
    path: str = ""
    """Under the data root."""
    read: Reader = read_plain
    split: tuple[int, ...] | None = None
    """The benchmark's own split; None for the general rule."""
    download: str = ""
    """The stock class that fetches it, as `ipal data --download` calls it."""
    remark: str = ""
    """What a result on this graph must say about itself."""
    beyond_task: bool = False
    """Whether its features were made by looking at nodes of other tasks."""
    costly: bool = False
    """Whether making or reading it is too much for a mere look at all datasets."""


CATALOG: dict[str, Entry] = {
    "cs": Entry(
        "Coauthor CS: co-authorship of computer scientists (CS-CL)",
        "pyg/CS/raw/ms_academic_cs.npz",
        read_gnn_benchmark,
        (5, 2, 2, 2, 2, 2),
        "Coauthor:CS",
    ),
    "corafull": Entry(
        "CoraFull: citations among 70 topics (CoraFull-CL)",
        "pyg/cora/raw/cora.npz",
        read_gnn_benchmark,
        CORAFULL_SPLIT,
        "CitationFull:Cora",
    ),
    "arxiv": Entry(
        "ogbn-arxiv: citations of Arxiv papers in computer science (Arxiv-CL)",
        "pyg/ogbn_arxiv/raw",
        read_ogb,
        TWENTY_AND_FIVES,
        "OGB:ogbn-arxiv",
    ),
    "reddit": Entry(
        "Reddit: posts joined by common commenters, the 41st class dropped (Reddit-CL)",
        "pyg/Reddit/raw",
        read_reddit,
        TWENTY_AND_FIVES,
        "Reddit:",
    ),
    "physics": Entry(
        "Coauthor Physics: co-authorship of physicists",
        "pyg/Physics/raw/ms_academic_phy.npz",
        read_gnn_benchmark,
        download="Coauthor:Physics",
    ),
    "computers": Entry(
        "Amazon Computers: products bought together",
        "pyg/Computers/raw/amazon_electronics_computers.npz",
        read_gnn_benchmark,
        (4, 2, 2, 2),
        "Amazon:Computers",
    ),
    "photo": Entry(
        "Amazon Photo: products bought together",
        "pyg/Photo/raw/amazon_electronics_photo.npz",
        read_gnn_benchmark,
        download="Amazon:Photo",
    ),
    "dblp": Entry(
        "DBLP: citations among four fields",
        "pyg/dblp/raw/dblp.npz",
        read_gnn_benchmark,
        download="CitationFull:DBLP",
    ),
    "cora-ml": Entry(
        "Cora-ML: citations within machine learning",
        "pyg/cora_ml/raw/cora_ml.npz",
        read_gnn_benchmark,
        download="CitationFull:Cora_ML",
    ),
    "corafull-proxy": Entry(
        "CoraFull's edges and labels with a spectral embedding in place of its features",
        "graphs/corafull-proxy.npz",
        read_plain,
        CORAFULL_SPLIT,
        remark="features are a spectral embedding of the whole graph's similarities, not CoraFull's own: "
        "they looked beyond the task, and results on them are not CoraFull-CL results",
        beyond_task=True,
    ),
    "arxiv-structure": Entry(
        "ogbn-arxiv's edges and labels with structural features in place of its own",
        "graphs/arxiv-structure.npz",
        read_plain,
        TWENTY_AND_FIVES,
        remark="features are structural, not ogbn-arxiv's own: results are not Arxiv-CL results",
        beyond_task=True,
    ),
}

# Made in memory: no path.
BUILT_IN: dict[str, Entry] = {
    "digits": Entry("8-nearest-neighbour graph over scikit-learn's digits; needs no file", split=(4, 2, 2, 2)),
    "synthetic": Entry("communities of a chosen size, as synthetic:nodes=5000,classes=10; needs no file"),
    "reddit-shaped": Entry(
        "made up in Reddit's size (115 million edges, 3 GB of memory), or reddit-shaped:scale=0.1; needs no file",
        split=(21, 5, 5, 5, 5),
        remark="made up in Reddit's size and shape: results are not Reddit-CL results",
        costly=True,
    ),
}


def built_in_kind(name: str) -> str | None:
    """`synthetic` of `synthetic:nodes=5000`; None where no built-in graph is meant."""
    kind, colon, _ = name.partition(":")
    return kind if kind in BUILT_IN and not (colon and kind == "digits") else None


def data_root(given: Path | None = None) -> Path:
    """The folder given, or the environment variable IPAL_DATA, or ~/.cache/ipal."""
    return given or Path(os.environ.get("IPAL_DATA") or Path.home() / ".cache" / "ipal")


def graph_files(root: Path) -> dict[str, Path]:
    """The plain .npz graphs and graph folders under the data root, by name."""
    inside = root / "graphs"
    return {path.stem: path for path in sorted([*inside.glob("*.npz"), *inside.glob("*.graph")])}


def find(name: str, root: Path) -> Entry:
    """The entry of a named graph or of a file, whether or not it is there."""
    if name in CATALOG:
        return CATALOG[name]
    files = graph_files(root)
    if name in files:
        return Entry(f"graph file {files[name].name}", f"graphs/{files[name].name}", read_plain)
    if name.endswith((".npz", ".graph")) or "/" in name:
        try:
            path = Path(name).expanduser().resolve()
        except (RuntimeError, ValueError) as error:  # nobody's home, links in a circle, a name that no file has
            raise DataError(f"There is no graph file '{shortened(name)}'.") from error
        if path.is_dir() and not holds_graph(path):
            raise DataError(f"The folder {path} holds no graph: 'ipal data --convert NAME -o FOLDER' writes one.")
        if not path.exists():
            raise DataError(f"The graph file {path} does not exist.")
        # An absolute path under any root is itself.
        return Entry(f"graph file {path.name}", str(path), read_plain)
    known = [*CATALOG, *BUILT_IN, *files]
    how = "A file is given by its .npz path, a folder by its own."
    raise DataError(f"Unknown dataset '{name}'.{did_you_mean(name, known)} {how}")


def all_names(root: Path) -> list[str]:
    """Every name that `--dataset` takes, besides paths."""
    return list(dict.fromkeys([*BUILT_IN, *CATALOG, *graph_files(root)]))


def describe(name: str, root: Path) -> dict[str, Any]:
    """A named graph as plain facts: what it is, whether it is here, where, how to get it."""
    if (kind := built_in_kind(name)) is not None:
        entry, here, path = BUILT_IN[kind], True, "built in"
    else:
        entry = find(name, root)
        path = str(root / entry.path)
        here = Path(path).exists()
    facts = {"name": name, "about": entry.about, "split": entry.split, "here": here, "path": path}
    return facts if here else facts | {"how_to_get": how_to_get(name, entry, root)}


def how_to_get(name: str, entry: Entry, root: Path) -> str:
    """What to do for a graph that is not there."""
    way = f"run 'ipal data --download {name}', or " if entry.download else ""
    return (
        f"The graph '{name}' is not at {root / entry.path}: {way}put the file there, "
        "or name another data root with --data-root or IPAL_DATA."
    )


def download(name: str, root: Path) -> None:
    """Fetch a graph with PyTorch Geometric's (or OGB's) own class, which knows where it lies."""
    if built_in_kind(name) is not None:
        raise DataError(f"'{name}' is built in: it needs no file and no download.")
    entry = find(name, root)
    stock, _, argument = entry.download.partition(":")
    if not stock:
        raise DataError(f"'{name}' cannot be downloaded: bring its file to {root / entry.path}.")
    try:
        _download(stock, argument, root / "pyg")
    except ImportError as error:
        raise DataError(f"Downloading '{name}' needs the ogb package: pip install 'ipal[ogb]'.") from error
    except (OSError, RuntimeError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"'{name}' could not be downloaded ({error}): {how_to_get(name, entry, root)}") from error


def _download(stock: str, argument: str, pyg: Path) -> None:
    import importlib

    if stock == "OGB":
        # The class also unpickles a cache of its own making; only the raw files it leaves are read here.
        ogb = importlib.import_module("ogb.nodeproppred")
        ogb.PygNodePropPredDataset(argument, root=str(pyg))
        return
    datasets = importlib.import_module("torch_geometric.datasets")
    if stock == "Reddit":
        datasets.Reddit(str(pyg / "Reddit"))
    else:
        getattr(datasets, stock)(str(pyg), argument)
