"""Limits of a request."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Limits of a server; a request beyond them is refused early."""

    bytes: int = 64 * 2**20
    """Most bytes of a request body, compressed and uncompressed."""
    nodes: int = 20_000
    edges: int = 1_000_000
    seconds: float = 30.0
    """Timeout for receiving a body, and again for answering it."""
    waiting: int = 16
    """Most requests in the queue."""
    connections: int = 2048
    """Most open connections; while there are more, every request is answered with 503."""

    @property
    def all_bytes(self) -> int:
        """Most bytes of all bodies in memory."""
        return 4 * self.bytes
