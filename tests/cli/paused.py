"""A command in a process of its own that waits before it writes. Apart from the tests: it loads nothing else."""

import os
import sys
import time
from pathlib import Path

from ipal import Analytic
from ipal.cli import main


def perform(folder: Path, arguments: list[str]) -> None:
    """Run the command in this folder; its model is saved once there is a file `go on`."""
    os.chdir(folder)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    save = Analytic.save

    def paused(learner: Analytic, path: Path) -> None:
        Path("writing").touch()
        while not Path("go on").exists():
            time.sleep(0.01)
        save(learner, path)

    Analytic.save = paused  # type: ignore[method-assign,assignment]
    sys.argv = ["ipal", *arguments]
    main()
