"""What the paper prints (Tables 1 and 2), from paper.yaml."""

from pathlib import Path

from ipal.data.names import split_names, stem
from ipal.report.statistics import Spread
from ipal.system.documents import parse_yaml

_DATA = parse_yaml(Path(__file__).with_name("paper.yaml").read_text(encoding="utf-8"))
METHODS: dict[str, str] = _DATA["methods"]
"""Titles by name without signs, in the order of the paper's rows; then those that it leaves out."""
OURS = "ipal"
"""The paper's own method: others are compared with it, and figures bring it out."""
OWN_ENCODER = "IPAL, paper's encoder"
"""The label of its row with the paper's encoder, in a table that also has this package's."""
DATASETS: dict[str, str] = _DATA["datasets"]
SPLITS: dict[str, list[int]] = _DATA["splits"]
PROTOCOL: dict[str, str] = _DATA["protocol"]
FIGURE3: dict[str, str] = _DATA["figure3"]
"""The panels by the switch in which they differ from the whole method."""
GAMMA, GAMMA_RANGE = "ipal.gamma", (0.1, 1.0)
"""Figure 6: the weighting factor and its grid."""
THEOREM1 = ("pr", "pcl")
"""The drift of the second is below that of the first."""


def _printed() -> dict[tuple[str, str], tuple[Spread | None, Spread | None]]:
    found: dict[tuple[str, str], tuple[Spread | None, Spread | None]] = {}
    for name, row in (_DATA["table1"] | _DATA["table2"]).items():
        scores = [None if text == "-" else Spread(*map(float, text.split("±"))) for text in row.split()]
        for dataset, both in zip(DATASETS, zip(scores[::2], scores[1::2], strict=True), strict=False):
            found[dataset, name] = both
    return found


PRINTED = _printed()
"""AP and AF as printed, by (dataset, method) or (dataset, switch); None for a dash, or no number."""


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
    return DATASETS.get(name, " + ".join(map(stem, split_names(name))))
