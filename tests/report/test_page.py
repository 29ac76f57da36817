"""The page of one run: what it says, that it says it of any run, and that nothing in the data can break out of it."""

import base64
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from ipal.report.page.single import counted, shares
from tests.report.support import CONFUSION, Parsed, page_of, parse, write_whole_run

HOSTILE = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(2)>",
    "\"'><b onclick=alert(3)>",
    "@ink %{x}",
)


@pytest.fixture
def page(tmp_path: Path) -> Parsed:
    folder = write_whole_run(tmp_path / "runs")
    return parse(page_of([folder], tmp_path / "page.html"))


# ---------------------------------------------------------------------- what it says


def test_headline_numbers_and_sections(page: Parsed):
    for said in ("IPAL on mine", "73.33", "−20.00", "6.50 s", "1.5 MB", "exemplar-free yes", "2+1+1"):
        assert said in page.text, said
    sections = [attributes["id"] for attributes in page.all("section")]
    assert sections == [
        "overview", "accuracy", "classes", "training", "cost", "setup",
    ]  # fmt: skip
    assert [link["href"] for link in page.all("a")[1:]] == [f"#{name}" for name in sections]
    said = "AP 73.3 %; task 1 lost most since it was learned, 30.0 points."
    assert page.text.index(said) < page.text.index("average performance")
    assert page.text.index("ipal: appnp 8, 2 epochs, gamma 3. 3 tasks of 2+1+1 classes") < page.text.index("73.33")
    (heat,) = page.charts["matrix"]["traces"]
    assert (heat["lowest"], heat["highest"]) == (60, 100), "93 and 100 are told apart"


def test_every_chart_has_a_reading_a_table_and_downloads(page: Parsed):
    charts = page.charts
    drawn = [attributes["data-chart"] for attributes in page.all("figure")]
    assert sorted(drawn) == sorted(charts)
    assert drawn == ["matrix", "curve", "recall", "confusion", "losses"]
    assert set(drawn) <= {attributes["data-key"] for attributes in page.all("table")}
    for kind in ("png", "svg", "csv"):
        assert sum(attributes.get("data-save") == kind for attributes in page.all("button")) >= len(drawn)
    readings = [attributes for attributes in page.all("p") if attributes.get("class") == "reading"]
    assert len(readings) == len(drawn)
    assert "AP is the mean of the last row" in page.text


def test_the_numbers_of_the_charts(page: Parsed):
    charts = page.charts
    matrix = charts["matrix"]["traces"][0]
    assert matrix["z"][2] == [60.0, 90.0, 70.0]
    recall = charts["recall"]["traces"][0]
    assert recall["z"] == [[90.0, 80.0, 60.0], [90.0, 80.0, 60.0], [None, 100.0, 90.0], [None, None, 70.0]]
    after_two = charts["confusion"]["changes"][1]["traces"][0]
    assert after_two["z"] == [[80.0, 0.0, 20.0, 0.0], [0.0, 80.0, 20.0, 0.0], [0.0, 0.0, 100.0, 0.0], [None] * 4]
    contrast = charts["losses"]["traces"][0]
    assert contrast["y"][-1] is None, "a loss that is no number is a gap"
    assert charts["losses"]["borders"] == [[0.5, "task 1"], [2.5, "task 2"], [4.5, "task 3"]]


def test_no_place_of_the_owner_is_told(page: Parsed, tmp_path: Path):
    for whole in ((tmp_path / "page.html").read_text(), json.dumps(page.charts)):
        assert "/home/somebody" not in whole
        assert "--secret" not in whole


def test_a_run_that_trains_nothing_stores_nodes_and_forgets_nothing(tmp_path: Path):
    folder = write_whole_run(tmp_path / "runs", method="er-gnn", stores=True)
    folder.write_history([])
    matrix = [[60.0, None, None], [60.0, 90.0, None], [61.0, 90.0, 70.0]]
    folder.write_json("result.json", {**folder.result(), "accuracy_matrix": matrix})
    page = parse(page_of([folder], tmp_path / "page.html"))
    assert "ER-GNN on mine" in page.text
    assert "exemplar-free no" in page.text
    assert "anyone who has the model has them" in page.text
    assert "AP 73.3 %; no task lost accuracy after it was learned." in page.text
    assert "losses" not in page.charts


