"""Tensors and plain data in one file that appears whole or not at all: safetensors with JSON in its header.

Nothing is ever unpickled. The header carries a format version and a checksum, so that a file of another
version, or one that was damaged, is refused with a sentence.
"""

import hashlib
import io
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from ipal.errors import StoreError
from ipal.system.documents import parse_json
from ipal.system.files import open_plain, written_whole
from ipal.system.free_memory import available

FORMAT = "ipal-state-1"
MOST_HEADER = 100_000_000
"""Bytes: safetensors itself reads none that is longer."""
KINDS = {"F64", "F32", "I64", "I32", "U8"}
"""What tensors are stored as."""


def laid_out(tensor: Tensor) -> Tensor:
    """A copy in the one memory layout of all that is kept: row by row, beginning where torch begins its own memory.

    BLAS may round the same product differently for another layout, or another alignment, of the same numbers.
    """
    return tensor.detach().clone(memory_format=torch.contiguous_format)


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A model, or a run in the middle, as tensors and plain data."""

    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any]

    def __reduce__(self) -> tuple[Any, ...]:
        """For another process: bytes, as PyTorch would share the memory of tensors with it."""
        return Snapshot.of, (b"".join(self._content()), Path("The pickled model"))

    def _apart(self) -> dict[str, Tensor]:
        """The tensors in main memory, each in its own: the library saves none under two names."""
        tensors: dict[str, Tensor] = {}
        for name, tensor in self.tensors.items():
            tensors[name] = tensor.detach().contiguous().cpu()
            if any(one.data_ptr() == tensors[name].data_ptr() for one in list(tensors.values())[:-1]):
                tensors[name] = tensors[name].clone()
        return tensors

    def _content(self) -> tuple[bytes, memoryview]:
        """What a file holds, its header apart. Equal snapshots give equal bytes."""
        tensors = self._apart()
        facts = json.dumps(self.facts)
        metadata = {"format": FORMAT, "facts": facts, "checksum": _checksum(tensors, facts)}
        content = safetensors.torch.save(tensors)
        own = 8 + int.from_bytes(content[:8], "little")
        # The library would write the metadata in a random order: they are put into its header here.
        header = json.dumps({"__metadata__": metadata, **json.loads(content[8:own])}, separators=(",", ":")).encode()
        header += b" " * (-len(header) % 8)
        return len(header).to_bytes(8, "little") + header, memoryview(content)[own:]

    def save(self, path: Path) -> None:
        """A new file is the user's alone."""
        with written_whole(path, private=True) as file:
            file.writelines(self._content())

    @classmethod
    def load(cls, path: Path) -> "Snapshot":
        return cls.of(content_of(path), path)

    @classmethod
    def of(cls, content: bytes, path: Path) -> "Snapshot":
        """From what a file holds."""
        with _explained(path):
            header = _header(io.BytesIO(content), len(content))
            tensors = safetensors.torch.load(content)
            version = header.get("format", "unknown")
            if version != FORMAT:
                raise StoreError(
                    f"{path} has the format '{version[:40]}', this version of ipal reads '{FORMAT}': "
                    "open it with the version that wrote it."
                )
            if "facts" not in header or header.get("checksum") != _checksum(tensors, header["facts"]):
                raise ValueError("not what was written")
            return cls(tensors, _parsed(header["facts"]))


def content_of(path: Path) -> bytes:
    """All of a file; its header is checked before the rest is read."""
    with _explained(path), open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        if (room := available()) is not None and 2 * size > room:
            raise MemoryError
        _header(file, size)
        file.seek(0)
        return file.read()


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """What goes wrong with a file, as a sentence."""
    try:
        yield
    except FileNotFoundError as error:
        raise StoreError(f"{path} does not exist.") from error
    except MemoryError as error:
        raise StoreError(f"{path} is larger than the free memory of this machine: it cannot be read here.") from error
    except (OSError, safetensors.SafetensorError, ValueError) as error:
        raise StoreError(f"{path} is damaged or no saved state: it cannot be read.") from error


def _header(file: BinaryIO, size: int) -> dict[str, str]:
    """What the header of a file of this size says beside the tensors; its length and the tensors' kinds are checked."""
    length = int.from_bytes(file.read(8), "little")
    if length > min(MOST_HEADER, size - 8):
        raise ValueError("a header longer than its file, or than any that was written")
    header = _parsed(file.read(length))
    about_all = header.pop("__metadata__", {})
    if not isinstance(about_all, dict) or not all(isinstance(value, str) for value in about_all.values()):
        raise ValueError("what the header says beside the tensors is no text")
    if not all(isinstance(entry, dict) and entry.get("dtype") in KINDS for entry in header.values()):
        raise ValueError("tensors of a kind that is never written")
    return about_all


def _parsed(text: str | bytes) -> dict[str, Any]:
    """A JSON object in which no name comes twice."""
    found = parse_json(text, MOST_HEADER)
    if not isinstance(found, dict):
        raise ValueError("no JSON object")
    return found


def _checksum(tensors: Mapping[str, Tensor], facts: str) -> str:
    digest = hashlib.sha256(facts.encode())
    for name in sorted(tensors):
        digest.update(f"{name}{tuple(tensors[name].shape)}{tensors[name].dtype}".encode())
        if tensors[name].numel():  # an empty one may have no strides to view as bytes
            digest.update(tensors[name].reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
