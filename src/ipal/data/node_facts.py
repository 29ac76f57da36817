"""What else is known of nodes, beside their features and labels: what some streams need."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False, kw_only=True)
class NodeFacts:
    """One whole number for every node, of each kind that is known."""

    time: NDArray[np.int64] | None = None
    """When each node came; None where that is not known."""
    domain: NDArray[np.int64] | None = None
    """Which domain, as a graph or a community, each node is of; None where that is not known."""
    parts: NDArray[np.int64] | None = None
    """0 for training, 1 for validation, 2 for the test, -1 for nodes that are not used; None where nobody has said."""

    @property
    def known(self) -> dict[str, NDArray[np.int64]]:
        """Those that are known, by the names that they have in files."""
        every = {"time": self.time, "domain": self.domain, "split": self.parts}
        return {name: values for name, values in every.items() if values is not None}
