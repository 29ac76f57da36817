"""What stands in the tables."""

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from ipal.report import cells, paper, tables
from ipal.report.collect import Comparison, choose_manifests, read_bench
from ipal.report.tables import all_tables, protocol, remarks
from tests.report.support import write_entry, write_manifest


def benches(runs: Path, *names: str) -> list[Comparison]:
    return [read_bench(manifest, runs) for manifest in choose_manifests(runs, names)]


def pages(chosen: list[Comparison]) -> dict[str, str]:
    """Every table as Markdown, by the name of its file."""
    return {one.stem: one.files[f"{one.stem}.md"] for one in all_tables(chosen)}


def five(mean: float, step: float = 1.0) -> list[float]:
    """Scores of five seeds."""
    return [mean + step * place for place in (-2, -1, 0, 1, 2)]


def line(text: str, start: str) -> list[str]:
    """The cells of the one row that starts so."""
    (found,) = [row for row in text.splitlines() if row.startswith(f"| {start}")]
    return [cell.strip() for cell in found.strip("|").split(" | ")]


def test_best_is_bold_second_underlined_and_joint_not_ranked(runs):
    text = pages(benches(runs))["table1"]
    assert line(text, "Joint †")[:3] == ["Joint †", "95.00 ± 1.00", "–"]
    assert line(text, "ER-GNN †")[1:3] == ["**81.00 ± 1.00**", "<u>−8.00 ± 0.00</u>"]
    assert line(text, "IPAL")[1:3] == ["<u>80.00 ± 1.00</u>", "**−5.00 ± 0.00**"]
    assert line(text, "EWC")[1] == "50.00 ± 2.00"
    assert line(text, "EWC")[3:] == ["", ""], "it was not run on the other graph"
    assert "† stores raw nodes of earlier tasks." in text


def test_rows_stand_in_the_papers_order_and_others_after_them(runs):
    table = tables.wide(benches(runs, "table1-cs", "table1-proxy"))
    assert [row[0].text for row in table.rows] == ["Joint †", "EWC", "ER-GNN †", "IPAL", "own_one & 50 %"]
    assert list(table.columns)[1:] == ["CS-CL AP ↑", "CS-CL AF ↑", "corafull-proxy AP ↑", "corafull-proxy AF ↑"]


def test_the_caption_names_the_protocol(runs):
    made = all_tables(benches(runs, "table1-cs"))[0]
    assert made.table.caption == "AP and AF in %, test graph isolated, mean ± standard deviation over 3 seeds."
    for words in ("seeds 0 to 2", "train graph isolated", "test graph isolated", "transductive", "balanced",
                  "train share 0.6", "CS-CL 5+2+2+2+2+2"):  # fmt: skip
        assert words in made.how


def test_details_have_the_papers_numbers_and_the_settings(runs):
    text = pages(benches(runs))["details-table1-cs"]
    assert line(text, "ER-GNN †")[3:5] == ["81.19 ± 1.82", "−17.15 ± 2.20"]
    assert line(text, "EWC")[3:] == ["48.11 ± 4.73", "−57.49 ± 5.84", "0 to 2", "`ewc.strength=100.0` (of 3)"]
    assert "ipal bench experiments/table1-cs.yaml" in text


def test_differences_stand_where_five_seeds_are_behind_both_rows(runs):
    entries = [write_entry(runs, "cs", "ipal", five(80.0)), write_entry(runs, "cs", "ewc", five(50.0, 2.0))]
    write_manifest(runs, "table1-cs", [*entries, write_entry(runs, "cs", "mas", five(60.0)[:4])], seeds=5)
    text = pages(benches(runs, "table1-cs"))["details-table1-cs"]
    # EWC's differences are -32 to -28, of two comparisons: t of 4 degrees at 0.9875 is 3.4954; -30 ± 3.4954 / sqrt(2).
    assert line(text, "EWC")[3] == "−30.00 [−32.47, −27.53]"
    assert line(text, "MAS")[3] == ""
    assert line(text, "IPAL")[3] == "reference"
    assert "AP against IPAL [95 %]" in text
    assert "Student's 95 % interval" in " ".join(text.split())


def test_fewer_than_five_seeds_have_no_differences(runs):
    entries = [write_entry(runs, "cs", "ipal", five(80.0)[:4]), write_entry(runs, "cs", "ewc", five(50.0, 20.0)[:4])]
    write_manifest(runs, "table1-cs", entries, seeds=4)
    text = pages(benches(runs, "table1-cs"))["details-table1-cs"]
    assert "against" not in text
    assert "interval" not in text


def test_rows_are_compared_with_the_best_where_the_papers_method_is_not_among_them(runs):
    entries = [write_entry(runs, "cs", name, five(mean)) for name, mean in (("ewc", 50.0), ("mas", 40.0))]
    write_manifest(runs, "table1-cs", entries, seeds=5)
    text = pages(benches(runs, "table1-cs"))["details-table1-cs"]
    assert "AP against EWC [95 %]" in text
    assert line(text, "MAS")[3] == "−10.00 [−10.00, −10.00]"


def test_ablations_stand_beside_table_2_and_a_proxy_alone(runs):
    assert "paper" not in pages(benches(runs))["details-table1-proxy"]
    text = pages(benches(runs))["details-table2-cs"]
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
    text = pages(benches(runs, "table1-cs"))["details-table1-cs"]
    assert line(text, "IPAL, paper's encoder")[3] == "83.07 ± 2.16"
    assert line(text, "IPAL |")[3] == ""


