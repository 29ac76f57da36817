"""What all encoders share: parameters, the order of layers, activations, dropout. Knows no classes, tasks or heads."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from ipal.backend.operators import LayerInput, Need, Operators
from ipal.config import EncoderConfig, TestGraph
from ipal.errors import ConfigError
from ipal.system import free_memory

Parameters = Mapping[str, Tensor]
"""Those of one layer, by their names."""
Shapes = dict[str, tuple[int, ...]]


class Encoder(nn.Module, ABC):
    """Graph layers one after the other, a ReLU after each, no classifier head.

    A subclass says which parameters a layer has (`shapes`), how they start (`start`), and what a layer computes from a
    `LayerInput` (`layer`); whole graphs, samples, graphs in pieces and exported files follow from that. In training
    mode dropout may zero a share of the inputs of every layer but the first, the others scaled up to the same mean.

    Parameters
    ----------
    num_features : int
        Columns that the first layer reads.
    config : EncoderConfig
        The settings.
    generator : torch.Generator
        Draws the weights and dropout.
    """

    name: ClassVar[str]
    """What `encoder.kind` calls it."""
    needs: Sequence[Need]
    """What its layers use of a graph."""
    fewest_layers: ClassVar[int] = 2

    def __init__(self, num_features: int, config: EncoderConfig, generator: torch.Generator) -> None:
        super().__init__()
        layers = list(self.all_shapes(num_features, config))
        self.width = self.widths(num_features, config)[-1]
        """Of the embeddings."""
        if generator.device.type == "cpu":
            weights = sum(torch.Size(shape).numel() for layer in layers for shape in layer.values())
            free_memory.need(
                16 * weights,  # four bytes each, with gradients and the optimiser's two moments
                f"A network for {num_features} features with {config.layers} layers (hidden {config.hidden})",
                "use fewer features, or a smaller encoder.hidden",
            )
        self.last_activation = config.last_activation
        self.dropout = config.dropout
        self.generator = generator
        self.num_layers = config.layers
        for name in layers[0]:
            self.register_module(name, nn.ParameterList())
        for shapes in layers:
            for name, shape in shapes.items():
                parameter = self.start(name, torch.zeros(shape, device=generator.device), generator)
                cast(nn.ParameterList, self.get_submodule(name)).append(nn.Parameter(parameter))

    @classmethod
    @abstractmethod
    def shapes(cls, fan_in: int, fan_out: int, config: EncoderConfig, *, is_last: bool) -> Shapes:
        """The parameters of one layer; `weights` (fan in x …) are those that its inputs are multiplied with first.

        Parameters
        ----------
        fan_in, fan_out : int
            How many columns the layer reads and gives.
        config : EncoderConfig
            The settings.
        is_last : bool
            Whether it is the last layer.

        Returns
        -------
        dict of str to tuple of int
            Shapes by name.
        """

    @staticmethod
    def start(name: str, zeros: Tensor, generator: torch.Generator) -> Tensor:
        """What a parameter starts with: matrices as in Glorot & Bengio 2010, all else at zero.

        Parameters
        ----------
        name : str
            Of the parameter, as in `shapes`.
        zeros : Tensor of the shape of the parameter
            To be filled.
        generator : torch.Generator
            The only source of random numbers.

        Returns
        -------
        Tensor of the shape of zeros
        """
        return nn.init.xavier_uniform_(zeros, generator=generator) if zeros.dim() == 2 else zeros

    @abstractmethod
    def layer(self, seen: LayerInput, p: Parameters) -> Tensor:
        """One layer, before its activation.

        Parameters
        ----------
        seen : LayerInput
            The values of the nodes, to be multiplied with weights: `aggregated`, `own`, `attended`.
        p : mapping of str to Tensor
            The parameters of this layer.

        Returns
        -------
        Tensor of shape (n_nodes, fan_out)
        """

    def activated(self, values: Tensor, p: Parameters, *, is_last: bool) -> Tensor:
        """What a layer hands on; may change `values` in place."""
        return values if is_last and self.last_activation == "none" else torch.relu_(values)

    @classmethod
    def check(cls, config: EncoderConfig) -> None:
        """Refuse settings that do not fit the network, with a ConfigError."""
        if config.layers < cls.fewest_layers:
            raise ConfigError(f"encoder.layers is {config.layers}: '{cls.name}' takes {cls.fewest_layers} or more.")

    @classmethod
    def reads_neighbours(cls) -> bool:
        """Whether layers read neighbours; else mini-batches sample none."""
        return True

    @classmethod
    def settled(cls, config: EncoderConfig, test_graph: TestGraph) -> EncoderConfig:
        """Settings with what the graphs that are predicted decide."""
        return config

    @classmethod
    def reach(cls, config: EncoderConfig) -> int:
        """How many hops away a node can be and still count in another's embedding."""
        return config.layers

    @classmethod
    def widths(cls, num_features: int, config: EncoderConfig) -> list[int]:
        """How many columns the first layer reads, and each layer gives."""
        return [num_features, *[config.hidden] * (config.layers - 1), config.width]

    @classmethod
    def all_shapes(cls, num_features: int, config: EncoderConfig) -> Iterator[Shapes]:
        """The parameters of every layer."""
        for number, (fan_in, fan_out) in enumerate(pairwise(cls.widths(num_features, config)), start=1):
            yield cls.shapes(fan_in, fan_out, config, is_last=number == config.layers)

    def layers(self) -> list[Parameters]:
        """The parameters of every layer."""
        found: list[dict[str, Tensor]] = [{} for _ in range(self.num_layers)]
        for name, parameter in self.named_parameters():
            kind, _, number = name.rpartition(".")
            found[int(number)][kind] = parameter
        return [*found]

    def computed(self, number: int, seen: LayerInput, p: Parameters) -> Tensor:
        """What a layer hands on, by its number and with its parameters."""
        return self.activated(self.layer(seen, p), p, is_last=number == self.num_layers - 1)

    def forward(self, graph: Operators) -> Tensor:
        """Embeddings of the nodes at which `graph` reads out: all of them, or a task's training nodes."""
        first, *later = self.layers()
        hidden = self.computed(0, graph.first, first)
        for number, (seen, p) in enumerate(zip(graph.later(len(later)), later, strict=True), start=1):
            if self.training and self.dropout:
                kept = 1 - self.dropout
                drawn = torch.rand(hidden.shape, generator=self.generator, device=hidden.device, dtype=hidden.dtype)
                hidden = hidden * drawn.lt_(kept).div_(kept)
            hidden = self.computed(number, seen(hidden), p)
        return hidden
