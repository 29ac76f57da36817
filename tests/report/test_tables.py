"""What stands in the tables."""

import csv
import io
import json
import re
from pathlib import Path

import pytest

from ipal.report import paper, tables
from ipal.report.build import all_tables, caption, protocol, remarks
from ipal.report.collect import StoredBench, choose_manifests, read_bench
from ipal.runs.manifest import Failure
from tests.report.support import write_entry, write_manifest


def benches(runs: Path, *names: str) -> list[StoredBench]:
    return [read_bench(manifest, runs) for manifest in choose_manifests(runs, names)]


def blocks(chosen: list[StoredBench], runs: Path) -> dict[str, str]:
    return {key: one.markdown for key, one in all_tables(chosen, runs).items()}


def five(mean: float, step: float = 1.0) -> list[float]:
    """Scores of five seeds."""
    return [mean + step * place for place in (-2, -1, 0, 1, 2)]


def line(text: str, start: str) -> list[str]:
    """The cells of the one row that starts so."""
    (found,) = [row for row in text.splitlines() if row.startswith(f"| {start}")]
    return [cell.strip() for cell in found.strip("|").split(" | ")]


def test_best_is_bold_second_underlined_and_joint_not_ranked(runs):
    text = blocks(benches(runs), runs)["table1"]
    assert line(text, "Joint †")[:3] == ["Joint †", "95.00 ± 1.00", "–"]
    assert line(text, "ER-GNN †")[1:3] == ["**81.00 ± 1.00**", "<u>-8.00 ± 0.00</u>"]
    assert line(text, "IPAL")[1:3] == ["<u>80.00 ± 1.00</u>", "**-5.00 ± 0.00**"]
    assert line(text, "EWC")[1] == "50.00 ± 2.00"
    assert line(text, "EWC")[3:] == ["", ""], "it was not run on the other graph"
    assert "† stores raw nodes of earlier tasks." in text


def test_rows_stand_in_the_papers_order_and_others_after_them(runs):
    table = tables.wide(benches(runs, "table1-cs", "table1-proxy"))
    assert [row[0].text for row in table.rows] == ["Joint †", "EWC", "ER-GNN †", "IPAL", "own_one & 50 %"]
    assert table.groups == ["CS-CL", "corafull-proxy"]


def test_the_caption_names_the_protocol(runs):
    chosen = benches(runs, "table1-cs")
    assert caption(chosen) == "AP and AF in %, test graph isolated, mean ± sample standard deviation over 3 seeds."
    text = protocol(chosen)
    for words in ("seeds 0 to 2", "train graph isolated", "test graph isolated", "transductive", "balanced",
                  "60/20/20", "CS-CL 5+2+2+2+2+2"):  # fmt: skip
        assert words in text


def test_rows_are_also_compared_with_the_best_method_that_keeps_no_nodes(runs):
    better = write_entry(runs, "cs", "ncm", five(90.0))
    same = write_entry(runs, "cs", "ipal", five(80.0))
    upper = write_entry(runs, "cs", "joint", five(95.0), stores=True)
    write_manifest(runs, "table1-cs", [same, better, upper], seeds=5)
    text = blocks(benches(runs), runs)["table1-cs"]
    assert "AP against IPAL [95 %] | AP against the best without exemplars [95 %]" in text
    assert line(text, "NCM")[3:5] == ["+10.00 [+10.00, +10.00]", "reference"]
    assert line(text, "IPAL")[3:5] == ["reference", "-10.00 [-10.00, -10.00]"]
    assert line(text, "Joint †")[4] == "+5.00 [+5.00, +5.00]"


def test_details_have_the_papers_numbers_and_the_settings(runs):
    text = blocks(benches(runs), runs)["table1-cs"]
    assert line(text, "ER-GNN †")[3:5] == ["81.19 ± 1.82", "-17.15 ± 2.20"]
    assert line(text, "EWC")[3:] == ["48.11 ± 4.73", "-57.49 ± 5.84", "`ewc.strength=100.0` (of 3)"]
    assert "ipal bench experiments/table1-cs.yaml" in text


def write_five(runs: Path) -> None:
    """Table 1 with five seeds, four of them for MAS."""
    write_manifest(
        runs,
        "table1-cs",
        [
            write_entry(runs, "cs", "ipal", five(80.0)),
            write_entry(runs, "cs", "ewc", five(50.0, 2.0)),
            write_entry(runs, "cs", "mas", five(60.0)[:4]),
        ],
        seeds=5,
    )


