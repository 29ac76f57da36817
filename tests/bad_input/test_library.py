"""The library's own face refuses broken data, and the learner has lost nothing."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ipal import IPAL, ConfigError, DataError, TrainConfig
from tests.bad_input.support import E, X, Y, one, some_data

BROKEN_DATA: dict[str, tuple[dict[str, Any], str]] = {
    "no labelled node": ({"train_mask": np.zeros(40, dtype=bool)}, "No node of this graph has a label"),
    "mask too short": ({"train_mask": np.ones(39, dtype=bool)}, "train_mask must hold one True or False"),
    "no x": ({"x": None}, "no features: set data.x"),
    "no y": ({"y": None}, "no labels: set data.y"),
    "too few labels": ({"y": Y[:-1]}, "39 labels for 40 nodes"),
    "labels fractional": ({"y": Y + 0.5}, "whole numbers or strings"),
    "labels NaN": ({"y": one(Y.astype(float), 3, np.nan)}, "whole numbers or strings"),
    "x NaN": ({"x": one(X, (0, 0), np.nan)}, "NaN or infinite"),
    "x sparse NaN": ({"x": torch.tensor(one(X, (0, 0), np.nan)).to_sparse()}, "NaN or infinite"),
    "x ragged": ({"x": [[1.0], [1.0, 2.0]]}, "the same length"),
    "x empty": ({"x": X[:0], "y": Y[:0], "edge_index": E[:, :0]}, "empty"),
    "edge too far": ({"edge_index": one(E, (0, 0), 40)}, "points to node 40"),
    "edge negative": ({"edge_index": one(E, (0, 0), -1)}, "points to node -1"),
    "edges turned": ({"edge_index": E.T.copy()}, "2 x edges"),
}


@pytest.mark.filterwarnings("ignore:These training nodes of this graph were learned before")
def test_a_learner_that_refused_broken_data_has_lost_nothing() -> None:
    learner = IPAL(train=TrainConfig(epochs=1)).partial_fit(some_data())
    expected = learner.predict_proba(some_data())
    for changes, words in BROKEN_DATA.values():
        with pytest.raises(DataError, match=words):
            learner.partial_fit(some_data(**changes))
    with pytest.raises(DataError):
        learner.partial_fit(some_data(x=X[:, :3], y=Y + 4))
    assert np.array_equal(learner.predict_proba(some_data()), expected)
    assert learner.classes_.tolist() == [0, 1, 2, 3]
    learner.partial_fit(some_data(y=Y + 4))
    assert learner.classes_.tolist() == list(range(8))


def test_a_learner_that_has_learned_nothing_says_so(tmp_path: Path) -> None:
    learner = IPAL()
    for use in (learner.predict, learner.predict_proba, learner.embed):
        with pytest.raises(ConfigError, match="call partial_fit first"):
            use(some_data())
    for other in (learner.memory_report, lambda: learner.save(tmp_path / "a"), lambda: learner.classes_):
        with pytest.raises(ConfigError, match="call partial_fit first"):
            other()
    assert list(tmp_path.iterdir()) == []
