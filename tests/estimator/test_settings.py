"""Every setting of every method does something."""

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
from ipal.estimator.settings import describe, learner_config, own_settings
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
    "nearness": "distance",
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
        "sums": "per-class",
    },
    "adagauss": {"competing": "seen"},
    "pr": {"competing": "seen"},
}
# What another setting must be, so that this one can matter.
TOGETHER = {"distance": {"budget": 3, "choice": "coverage"}, "choice": {"budget": 3, "distance": 1.5}}
# What limits the sums of the closed form changes nothing else: tests/closed_form/test_analytic_sums.py.
# IPAL's own settings are tried in tests/methods/test_ipal.py and tests/methods/test_ipal_online.py.
ELSEWHERE = {("analytic", "memory")}
SETTINGS = [(name, setting) for name, method in METHODS.items() for setting in own_settings(method)]
SETTINGS = [each for each in SETTINGS if not each[0].startswith("ipal") and each not in ELSEWHERE]


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
            said = model.probabilities(model.scores(test_split), test_split).numpy()
        kept = {name: t.numpy() for name, t in files.checkpoint(model).tensors.items() if name != "generator"}
        told.append([said, *(kept[name] for name in sorted(kept))])
    same = len(told[0]) == len(told[1]) and all(np.array_equal(a, b) for a, b in zip(*told, strict=True))
    assert not same


# Setting, default, a value that is just allowed, one that is not: what docs and published runs rely on.
TAU = ("tau", 0.07, 0.01, 0.0)
STEPS = ("steps", 10, 0, -1)
RANGES = {
    "ipal": [
        TAU,
        ("gamma", 3.0, 0.0, -0.01),
        ("products", "cosine", "raw", "other"),
        ("alpha", 0.85, 0.0, -0.01),
        ("alpha", 0.85, 0.99, 1.0),
        ("beta", 0.1, -1.0, None),
        ("k", 10, 1, 0),
        ("subset", 100, 1, 0),
        ("boundary", True, False, "perhaps"),
        ("replay", True, False, "perhaps"),
        ("distillation", "ipad", "fd", "other"),
        ("node_weights", "uniform", "degree", "other"),
        ("hardness", "entropy", "margin", "other"),
        ("compensation", "softmax", "printed", "other"),
    ],
    "ipal-online": [("momentum", None, 0.0, -0.01), ("momentum", None, 0.99, 1.0)],
    "bare": [("competing", "seen", "current", "other")],
    "ewc": [("strength", 1e5, 0.0, -0.01), ("fisher", "per-node", "batch", "other")],
    "mas": [("strength", 1.0, 0.0, -0.01)],
    "joint": [("label_smoothing", 0.1, 0.99, 1.0)],
    "lwf": [("strength", 1.0, 0.0, -0.01), ("softening", 2.0, 0.01, 0.0)],
    "gem": [("memory", 100, 1, 0), ("hops", 1, 0, -1), ("margin", 0.5, 0.0, -0.01)],
    "twp": [
        ("loss_strength", 1e4, 0.0, -0.01),
        ("topology_strength", 100.0, 0.0, -0.01),
        ("beta", 0.001, 0.0, -0.01),
    ],
    "er-gnn": [("budget", 100, 1, 0), ("choice", "mean", "coverage", "other"), ("distance", 0.5, 0.01, 0.0)],
    "polo": [("replay_strength", 10.0, 0.0, -0.01), ("kappa", 3.0, 0.0, -0.01), ("rho", 1.0, 0.0, -0.01)],
    "efc": [
        ("strength", 10.0, 0.0, -0.01),
        ("damping", 0.1, 0.0, -0.01),
        ("ridge", 0.1, 0.01, 0.0),
        ("sigma", 0.2, 0.01, 0.0),
        ("samples", 20, 1, 0),
    ],
    "adagauss": [
        ("competing", "current", "seen", "other"),
        ("strength", 10.0, 0.0, -0.01),
        ("bound", 1.0, 0.0, -0.01),
        ("shrinkage", 0.5, 0.001, 0.0),
        ("shrinkage", 0.5, 1.0, 1.01),
        ("samples", 2000, 1, 0),
        ("adapter_steps", 300, 0, -1),
    ],
    "dpcr": [
        ("strength", 1.0, 0.0, -0.01),
        ("softening", 2.0, 0.01, 0.0),
        ("epsilon", 0.01, 0.001, 0.0),
        ("share", 0.9999, 0.01, 0.0),
        ("share", 0.9999, 1.0, 1.01),
        ("ridge", 0.001, 1e-6, 0.0),
    ],
    "pr": [("samples", 10, 1, 0), ("competing", "current", "seen", "other")],
    "pcl": [TAU],
    "ncm": [
        TAU,
        ("steps", 10, 0, -1),
        ("restart", 0.3, 0.0, -0.01),
        ("restart", 0.3, 0.99, 1.0),
        ("nearness", "cosine", "distance", "other"),
    ],
    "slda": [
        STEPS,
        ("restart", 0.15, 0.0, -0.01),
        ("restart", 0.15, 0.99, 1.0),
        ("shrinkage", 0.5, 0.001, 0.0),
        ("shrinkage", 0.5, 1.0, 1.01),
    ],
    "analytic": [
        ("width", 4096, 4, 3),
        ("width", 4096, 2**17, 2**17 + 1),
        ("steps", None, 0, -1),
        ("restart", None, 0.0, -0.01),
        ("restart", None, 0.99, 1.0),
        ("restart", None, (0.0, 0.99), (0.5, 1.0)),
        ("restart", None, (0.5,) * 8, (0.5,) * 9),
        ("restart", None, (0.5,), ()),
        ("ridge", None, 1e-9, 0.0),
        ("sums", "pooled", "per-class", "auto"),
        ("memory", 1.0, 0.01, 0.0),
    ],
}


@pytest.mark.parametrize(
    ("method", "setting", "default", "allowed", "refused"),
    [(method, *each) for method, settings in RANGES.items() for each in settings],
)
def test_a_setting_has_its_default_and_its_range(
    method: str, setting: str, default: Any, allowed: Any, refused: Any
) -> None:
    known = METHODS[method]
    assert getattr(learner_config(known, {}).method, setting) == default
    assert getattr(learner_config(known, {setting: allowed}).method, setting) == allowed
    with pytest.raises(ConfigError, match=setting):
        learner_config(known, {setting: refused})


def test_every_setting_has_a_default_and_a_range_here() -> None:
    for name, method in METHODS.items():
        listed = {setting for setting, *_ in RANGES.get(name, [])}
        # Inherited by all with a head and tried with one of them; those of the method that this one extends.
        inherited = {"competing"} | {setting for base in method.__bases__ for setting in own_settings(base)}
        assert set(own_settings(method)) - listed <= inherited, name


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
        ({"epochs": 5}, r"'ipal\.epochs'\. Did you mean 'ipal\.train\.epochs'\?"),
        ({"hiden": 5}, r"Did you mean 'ipal\.encoder\.hidden'\?"),
        ({"gama": 5}, r"Did you mean 'ipal\.gamma'\?"),
        ({"train": {"epoch": 5}}, r"'ipal\.train\.epoch'\. Did you mean 'ipal\.train\.epochs'\?"),
        ({"dbp": 5}, r"'ipal\.dbp'\. Known: ipal\.alpha"),
    ],
)
def test_only_what_is_close_is_suggested(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ipal.IPAL(**settings)
