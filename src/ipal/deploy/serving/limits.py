"""How much a request may ask for, and what a refused one is told."""

from dataclasses import dataclass

from ipal.system.arrays import MalformedError, TooLargeError

__all__ = ["Limits", "MalformedError", "OverloadError", "TooLargeError", "UnexpectedError"]


@dataclass(frozen=True)
class Limits:
    """What a server takes on. A request beyond them is refused before it costs much."""

    bytes: int = 64 * 2**20
    """Of one request's body, as it is sent and as it is when unpacked."""
    nodes: int = 20_000
    edges: int = 1_000_000
    seconds: float = 30.0
    """For a body to arrive; and again for its answer."""
    waiting: int = 16
    """Requests that may wait while one is being answered."""
    connections: int = 512

    @property
    def all_bytes(self) -> int:
        """Of all bodies together that have arrived in part or as a whole."""
        return 4 * self.bytes


class UnexpectedError(Exception):
    """A mistake in this program."""

    def __init__(self) -> None:
        super().__init__("Something went wrong here, and it is not your fault: the server's log says what.")


class OverloadError(Exception):
    """Too much is going on to answer now."""

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        """Seconds after which another try is worth it."""
