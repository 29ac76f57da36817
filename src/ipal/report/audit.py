"""Tables and sentences on an audit, for the command and the page of a run."""

from collections.abc import Mapping
from typing import Any

from ipal.report.cells import CellTable, count, number, plural, table


def flagged_table(audit: Mapping[str, Any]) -> CellTable:
    """Classes of few nodes, the smallest first."""
    counts = audit["nodes_behind_class"]
    rows = [
        (name, count(int(counts[name])), "; ".join(reasons.values()))
        for name, reasons in sorted(audit["flagged"].items(), key=lambda item: int(counts[item[0]]))
    ]
    return table("Classes that what is kept reveals", ("class", "nodes", "why"), rows)


def attempts_table(classes: Mapping[str, Mapping[str, Any]]) -> CellTable:
    """How well rows of the smallest classes were reconstructed."""
    known = ("class", "nodes taught", "compared", "cosine to mean", "best cosine", "tells who taught (AUC)")
    caption = "Rows of the smallest classes, reconstructed from what is kept (cosine 1 is the row itself)"
    rows = []
    for name, found in classes.items():
        matrix, mean = found.get("from_matrix", {}), found["from_mean"]
        span, rebuilt = matrix.get("span", {}), matrix.get("rows", {})
        auc, share = span.get("auc_against_same_class"), rebuilt.get("recovered_share")
        auc = span.get("auc_against_others") if auc is None else auc
        cosines = (mean["mean_cosine"], mean["best_cosine"], auc, rebuilt.get("mean_cosine"))
        counts = (count(int(found[what])) for what in ("taught", "compared"))
        why = str(matrix.get("skipped") or rebuilt.get("skipped") or "")
        last = number(None if share is None else 100 * share, 0)
        rows.append((name, *counts, *(number(one, 3) for one in cosines), last, why))
    return table(caption, (*known, "cosine of rebuilt rows", "rebuilt (≥ 0.99) %", "not tried"), rows)


def audit_in_words(audit: Mapping[str, Any]) -> list[str]:
    """How many nodes taught the classes that a model keeps, remarks, and whether rows were found."""
    said, counts = [], audit["nodes_behind_class"]
    if counts:
        fewest = min(counts, key=counts.__getitem__)
        total = f"{sum(counts.values())} training nodes in {plural(len(counts), 'class')}"
        said.append(f"{total}; the fewest, {counts[fewest]}, in class {fewest}.")
    said += [str(remark) for remark in audit["remarks"]]
    for what, found in audit.get("data", {}).get("stored_rows", {}).items():
        where = ", ".join(found["where"])
        verdict = f"{plural(found['found'], 'node')} found, in {where}" if found["found"] else "none found"
        verdict += f"; {found['too_plain']} with too few values were left out" * bool(found["too_plain"])
        said.append(f"Rows of {what} were looked for in the model ({plural(found['looked_for'], 'node')}): {verdict}.")
    return said
