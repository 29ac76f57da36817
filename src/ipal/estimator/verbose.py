"""`verbose`: one line on stderr while a task is learned, and what it ended in."""

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager

from ipal.backend.finite import read_terms
from ipal.engine.trainer import Epoch
from ipal.estimator.model import Model
from ipal.estimator.settings import LearnerConfig
from ipal.state.value import State

Epochs = Generator[Epoch, None, State]
LOOK_EVERY = 0.2
"""Seconds between two looks at the loss, which a GPU waits for."""


@contextmanager
def shown(config: LearnerConfig, model: Model | None) -> Iterator[Callable[[Epochs], Epochs]]:
    """Show the next task of a model, whose epochs are passed through what is given here; where that is asked for."""
    if not config.verbose:
        yield lambda epochs: epochs
        return
    from rich.console import Console

    from ipal.system.status import Status

    said = task = f"task {1 + (len(model.lessons) if model else 0)}"
    with Status(Console(stderr=True), f"{task}, {'preparing' if config.epochs else 'learning'}") as status:

        def watched(epochs: Epochs) -> Epochs:
            nonlocal said
            done, looked = 0, 0.0
            while True:
                try:
                    epoch = next(epochs)
                except StopIteration as end:
                    return end.value  # type: ignore[no-any-return]
                done += bool(epoch.terms)
                if epoch.terms and (done == config.epochs or time.perf_counter() > looked + LOOK_EVERY):
                    (terms,) = read_terms([epoch.terms])
                    said = f"{task}, epoch {done} of {config.epochs}, loss {sum(terms.values()):.3f}"
                    status.show(said, done / config.epochs)
                    looked = time.perf_counter()
                yield epoch

        yield watched
        status.keep(f"{said}, {status.seconds:.1f} s")
