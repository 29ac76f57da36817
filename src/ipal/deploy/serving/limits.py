"""Limits of a request, and the errors beyond them."""

from dataclasses import dataclass

from ipal.system.arrays import MalformedError, TooLargeError

__all__ = ["Limits", "MalformedError", "OverloadError", "TooLargeError", "UnexpectedError"]


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
    connections: int = 512

    @property
    def all_bytes(self) -> int:
        """Most bytes of all bodies in memory."""
        return 4 * self.bytes


class UnexpectedError(Exception):
    """A bug in this program."""

    def __init__(self) -> None:
        super().__init__("Something went wrong here, and it is not your fault: the server's log says what.")


class OverloadError(Exception):
    """The server is overloaded."""

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        """Seconds for the Retry-After header."""
