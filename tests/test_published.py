"""The numbers of the README, one seed each, on the real graph. Skipped where the graph is not."""

import pytest

from ipal import experiment
from ipal.config import run_config
from ipal.store import RunStore
from tests.test_resume import Stop

PAPER_AP, PAPER_AF = 83.07, -12.89


@pytest.fixture(scope="module")
def cs(real_data, tmp_path_factory):
    runs = tmp_path_factory.mktemp("runs")

    def run(**settings: object) -> dict:
        config, graph = experiment.resolve(run_config({"dataset": "cs", "ipal": settings}), real_data)
        return experiment.run(config, graph, RunStore(runs).folder_for(config), Stop())

    return run


def test_ipal_on_cs_cl_is_above_the_paper(cs):
    result = cs()
    assert result["average_performance"] >= PAPER_AP
    assert result["average_forgetting"] >= PAPER_AF
    # README: 91.96 ± 0.60 over five seeds.
    assert result["average_performance"] == pytest.approx(91.96, abs=3 * 0.60)
    assert result["peak_memory_bytes"] < 1.5e9


def test_without_distillation_ipal_on_cs_cl_loses_at_least_eight_points(cs):
    assert cs()["average_performance"] - cs(distillation="none")["average_performance"] >= 8
