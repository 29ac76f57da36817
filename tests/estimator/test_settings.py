"""Every setting of every method does something."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import ipal
from ipal.config import run_config
from ipal.data.streams import TaskStream
from ipal.errors import ConfigError
from ipal.estimator import files
from ipal.estimator.registry import METHODS
from ipal.estimator.settings import describe, learner_config, own_settings, settings_model
from ipal.report import paper
from ipal.runs.resolved import resolve
from tests.learning import learned

OTHER = {
    "adapter_steps": 3,
    "beta": 0.5,
    "bound": 0.01,
    "budget": 3,
    "choice": "coverage",
    "competing": "current",
    "damping": 5.0,
    "distance": 1.5,
    "epsilon": 1.0,
    "fisher": "batch",
    "hops": 3,
    "kappa": 0.1,
    "label_smoothing": 0.2,
    "loss_strength": 0.0,
    "margin": 3.0,
    "memory": 3,
    "replay_strength": 0.5,
    "restart": 0.5,
    "rho": 0.3,
    "ridge": 2.0,
    "samples": 3,
    "share": 0.5,
    "shrinkage": 0.2,
    "sigma": 1.0,
    "softening": 5.0,
    "steps": 3,
    "strength": 0.1,
    "tau": 0.5,
    "topology_strength": 0.0,
}
# Where a method's setting has another's name, or is its own alone.
OTHER_OF = {
    "analytic": {
        "width": 16,
        "steps": 3,
        "restart": 0.5,
    },
    "adagauss": {"competing": "seen"},
    "pr": {"competing": "seen"},
}
# What another setting must be, so that this one can matter.
TOGETHER = {"distance": {"budget": 3, "choice": "coverage"}, "choice": {"budget": 3, "distance": 1.5}}
# IPAL's own settings are tried in tests/methods/test_ipal.py and tests/methods/test_ipal_online.py.
SETTINGS = [(name, setting) for name, method in METHODS.items() for setting in own_settings(method)]
SETTINGS = [each for each in SETTINGS if not each[0].startswith("ipal")]


@pytest.mark.parametrize("method", METHODS.values(), ids=list(METHODS))
def test_every_setting_is_described(method):
    described = describe(method)["settings"]
    assert [setting["name"] for setting in described] == own_settings(method)
    assert all(setting["about"] for setting in described)


@pytest.mark.parametrize(("method", "setting"), SETTINGS)
def test_every_setting_of_every_method_changes_what_is_learned_or_said(method, setting, tiny_stream: TaskStream):
    options = TOGETHER.get(setting, {})
    other = OTHER_OF.get(method, {}).get(setting, OTHER.get(setting))
    test_split = tiny_stream.test_splits(1)[0].graph
    told = []
    for more in ({}, {setting: other}):
        model = learned(METHODS[method], tiny_stream, 2, **{**options, **more})
        with torch.no_grad():
            said = model.probabilities(model.forward(test_split).scores, test_split).numpy()
        kept = {name: t.numpy() for name, t in files.checkpoint(model).tensors.items() if name != "generator"}
        told.append([said, *(kept[name] for name in sorted(kept))])
    same = len(told[0]) == len(told[1]) and all(np.array_equal(a, b) for a, b in zip(*told, strict=True))
    assert not same


# What docs and published runs rely on.
DEFAULTS: dict[str, dict[str, Any]] = {
    "ipal": {"tau": 0.07, "gamma": 3.0, "alpha": 0.85, "beta": 0.1, "k": 10, "subset": 100, "products": "cosine"}
    | {"distillation": "ipad", "node_weights": "uniform", "hardness": "entropy", "compensation": "softmax"}
    | {"boundary": True, "replay": True},
    "ipal-online": {"momentum": None},
    "bare": {"competing": "seen"},
    "ewc": {"strength": 1e5, "fisher": "per-node"},
    "mas": {"strength": 1.0},
    "joint": {"label_smoothing": 0.1},
    "lwf": {"strength": 1.0, "softening": 2.0},
    "gem": {"memory": 100, "hops": 1, "margin": 0.5},
    "twp": {"loss_strength": 1e4, "topology_strength": 100.0, "beta": 0.001},
    "er-gnn": {"budget": 100, "choice": "mean", "distance": 0.5},
    "polo": {"replay_strength": 10.0, "kappa": 3.0, "rho": 1.0},
    "efc": {"strength": 10.0, "damping": 0.1, "ridge": 0.1, "sigma": 0.2, "samples": 20},
    "adagauss": {"competing": "current", "strength": 10.0, "bound": 1.0, "shrinkage": 0.5, "samples": 2000}
    | {"adapter_steps": 300},
    "dpcr": {"strength": 1.0, "softening": 2.0, "epsilon": 0.01, "share": 0.9999, "ridge": 0.001},
    "pr": {"competing": "current", "samples": 10},
    "pcl": {"tau": 0.07},
    "ncm": {"tau": 0.07, "steps": 10, "restart": 0.3},
    "slda": {"steps": 10, "restart": 0.15, "shrinkage": 0.5},
    "analytic": {"width": 4096, "steps": None, "restart": None, "ridge": None},
}
# A value at each kind of limit, and one beyond it; none is allowed at an exclusive one.
EDGES: dict[str, Callable[[Any], tuple[Any, Any]]] = {
    "minimum": lambda least: (least, least - 1e-3 if least else -1),
    "maximum": lambda most: (most, most + 1),
    "exclusiveMinimum": lambda least: (least + 1e-3, least),
    "exclusiveMaximum": lambda end: (end - 1 if end > 1 else end - 1e-3, end),
    "enum": lambda words: (words[-1], "other"),
}


def edges(schema: dict[str, Any]) -> list[tuple[Any, Any]]:
    """Of every limit of a setting a value that is just allowed, and one that is not."""
    found = [edges(each) for each in schema.get("anyOf", [])]
    found += [[of(schema[limit]) for limit, of in EDGES.items() if limit in schema]]
    if "items" in schema:
        found += [[((one,), (0.5, wrong)) for one, wrong in edges(schema["items"])]]
        found += [[((0.5,) * schema["maxItems"], (0.5,) * (schema["maxItems"] + 1)), ((0.5,), ())]]
    return [pair for each in found for pair in each]


@pytest.mark.parametrize(
    ("method", "setting"), [(name, setting) for name, method in METHODS.items() for setting in own_settings(method)]
)
def test_a_setting_is_held_to_its_range(method: str, setting: str) -> None:
    known = METHODS[method]
    schema = settings_model(known).model_json_schema()["properties"][setting]
    pairs = edges(schema)
    assert pairs or schema["type"] == "boolean" or setting == "beta"
    for allowed, refused in pairs or [(schema["default"], "perhaps")]:
        assert getattr(learner_config(known, {setting: allowed}).method, setting) == allowed
        with pytest.raises(ConfigError, match=setting):
            learner_config(known, {setting: refused})


def test_every_setting_has_its_default() -> None:
    for name, method in METHODS.items():
        made, inherited = learner_config(method, {}).method, {"competing": "seen"} | DEFAULTS["ipal"]
        for setting in own_settings(method):
            default = DEFAULTS[name].get(setting, inherited.get(setting))
            assert getattr(made, setting) == default, (name, setting)


@pytest.mark.parametrize("where", ["isolated", "seen"])
def test_a_run_says_on_which_graphs_it_is_tested(where: str) -> None:
    tree = {"dataset": "digits", "method": "ncm", "protocol": {"test_graph": where}}
    assert resolve(run_config(tree)).learner_config().test_graph == where
    assert learner_config(METHODS["ncm"], {}).test_graph == "both"


def test_titles_are_those_of_the_paper() -> None:
    titles = {paper.plain_name(name): method.title for name, method in METHODS.items()}
    assert titles == {**paper.METHODS, "analytic": "analytic", "ipalonline": "IPAL (online)"}
    assert {name for name, method in METHODS.items() if method.keeps == "everything"} == {"joint"}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"epochs": 5}, r"'epochs' is a setting of train: give train=\{'epochs': …\}"),
        ({"hiden": 5}, r"Did you mean 'ipal\.encoder\.hidden'\?"),
        ({"dbp": 5}, r"'ipal\.dbp'\. Known: ipal\.alpha"),
    ],
)
def test_only_what_is_close_is_suggested(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ipal.IPAL(**settings)
