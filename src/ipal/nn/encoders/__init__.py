"""The networks that turn nodes into embeddings. To add one: a file here, a line in ENCODERS."""

import torch

from ipal.config import EncoderConfig
from ipal.nn.encoders.appnp import APPNP
from ipal.nn.encoders.base import Encoder
from ipal.nn.encoders.convolutions import GAT, GCN, SAGE, Skip
from ipal.system.plugins import Registry

__all__ = ["APPNP", "ENCODERS", "GAT", "GCN", "SAGE", "Encoder", "Skip"]


ENCODERS: Registry[type[Encoder]] = Registry(
    "encoder",
    own=(GCN, APPNP, SAGE, GAT, Skip),
    is_one=lambda thing: isinstance(thing, type) and issubclass(thing, Encoder),
    check=lambda encoder: encoder(3, EncoderConfig(hidden=4, width=4, heads=1), torch.Generator()),
)
