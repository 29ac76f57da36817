"""Tables that other groups printed, with our rows under the same protocol, as Markdown.

    ipal bench experiments/llm4gcl-cora.yaml --json > published.json
    python scripts/published.py published.json --write

Each FILE was written by `ipal bench --json`; of an entry that is in several files the last one counts. With `--write`
every table goes between its marks in docs/published.md; else it is printed. Experiments not named here are passed over.
"""

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "docs" / "published.md"
Rows = Mapping[str, Mapping[str, Any]]

FINE_TUNED = "-77 to -81"
"""AF of six rows of GraphKeeper's table: a range is known, not each."""

# fmt: off
PRINTED: dict[str, dict[str, Any]] = {
    "graphkeeper-group3": {
        "source": "GraphKeeper, arXiv 2511.00097, Group 3",
        "rows": {
            "Joint": ("78.0 ± 0.3", ""), "fine-tuning": ("20.9", FINE_TUNED), "EWC": ("20.8", FINE_TUNED),
            "MAS": ("18.9", FINE_TUNED), "GEM": ("21.7", FINE_TUNED), "LwF": ("20.2", FINE_TUNED),
            "TWP": ("20.0", FINE_TUNED), "ER-GNN": ("28.7", "-66.3"), "SSM": ("15.6", "-31.0"), "TPP": ("57.1", "0"),
            "PDGNNs": ("65.5", "-11.4"), "DeLoMe": ("70.2", "-1.0"), "GraphKeeper": ("80.6 ± 0.4", "0.0"),
        },
    },
    "hopral-computers": {
        "source": "HOP-RAL, 2026 manuscript",
        "rows": {
            "Joint GCN": ("95.7 ± 0.3",), "fine-tuning": ("19.8",), "EWC": ("19.7",), "LwF": ("19.7",),
            "ER-GNN": ("20.0",), "AL-GNN-style base": ("56.7 / 79.4",), "HOP-RAL": ("96.8 ± 0.2", "-1.3"),
            "HOP-RAL without concatenated hops": ("97.1",),
        },
    },
    "fewshot-cs": {
        "source": "LPMC, arXiv 2609.25781, Table 3",
        "rows": {
            "ER-GNN": ("30.1 / 38.4",), "EWC": ("38.6 / 38.7",), "TWP": ("52.0 / 44.4",), "MAS": ("63.9 / 60.7",),
            "Geometer": ("29.6 / 28.1",), "HAG-Meta": ("6.7 / 11.2",), "Mecoin": ("62.2 / 77.5",),
            "LPMC": ("73.3 / 84.1",),
        },
    },
    "fewshot-computers": {
        "source": "LPMC, arXiv 2609.25781, Table 3",
        "rows": {
            "ER-GNN": ("16.7 / 40.8",), "EWC": ("16.7 / 40.8",), "TWP": ("16.7 / 40.8",), "MAS": ("21.6 / 44.8",),
            "Geometer": ("13.2 / 27.2",), "HAG-Meta": ("10.0 / 14.1",), "Mecoin": ("67.7 / 74.6",),
            "LPMC": ("81.0 / 88.5",),
        },
    },
    "llm4gcl-cora": {
        "source": "LLM4GCL, global testing",
        "rows": {
            "GCN": ("57.0 / 38.2",), "EWC": ("56.0 / 31.0",), "LwF": ("55.7 / 30.8",), "Cosine": ("65.4 / 45.2",),
            "TPP": ("45.7 / 13.7",), "SimpleCIL (RoBERTa)": ("70.8 / 58.3",), "LLaMA": ("65.6 / 53.8",),
            "GraphPrompter": ("61.9 / 46.8",), "SimGCL, 2 hops": ("84.6 / 80.0",), "SimGCL, 1 hop": ("89.4 / 83.9",),
        },
    },
    "llm4gcl-citeseer": {
        "source": "LLM4GCL, global testing",
        "rows": {
            "GCN": ("52.4 / 30.2",), "EWC": ("45.9 / 28.5",), "LwF": ("47.8 / 28.2",), "Cosine": ("50.7 / 31.0",),
            "TPP": ("45.4 / 9.6",), "SimpleCIL (RoBERTa)": ("66.4 / 49.5",), "LLaMA": ("55.7 / 31.7",),
            "GraphPrompter": ("60.2 / 30.6",), "SimGCL, 2 hops": ("77.1 / 66.3",), "SimGCL, 1 hop": ("76.4 / 64.2",),
        },
    },
}
"""By experiment: the source, and by method what it printed in %, in the first columns below."""
# fmt: on

