"""Answers by a process of its own: the same calls as `Answers`, over pipes. It ends when its pipes are closed."""

import logging
import multiprocessing
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from ipal.deploy.serving.answers import Answer, Answers, Body, Facts, ModelFile, Reply, Settings
from ipal.deploy.serving.limits import UnexpectedError
from ipal.errors import IpalError
from ipal.runs.plugins import load_plugin
from ipal.system.plugins import loaded_files

ENDING = 5.0
"""Seconds that a process has to end by itself."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""They are for the process that starts the others; a terminal sends them to all."""

log = logging.getLogger(__name__)


class WorkerEndedError(Exception):
    """The process is gone."""


class Worker:
    """A process that answers."""

    def __init__(self, settings: Settings) -> None:
        spawned = multiprocessing.get_context("spawn")
        (self._asks, asked), (self._orders, ordered) = spawned.Pipe(), spawned.Pipe()
        self.process = spawned.Process(target=_work, args=(asked, ordered, settings, loaded_files()), daemon=True)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        self.process.start()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        asked.close()  # so that a process that ends closes the pipe
        ordered.close()

    @property
    def is_alive(self) -> bool:
        return self.process.is_alive()

    def load(self, file: ModelFile) -> Facts:
        facts: Facts = _call(self._orders, "load", file)
        return facts

    def use(self) -> None:
        _call(self._orders, "use")

    def answer(self, body: Body, kind: str, reply: Answer | None = None) -> Reply | Exception:
        answer: Reply | Exception = _call(self._asks, kind, reply, body=body)
        return answer

    def close(self) -> None:
        """Let the process finish what it does, and end it."""
        self._asks.close()
        self._orders.close()
        self.process.join(ENDING)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def _call(connection: Connection, *words: Any, body: Body | None = None) -> Any:
    """What the process gives back; a body follows as it is, because to pickle it would take longer than to send it."""
    try:
        connection.send(words)
        if body is not None:
            connection.send_bytes(body)
        raised, result = connection.recv()
    except (EOFError, OSError) as error:
        raise WorkerEndedError from error
    if raised:
        raise result
    return result


def _work(asked: Connection, ordered: Connection, settings: Settings, plugins: tuple[Path, ...]) -> None:
    """What the process does."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(settings.threads)
    for path in plugins:
        load_plugin(path)
    answers = Answers(settings)
    orders: dict[str, Callable[..., Any]] = {"load": answers.load, "use": answers.use}
    threading.Thread(target=_obey, args=(ordered, lambda name, *words: orders[name](*words)), daemon=True).start()
    _obey(asked, answers.answer, with_body=True)


def _obey(connection: Connection, call: Callable[..., Any], *, with_body: bool = False) -> None:
    """Answer calls until the pipe is closed."""
    with suppress(EOFError, OSError):
        while True:
            words = connection.recv()
            if with_body:
                words = (connection.recv_bytes(), *words)
            try:
                result = False, call(*words)
            except IpalError as error:
                result = True, type(error)(str(error))
            except Exception:
                log.exception("Unexpected error")
                result = True, UnexpectedError()
            del words
            connection.send(result)
            del result
