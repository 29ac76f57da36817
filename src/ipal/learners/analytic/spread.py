"""How features are propagated: over how many hops, and how much of a node's own features returns at each."""

from typing import NamedTuple

Place = tuple[int, int, float]
"""A hop, the number of a type of edges, and the restart on the way there."""


class Spread(NamedTuple):
    """How features are propagated."""

    hops: tuple[int, ...]
    """Several stand side by side."""
    restart: float = 0.0
    """The share of a node's own features that returns at every hop."""

    @property
    def steps(self) -> float:
        """How far features come from in the mean: steps of a walk that begins anew with the restart's probability."""
        weights = hop_weights(max(self.hops), self.restart)
        return sum(hop * weight for hop, weight in enumerate(weights))

    def __str__(self) -> str:
        return "+".join(map(str, self.hops)) + f", restart {self.restart:g}" * bool(self.restart)


def hop_weights(hops: int, restart: float) -> list[float]:
    r"""What every hop counts in features that are propagated with restarts.

    .. math:: x^{(h + 1)} = (1 - \alpha) \hat A x^{(h)} + \alpha x^{(0)}, \quad
        x^{(H)} = \sum_{h < H} \alpha (1 - \alpha)^h \hat A^h x^{(0)} + (1 - \alpha)^H \hat A^H x^{(0)}

    Source: Gasteiger et al. 2019, "Predict then Propagate", Eq. 4: personalised PageRank by power iteration. Without
    restarts, plain hops (Wu et al. 2019, SGC).
    """
    return [restart * (1 - restart) ** hop for hop in range(hops)] + [(1 - restart) ** hops]


def places(spread: Spread, edge_types: int) -> list[Place]:
    """Each hop of each type of edges; no hop is the same for all of them, and stands once."""
    return [
        (hop, kind, spread.restart if hop else 0.0) for hop in spread.hops for kind in range(edge_types if hop else 1)
    ]
