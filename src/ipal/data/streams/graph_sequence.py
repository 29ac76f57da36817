"""Graph sequences: whole graphs one after the other, each with classes of its own."""

from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ipal.config import MOST_TASKS, RunConfig
from ipal.data.dataset import Dataset
from ipal.data.labels import Label
from ipal.data.streams.class_incremental import TaskStream
from ipal.errors import DataError


class GraphSequence(TaskStream):
    """Every task is one graph with all its classes. At test time nobody says which graph a node is of."""

    name = "graphs"

    class Settings(TaskStream.Settings):
        first: Literal["seed"] | Annotated[int, Field(ge=0, lt=MOST_TASKS)] = 0
        """Place, from 0, of the graph that comes first; the others follow in turn. seed: the run's seed says which, in
        turn, so that as many seeds as there are graphs make all rotations."""

    settings: Settings

    @classmethod
    def of(cls, dataset: Dataset, config: RunConfig) -> Self:
        if dataset.domain is None or len(np.unique(dataset.domain)) < 2:
            raise DataError(
                f"The stream '{cls.name}' needs several graphs, and '{dataset.name}' is one: name more with commas, as "
                "--dataset cora-ml,dblp, or add an array 'domain' of whole numbers to its .npz file."
            )
        return super().of(dataset, config)

    def tasks_of_nodes(self, order: list[Label], split: tuple[int, ...] | None, seed: int) -> NDArray[np.int64]:
        assert self.facts.domain is not None, "checked where it is made"
        self.domains, which = np.unique(self.facts.domain, return_inverse=True)
        first = seed % len(self.domains) if self.settings.first == "seed" else self.settings.first
        if first >= len(self.domains):
            raise DataError(
                f"protocol.stream.first is {first}, but the graphs are 0 to {len(self.domains) - 1}: set one of them."
            )
        again = [label for label in order if len(np.unique(which[self.y == label])) > 1]
        if again:
            raise DataError(
                f"Class {again[0]} is in several graphs: give the classes of each graph numbers of their own, or set "
                "protocol.stream=domain, where classes come again."
            )
        self.domains = np.roll(self.domains, -first)
        return np.asarray((which - first) % len(self.domains), dtype=np.int64)

    def describe(self) -> dict[str, Any]:
        """With the domain that each task is."""
        return {**super().describe(), "domains": self.domains.tolist()}
