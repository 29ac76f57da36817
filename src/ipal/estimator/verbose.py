"""`verbose`: one line on stderr while a task is learned, and what it ended in."""

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager

from ipal.backend.finite import read_terms
from ipal.engine.trainer import Epoch
from ipal.estimator.model import Model
from ipal.estimator.settings import LearnerConfig
from ipal.methods.base import Terms
from ipal.state.value import State

Epochs = Generator[Epoch, None, State]


@contextmanager
def shown(config: LearnerConfig, model: Model | None) -> Iterator[Callable[[Epochs], Epochs]]:
    """Show the next task of a model, whose epochs are passed through what is given here; where that is asked for."""
    if not config.verbose:
        yield lambda epochs: epochs
        return
    from rich.console import Console

    from ipal.system.status import Status

    said, last = f"task {1 + (len(model.lessons) if model else 0)}", Terms()
    with Status(Console(stderr=True), said) as status:

        def watched(epochs: Epochs) -> Epochs:
            nonlocal last
            done = 0
            while True:
                try:
                    epoch = next(epochs)
                except StopIteration as end:
                    return end.value  # type: ignore[no-any-return]
                if epoch.terms:
                    last, done = epoch.terms, done + 1
                    status.show(f"{said}, epoch {done} of {config.epochs}", done / config.epochs)
                yield epoch

        yield watched
        if last:
            said += f", epoch {config.epochs} of {config.epochs}, loss {sum(read_terms([last])[0].values()):.3f}"
        status.keep(f"{said}, {status.seconds:.1f} s")