def test_differences_stand_where_five_seeds_are_behind_both_rows(runs):
    write_five(runs)
    text = blocks(benches(runs, "table1-cs"), runs)["table1-cs"]
    # EWC's differences are -32 to -28, of two comparisons: t of 4 degrees at 0.9875 is 3.4954; -30 ± 3.4954 / sqrt(2).
    assert line(text, "EWC")[3] == "-30.00 [-32.47, -27.53]"
    assert line(text, "MAS")[3] == ""
    assert line(text, "IPAL")[3] == "reference"
    assert "Student's 95 % interval" in " ".join(text.split())
    assert "Differences are not shown" not in text


def test_fewer_than_five_seeds_have_no_differences_and_a_sentence_instead(runs):
    entries = [write_entry(runs, "cs", "ipal", five(80.0)[:4]), write_entry(runs, "cs", "ewc", five(50.0, 20.0)[:4])]
    write_manifest(runs, "table1-cs", entries, seeds=4)
    made = all_tables(benches(runs, "table1-cs"), runs)["table1-cs"]
    for text in (made.files[f"{made.stem}.{suffix}"] for suffix in ("md", "tex")):
        assert " ".join(text.split()).count("Differences are not shown: fewer than five seeds.") == 1
        assert "against" not in text
        assert "interval" not in text
    assert "difference" not in made.files[f"{made.stem}.csv"]
    write_manifest(runs, "table1-cs", entries[:1], seeds=4)
    alone = blocks(benches(runs, "table1-cs"), runs)["table1-cs"]
    assert "Differences" not in alone, "there is nothing to compare"


def test_rows_without_a_reference_have_no_column_for_it(runs):
    entries = [write_entry(runs, "cs", name, five(mean)) for name, mean in (("ewc", 50.0), ("mas", 40.0))]
    write_manifest(runs, "table1-cs", entries, seeds=5)
    text = blocks(benches(runs, "table1-cs"), runs)["table1-cs"]
    assert "against IPAL" not in text
    assert line(text, "MAS")[3] == "-10.00 [-10.00, -10.00]"


def test_ablations_stand_beside_table_2_and_a_proxy_alone(runs):
    assert "paper" not in blocks(benches(runs), runs)["table1-proxy"]
    text = blocks(benches(runs), runs)["table2-cs"]
    assert line(text, "fd")[3] == "72.79 ± 2.70"
    assert line(text, "means")[3] == "79.93 ± 1.85"
    assert line(text, "all parts")[3] == "83.07 ± 2.16"


def test_the_papers_numbers_are_as_printed():
    assert paper.PRINTED["reddit", "gem"] == ((44.99, 5.78), (-64.04, 7.37))
    assert paper.PRINTED["corafull", "polo"] == ((23.27, 1.60), (-18.03, 1.92))
    assert paper.PRINTED["arxiv", "joint"] == ((55.19, 0.76), None)
    assert paper.PRINTED["arxiv", "ipal.boundary=False"] == ((31.06, 0.42), None)
    assert len(paper.PRINTED) == 11 * 4 + 4 * 3


def test_the_papers_numbers_are_those_of_its_encoder(runs):
    rows = [
        write_entry(runs, "cs", "ipal", [96.0, 96.5]),
        write_entry(runs, "cs", "ipal", [90.0, 90.5], paper.OWN_ENCODER, {"encoder.kind": "gcn"}),
    ]
    write_manifest(runs, "table1-cs", rows, seeds=2)
    text = blocks(benches(runs, "table1-cs"), runs)["table1-cs"]
    assert line(text, "IPAL, paper's encoder")[3] == "83.07 ± 2.16"
    assert line(text, "IPAL |")[3] == ""


def test_cost_has_time_memory_and_exemplars(runs):
    text = blocks(benches(runs), runs)["table1-cs.cost"]
    assert line(text, "ER-GNN †")[1:] == ["20.0", "0.333", "570 MB", "1.5 MB", "yes"]
    assert "a processor, threads: 1" in text