FEW_SHOT = {
    "printed, last / mean": (),
    "micro, last / mean": ("overall_accuracy", "mean_overall_accuracy"),
    "balanced, last / mean": ("class_accuracy", "mean_class_accuracy"),
}
GLOBAL = {"micro, mean / last": ("mean_overall_accuracy", "overall_accuracy")}
COLUMNS: dict[str, dict[str, tuple[str, ...]]] = {
    "graphkeeper-group3": {"AA": ("average_performance",), "AF": ("average_forgetting",)},
    "hopral-computers": {"average accuracy": ("average_performance",), "BWT": ("average_forgetting",)},
    **dict.fromkeys(("fewshot-cs", "fewshot-computers"), FEW_SHOT),
    **dict.fromkeys(("llm4gcl-cora", "llm4gcl-citeseer"), GLOBAL),
}
"""By experiment: the title of each column, and which of our metrics it has."""

OURS = {"joint": "Joint", "ewc": "EWC", "er-gnn": "ER-GNN", "ipal": "IPAL"}
OURS |= {"ncm": "NCM", "slda": "SLDA", "analytic": "closed form"}
CHANGES = ("average_forgetting",)
"""Not of Joint, which is trained anew on everything."""


def read(paths: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """The rows of all files by experiment and label."""
    found: dict[str, dict[str, Any]] = {}
    for path in paths:
        for name, rows in json.loads(path.read_text(encoding="utf-8")).items():
            found.setdefault(name, {}).update({row["label"]: row for row in rows})
    return found


def score(row: Mapping[str, Any], metric: str) -> str:
    """Mean ± standard deviation, the mean alone of a single seed, or a dash."""
    value = row["metrics"].get(metric, {})
    if value.get("mean") is None or (row["method"] == "joint" and metric in CHANGES):
        return "–"
    return f"{value['mean']:.2f}" + (f" ± {value['sd']:.2f}" if value.get("sd") is not None else "")


def table(name: str, rows: Rows) -> str:
    """What others printed, then ours."""
    columns, printed = COLUMNS[name], PRINTED[name]
    lines = [["method", "source", *columns], ["---"] * (2 + len(columns))]
    for method, cells in printed["rows"].items():
        lines.append([method, "theirs", *cells, *[""] * (len(columns) - len(cells))])
    for label, title in OURS.items():
        if row := rows.get(label):
            cells = [" / ".join(score(row, metric) for metric in metrics) for metrics in columns.values()]
            seeds = len(row["runs"])
            source = f"ours, {seeds} seed{'s' * (seeds != 1)}"
            lines.append([title + " †" * row["stores_exemplars"], source, *cells])
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    missing = [title for label, title in OURS.items() if label not in rows]
    return f"{text}\n\nOurs, not run yet: {', '.join(missing)}." if missing else text


def written(page: str, name: str, text: str) -> str:
    """A page with a table between its marks."""
    begin, end = f"<!-- published: {name} -->", "<!-- end -->"
    page, number = re.subn(f"{begin}.*?{end}", lambda _: f"{begin}\n\n{text}\n\n{end}", page, flags=re.DOTALL)
    if number != 1:
        raise SystemExit(f"The page needs one pair of marks {begin} and {end}; it has {number}.")
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", metavar="FILE", type=Path, nargs="+")
    parser.add_argument("--write", action="store_true", help="into the page, between the marks")
    parser.add_argument("--page", type=Path, default=PAGE)
    asked = parser.parse_args()
    found = read(asked.files)
    tables = {name: table(name, found[name]) for name in PRINTED if name in found}
    if not asked.write:
        print("\n\n".join(f"{name}\n\n{text}" for name, text in tables.items()))
        return
    page = asked.page.read_text(encoding="utf-8")
    for name, text in tables.items():
        page = written(page, name, text)
    asked.page.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
