"""The command `ipal`."""

import sys

from ipal.cli.app import app
from ipal.errors import IpalError

__all__ = ["app", "main"]


def main() -> None:
    """Run the command; what the user can put right is one sentence on stderr and exit code 2."""
    try:
        app()
    except IpalError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(2)
