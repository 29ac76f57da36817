"""A command in a process of its own that waits before it writes. Apart from the tests: it loads nothing else."""

import os
import sys
import time
from pathlib import Path
from typing import Any

from ipal.cli import main
from ipal.estimator import files
from ipal.estimator.model import Model


def perform(folder: Path, arguments: list[str]) -> None:
    """Run the command in this folder; its model is saved once there is a file `go on`."""
    os.chdir(folder)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    save = files.save

    def paused(model: Model, path: Path, **options: Any) -> None:
        Path("writing").touch()
        while not Path("go on").exists():
            time.sleep(0.01)
        save(model, path, **options)

    files.save = paused
    sys.argv = ["ipal", *arguments]
    main()
