"""Tensors and plain data in one file that appears whole or not at all: safetensors with JSON in its header.

Nothing is ever unpickled. The header carries a format version and a checksum, so that a file of another
version, or one that was damaged, is refused with a sentence.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from ipal.errors import StoreError
from ipal.files import write_atomically

FORMAT = "ipal-state-1"


@dataclass(frozen=True, eq=False)
class State:
    """A learner, or a run in the middle, as a value."""

    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any]

    def save(self, path: Path) -> None:
        tensors = {name: tensor.detach().contiguous().cpu() for name, tensor in self.tensors.items()}
        facts = json.dumps(self.facts)
        header = {"format": FORMAT, "facts": facts, "checksum": _checksum(tensors, facts)}
        write_atomically(path, safetensors.torch.save(tensors, metadata=header))

    @classmethod
    def load(cls, path: Path) -> "State":
        damaged = StoreError(f"{path} is damaged or no saved state: it cannot be read.")
        try:
            # At once: read in pieces, a file replaced meanwhile would give parts of two.
            content = path.read_bytes()
            tensors = safetensors.torch.load(content)
            header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")]).get("__metadata__", {})
        except FileNotFoundError as error:
            raise StoreError(f"{path} does not exist.") from error
        except (OSError, safetensors.SafetensorError, ValueError) as error:
            raise damaged from error
        version = header.get("format", "unknown")
        if version != FORMAT:
            raise StoreError(
                f"{path} has the format '{version}', this version of ipal reads '{FORMAT}': "
                "open it with the version that wrote it."
            )
        if "facts" not in header or header.get("checksum") != _checksum(tensors, header["facts"]):
            raise damaged
        return cls(tensors, json.loads(header["facts"]))


def _checksum(tensors: Mapping[str, Tensor], facts: str) -> str:
    digest = hashlib.sha256(facts.encode())
    for name in sorted(tensors):
        digest.update(f"{name}{tuple(tensors[name].shape)}{tensors[name].dtype}".encode())
        digest.update(tensors[name].reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
