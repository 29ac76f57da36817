"""Numbers of the documentation, one seed each, on the real graph. Skipped where the graph is not."""

import pytest

from ipal.bench.experiment_file import as_tree, read_preset
from ipal.config import override, run_config
from ipal.runs import runner
from ipal.runs.run_folder import RunStore
from tests.project.test_claims import ISOLATED
from tests.runs.test_resume import Stop

PAPER_AP, PAPER_AF = 83.07, -12.89


@pytest.fixture(scope="module")
def tested(real_data, tmp_path_factory):
    runs = tmp_path_factory.mktemp("runs")

    def run(
        method: str = "ipal", train: dict | None = None, *, paper: bool = True, graph: str = "cs", **settings: object
    ) -> dict:
        # Calibration learns twice and changes no class: methods that are only compared go without.
        rest = {"protocol": {"calibration": 0.0}}  # labels alone count here
        tree = override(
            as_tree(read_preset("tuned-cs", "ipal")) if paper and method == "ipal" else {},
            {"dataset": graph, "method": method, "train": train or {}, method: settings, **rest},
        )
        resolved = runner.resolve(run_config(tree), real_data)
        return runner.run(resolved, RunStore(runs).folder_for(resolved.config), Stop())

    return run


def test_ipal_on_cs_cl_is_above_the_paper(tested):
    result = tested()
    assert result["average_performance"] >= PAPER_AP
    assert result["average_forgetting"] >= PAPER_AF
    # docs/verdict.md: 90.4 ± 0.4 over five seeds.
    assert result["average_performance"] == pytest.approx(90.4, abs=3 * 0.41)
    assert result["peak_memory_bytes"] < 1.5e9


def test_ipal_by_default_is_above_the_papers_reading_on_cora_ml(tested):
    result = tested(paper=False, graph="cora-ml")
    mean, deviation = ISOLATED["IPAL"]["Cora-ML"]
    assert result["average_performance"] == pytest.approx(mean, abs=3 * deviation)
    assert result["average_performance"] >= tested(graph="cora-ml")["average_performance"]


def test_without_distillation_ipal_on_cs_cl_loses_at_least_eight_points(tested):
    assert tested()["average_performance"] - tested(distillation="none")["average_performance"] >= 8


def test_a_nearest_class_mean_without_training_is_above_ipal_on_cs_cl(tested):
    result = tested("ncm")
    mean, deviation = ISOLATED["NCM"]["CS-CL"]
    assert result["average_performance"] == pytest.approx(mean, abs=3 * deviation)
    assert result["average_performance"] > tested()["average_performance"]


def test_fine_tuning_forgets_most_of_cs_cl(tested):
    result = tested("bare")
    mean, deviation = ISOLATED["Bare"]["CS-CL"]
    assert result["average_performance"] == pytest.approx(mean, abs=2 * deviation)
    assert result["average_forgetting"] < -40


def test_contrast_alone_is_level_with_ipal_on_cs_cl(tested):
    mean, deviation = ISOLATED["PCL"]["CS-CL"]
    assert tested("pcl")["average_performance"] == pytest.approx(mean, abs=3 * deviation)
