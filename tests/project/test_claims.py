"""What sentences say of a table, the table says too; and what pages count, the code has."""

import csv
import re

import pytest

import ipal
from ipal.audit import audit
from ipal.bench.experiment_file import as_tree, read_experiment, read_preset
from ipal.config import override, run_config
from ipal.estimator.registry import METHODS
from ipal.nn.encoders import ENCODERS
from ipal.report import paper
from ipal.runs.config_files import presets
from tests.conftest import PROJECT

NUMBERS = {16: "sixteen", 17: "seventeen"}
KEPT = {"Joint †", "GEM †", "ER-GNN †"}
UNTRAINED = {"untrained encoder", "NCM", "SLDA", "analytic"}
PAPERS = paper.OWN_ENCODER
Table = dict[str, dict[str, tuple[float, float]]]


def page(name: str) -> str:
    """A page as one line, so that a sentence is found however it is broken."""
    return " ".join((PROJECT / name).read_text(encoding="utf-8").split())


def rows_of(text: str) -> tuple[list[str], list[list[str]]]:
    """The head and the rows of the first table of a text."""
    body = text[text.index("\n|") :].lstrip().partition("\n\n")[0]
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in body.splitlines()]
    return head, rows


def table(test_graph: str) -> Table:
    """Means and deviations of AP by method and graph, of the file of all numbers."""
    found: Table = {}
    with (PROJECT / "docs" / "tables" / "table1.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if (row["score"], row["test_graph"]) == ("AP", test_graph):
                found.setdefault(row["method"], {})[row["graph"]] = float(row["mean"]), float(row["sd"])
    return found


ISOLATED, SEEN = table("isolated"), table("seen")
GRAPHS = list(ISOLATED["analytic"])


def ahead(one: str, other: str, of: Table) -> list[str]:
    return [graph for graph in GRAPHS if of[one][graph] > of[other][graph]]


def winners(of: Table, without: set[str]) -> dict[str, str]:
    return {graph: max(of.keys() - without, key=lambda method: of[method][graph][0]) for graph in GRAPHS}


def mean(method: str, of: Table) -> float:
    return sum(of[method][graph][0] for graph in GRAPHS) / len(GRAPHS)


def test_the_tables_are_read() -> None:
    assert len(GRAPHS) == 16
    assert ISOLATED["analytic"]["CS-CL"] == (96.56, 0.13)
    assert len(ISOLATED) == len(SEEN) == 20
    assert all(of[method].keys() == set(GRAPHS) for of in (ISOLATED, SEEN) for method in of)


@pytest.mark.parametrize(("of", "mark"), [(ISOLATED, "isolated"), (SEEN, "seen")], ids=["isolated", "seen"])
def test_the_short_table_is_the_long_one(of: Table, mark: str) -> None:
    text = (PROJECT / "docs" / "results.md").read_text(encoding="utf-8")
    head, rows = rows_of(text.partition(f"<!-- table1: {mark} -->")[2])
    assert {row[0] for row in rows} == set(of)
    for method, *cells in rows:
        for graph, cell in zip(head[1:-1], cells, strict=False):
            assert float(cell) == pytest.approx(of[method][graph][0], abs=0.0551)
        assert float(cells[-1]) == pytest.approx(mean(method, of), abs=0.06)


def test_the_closed_form_beside_others() -> None:
    isolated, seen = winners(ISOLATED, KEPT), winners(SEEN, KEPT)
    counts = [list(of.values()).count("analytic") for of in (isolated, seen)]
    words = f"on {counts[0]} of 16 isolated and {counts[1]} of 16 seen graphs"
    assert f"the best method without stored nodes {words}" in page("docs/results.md")
    others = {(graph, who) for of in (isolated, seen) for graph, who in of.items() if who != "analytic"}
    assert others == {("Cora", "SLDA"), ("Chameleon", "SLDA"), ("CiteSeer", "SLDA"), ("Flickr", "NCM")}
    assert f"On {counts[0]} of the 16 isolated and {counts[1]} of the 16 seen graphs" in page("docs/faq.md")
    assert not [graph for of in (ISOLATED, SEEN) for graph in ahead("GEM †", "analytic", of)]
    assert not [graph for of in (ISOLATED, SEEN) for graph in ahead("ER-GNN †", "analytic", of)]


def test_encoders_that_are_trained() -> None:
    text = page("docs/results.md")
    best = [winners(of, KEPT | UNTRAINED) for of in (ISOLATED, SEEN)]
    counts = [list(of.values()).count("IPAL") for of in best]
    assert f"on {counts[0]} isolated and {counts[1]} seen graphs; AdaGauss or DPCR is" in text
    assert {who for of in best for who in of.values()} == {"IPAL", "AdaGauss", "DPCR"}
    counts = [len(ahead("IPAL", "NCM", of)) for of in (ISOLATED, SEEN)]
    assert f"It is above NCM on {counts[0]} isolated and {counts[1]} seen graphs" in text
    assert mean("IPAL", ISOLATED) < mean("SLDA", ISOLATED)
    assert mean("IPAL", SEEN) < mean("SLDA", SEEN)
    assert f"by {mean(PAPERS, ISOLATED) - mean('PCL', ISOLATED):.1f} points in the mean on isolated graphs" in text
    assert min(mean(name, ISOLATED) for name in ("DPCR", "AdaGauss")) > mean(PAPERS, ISOLATED)
    low, *_, high = sorted(round(mean(name, ISOLATED)) for name in ("EWC", "MAS", "TWP", "LwF"))
    assert f"one value for all gives {low} to {high} in the mean" in text


def test_how_much_seeds_differ() -> None:
    deviations = {method: of["CS-CL"][1] for method, of in ISOLATED.items()}
    low, high = min(deviations, key=deviations.__getitem__), max(deviations, key=deviations.__getitem__)
    assert deviations[low] == deviations["SLDA"]
    assert f"{deviations[low]:.1f} (SLDA) to {deviations[high]:.1f} points ({high})" in page("docs/compare.md")


def test_what_seen_graphs_cost() -> None:
    def losses(method: str) -> list[int]:
        return sorted(round(ISOLATED[method][graph][0] - SEEN[method][graph][0]) for graph in GRAPHS)

    (low, *_, high), (first, *_, last) = losses("analytic"), losses("Joint †")
    assert f"The closed form loses {low} to {high} points, Joint {first} to {last}." in page("docs/results.md")


def test_the_table_of_the_closed_form_is_table_1() -> None:
    text = (PROJECT / "docs" / "closed-form.md").read_text(encoding="utf-8").partition("| **isolated** |")[2]
    for half, of in zip(text.partition("\n\n")[0].split("| **seen** |"), (ISOLATED, SEEN), strict=True):
        found = dict(re.findall(r"^\| ([\w-]+) \| [\d.]+ \| ([\d.]+ ± [\d.]+) \|", half, re.MULTILINE))
        assert len(found) == 11
        for graph in found.keys() - {"arxiv-structure"}:  # there on a GPU
            assert found[graph] == "{:.2f} ± {:.2f}".format(*of["analytic"][graph]), graph


def test_the_readme_shows_table_1() -> None:
    head, rows = rows_of((PROJECT / "README.md").read_text(encoding="utf-8").partition("balanced accuracy")[2])
    graphs = [("CS-CL", ISOLATED), ("CS-CL", SEEN), ("Computers", ISOLATED), ("Computers", SEEN)]
    assert len(head) == 5
    for method, *cells in rows:
        for cell, (graph, of) in zip(cells, graphs, strict=True):
            assert cell.strip("*") == "{:.2f} ± {:.2f}".format(*of[method][graph])


def test_ipal_on_cs_cl_has_one_number_of_the_papers_reading_and_one_tuned() -> None:
    """Each on the verdict's first screen, in Table 2, in its preset; Table 1 has the second on a GPU."""
    text = (PROJECT / "docs" / "results.md").read_text(encoding="utf-8").partition("## Table 2")[2]
    table2 = {row[0]: "{:.1f} ± {:.1f}".format(*map(float, row[1].split(" ± "))) for row in rows_of(text)[1]}
    reading, tuned = table2["200 epochs a task, gamma 0.7"], table2["IPAL, all parts"]
    verdict = page("docs/verdict.md")
    assert f"(`--preset paper`) | 83.1 ± 2.2 | **{reading}** |" in verdict
    assert f"(`--preset tuned-cs`) | – | **{tuned}** |" in verdict
    assert "the second setting has {:.1f} ± {:.1f} in Table 1".format(*ISOLATED[PAPERS]["CS-CL"]) in verdict
    rest = as_tree(read_experiment(presets()["table2-cs"]).entries[-1].given)
    for preset, epochs, gamma in (("paper", 200, 0.7), ("tuned-cs", 10, 1)):
        made = run_config(override({"method": "ipal", **rest}, as_tree(read_preset(preset, "ipal"))))
        wanted = run_config(
            override({"method": "ipal", **rest}, {"train": {"epochs": epochs}, "ipal": {"gamma": gamma}})
        )
        assert (made.encoder, made.train, made.settings["gamma"]) == (wanted.encoder, wanted.train, gamma)
    assert "--preset paper" in (PROJECT / "src" / "ipal" / "cli" / "app.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["README.md", "docs/index.md", "docs/closed-form.md"])
def test_where_the_closed_form_is_recommended_a_sentence_says_what_sums_give_away(name: str) -> None:
    before, _, after = page(name).partition("over fewer nodes than columns")
    assert re.match(r".{0,30} determine their rows up to a rotation\. Measure it with `ipal audit`", after)
    assert len(before.split()) < 400, "at its top"


def test_what_sums_give_away_is_what_the_audit_says() -> None:
    digits = ipal.graph_from(ipal.load_dataset("digits"))
    model = ipal.Analytic(calibration=0).partial_fit(digits)
    assert len(digits.y) < model.get_params()["width"]
    assert any("are determined up to a rotation" in remark for remark in audit(model)["remarks"])


def test_methods_and_encoders_are_counted_right() -> None:
    others = METHODS.keys() - {"ipal", "ipal-online"}
    assert f"IPAL (Song et al. 2025) with every part switchable, and {NUMBERS[len(others)]} other methods" in page(
        "docs/index.md"
    )
    assert f"and {NUMBERS[len(others - {'analytic'})]} methods to compare them with" in page("README.md")
    table = page("README.md").partition("## Which method")[2].partition("## Ten lines")[0]
    assert METHODS.keys() == METHODS.keys() & set(re.findall(r"`([\w-]+)`", table))
    kinds = re.findall(r"^\| `(\w+)`(?: \(.*?\))? \|", (PROJECT / "docs" / "encoders.md").read_text(), re.MULTILINE)
    assert set(kinds) - {"encoder"} == set(ENCODERS)