def test_a_run_of_one_task_has_no_old_classes(tmp_path: Path):
    folder = write_whole_run(tmp_path / "runs")
    config = folder.config().model_copy(update={"split": (4,)})
    alone = type(folder)(tmp_path / "runs" / f"mine-{config.digest}")
    alone.start(config, {})
    result = json.loads((folder.path / "result.json").read_text())
    result |= {"accuracy_matrix": [[70.0]], "average_performance_curve": [70.0], "before_learning": [None]}
    result["validation"] |= {"accuracy_matrix": [[70.0]]}
    result["protocol"] |= {"split": [4], "classes": [["a", "b", "c", "d"]]}
    result["timing"] |= {"seconds_per_task": [6.0], "seconds_per_epoch": [0.6]}
    alone.write_json("result.json", result)
    alone.write_json("confusion.json", {"classes": list("abcd"), "after_task": CONFUSION[2:]})
    charts = parse(page_of([alone], tmp_path / "page.html")).charts
    assert len(charts["confusion"]["changes"]) == 1


# ---------------------------------------------------------------------- nothing gets in, nothing gets out


def test_the_same_run_makes_the_same_page(tmp_path: Path):
    folder = write_whole_run(tmp_path / "runs")
    pages = [page_of([folder], tmp_path / f"{name}.html").read_bytes() for name in "ab"]
    assert pages[0] == pages[1]


def test_names_of_classes_cannot_break_out(tmp_path: Path):
    folder = write_whole_run(tmp_path / "runs", HOSTILE)
    page = parse(page_of([folder], tmp_path / "page.html"))
    plain = parse(page_of([write_whole_run(tmp_path / "plain")], tmp_path / "plain.html"))
    # The same elements as for a harmless run, one by one: no name became one.
    assert [tag for tag, _ in page.tags] == [tag for tag, _ in plain.tags]
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    assert page.charts["recall"]["y"]["names"] == list(HOSTILE)
    packed = next(text for attributes, text in page.scripts if attributes.get("id") == "packed")
    assert not set(packed) & set("<>&")


def test_only_the_pages_own_scripts_may_run_and_nothing_is_loaded(page: Parsed):
    policy = next(tag["content"] for tag in page.all("meta") if tag.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert "default-src 'none'" in policy
    assert "unsafe-eval" not in policy
    run = [text for attributes, text in page.scripts if "type" not in attributes]
    assert len(run) == 3
    for script in run:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    addresses = [
        attributes[name] for _, attributes in page.tags for name in ("src", "href", "action") if attributes.get(name)
    ]
    assert all(str(address).startswith(("#", "data:,")) for address in addresses), addresses
    assert not any(word in style for style in page.styles for word in ("url(", "@import", "http"))


# ---------------------------------------------------------------------- confusion, by hand


def test_recall_and_confusion_worked_by_hand():
    counts = counted([(true, predicted, count) for true, predicted, count in CONFUSION[2]], 4)
    assert [row[place] for place, row in enumerate(shares(counts))] == [60.0, 60.0, 90.0, 70.0]
    assert shares(counted([(0, 0, 1)], 2))[1] == [None, None], "a class without test nodes"


# ---------------------------------------------------------------------- size


def test_a_page_of_much_is_below_two_megabytes(tmp_path: Path):
    """70 classes in 14 tasks, every second confusion, 5,000 epochs: nothing that repeats, so nothing packs well."""
    folder = write_whole_run(tmp_path / "runs")
    draw, tasks, new = np.random.default_rng(0), 14, 5
    names = [str(number) for number in range(new * tasks)]
    result = folder.result()
    matrix = [[float(draw.uniform(30, 99)) if on <= after else None for on in range(tasks)] for after in range(tasks)]
    result |= {"accuracy_matrix": matrix, "average_performance_curve": [70.0] * tasks, "per_class": {}}
    result |= {
        "before_learning": [None] * tasks,
        "validation": {"average_performance": 70.0, "accuracy_matrix": matrix},
    }
    result["protocol"] |= {"split": [new] * tasks, "classes": np.array(names).reshape(tasks, new).tolist()}
    result["timing"] |= {"seconds_per_task": [1.0] * tasks, "seconds_per_epoch": [1.0] * tasks}
    folder.write_json("result.json", result)
    after_task = [
        [(int(a), int(b), int(draw.integers(1, 40))) for a, b in np.argwhere(draw.random((known, known)) < 0.5)]
        for known in range(new, new * tasks + 1, new)
    ]
    folder.write_json("confusion.json", {"classes": names, "after_task": after_task})
    losses = draw.random((5000, 2)).tolist()
    folder.write_history([{"task": at // 400, "epoch": at % 400, "a": a, "b": b} for at, (a, b) in enumerate(losses)])
    path = page_of([folder], tmp_path / "page.html")
    assert path.stat().st_size < 2_000_000
