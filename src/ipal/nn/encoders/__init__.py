"""The networks that turn nodes into embeddings. To add one: a file here, a line in ENCODERS."""

from typing import Any

from ipal.nn.encoders.base import Encoder
from ipal.nn.encoders.gat import GAT
from ipal.nn.encoders.gcn import GCN
from ipal.nn.encoders.gin import GIN
from ipal.nn.encoders.linear import Linear
from ipal.nn.encoders.sage import SAGE
from ipal.nn.encoders.skip import Skip
from ipal.system.plugins import Registry

__all__ = ["ENCODERS", "GAT", "GCN", "GIN", "SAGE", "Encoder", "Linear", "Skip"]


def _is_encoder(thing: Any) -> bool:
    return isinstance(thing, type) and issubclass(thing, Encoder)


ENCODERS: Registry[type[Encoder]] = Registry("encoder", (GCN, Linear, SAGE, GAT, GIN, Skip), _is_encoder)
