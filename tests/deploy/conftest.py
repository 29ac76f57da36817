"""A small model, and an application that serves it, with and without a network."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvicorn

from ipal.config import ProtocolConfig
from ipal.data.datasets import Dataset
from ipal.data.streams import TaskStream
from ipal.data.task import Task
from ipal.deploy.serving.app import make_app
from ipal.deploy.serving.bodies import Limits
from ipal.deploy.serving.server import http_config, listen
from ipal.estimator import files
from ipal.estimator.model import Model
from ipal.methods.ipal import IPAL
from ipal.methods.ncm import NCM
from tests.deploy.support import LocalClient, Start
from tests.learning import config, learn, learned

LIMITS = Limits(bytes=200_000, nodes=300, edges=5_000, seconds=5.0, waiting=2)

Client = Callable[..., LocalClient]


@pytest.fixture(scope="session")
def known(tiny: Dataset) -> Model:
    """Knows four of the six classes of the tiny graph; reaches two hops."""
    stream = TaskStream(tiny.graph, tiny.y, (2, 2, 2), ProtocolConfig(), seed=0)
    return learned(IPAL, stream, 2, epochs=5)


@pytest.fixture(scope="session")
def rejecting(tiny: Dataset) -> Model:
    """Knows four classes, and which nodes are of none of them."""
    nodes = np.flatnonzero(tiny.y < 4)
    return learn(config(NCM, calibration=0.2), Task(tiny.graph, nodes, tiny.y[nodes]))


@pytest.fixture
def client(known: Model, tmp_path: Path) -> Iterator[Client]:
    """Clients of applications that are closed in the end."""
    made: list[LocalClient] = []

    def start(model: Model = known, limits: Limits = LIMITS, **options: Any) -> LocalClient:
        path = tmp_path / f"served-{len(made)}.safetensors"
        files.save(model, path)
        made.append(LocalClient(make_app(path, limits, **options)))
        return made[-1]

    yield start
    for one in made:
        one.app.state.server.served.close()


@pytest.fixture
def model(known: Model, tmp_path: Path) -> Path:
    files.save(known, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


@pytest.fixture
def start(model: Path) -> Iterator[Start]:
    """Servers in threads of this process."""
    running: list[tuple[Any, threading.Thread]] = []

    def run(**limits: Any) -> tuple[str, int]:
        app = make_app(model, Limits(**limits))
        server = uvicorn.Server(http_config(app, app.state.server.limits))
        listener = listen("127.0.0.1", 0, app.state.server.limits.seconds)
        address: tuple[str, int] = listener.getsockname()
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        running.append((server, thread))
        return address

    yield run
    for server, thread in running:
        server.should_exit = True
        thread.join(10)
        server.config.app.state.server.served.close()
        assert not thread.is_alive()
