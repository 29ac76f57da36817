"""How the nodes of a computation lie over the processes of a team. An encoder asks it, and needs to know no more."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ipal.backend.distributed import Share, Team


class Layout:
    """All nodes on one process: nothing is exchanged."""

    def copied(self, *parameters: Tensor) -> tuple[Tensor, ...]:
        """Parameters, which are the same everywhere, for the nodes that are here."""
        return parameters

    def everywhere(self, hidden: Tensor) -> Tensor:
        """Values of all nodes that a next layer may look at, from those of the nodes that are here."""
        return hidden

    def complete(self, embeddings: Tensor) -> Tensor:
        """All embeddings that were asked for, from those that were made here."""
        return embeddings

    def uniform(self, hidden: Tensor, generator: torch.Generator) -> Tensor:
        """A number between 0 and 1 for each of `hidden`; the generator goes on alike on every process."""
        return torch.rand(hidden.shape, generator=generator, device=hidden.device, dtype=hidden.dtype)


ALONE = Layout()


@dataclass(frozen=True)
class BySeeds(Layout):
    """Every process has some of the nodes to be embedded, with all they need around them."""

    team: Team
    read: Share
    """Which of the nodes to be embedded are here."""

    def copied(self, *parameters: Tensor) -> tuple[Tensor, ...]:
        return self.team.copied(*parameters)

    def complete(self, embeddings: Tensor) -> Tensor:
        return self.team.gathered(embeddings, self.read)

    def uniform(self, hidden: Tensor, generator: torch.Generator) -> Tensor:
        # As many numbers as there are nodes here: the generator that all share must not move by that.
        seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
        own = torch.Generator(generator.device).manual_seed(seed + self.team.rank)
        return super().uniform(hidden, own)


@dataclass(frozen=True)
class ByRows(BySeeds):
    """Every process has some nodes of a whole graph, and computes their rows of every layer."""

    nodes: Share
    """Which nodes are here."""

    def everywhere(self, hidden: Tensor) -> Tensor:
        (copied,) = self.team.copied(self.team.gathered(hidden, self.nodes))
        return copied

    def uniform(self, hidden: Tensor, generator: torch.Generator) -> Tensor:
        # Those of all nodes, and of these the own ones: the same as in one process.
        whole = hidden.new_empty(self.nodes.total, hidden.shape[1])
        return self.nodes.of(whole.uniform_(generator=generator))


def by_rows(team: Team, nodes: Share, read: Share) -> Layout:
    return ALONE if team.size == 1 else ByRows(team, read, nodes)


def by_seeds(team: Team, read: Share) -> Layout:
    return ALONE if team.size == 1 else BySeeds(team, read)
