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
from ipal.files import written_whole

FORMAT = "ipal-state-1"


def laid_out(tensor: Tensor) -> Tensor:
    """A copy in the one memory layout of all that is kept: row by row, beginning where torch begins its own memory.

    BLAS may round the same product differently for another layout, or another alignment, of the same numbers.
    """
    return tensor.detach().clone(memory_format=torch.contiguous_format)


@dataclass(frozen=True, eq=False)
class State:
    """A learner, or a run in the middle, as a value."""

    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any]

    def save(self, path: Path) -> None:
        """Equal states give equal bytes."""
        tensors = {name: tensor.detach().contiguous().cpu() for name, tensor in self.tensors.items()}
        facts = json.dumps(self.facts)
        metadata = {"format": FORMAT, "facts": facts, "checksum": _checksum(tensors, facts)}
        content = safetensors.torch.save(tensors)
        own = 8 + int.from_bytes(content[:8], "little")
        # The library would write the metadata in a random order: they are put into its header here.
        header = json.dumps({"__metadata__": metadata, **json.loads(content[8:own])}, separators=(",", ":")).encode()
        header += b" " * (-len(header) % 8)
        with written_whole(path) as file:
            file.write(len(header).to_bytes(8, "little") + header)
            file.write(memoryview(content)[own:])

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
