"""Propagated features through linear layers: what is propagated is the same whatever is learned."""

import torch
from torch import Tensor, nn

from ipal.backend.operators import LayerInput
from ipal.backend.propagated import Columns, Propagated, settled
from ipal.config import EncoderConfig, TestGraph
from ipal.errors import ConfigError
from ipal.nn.encoders.base import Encoder, Parameters, Shapes
from ipal.system import free_memory


class APPNP(Encoder):
    r"""Features propagated with restarts, then linear layers with an activation between them.

    .. math:: H = \big[ H_{r_1} \,\|\, H_{r_2} \,\|\, \dots \big], \quad
        H_r^{(k+1)} = (1 - r) \, \hat A H_r^{(k)} + r H_r^{(0)}, \quad F = H W + b

    Source: Gasteiger et al. 2019, "Predict then Propagate: Graph Neural Networks meet Personalized PageRank", Eq. 4;
    without restarts Wu et al. 2019, "Simplifying Graph Convolutional Networks"; with several restarts side by side as
    Frasca et al. 2020, "SIGN: Scalable Inception Graph Neural Networks". A linear layer and the propagation commute, so
    that features are propagated once a graph, in double precision, and not in every step.

    H^{(0)} are rows of features scaled to unit length and, where they have more columns than `hidden` divided by the
    number of restarts, projected to that many by a Gaussian matrix. This matrix follows from the place of the restart
    alone: it is the same in every network, and no part of what is saved. Rows of each H_r are scaled to unit length
    again. Square weights start as the identity, others as an orthogonal random projection; a single layer is never
    wider than H.
    """

    name = "appnp"
    fewest_layers = 1

    def __init__(self, num_features: int, config: EncoderConfig, generator: torch.Generator) -> None:
        parts = self.parts(num_features, config)
        free_memory.need(
            4 * num_features * sum(part.number for part in parts if part.is_projected),
            f"A projection of {num_features} features",
            "use fewer features, or a smaller encoder.hidden",
        )
        super().__init__(num_features, config, generator)
        self.rows = Propagated(parts)
        self.needs = (self.rows,)

    @classmethod
    def parts(cls, num_features: int, config: EncoderConfig) -> tuple[Columns, ...]:
        """The columns of H."""
        steps, restarts = settled(config.steps, config.restart)
        number = min(num_features, config.hidden // len(restarts))
        return tuple(
            Columns(num_features, number, number < num_features, number, steps, restart, seed=(place,))
            for place, restart in enumerate(restarts)
        )

    @classmethod
    def widths(cls, num_features: int, config: EncoderConfig) -> list[int]:
        read = sum(part.number for part in cls.parts(num_features, config))
        return [read, min(read, config.width)] if config.layers == 1 else super().widths(read, config)

    @classmethod
    def shapes(cls, fan_in: int, fan_out: int, config: EncoderConfig, *, is_last: bool) -> Shapes:
        return {"weights": (fan_in, fan_out), "biases": (fan_out,)}

    @staticmethod
    def start(name: str, zeros: Tensor, generator: torch.Generator) -> Tensor:
        if zeros.dim() < 2:
            return zeros
        rows, columns = zeros.shape
        return nn.init.eye_(zeros) if rows == columns else nn.init.orthogonal_(zeros, generator=generator)

    def layer(self, seen: LayerInput, p: Parameters) -> Tensor:
        return seen.own(p["weights"]).add_(p["biases"])

    @classmethod
    def reads_neighbours(cls) -> bool:
        return False

    @classmethod
    def settled(cls, config: EncoderConfig, test_graph: TestGraph) -> EncoderConfig:
        steps, restarts = settled(config.steps, config.restart, test_graph)
        return config.model_copy(update={"steps": steps, "restart": restarts})

    @classmethod
    def check(cls, config: EncoderConfig) -> None:
        super().check(config)
        _, restarts = settled(config.steps, config.restart)
        if config.hidden < len(restarts):
            raise ConfigError(
                f"encoder.hidden is {config.hidden}, which {len(restarts)} restarts cannot share: set one column or "
                "more for each."
            )

    @classmethod
    def reach(cls, config: EncoderConfig) -> int:
        return settled(config.steps, config.restart)[0]
