"""Graphs that need no file: the handwritten digits inside scikit-learn, and communities of any size."""

import numpy as np

from ipal.data.datasets.readers import RawGraph
from ipal.data.datasets.synthetic import RedditShaped, synthetic


def digits(neighbours: int = 8) -> RawGraph:
    """Each of 1,797 digit images linked to its nearest neighbours by pixel distance; features are the pixels."""
    from sklearn.datasets import load_digits

    images = load_digits()
    # Pixels are whole numbers up to 16, so these distances are exact, and equal ones are told apart by their order: the
    # same graph on every machine, with any number of threads. Numbers of 16 bits are sorted several times as fast.
    square = (images.data**2).sum(axis=1)
    distance = (square[:, None] + square[None, :] - 2 * images.data @ images.data.T).astype(np.int16)
    np.fill_diagonal(distance, np.iinfo(np.int16).max)
    nearest = np.argsort(distance, axis=1, kind="stable")[:, :neighbours]
    x = (images.data / 16.0).astype(np.float32)
    return RawGraph(
        np.stack([np.repeat(np.arange(len(x)), neighbours), nearest.reshape(-1)]),
        images.target,
        x,
        f"pixels scaled to [0, 1]; edges join {neighbours} nearest neighbours over all images, "
        "so the graph itself was made from more than one task",
    )


def reddit_shaped(size: RedditShaped) -> RawGraph:
    """Communities in the numbers of Reddit."""
    return synthetic(size.as_synthetic())
