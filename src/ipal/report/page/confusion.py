"""Counts of confused classes, and what follows from them. Pure functions."""

from typing import NamedTuple


class Hits(NamedTuple):
    """Test nodes of one class: those recognised, and all."""

    right: int
    total: int

    @property
    def recall(self) -> float:
        """In percent."""
        return 100 * self.right / self.total


class Mixing(NamedTuple):
    """How old classes and those of the newest task are taken for each other, in percent of the nodes of each."""

    old_as_new: float | None
    new_as_old: float | None
    old_among_themselves: float | None
    new_among_themselves: float | None


def task_of_place(new: list[int]) -> list[int]:
    """The task of every class, in the order learned: the first that had it. `new` says how many each task brought."""
    return [task for task, size in enumerate(new) for _ in range(size)]


def hits(rows: list[tuple[int, int, int]]) -> dict[int, Hits]:
    """By place of the true class; classes without a test node are not there."""
    found: dict[int, Hits] = {}
    for true, predicted, count in rows:
        known = found.get(true, Hits(0, 0))
        found[true] = Hits(known.right + count * (true == predicted), known.total + count)
    return {place: one for place, one in sorted(found.items()) if one.total}


def task_counts(rows: list[tuple[int, int, int]], new: list[int], seen: int) -> list[list[int]]:
    """Nodes by true and predicted task, of the tasks seen."""
    task = task_of_place(new)
    counts = [[0] * seen for _ in range(seen)]
    for true, predicted, count in rows:
        counts[task[true]][task[predicted]] += count
    return counts


def mixing(rows: list[tuple[int, int, int]], new: list[int], newest: int) -> Mixing:
    """Confusion of old with new classes after the task `newest`."""
    task = task_of_place(new)
    wrong: dict[tuple[bool, bool], int] = {}
    total = {False: 0, True: 0}
    for true, predicted, count in rows:
        true_is_new, predicted_is_new = task[true] == newest, task[predicted] == newest
        total[true_is_new] += count
        if true != predicted:
            kind = (true_is_new, predicted_is_new)
            wrong[kind] = wrong.get(kind, 0) + count

    def share(true_is_new: bool, predicted_is_new: bool) -> float | None:
        nodes = total[true_is_new]
        return 100 * wrong.get((true_is_new, predicted_is_new), 0) / nodes if nodes else None

    return Mixing(share(False, True), share(True, False), share(False, False), share(True, True))
