"""A small model, and an application that serves it."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ipal.config import ProtocolConfig
from ipal.datasets import Dataset
from ipal.learners import IPAL, Learner
from ipal.serving.app import make_app
from ipal.serving.limits import Limits
from ipal.streams import TaskStream
from tests.methods.support import learned
from tests.serving.support import LocalClient

LIMITS = Limits(bytes=200_000, nodes=300, edges=5_000, seconds=5.0, waiting=2)

Client = Callable[..., LocalClient]


@pytest.fixture(scope="session")
def known(tiny: Dataset) -> Learner:
    """Knows four of the six classes of the tiny graph; reaches two hops."""
    stream = TaskStream(tiny.graph, tiny.y, (2, 2, 2), ProtocolConfig(), seed=0)
    learner: Learner = learned(IPAL, stream, 2, epochs=5)
    return learner


@pytest.fixture
def client(known: Learner) -> Iterator[Client]:
    """Clients of applications that are closed in the end."""
    made: list[LocalClient] = []

    def start(learner: Learner = known, limits: Limits = LIMITS, **options: Any) -> LocalClient:
        made.append(LocalClient(make_app(learner, limits, **options)))
        return made[-1]

    yield start
    for one in made:
        one.app.state.server.answerer.close()
