"""The benchmarks run, say their ratios, and compare sides that compute the same. Nothing here looks at a clock."""

import importlib
import io
import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.conftest import PROJECT

Printed = Callable[..., str]


@pytest.fixture
def printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Printed]:
    """What a benchmark prints at its smallest size, without real data, in an empty folder.

    In this process, which has loaded torch already; those that measure memory start processes of their own.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IPAL_DATA", str(tmp_path / "no-data"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.syspath_prepend(PROJECT / "benchmarks")
    before = set(sys.modules)

    def call(script: str, *options: str, repeats: int = 2, own: tuple[str, ...] | None = None) -> str:
        common = ("--size", "small", "--repeats", str(repeats)) if own is None else own
        monkeypatch.setattr(sys, "argv", [script, *common, *options])
        capsys.readouterr()
        importlib.import_module(script.removesuffix(".py")).main()
        return capsys.readouterr().out

    yield call
    forget(set(sys.modules) - before)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """All benchmarks at once, at their smallest: the table, what each printed, and the file of results."""
    folder, before = tmp_path_factory.mktemp("bench"), set(sys.modules)
    file, table, details = folder / "here.json", io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(table), redirect_stderr(details):
        patch.chdir(folder)
        patch.setenv("IPAL_DATA", str(folder / "no-data"))
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.syspath_prepend(PROJECT / "benchmarks")
        patch.setattr(sys, "argv", ["bench.py", "--size", "small", "--threads", "1", "-o", str(file)])
        importlib.import_module("bench").main()
    parts = dict(part.split("\n", 1) for part in details.getvalue().split("\n== ")[1:])
    yield SimpleNamespace(table=table.getvalue(), details=parts, file=file, left=list(folder.iterdir()))
    forget(set(sys.modules) - before)


def forget(modules: set[str]) -> None:
    """Those of the benchmarks."""
    for name in modules:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(PROJECT / "benchmarks")):
            del sys.modules[name]


@pytest.fixture
def lines(request: pytest.FixtureRequest, printed: Printed, tmp_path: Path) -> str:
    """What a benchmark prints; it leaves nothing behind."""
    said = printed(request.param, "--threads", "1")
    assert list(tmp_path.iterdir()) == []
    return said


def ratios(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"ratio[^\n]*?([\d.]+) x", text)]


def test_a_growing_graph_is_learned_month_by_month_and_forgets_exactly(printed: Printed, tmp_path: Path) -> None:
    chosen = ("--threads", "1", "--datasets", "accounts", "cora-ml", "--methods", "ncm", "slda")
    lines = printed("months.py", *chosen, repeats=1)
    assert list(tmp_path.iterdir()) == []
    rows = re.findall(r"^\| ([\w-]+) \| (ncm|slda) \| (\d) ((?:\| (?:[\d.]+|–) ){8})\|$", lines, re.MULTILINE)
    months = {"accounts": 6, "cora-ml": 4}
    assert [row[:3] for row in rows] == [
        (graph, method, str(month))
        for graph in months
        for method in ("ncm", "slda")
        for month in range(1, months[graph] + 1)
    ]
    for *_, cells in rows:
        accuracy, lost, of_all, *_ = cells.split("|")[1:]
        assert 0 < float(accuracy) <= 100
        assert {lost.strip(), of_all.strip()} == {"–"} or 0 <= float(lost) <= 100
    assert re.findall(r"^  ([\w-]+), (\w+), seed 0: 0\.0e\+00$", lines, re.MULTILINE) == [
        (graph, method) for graph in months for method in ("ncm", "slda")
    ]


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (
            "unknown",
            r"2 pairs: AUROC 0\.\d+, known lost [\d.]+ % .*, unknown found \d+ %, by largest probability \d+ %",
        ),
        (
            "calibration",
            r"tasks of two accuracy [\d.]+ %, calibration error [\d.]+ -> [\d.]+ %, coverage [\d.]+ % with",
        ),
    ],
    ids=["unknown", "calibration"],
)
@pytest.mark.filterwarnings("ignore:Class .* was never calibrated")  # the first, alone in its task
def test_unknown_classes_and_calibration_are_measured(printed: Printed, what: str, words: str) -> None:
    graph = "synthetic:nodes=600,classes=4"
    own = (what, "--datasets", graph, "--methods", "ncm", "slda", "--number", "2")
    lines = printed("unknown_classes.py", own=own)
    assert len(re.findall(words, lines)) == 2, lines
    assert [method for method in ("ncm", "slda") if f"{graph} {method}" in lines] == ["ncm", "slda"]


def test_one_table_has_every_benchmark(bench: SimpleNamespace) -> None:
    assert bench.left == [bench.file]
    stored = json.loads(bench.file.read_text())
    assert {"processor", "cores", "threads", "packages", "gpu", "speed"} <= stored["machine"].keys()
    rows = re.findall(r"^\| ([^|]+) \| [\d.]+ (?:s|ms|us) \| (.*) \|$", bench.table, flags=re.MULTILINE)
    assert [what for what, _ in rows] == [line["what"] for line in stored["lines"]]
    speed = stored["machine"]["speed"]
    for line in stored["lines"]:
        if line["reference"] is not None:
            assert line["ratio"] == pytest.approx(line["reference"] / line["ours"])
        if line["work"] is not None:
            here, least = speed[line["device"]], line["work"]
            by_hand = least["bytes"] / here["bandwidth"] + least["operations"] / here["single"]
            by_hand += least["double"] / here["double"] + least["starts"] * here["start"]
            assert line["floor"] == pytest.approx(by_hand)
            assert line["share"] == pytest.approx(by_hand / line["ours"])
    least = {line["what"].partition(",")[0] for line in stored["lines"]}
    assert least >= {"encoder step", "IPAL step", "ewc", "mas", "twp", "closed form learns", "sampled epoch"}


def test_floors_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(PROJECT / "benchmarks")
    work, machine = map(importlib.import_module, ("work", "machine"))
    # 3 x 5 with 4 entries times 5 x 2: entries 32, the table of 40 bytes fits: 4 rows gathered; 3 rows written.
    assert work.sparse(3, 5, 4, 2, cache=100) == machine.Work(32 + 32 + 24, 16)
    # Half of the table fits: of 100 entries 50 find their row elsewhere.
    assert work.sparse(3, 5, 100, 2, cache=20) == machine.Work(800 + 400 + 24, 400)
    # Of 10 nodes of 3 features, 2 are read through 4 entries; all tables fit.
    layers = work.Layers(10, 30, 3, None, 2, 4)
    forward = 2 * 10 * 3 * 8 + 2 * 4 * 8 + 2 * 2 * 8 * 8
    assert work.forward(layers, 8, 8).operations == forward
    assert work.step(layers, 8, 8).operations == forward + 2 * (2 * 2 * 8 * 8) + 2 * 4 * 8 + 2 * 10 * 3 * 8
    assert work.adam(layers, 8, 8).bytes == 28 * (24 + 64)
    # n d^2 + d^3 / 3, two triangles for 2 classes, 2 steps over 30 entries of 3 columns, 3 more of 2 nodes.
    by_hand = 2 * 36 + 72 + 2 * 36 * 2 + 2 * (2 * 30 * 3) + 2 * 2 * 3 * 3
    assert work.closed_form(layers, 2, 3, 6, 2).double == by_hand
    # Projected: 4 columns of 3 features of 10 nodes.
    by_hand = 2 * 16 + 64 / 3 + 2 * 16 * 2 + 2 * (2 * 30 * 4) + 2 * 10 * 3 * 4
    assert work.closed_form(layers, 2, 4, 4, 2).double == pytest.approx(by_hand)
    speed = machine.Speed(bandwidth=10, single=5, double=2, start=0.5)
    assert speed.floor(machine.Work(20, 10, 4, 6)) == 2 + 2 + 2 + 3


def test_encoder_and_stock_layers_compute_the_same(bench: SimpleNamespace) -> None:
    lines = bench.details["encoder step, CS"] + bench.details["encoder step, Arxiv"]
    assert "CS-sized sparse features" in lines
    assert "Arxiv-sized dense features" in lines
    assert len(ratios(lines)) == 2
    differences = re.findall(r"relative difference: loss (\S+), gradients (\S+)", lines)
    assert len(differences) == 2
    for loss, gradients in differences:
        assert float(loss) < 1e-6
        assert float(gradients) < 1e-5


def test_named_evidence_changes_classes_more_often_than_chance(printed: Printed) -> None:
    lines = printed("explanations.py", "--threads", "1")
    found = re.findall(r"by (\w+) +named +([\d.]+) % +random +([\d.]+) %", lines)
    assert [unit for unit, _, _ in found] == ["feature", "node"]
    assert all(float(named) > 2 * float(random) for _, named, random in found)


def test_an_exponent_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(PROJECT / "benchmarks")
    exponent = importlib.import_module("online").exponent
    assert exponent([1, 2, 4], [3, 6, 12]) == pytest.approx(1)
    assert exponent([1, 2, 4], [5, 5, 5]) == pytest.approx(0)


@pytest.mark.parametrize("lines", ["serving.py"], indirect=True)
def test_the_server_answers_sound_and_hostile_requests(lines: str) -> None:
    rows = re.findall(
        r"^\| IPAL \| ([^|]+) \| [\d,]+ kB \| (\d \| \d) \| [\d.]+ \| [\d.]+ \| [\d.]+ \| \d+ \|$",
        lines,
        flags=re.MULTILINE,
    )
    kinds = [f"100 nodes{rest}" for rest in (", npz", ", sparse JSON", ", dense JSON", " and all within 2 hops, npz")]
    assert rows == [(kind, who) for who in ("1 | 1", "2 | 4") for kind in kinds]
    assert re.findall(r"^\| IPAL \| (\d) \| 4 \| \d+ \| [\d,]+ \| 0 \|", lines, flags=re.MULTILINE) == ["1", "2"]
    assert re.search(r"Hostile: 3\d\d requests from 8 clients", lines)
    assert re.search(r"^\| sound: predictions \| \d+ \| \d+ x 200", lines, flags=re.MULTILINE)
    assert re.search(r"answers of 500 and more: (none|\{503: \d+\}); answers that were not to be: none", lines)


@pytest.mark.skipif(sys.platform != "linux", reason="reads what Linux says of a process")
def test_a_memory_limit_holds(printed: Printed) -> None:
    lines = printed("memory_limits.py", "--methods", "ncm", "--limit", "1GB", repeats=1)
    (row,) = re.findall(r"\| ncm \| 1.00 \| full graphs \| (\S+) \| (\S+) \|", lines)
    assert 0.1 < float(row[1]) < float(row[0]) < 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="measures a GPU, and there is none")
def test_every_part_of_the_gpu_benchmark_runs(printed: Printed) -> None:
    lines = printed("gpu.py", "--compared", "2")
    assert "same matrix" in lines
    assert "stacked twice: the same matrices" in lines
    assert re.search(r"taking turns and alone, 2 runs compared: 2 with equal matrices", lines)
    assert re.search(r"stacked and alone, 2 runs compared: \d with equal matrices", lines)
    assert "full graph" in lines
    assert "Closed form" in lines
    assert "largest after the third run" in lines