def test_further_numbers_have_time_memory_and_and_exemplars(runs):
    text = pages(benches(runs))["further-table1-cs"]
    assert line(text, "ER-GNN †")[-5:] == ["20.0 s", "0.33 s", "570.0 MB", "1.5 MB", "no"]
    assert "LA ↑" in text
    assert "a processor, threads: 1" in text


def test_latex_escapes_and_marks(runs):
    table = replace(tables.wide(benches(runs, "table1-cs")), caption="100 % of {all} #1")
    text = cells.latex(table, "tab:x", "† is a sign.")
    assert r"\caption{100 \% of \{all\} \#1}" in text
    assert r"own\_one \& 50 \% & 61.00 $\pm$ 1.00 & $-$10.00 $\pm$ 0.00 \\" in text
    assert r"ER-GNN $^{\dagger}$ & \textbf{81.00 $\pm$ 1.00} & \underline{$-$8.00 $\pm$ 0.00}" in text
    assert text.count("{") - text.count(r"\{") == text.count("}") - text.count(r"\}")
    assert r"{\footnotesize $^{\dagger}$ is a sign.}" in text


def test_every_kind_of_table_is_also_latex_and_csv(runs):
    made = {one.stem: one for one in all_tables(benches(runs))}
    assert made.keys() > {"table1", "table2", "details-table1-cs", "further-table1-cs"}
    for stem, one in made.items():
        page, latex, values = (one.files[f"{stem}.{suffix}"] for suffix in ("md", "tex", "csv"))
        assert page.startswith(one.table.caption[:40]), stem
        (shown,) = re.findall(r"\\caption\{(.*)\}$", latex, re.MULTILINE)
        assert len(shown.split()) <= 25, stem
        assert "test graph isolated" in shown, stem
        assert "3 seeds" in shown, stem
        assert latex.isascii(), (stem, {sign for sign in latex if not sign.isascii()})
        assert latex.count("{") - latex.count(r"\{") == latex.count("}") - latex.count(r"\}")
        assert "`" not in latex
        rows = list(csv.DictReader(io.StringIO(values)))
        assert rows, stem
        assert None not in rows[0], "a row longer than its heading"
    rows = csv.DictReader(io.StringIO(made["details-table1-cs"].files["details-table1-cs.csv"]))
    found = {row["method"]: row for row in rows}
    assert float(found["EWC"]["AP"]) == pytest.approx(50.0)
    assert float(found["EWC"]["AP (standard deviation)"]) == pytest.approx(2.0)
    assert found["Joint †"]["AF"] == ""


def test_damaged_and_unfinished_runs_are_named_and_stop_nothing(tmp_path):
    runs = tmp_path / "runs"
    whole = write_entry(runs, "cs", "ipal", [80.0, 81.0, 82.0])
    broken = write_entry(runs, "cs", "ewc", [90.0, 91.0, 92.0], failures={"r": "no memory"})
    hollow = write_entry(runs, "cs", "mas", [90.0, 91.0, 92.0])
    empty = whole.model_copy(update={"label": "lwf", "method": "lwf", "runs": ()})
    (runs / broken.runs[0] / "result.json").write_text("{")
    (runs / broken.runs[1] / "result.json").unlink()
    result = json.loads((runs / hollow.runs[2] / "result.json").read_text())
    (runs / hollow.runs[2] / "result.json").write_text(json.dumps(result | {"timing": None}))
    write_manifest(runs, "table1-cs", [whole, broken, hollow, empty])
    text = pages(benches(runs))["table1"]
    assert line(text, "EWC")[1] == "92.00 (one seed)"
    assert line(text, "MAS")[1] == "90.50 ± 0.71 (2 seeds)"
    assert line(text, "LwF")[1:] == ["", ""]
    assert line(text, "IPAL")[1] == "81.00 ± 1.00", "there is none to rank it with"
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
    assert remarks([one]) == ["a, MAS: another protocol than the other rows (test graph seen), so not ranked."]
    assert "test graph isolated" in protocol([one, other])
    assert "test graph seen" in protocol([one, other])
    assert line(pages([one])["details-a"], "MAS")[1] == "91.00 ± 1.00"
    assert "paper AP" not in pages([other])["details-b"]
    assert "CS-CL, a AP ↑" in tables.wide([one, other]).columns
    both = pages([one, other])
    assert "81.00 ± 1.00" in line(both["table1"], "IPAL")[1]
    assert "71.00 ± 1.00" in line(both["table1-seen"], "IPAL")[1]


def test_rows_are_compared_with_the_row_of_the_papers_name(tmp_path):
    runs = tmp_path / "runs"
    named = write_entry(runs, "cs", "ipal", five(81.0), settings={"train.epochs": 10})
    write_manifest(runs, "a", [write_entry(runs, "cs", "ipal", five(91.0), "IPAL, default"), named], seeds=5)
    assert line(pages(benches(runs))["details-a"], "IPAL, default")[3].startswith("+10.00")


def test_a_study_has_its_own_table_and_is_no_part_of_table_1(runs):
    write_manifest(runs, "why-cs", [write_entry(runs, "cs", "bare", [16.0, 17.0, 18.0], "Bare, long")], "study")
    texts = pages(benches(runs))
    assert line(texts["details-why-cs"], "Bare, long")[1] == "17.00 ± 1.00"
    assert "Bare" not in texts["table1"]
