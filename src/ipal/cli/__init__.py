"""The command `ipal`."""

import os
import sys

from ipal.cli import audit, bench, drift, export, models, predict, profile, report, serve, track
from ipal.cli.app import app
from ipal.cli.render import plain_warnings
from ipal.cli.team import is_team, together
from ipal.errors import IpalError

__all__ = ["app", "main"]

app.command()(bench.bench)
app.command()(report.report)
app.command()(drift.drift)
app.command()(profile.profile)
app.command()(audit.audit)
app.command()(predict.predict)
app.command()(serve.serve)
app.command()(export.export)
app.command()(track.track)
app.command()(models.merge)
app.command()(models.forget)


def main() -> None:
    """Run the command; what the user can put right is one sentence on stderr and exit code 2."""
    # Before torch is loaded: threads that wait shall sleep. Spinning, two runs of two threads on two cores were
    # measured to slow each other down thirtyfold.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        with plain_warnings():
            together(app) if is_team() else app()
    except IpalError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
