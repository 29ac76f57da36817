"""The benchmarks run, say their ratios, and compare sides that compute the same. Nothing here looks at a clock."""

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.conftest import PROJECT


def printed(script: str, folder: Path, *options: str) -> str:
    """What a benchmark prints at its smallest size, without real data, in an empty folder."""
    done = subprocess.run(
        [sys.executable, str(PROJECT / "benchmarks" / script), "--size", "tiny", "--repeats", "2", *options],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "IPAL_DATA": str(folder / "no-data"), "OMP_NUM_THREADS": "1"},
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def lines(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """What a benchmark prints; it leaves nothing behind."""
    said = printed(request.param, tmp_path, "--threads", "1")
    assert list(tmp_path.iterdir()) == []
    return said


def ratios(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"ratio[^\n]*?([\d.]+) x", text)]


@pytest.mark.parametrize("lines", ["encoder_step.py"], indirect=True)
def test_encoder_and_stock_layers_compute_the_same(lines: str) -> None:
    assert "CS-sized sparse features" in lines
    assert "Arxiv-sized dense features" in lines
    assert len(ratios(lines)) == 2
    differences = re.findall(r"relative difference: loss (\S+), gradients (\S+)", lines)
    assert len(differences) == 2
    for loss, gradients in differences:
        assert float(loss) < 1e-6
        assert float(gradients) < 1e-5


@pytest.mark.parametrize("lines", ["ipal_step.py"], indirect=True)
def test_ipal_step_goes_through_the_whole_stream(lines: str) -> None:
    assert re.findall(r"task (\d)", lines) == ["0", "1", "2", "3", "4", "5"]
    assert "2 + 13 classes" in lines
    assert len(ratios(lines)) == 7
    assert re.search(r"whole stream: .* ratio [\d.]+ x", lines)
    assert re.search(r"peak memory of a full run: \d\.\d\d GB", lines)


@pytest.mark.parametrize("lines", ["sparse_products.py"], indirect=True)
def test_all_kernels_compute_the_same(lines: str) -> None:
    assert len(ratios(lines)) == 3 * 5 + 1
    differences = [float(number) for number in re.findall(r"relative difference (\S+)", lines)]
    assert len(differences) == 3 * 5
    assert max(differences) < 1e-5


@pytest.mark.parametrize("lines", ["methods.py"], indirect=True)
def test_every_method_learns_seven_tasks(lines: str) -> None:
    assert "tasks of 2+2+2+2+2+2+2 classes, 10 epochs each" in lines
    named = re.findall(r"^  (\S+).* s, of bare +[\d.]+ x", lines, flags=re.MULTILINE)
    assert named == ["bare", "ewc", "ewc", "lwf", "mas", "twp", "er-gnn", "gem", "joint", "ipal"]
    assert len(ratios(lines)) == 9


@pytest.mark.parametrize("lines", ["closed_form.py"], indirect=True)
def test_the_closed_form_stands_beside_ipal_and_joint(lines: str) -> None:
    rows = re.findall(r"^\| (\w+) \| ([\d.]+) \| (-?[\d.]+) \| ([\d.]+) \|.* (yes|no) \|$", lines, flags=re.MULTILINE)
    assert [(row[0], row[-1]) for row in rows] == [("analytic", "no"), ("ipal", "no"), ("joint", "yes")]
    assert all(0 <= float(row[1]) <= 100 for row in rows)


@pytest.mark.parametrize("lines", ["large_graphs.py"], indirect=True)
def test_the_parts_of_a_stream_on_a_large_graph_add_up(lines: str) -> None:
    rows = dict(re.findall(r"^\| ([\w* ]+) \| \**([\d.]+)\** \|$", lines, flags=re.MULTILINE))
    whole = float(rows.pop("**whole stream**"))
    assert {"choice", "propagation", "expansion", "sums", "solve", "evaluation"} <= rows.keys()
    assert sum(map(float, rows.values())) == pytest.approx(whole, abs=0.06)
    assert re.search(r"peak memory of the host \d+\.\d\d GB", lines)


@pytest.mark.parametrize("lines", ["sampled_epoch.py"], indirect=True)
def test_a_sampled_epoch_is_the_same_with_stock_layers(lines: str) -> None:
    assert re.search(r"batches of 100 of \d+ nodes, fan-outs 10 and 25", lines)
    assert len(ratios(lines)) == 2
    difference = re.search(r"largest relative difference of losses and gradients: (\S+)", lines)
    assert difference is not None
    assert float(difference[1]) < 1e-3


def test_cost_is_fitted_and_drawn_in_every_direction(tmp_path: Path) -> None:
    lines = printed("scaling.py", tmp_path, "--threads", "1", "-o", str(tmp_path / "figures"))
    number = r"-?\d+\.\d\d"
    rows = re.findall(rf"^\| (\w+) \| ([\w, -]+) \| .* MB \| {number} \({number}\) \|$", lines, flags=re.MULTILINE)
    directions = ["nodes", "edges", "features", "classes", "tasks"]
    methods = ["IPAL, full graph", "IPAL, mini-batches", "closed form"]
    assert rows == [(direction, method) for direction in directions for method in methods]
    assert re.search(rf"largest exponent in nodes \+ edges: {number} \(", lines)
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == [
        "scaling.json",
        "scaling.png",
        "scaling.svg",
    ]
    for curve in json.loads((tmp_path / "figures" / "scaling.json").read_text())["curves"]:
        small, large = curve["costs"]
        rise = math.log(large["seconds"] / small["seconds"]) / math.log(large["size"] / small["size"])
        assert curve["exponents"]["seconds"]["all"] == pytest.approx(rise)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="measures a GPU, and there is none")
def test_every_part_of_the_gpu_benchmark_runs(tmp_path: Path) -> None:
    lines = printed("gpu.py", tmp_path, "--compared", "2")
    assert "same matrix" in lines
    assert re.search(r"largest difference of AP to a single run, of \d+ compared: \d", lines)
    assert "full graph" in lines
    assert "Closed form" in lines
