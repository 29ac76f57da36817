"""Every experiment file that is published can be run: its names, its values and, where the graph is here, all of it."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest

from ipal.bench.experiment_file import read_experiment
from ipal.bench.suite import prepare
from ipal.data import datasets
from ipal.data.datasets.catalog import CATALOG
from ipal.errors import ConfigError
from tests.conftest import PROJECT

FILES = sorted((PROJECT / "experiments").glob("*.yaml"))


@pytest.fixture(scope="module")
def graphs_read_once() -> Iterator[None]:
    """Many experiments share a graph: it is read, checked and hashed for the first."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets, "load", cache(datasets.load))
        yield


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_published_experiment_is_valid(path):
    experiment = read_experiment(path)
    assert experiment.about
    names = {entry.given["dataset"] for entry in experiment.entries}
    assert {name for several in names for name in several.split(",")} <= set(CATALOG)


@pytest.mark.usefixtures("graphs_read_once")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_published_experiment_can_be_planned(path, real_data, tmp_path):
    experiment = read_experiment(path)
    try:
        suite = prepare([replace(experiment, seeds=(0,), tuning_seeds=())], tmp_path, real_data)
    except ConfigError as error:
        missing = [what for what in ("ipal data --download", "The device 'cuda") if what in str(error)]
        if not missing:
            raise
        pytest.skip(f"not on this machine: {error}")
    assert len(suite.benches[0].rows) == len(experiment.entries)
    assert list(tmp_path.iterdir()) == []
