"""Limits of a request, and the errors beyond them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ipal.system.arrays import MalformedError, TooLargeError

__all__ = ["Limits", "MalformedError", "OverloadError", "Refusal", "TooLargeError", "UnexpectedError"]


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
    """Most open connections; beyond it, the one that is idle longest is closed."""

    @property
    def all_bytes(self) -> int:
        """Most bytes of all bodies in memory."""
        return 4 * self.bytes


class Refusal(Exception):  # noqa: N818
    """A refused request, with its HTTP status."""

    def __init__(self, status: int, sentence: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(sentence)
        self.status, self.headers = status, dict(headers or {})


class UnexpectedError(Refusal):
    """A bug in this program."""

    def __init__(self) -> None:
        super().__init__(500, "Something went wrong here, and it is not your fault: the server's log says what.")

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return type(self), ()


class OverloadError(Refusal):
    """The server is overloaded; in so many seconds it may be better."""

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(503, message, {"retry-after": str(math.ceil(retry_after))})
