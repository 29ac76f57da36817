"""The page of several runs: rows over seeds, ranks within one protocol, warnings across."""

from pathlib import Path

from ipal.report.collect import choose
from ipal.report.page import make_page
from ipal.runs.run_folder import RunFolder
from tests.report.support import page_of, parse, write_entry, write_manifest, write_whole_run


def test_runs_that_differ_in_the_seed_make_one_row(tmp_path: Path):
    runs = tmp_path / "runs"
    folders = [write_whole_run(runs, seed=seed, gain=float(seed)) for seed in range(3)]
    folders.append(write_whole_run(runs, seed=0, settings={"gamma": 0.7}))
    folders.append(write_whole_run(runs, method="joint", stores=True))
    page = parse(page_of(folders, tmp_path / "page.html"))
    # AP 73.33, 74.33, 75.33: mean 74.33, sample standard deviation 1.
    assert "74.33 ± 1.00" in page.text
    assert "−19.00 ± 1.00" in page.text
    assert "IPAL, gamma=0.7" in page.text
    assert "Joint †" in (tmp_path / "page.html").read_text()
    charts = page.charts
    lines = {trace["name"]: trace for trace in charts["comparison1-dynamics"]["traces"]}
    assert lines["IPAL, gamma=0.7"]["y"][-1] == 220 / 3
    assert [name for name, line in lines.items() if "low" in line] == ["IPAL"], "a row of one seed has no spread"
    assert "5 runs compared" in page.text


def test_best_and_second_are_marked_among_equal_seeds_without_joint(tmp_path: Path):
    runs = tmp_path / "runs"
    folders = [
        write_whole_run(runs, method=name, seed=s, gain=gain)
        for name, gain in (("ipal", 2), ("ewc", 1))
        for s in (0, 1)
    ]
    folders += [write_whole_run(runs, method="joint", seed=seed, gain=20, stores=True) for seed in (0, 1)]
    folders += [write_whole_run(runs, method="mas", gain=10)]
    html = page_of(folders, tmp_path / "page.html").read_text()
    assert "<strong>75.33 ± 0.00</strong>" in html
    assert "<u>74.33 ± 0.00</u>" in html
    assert "<strong>93.33" not in html, "Joint is no contestant"
    assert "<strong>83.33" not in html, "MAS has other seeds"


def test_a_method_has_the_title_that_it_declares_and_is_no_contestant_if_it_keeps_all_tasks(tmp_path: Path):
    runs = tmp_path / "runs"
    folders = [write_whole_run(runs, method=name, gain=gain) for name, gain in (("mine", 9), ("ewc", 1), ("mas", 0))]
    result = folders[0].result()
    result["retained"]["stores_all_tasks"] = True
    folders[0].write_json("result.json", {**result, "title": "My Method"})
    html = page_of(folders, tmp_path / "page.html").read_text()
    assert "My Method" in html
    assert "<strong>74.33</strong>" in html, "EWC is the best of those that are ranked"


def test_protocols_are_never_mixed(tmp_path: Path):
    runs = tmp_path / "runs"
    folders = [
        write_whole_run(runs),
        write_whole_run(runs, method="ewc", gain=-1),
        write_whole_run(runs, protocol={"accuracy": "micro"}, gain=5),
        write_whole_run(runs, method="ewc", protocol={"accuracy": "micro"}),
    ]
    page = parse(page_of(folders, tmp_path / "page.html"))
    assert {"comparison1", "comparison2"} < {attributes["id"] for attributes in page.all("section")}
    assert "mine: accuracy micro" in page.text


def test_a_bench_brings_its_names_and_says_what_is_missing(runs: Path, tmp_path: Path):
    benches, chosen, _ = choose(["table1-cs"], runs)
    assert not chosen
    (benches[0].runs[0].folder.path / "result.json").unlink()
    page = parse(make_page(*choose(["table1-cs"], runs)[:2], tmp_path / "page.html"))
    assert "own_one & 50 %" in page.text
    assert "ipal: 1 of 3 runs are not finished" in page.text
    assert "81.00 ± 1.00" in page.text
    assert "81.19 ± 1.82" in page.text, "the paper's number stands beside"


def test_labels_of_hostile_benches_are_only_text(runs: Path, tmp_path: Path):
    write_manifest(runs, "bad", [write_entry(runs, "cs", "ewc", [60.0, 61.0], "<script>alert(1)</script>")], seeds=2)
    page = parse(make_page(*choose(["bad"], runs)[:2], tmp_path / "page.html"))
    assert len(page.all("script")) == 4
    assert "<script>alert(1)</script>" in page.text


def test_all_runs_and_one_of_them_damaged(tmp_path: Path):
    runs = tmp_path / "runs"
    for seed in range(3):
        write_whole_run(runs, seed=seed)
    broken = write_whole_run(runs, seed=3)
    (broken.path / "result.json").write_text("{")
    _, chosen, remarks = choose([], runs)
    assert len(chosen) == 3
    assert "damaged" in remarks[0]


def _verdict(folders: list[RunFolder], path: Path) -> str:
    text = page_of(folders, path).read_text()
    return text.partition('<p class="verdict">')[2].partition("</p>")[0]


def test_the_best_method_is_highlighted_whichever_it_is(tmp_path: Path):
    runs = tmp_path / "runs"
    folders = [write_whole_run(runs, seed=seed) for seed in (0, 1)]
    folders += [write_whole_run(runs, method="ncm", seed=seed, gain=3) for seed in (0, 1)]
    folders += [write_whole_run(runs, method="joint", seed=seed, gain=9, stores=True) for seed in (0, 1)]
    page = parse(page_of(folders, tmp_path / "page.html"))
    lines = page.charts["comparison1-dynamics"]["traces"]
    assert [line["name"] for line in lines if line["colour"] == "@ink"] == ["NCM"]


def test_the_verdict_says_by_how_much_and_whether_it_may_be_chance(tmp_path: Path):
    runs, path = tmp_path / "runs", tmp_path / "page.html"
    folders = [write_whole_run(runs, seed=seed) for seed in range(5)]

    def ncm(*gains: float) -> list[RunFolder]:
        return [write_whole_run(runs, method="ncm", seed=seed, gain=gain) for seed, gain in enumerate(gains)]

    # Differences 1 to 5: mean 3, variance 2.5; t with 4 degrees of freedom 2.7764; 3 ± 2.7764 * sqrt(2.5 / 5).
    assert _verdict([*folders, *ncm(1.0, 2.0, 3.0, 4.0, 5.0)], path) == (
        "mine: NCM is best with AP 76.3 %, 3.0 points before IPAL; the 95 % interval of the difference, 1.0 to 5.0, "
        "excludes zero."
    )
    unsure = ncm(-1.0, 1.0, 3.0, 5.0, 7.0)
    assert _verdict([*folders, *unsure], path).endswith("−0.9 to 6.9, includes zero, so it may be chance.")
    assert "fewer than five seeds cannot tell" in _verdict([*folders[:4], *unsure[:4]], path)
    other = [
        write_whole_run(runs, method=name, protocol={"accuracy": "micro"}, gain=g)
        for name, g in (("ewc", 1), ("mas", 0))
    ]
    assert _verdict([*folders, *unsure, *other], path) == "2 comparisons, each with its best method."
    assert _verdict(folders, path) == "mine: fewer than two rows have the same seeds, so none is called best."
