"""What the paper prints (Tables 1 and 2), under the names of our datasets and methods."""

from collections.abc import Iterator
from pathlib import Path

from ipal.data.names import TABLES, split_names, stem
from ipal.report.statistics import Spread

Printed = tuple[Spread | None, Spread | None]
"""AP and AF in percent; None where the paper has a dash or no number."""

# Our name of a method, without signs, and its title, in the order of the paper's rows; then what the paper leaves out.
METHODS = {
    "joint": "Joint",
    "bare": "Bare",
    "ewc": "EWC",
    "mas": "MAS",
    "lwf": "LwF",
    "gem": "GEM",
    "twp": "TWP",
    "ergnn": "ER-GNN",
    "polo": "POLO",
    "efc": "EFC",
    "adagauss": "AdaGauss",
    "dpcr": "DPCR",
    "pr": "PR",
    "pcl": "PCL",
    "ipal": "IPAL",
    "ncm": "NCM",
    "slda": "SLDA",
}
OURS = "ipal"
"""The paper's own method: others are compared with it, and figures bring it out."""
OWN_ENCODER = "IPAL, paper's encoder"
"""The label of its row with the paper's encoder, in a table that also has this package's."""
DATASETS = {"cs": "CS-CL", "corafull": "CoraFull-CL", "arxiv": "Arxiv-CL", "reddit": "Reddit-CL"}
SPLITS = {
    "cs": [5, 2, 2, 2, 2, 2],
    "corafull": [30, 10, 10, 10, 10],
    "arxiv": [20, 5, 5, 5, 5],
    "reddit": [20, 5, 5, 5, 5],
}
PROTOCOL = {"train_graph": "isolated", "test_graph": "isolated", "visibility": "transductive"}
FIGURE3 = {
    "ipal.node_weights=uniform": "Mean prototypes",
    "ipal.distillation=fd": "Feature distillation",
    "": "IPAL",
}
"""The panels by the switch in which they differ from the whole method."""
GAMMA, GAMMA_RANGE = "ipal.gamma", (0.1, 1.0)
"""Figure 6: the weighting factor and its grid."""
THEOREM1 = ("pr", "pcl")
"""The drift of the second is below that of the first."""

# AP and AF on each dataset, in the order of DATASETS.
_TABLE1 = """
joint 95.53±0.10 -           74.66±0.47 -           55.19±0.76 -           96.11±0.12 -
bare  43.06±3.95 -63.68±4.84 14.63±0.48 -75.57±0.58 16.30±0.18 -74.41±0.38 19.47±0.58 -96.42±0.69
ewc   48.11±4.73 -57.49±5.84 15.32±0.95 -71.17±2.15 18.04±1.26 -67.91±2.50 20.77±0.89 -94.73±1.25
mas   53.97±3.67 -48.25±4.47 16.82±0.77 -65.27±1.19 21.66±2.93 -45.83±6.20 20.03±1.46 -94.13±1.66
lwf   52.41±3.04 -52.45±3.67 16.51±0.84 -69.31±1.35 16.48±0.33 -74.73±0.18 22.59±2.42 -92.42±2.94
gem   56.56±5.06 -47.44±6.15 19.62±0.23 -64.62±0.68 19.36±0.48 -68.06±0.59 44.99±5.78 -64.04±7.37
twp   55.98±4.17 -47.98±5.29 15.65±0.89 -73.85±1.82 18.58±2.16 -67.38±4.04 23.23±3.21 -91.65±4.02
ergnn 81.19±1.82 -17.15±2.20 19.54±0.43 -67.41±0.54 27.13±0.34 -56.55±0.43 84.64±2.04 -14.06±2.53
polo  60.68±2.32 -16.96±3.90 23.27±1.60 -18.03±1.92 32.03±0.75 -45.48±0.86 92.07±1.13 -1.76±0.79
efc   71.65±2.51 -16.35±3.24 38.75±1.85 -19.55±2.02 30.94±0.41 -40.13±1.48 87.49±1.92 -8.20±2.03
ipal  83.07±2.16 -12.89±2.50 40.69±2.54 -20.60±0.68 33.10±0.84 -20.59±0.69 92.15±0.13 -0.27±0.19
"""

# The rows of Table 2 by the one switch in which they differ from the whole method; AP on the first three datasets.
_TABLE2 = """
ipal.node_weights=uniform 79.93±1.85 39.98±1.44 30.42±0.74
ipal.distillation=none    64.07±4.32 32.50±2.76 16.89±0.25
ipal.distillation=fd      72.79±2.70 36.04±2.83 27.25±0.71
ipal.boundary=False       75.94±3.05 33.63±2.58 31.06±0.42
"""


def _score(text: str) -> Spread | None:
    return None if text == "-" else Spread(*map(float, text.split("±")))


def _printed() -> Iterator[tuple[tuple[str, str], Printed]]:
    for method, *scores in map(str.split, _TABLE1.strip().splitlines()):
        for dataset, performance, forgetting in zip(DATASETS, scores[::2], scores[1::2], strict=True):
            yield (dataset, method), (_score(performance), _score(forgetting))
    # Table 2 reports AP only and covers the first three datasets.
    for switch, *scores in map(str.split, _TABLE2.strip().splitlines()):
        for dataset, performance in zip(DATASETS, scores, strict=False):
            yield (dataset, switch), (_score(performance), None)


PRINTED = dict(_printed())
"""AP and AF as printed, by (dataset, method) or (dataset, switch)."""


def plain_name(name: str) -> str:
    """`ER-GNN`, `er_gnn` and `ergnn` are one method."""
    return "".join(filter(str.isalnum, name.lower()))


def title(name: str) -> str:
    """The paper's title of a method; other names stay as they are."""
    return METHODS.get(plain_name(name), name)


def place(name: str) -> int:
    """The place of a method among the paper's rows; others come after them."""
    return [*METHODS, plain_name(name)].index(plain_name(name))


def dataset_title(name: str) -> str:
    """`CS-CL` for the paper's graphs; for others the name, of a file without its folder; several with plus signs."""
    files = (".npz", ".graph", *TABLES)
    names = [stem(one) if "," in one else Path(one).name if one.endswith(files) else one for one in split_names(name)]
    return DATASETS.get(name, " + ".join(names))
