"""The content hash follows the content, not the file."""

from pathlib import Path
from typing import Any

import numpy as np

from ipal.data.datasets import load
from tests.data.support import COUNTS, EDGES, Y


def hash_of(path: Path, *, compressed: bool = False, **arrays: Any) -> str:
    (np.savez_compressed if compressed else np.savez)(path, **arrays)
    return load(str(path)).hash


def test_the_hash_follows_the_content_and_not_the_file(tmp_path: Path) -> None:
    base = {"edge_index": EDGES, "y": Y, "x": COUNTS}
    expected = hash_of(tmp_path / "a.npz", **base)
    shuffled = EDGES[:, [3, 1, 0, 5, 4, 2]]
    assert hash_of(tmp_path / "another name.npz", **base) == expected
    assert hash_of(tmp_path / "a.npz", compressed=True, **base) == expected
    assert hash_of(tmp_path / "a.npz", **base, extra=np.arange(3)) == expected
    assert hash_of(tmp_path / "a.npz", **{**base, "edge_index": shuffled}) == expected
    assert hash_of(tmp_path / "a.npz", **{**base, "edge_index": EDGES.astype(np.int32)}) == expected
    assert hash_of(tmp_path / "a.npz", **{**base, "x": COUNTS.astype(np.float64)}) == expected


def test_the_hash_changes_with_features_edges_and_labels(tmp_path: Path) -> None:
    base = {"edge_index": EDGES, "y": Y, "x": COUNTS}
    changed = COUNTS.copy()
    changed[0, 0] += 1e-6 * 8
    hashes = [
        hash_of(tmp_path / "a.npz", **base),
        hash_of(tmp_path / "a.npz", **{**base, "x": changed}),
        hash_of(tmp_path / "a.npz", **{**base, "x": COUNTS[:, ::-1]}),
        hash_of(tmp_path / "a.npz", **{**base, "edge_index": EDGES[:, :-1]}),
        hash_of(tmp_path / "a.npz", **{**base, "y": Y[::-1].copy()}),
    ]
    assert len(set(hashes)) == len(hashes)
