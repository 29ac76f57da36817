"""How classes are ordered and cut into tasks, and the nodes of each class into training, validation and test."""

import numpy as np
from numpy.typing import NDArray

from ipal.config import Counts, ProtocolConfig
from ipal.data.labels import Label, Labels, labelled
from ipal.errors import DataError, shortened

TRAIN, VALIDATION, TEST, CONTEXT = 0, 1, 2, 3
"""What a node is for. CONTEXT: it is in the graph of its task, and nothing else."""


def default_split(num_classes: int) -> tuple[int, ...]:
    """Steps of two classes after a larger base: a third of the classes counted in steps (10 is 4+2+2+2)."""
    steps = num_classes // 3
    if steps == 0:
        return (1,) * num_classes
    return (num_classes - 2 * steps,) + (2,) * steps


def order_classes(y: Labels, protocol: ProtocolConfig, seed: int) -> list[Label]:
    """The labels in the order in which they are to be learned."""
    found, sizes = np.unique(y, return_counts=True)
    labels: list[Label] = found.tolist()
    if protocol.class_order == "label":
        return labels
    if protocol.class_order == "shuffled":
        return list(np.random.default_rng([seed, 1]).permutation(labels).tolist())
    if protocol.class_order == "size":
        return [labels[place] for place in np.argsort(-sizes, kind="stable")]
    if sorted(protocol.class_order, key=str) != sorted(labels, key=str):
        names = shortened(", ".join(map(str, labels)))
        raise DataError(f"protocol.class_order must name each of the {len(labels)} classes once: {names}.")
    return list(protocol.class_order)


def tasks_of_classes(number: int, split: tuple[int, ...] | None) -> NDArray[np.int64]:
    """The task of each of so many classes: consecutive groups of the sizes of `split`."""
    default = default_split(number)
    split = default if split is None else split
    if not split or any(size < 1 for size in split) or sum(split) != number:
        sizes = "+".join(map(str, split))
        raise DataError(
            f"The split {sizes or '(none)'} adds up to {sum(split)} classes, but the graph has {number}: "
            f"pass --split with sizes that add up to {number}, for example {','.join(map(str, default))}."
        )
    return np.repeat(np.arange(len(split)), split)


def cut_evenly(groups: Labels, value: NDArray[np.integer], parts: int) -> NDArray[np.int64]:
    """The members of every group in order of a value, cut into so many parts of about the same size."""
    part = np.zeros(len(groups), dtype=np.int64)
    for group in np.unique(groups):
        mine = np.flatnonzero(groups == group)
        order = mine[np.argsort(value[mine], kind="stable")]
        part[order] = np.arange(len(mine)) * parts // len(mine)
    return part


def at_most(place: NDArray[np.int64], most: int, random: np.random.Generator) -> NDArray[np.int64]:
    """Which entries stay if every place keeps at most so many, drawn at random."""
    order = np.lexsort((random.random(len(place)), place))
    first = np.searchsorted(place[order], place[order])  # of its place, where entries are sorted
    return np.sort(order[np.arange(len(order)) - first < most])


def assign_parts(
    y: Labels, protocol: ProtocolConfig, seed: int, given: NDArray[np.int64] | None = None
) -> tuple[NDArray[np.int8], list[Label]]:
    """Train, validation, test or context for every node, and the classes that are dropped; -1 for nodes not used."""
    part, lacking = _given_parts(y, given) if protocol.parts == "given" else _drawn_parts(y, protocol, seed)
    if lacking and protocol.small_classes == "error":
        sizes = ", ".join(f"class {label} ({np.sum(y == label)} node(s))" for label in lacking[:5])
        raise DataError(
            f"Too few training, validation or test nodes for {sizes}: add nodes, ask for fewer with protocol.parts, or "
            "leave such classes out with --set protocol.small_classes=drop."
        )
    if not (part >= 0).any():
        raise DataError("No class is left: each needs a training, a validation and a test node.")
    return part, lacking


def _drawn_parts(y: Labels, protocol: ProtocolConfig, seed: int) -> tuple[NDArray[np.int8], list[Label]]:
    """Class by class, by a seed; and which classes are too small for it."""
    if protocol.train_share + protocol.validation_share >= 1:
        raise DataError("protocol.train_share and protocol.validation_share leave nothing for the test.")
    part = np.full(len(y), -1, dtype=np.int8)
    random = np.random.default_rng([seed, 0])
    lacking = []
    for label in np.unique(y[labelled(y)]):
        members = random.permutation(np.flatnonzero(y == label))
        train, validation, test = _sizes(len(members), protocol)
        if train < 1 or train + validation + test > len(members):
            lacking.append(label.item())
            continue
        role = np.repeat([VALIDATION, TEST, TRAIN], [validation, test, train])
        part[members] = CONTEXT
        part[members[: len(role)]] = role
    return part, lacking


def _sizes(size: int, protocol: ProtocolConfig) -> tuple[int, int, int]:
    """Training, validation and test nodes of a class of so many nodes."""
    counts = protocol.parts
    if isinstance(counts, Counts):
        asked = counts.train, counts.validation, counts.test
        if counts.fewer == "error" or sum(asked) <= size:
            return asked
    validation = max(1, round(protocol.validation_share * size))
    test = max(1, round((1 - protocol.train_share - protocol.validation_share) * size))
    return size - validation - test, validation, test


def _given_parts(y: Labels, given: NDArray[np.int64] | None) -> tuple[NDArray[np.int8], list[Label]]:
    """As the dataset says; and which classes do not have all of them."""
    if given is None:
        raise DataError(
            "protocol.parts=given needs a dataset that says which nodes are for training, validation and test: add an "
            "array 'split' (0, 1, 2, or -1 for nodes that are not used) to its .npz file, or set protocol.parts=drawn."
        )
    labels = np.unique(y[labelled(y)])
    whole = [np.isin(labels, y[given == part]) for part in (TRAIN, VALIDATION, TEST)]
    lacking = labels[~np.logical_and.reduce(whole)]
    unused = np.isin(y, lacking) | ~labelled(y)
    return np.where(unused, -1, given).astype(np.int8), lacking.tolist()