def test_latex_escapes_and_marks(runs):
    table = tables.wide(benches(runs, "table1-cs"))
    text = tables.latex(table, "100 % of {all} #1", "tab:x", "† is a sign.", ["a remark"])
    assert r"\caption{100 \% of \{all\} \#1}" in text
    assert r"own\_one \& 50 \% & 61.00 $\pm$ 1.00 & $-$10.00 $\pm$ 0.00 \\" in text
    assert r"ER-GNN $^{\dagger}$ & \textbf{81.00 $\pm$ 1.00} & \underline{$-$8.00 $\pm$ 0.00}" in text
    assert r"\multicolumn{2}{c}{CS-CL}" in text
    assert text.count("{") - text.count(r"\{") == text.count("}") - text.count(r"\}")
    assert r"{\footnotesize $^{\dagger}$ is a sign.}" in text
    assert text.endswith("% a remark\n")


def test_csv_holds_every_number_in_full(runs):
    rows = list(csv.DictReader(io.StringIO(tables.numbers(benches(runs, "table1-cs")))))
    (ipal,) = [entry for entry in choose_manifests(runs, ["table1-cs"])[0].entries if entry.label == "ipal"]
    for seed, name in enumerate(ipal.runs):
        result = json.loads((runs / name / "result.json").read_text())
        (row,) = [row for row in rows if (row["row"], row["seed"]) == ("IPAL", str(seed))]
        found = {name: float(row[name]) for name in ("AP", "AF", "LA", "BWT", "FM", "AAUC")}
        diagonal = [row[task] for task, row in enumerate(result["accuracy_matrix"])]
        performance, forgetting = result["average_performance"], result["average_forgetting"]
        assert found.pop("LA") == pytest.approx(sum(diagonal) / len(diagonal))
        assert found.pop("AAUC") == pytest.approx(sum(result["average_performance_curve"]) / len(diagonal))
        assert found.pop("FM") <= forgetting
        assert found == {"AP": performance, "AF": forgetting, "BWT": forgetting}


def test_every_kind_of_table_is_also_latex_and_csv(runs):
    made = all_tables(benches(runs), runs)
    assert {"table1", "table2", "table1-cs", "table1-cs.metrics", "table1-cs.cost"} < set(made)
    assert [key for key in made if key.endswith(".search")], "figure 6 has a grid"
    for key, one in made.items():
        page, latex, values = (one.files[f"{one.stem}.{suffix}"] for suffix in ("md", "tex", "csv"))
        assert page.startswith(one.caption[:40]), key
        (shown,) = re.findall(r"\\caption\{(.*)\}$", latex, re.MULTILINE)
        assert len(shown.split()) <= 25, key
        if not key.endswith((".cost", ".search")):
            assert "test graph isolated" in shown, key
            assert "3 seeds" in shown, key
        assert not re.search(r"[.:;] [A-Z]\w+ ", shown.partition(": ")[2] or shown), f"{key}: more than one sentence"
        table = latex.partition("\\end{table}")[0]
        assert table.isascii(), (key, {sign for sign in table if not sign.isascii()})
        assert table.count("{") - table.count(r"\{") == table.count("}") - table.count(r"\}")
        assert "`" not in table
        rows = list(csv.DictReader(io.StringIO(values)))
        assert rows, key
        assert None not in rows[0], "a row longer than its heading"


def test_the_csv_of_a_table_has_values_in_full_and_deviations_apart(runs):
    made = all_tables(benches(runs), runs)

    def row(key: str, method: str) -> dict[str, str]:
        found = csv.DictReader(io.StringIO(made[key].files[f"{made[key].stem}.csv"]))
        return next(one for one in found if one["method"] == method)

    metrics = row("table1-cs.metrics", "EWC")
    assert float(metrics["AP"]) == pytest.approx(50.0)
    assert float(metrics["AP (standard deviation)"]) == pytest.approx(2.0)
    assert row("table1-cs.metrics", "Joint †")["AF"] == ""
    assert row("table1-cs.cost", "ER-GNN †")["peak memory"] == "570000000.0"


def test_the_caption_of_many_graphs_and_seeds_is_short(runs):
    several = "cora-ml,dblp,cs,physics,photo,computers"
    write_manifest(runs, "graphs", [write_entry(runs, several, "ncm", five(90.0))], "study", several, 5)
    for key, one in all_tables(benches(runs, "graphs"), runs).items():
        assert len(one.caption.split()) <= 27, key


