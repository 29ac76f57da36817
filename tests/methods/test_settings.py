"""Every setting of every method does something."""

import numpy as np
import pytest
import torch

from ipal.learners import LEARNERS
from ipal.streams import TaskStream
from tests.methods.support import learned

OTHER = {
    "beta": 0.5,
    "budget": 3,
    "choice": "mean",
    "competing": "current",
    "damping": 5.0,
    "distance": 1.5,
    "fisher": "batch",
    "hops": 3,
    "kappa": 0.1,
    "loss_strength": 0.0,
    "margin": 3.0,
    "memory": 3,
    "nearness": "distance",
    "replay_strength": 0.5,
    "rho": 0.3,
    "ridge": 2.0,
    "samples": 3,
    "shrinkage": 0.5,
    "sigma": 1.0,
    "softening": 5.0,
    "strength": 0.1,
    "tau": 0.5,
    "topology_strength": 0.0,
}
# Where a method's setting has another's name, or is its own alone.
OTHER_OF = {
    "analytic": {
        "hops": (0,),
        "expansion": 16,
        "sums": "per-class",
        "memory": 1e-5,
        "expected_classes": 4,
        "sketch": 4,
    }
}
# What another setting must be, so that this one can matter.
TOGETHER = {"distance": {"budget": 3}, "choice": {"budget": 3, "distance": 1.5}}
# The closed form is quick where it is narrow; what limits its width must have a width to choose, of 1024 or none.
NARROW = {name: {"expansion": 64} for name in ("hops", "expansion", "sums", "sketch", "ridge")}
LIMITED = {
    "memory": {"memory": 0.008, "hops": (1,)},
    "expected_classes": {"memory": 0.016, "hops": (1,), "sums": "per-class"},
}
TOGETHER_OF = {"analytic": NARROW | LIMITED}
# IPAL's own settings are tried in tests/test_ipal.py.
SETTINGS = [(name, setting) for name, method in LEARNERS.items() if name != "ipal" for setting in method.own_settings()]


@pytest.mark.parametrize("method", LEARNERS.values(), ids=list(LEARNERS))
def test_settings_are_described_without_changing_what_pydantic_knows(method):
    fields = method.__pydantic_fields__
    before = {name: info.description for name, info in fields.items()}
    described = method.own_settings()
    assert all(info.description for info in described.values())
    for info in described.values():
        info.description = "changed"
    assert {name: info.description for name, info in fields.items()} == before


@pytest.mark.parametrize(("method", "setting"), SETTINGS)
def test_every_setting_of_every_method_changes_what_is_learned_or_said(method, setting, tiny_stream: TaskStream):
    options = TOGETHER_OF.get(method, TOGETHER).get(setting, {})
    other = OTHER_OF.get(method, {}).get(setting, OTHER.get(setting))
    exam = tiny_stream.exams(1)[0].graph
    told = []
    for more in ({}, {setting: other}):
        learner = learned(LEARNERS[method], tiny_stream, 2, **{**options, **more})
        with torch.no_grad():
            said = learner.probabilities(learner.scores(exam), exam).numpy()
        kept = {name: t.numpy() for name, t in learner.tensors().items() if name != "generator"}
        told.append([said, *(kept[name] for name in sorted(kept))])
    same = len(told[0]) == len(told[1]) and all(np.array_equal(a, b) for a, b in zip(*told, strict=True))
    assert not same