def test_damaged_and_unfinished_runs_are_named_and_stop_nothing(tmp_path):
    runs = tmp_path / "runs"
    whole = write_entry(runs, "cs", "ipal", [80.0, 81.0, 82.0])
    broken = write_entry(runs, "cs", "ewc", [90.0, 91.0, 92.0], failures=(Failure(run="r", reason="no memory"),))
    hollow = write_entry(runs, "cs", "mas", [90.0, 91.0, 92.0])
    empty = whole.model_copy(update={"label": "lwf", "method": "lwf", "runs": ()})
    (runs / broken.runs[0] / "result.json").write_text("{")
    (runs / broken.runs[1] / "result.json").unlink()
    result = json.loads((runs / hollow.runs[2] / "result.json").read_text())
    (runs / hollow.runs[2] / "result.json").write_text(json.dumps(result | {"timing": None}))
    write_manifest(runs, "table1-cs", [whole, broken, hollow, empty])
    text = blocks(benches(runs), runs)["table1"]
    assert line(text, "EWC")[1] == "92.00 (1/3)"
    assert line(text, "MAS")[1] == "90.50 ± 0.71 (2/3)"
    assert line(text, "LwF")[1:] == ["", ""]
    assert line(text, "IPAL")[1] == "**81.00 ± 1.00**"
    told = " ".join(text.split())
    assert f"{broken.runs[0]}/result.json is damaged" in told
    assert f"{hollow.runs[2]}/result.json is damaged" in told
    assert "ewc: 1 of 3 runs are not finished" in told
    assert "lwf: all of 3 runs are not finished" in told
    assert "r failed: no memory" in told


def test_another_protocol_is_said_and_not_ranked(tmp_path):
    runs, seen = tmp_path / "runs", {"test_graph": "seen"}
    usual = [write_entry(runs, "cs", method, [80.0, 81.0, 82.0]) for method in ("ipal", "ewc")]
    write_manifest(runs, "a", [*usual, write_entry(runs, "cs", "mas", [90.0, 91.0, 92.0], protocol=seen)])
    write_manifest(runs, "b", [write_entry(runs, "cs", "ipal", [70.0, 71.0, 72.0], protocol=seen)])
    one, other = benches(runs)
    assert remarks([one]) == ["a, MAS: another protocol than the other rows (test_graph seen), so not ranked."]
    assert "b has another protocol than the rest (test_graph seen)" in " ".join(remarks([one, other]))
    assert line(blocks([one], runs)["a"], "MAS")[1] == "91.00 ± 1.00"
    assert "paper AP" not in blocks([other], runs)["b"]
    assert tables.wide([one, other]).groups == ["CS-CL, a", "CS-CL, b"]
    both = blocks([one, other], runs)
    assert "81.00 ± 1.00" in line(both["table1"], "IPAL")[1]
    assert "71.00 ± 1.00" in line(both["table1-seen"], "IPAL")[1]


def test_rows_are_compared_with_the_row_of_the_papers_name(tmp_path):
    runs = tmp_path / "runs"
    named = write_entry(runs, "cs", "ipal", five(81.0), settings={"train.epochs": 10})
    write_manifest(runs, "a", [write_entry(runs, "cs", "ipal", five(91.0), "IPAL, default"), named], seeds=5)
    assert line(blocks(benches(runs), runs)["a"], "IPAL, default")[3].startswith("+10.00")


def test_unequal_splits_are_said(tmp_path):
    runs = tmp_path / "runs"
    entries = [write_entry(runs, "cs", method, [80.0, 81.0, 82.0]) for method in ("ipal", "ewc")]
    path = runs / entries[1].runs[1] / "result.json"
    path.write_text(path.read_text().replace('"split1"', '"other"'))
    write_manifest(runs, "a", entries)
    assert "a, Rows differ in graph or split of nodes at seed 1: no fair comparison." in remarks(benches(runs))


def test_what_settings_were_chosen_from_is_shown_by_validation_scores(runs):
    text = blocks(benches(runs), runs)["figure6-cs.search"]
    assert [line(text, f"ipal | `ipal.gamma={gamma}`")[2] for gamma in (0.1, 0.5, 1.0)] == [
        "71.00 ± 1.41",
        "**81.00 ± 1.41**",
        "75.00 ± 0.00",
    ]


def test_a_study_has_its_own_table_and_is_no_part_of_table_1(runs):
    write_manifest(runs, "why-cs", [write_entry(runs, "cs", "bare", [16.0, 17.0, 18.0], "Bare, long")], "study")
    texts = blocks(benches(runs), runs)
    assert line(texts["why-cs"], "Bare, long")[1].endswith("17.00 ± 1.00**")
    assert "Bare" not in texts["table1"]
