"""The Ray executor: parcels on the machines of a cluster.

Every machine of the cluster needs the same version of ipal, and must see the run folder and the graphs under the
same paths as this one (a shared file system); that the run folder really is shared is checked before any run. Ray
assigns CPUs (the threads of a run) and GPUs (one per parcel). Without an address a local Ray is started and stopped
afterwards.

A separate process talks to Ray: it can be ended on a timeout, its output stays apart, and a failing cluster does not
end this process.
"""

import functools
import importlib.util
import logging
import multiprocessing
import multiprocessing.connection
import os
import queue
import secrets
import signal
import socket
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

from ipal._version import __version__
from ipal.bench.jobs import WAIT_FOR_OTHERS, Attempt, Ended, Engine, Job, Parcel, Performer, cores, split
from ipal.errors import ClusterError, ConfigError, IpalError
from ipal.system.files import make_folder, write_atomically

KNOCK_SECONDS = 3.0
"""Seconds to connect to an address."""
CONNECT_SECONDS = 30.0
"""Seconds for Ray to connect."""
START_SECONDS = 60.0
"""Seconds to start a local Ray."""
LEAVE_SECONDS = 10.0
"""Seconds to disconnect, and to stop a local Ray."""
LOOK_SECONDS = 0.5
"""Seconds between two checks whether results are still wanted."""
SEEN_SECONDS = 2.0
"""Seconds for a new file to appear on another machine of a network file system."""

Pipe = multiprocessing.connection.Connection
STARTED, ENDED, REFUSED = "started", "ended", "refused"


def ray_cluster(address: str | None = None) -> Engine:
    """The engine that spreads parcels over the Ray cluster at `address` (default: RAY_ADDRESS, or a local Ray)."""
    if importlib.util.find_spec("ray") is None:
        raise ConfigError("--engine ray needs Ray, which is not installed: pip install 'ipal[ray]'")
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    _knock(address)
    return functools.partial(run_all, address=address)


def _knock(address: str) -> None:
    """Refuse an address that does not answer; Ray itself would try for two minutes."""
    if address in {"local", "auto"}:
        return
    if "://" in address:
        raise ConfigError(
            f"The address {address} is that of a Ray client: start the command on a machine of the cluster, with "
            "--address auto or the HOST:PORT of its head."
        )
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError(f"The address of a Ray cluster is HOST:PORT of its head, or auto; got '{address}'.")
    try:
        socket.create_connection((host.strip("[]"), int(port)), KNOCK_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise _unreachable(address, str(error)) from error


def _unreachable(address: str, why: str) -> ClusterError:
    if address == "local":
        return ClusterError(f"Ray could not be started on this machine ({why}): --engine local does without.")
    return ClusterError(
        f"No Ray cluster can be reached at {address} ({why}): start one there with 'ray start --head', correct "
        "--address or, where the cluster asks for a token, set RAY_AUTH_MODE=token."
    )


def run_all(
    parcels: Sequence[Parcel], size: int | None, started: Callable[[Job], None], *, address: str
) -> Generator[Ended, None, None]:
    """Perform all parcels on a Ray cluster; see `Engine`."""
    jobs = {job.name: job for parcel in parcels for job in parcel.jobs}
    if not jobs:
        return
    for job in jobs.values():
        if job.on_gpu and job.config.device != "cuda":
            raise ConfigError(f"Ray itself hands out the GPUs: set device to cuda, not {job.config.device}.")
    with _shared_file(next(iter(jobs.values())).runs) as token:
        ticket = _Ticket(token, __version__, tuple(sys.argv))
        with _Speaker(([_everywhere(parcel) for parcel in parcels], size, address, ticket)) as speaker:
            speaker.wait_for_connection(address)
            ended: set[str] = set()
            while len(ended) < len(jobs):
                kind, name, reason = speaker.hear()
                if kind == STARTED:
                    started(jobs[name])
                else:
                    ended.add(name)
                    yield jobs[name], reason


def _everywhere(parcel: Parcel) -> Parcel:
    """The parcel with absolute paths."""
    jobs = (replace(job, runs=job.runs.absolute(), data_root=job.data_root.absolute()) for job in parcel.jobs)
    return replace(parcel, jobs=tuple(jobs))


@contextmanager
def _shared_file(folder: Path) -> Iterator[Path]:
    """A temporary file that every machine must see."""
    make_folder(folder)
    token = folder.absolute() / f".shared-{uuid.uuid4().hex}"
    write_atomically(token, token.name)
    try:
        yield token
    finally:
        token.unlink(missing_ok=True)


class _Speaker:
    """The process that talks to Ray."""

    def __init__(self, task: tuple[Any, ...]) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_speak, args=(theirs, *task), daemon=True)
        with _without_interrupts():
            self._process.start()
        theirs.close()

    def __enter__(self) -> "_Speaker":
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.close()  # which ends the process
        self._process.join(LEAVE_SECONDS)
        self._process.kill()
        self._process.join()

    def wait_for_connection(self, address: str) -> None:
        patience = START_SECONDS if address == "local" else CONNECT_SECONDS
        if not self._pipe.poll(patience):
            self._process.kill()  # it does not react
            raise _unreachable(address, f"no answer within {patience:.0f} seconds")
        self.hear()

    def hear(self) -> tuple[str, str, str | None]:
        """The next message: what, the name of a job, why it failed."""
        try:
            kind, name, reason = self._pipe.recv()
        except EOFError:
            raise ClusterError(
                "The connection to Ray broke down: see to the cluster, then repeat the command; nothing saved is lost."
            ) from None
        if kind == REFUSED:
            raise ClusterError(name)
        return kind, name, reason


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Only this process handles Ctrl-C, not its children."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # starting it would take the mask off again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# ---------------------------------------------------------------------- inside the process that speaks with Ray


def _speak(pipe: "Pipe[Any, Any]", parcels: list[Parcel], size: int | None, address: str, ticket: "_Ticket") -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    with suppress(BrokenPipeError):  # the rest is not wanted
        try:
            ray = _connect(address, parcels, size)
            try:
                pipe.send((STARTED, "", None))
                for message in _Rounds(ray, parcels, size, ticket).messages(lambda: not pipe.poll()):
                    pipe.send(message)
            finally:
                ray.shutdown()
        except ClusterError as error:
            pipe.send((REFUSED, str(error), None))
        finally:
            ticket.token.unlink(missing_ok=True)  # if no other process is left to do it


def _connect(address: str, parcels: list[Parcel], size: int | None) -> Any:
    options: dict[str, Any] = {}
    if address == "local":
        # A Ray of our own reports to nobody, works at full priority, and obeys nobody else: its token is known here
        # alone, and the user's own is left as it is. All of it is read when Ray is loaded.
        ours = {
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
        }
        os.environ.update({name: value for name, value in ours.items() if name not in os.environ})
        threads = max(parcel.threads for parcel in parcels)
        options = {"num_cpus": size * threads if size else max(cores(), threads), "include_dashboard": False}
    import ray

    try:
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **options)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        first = " ".join(str(error).split()).partition(". ")[0]
        raise _unreachable(address, first) from error
    return ray


class _Rounds:
    """Parcels that run on a cluster."""

    def __init__(self, ray: Any, parcels: list[Parcel], size: int | None, ticket: "_Ticket") -> None:
        self._ray, self._size, self._ticket = ray, size, ticket
        self._machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        gpus = sum(int(machine.get("GPU", 0)) for machine in self._machines)
        on_gpu = [parcel for parcel in parcels if parcel.on_gpu]
        on_cpu = [parcel for parcel in parcels if not parcel.on_gpu]
        self._pending = deque([*(split(on_gpu, gpus) if on_gpu else ()), *on_cpu])
        self._later: list[tuple[float, Parcel]] = []
        self._under_way: dict[Any, Attempt] = {}
        for parcel in self._pending:
            self._require_machine(parcel)

    def _require_machine(self, parcel: Parcel) -> None:
        """Refuse resources that no machine has; Ray would wait forever."""
        needed = {"CPU": parcel.threads, "GPU": int(parcel.on_gpu)}
        if not any(all(machine.get(kind, 0) >= count for kind, count in needed.items()) for machine in self._machines):
            gpu = " and a GPU" if parcel.on_gpu else ""
            raise ClusterError(
                f"No machine of the Ray cluster has the {parcel.threads} CPU(s){gpu} that a run asks for: add one "
                "that has, or change 'threads' or 'device'."
            )

    def messages(self, is_waited_for: Callable[[], bool]) -> Iterator[tuple[str, str, str | None]]:
        """Yield events until all is done or results are no longer wanted."""
        try:
            while (self._pending or self._later or self._under_way) and is_waited_for():
                self._submit()
                if not self._under_way:
                    time.sleep(LOOK_SECONDS)
                    continue
                ready, _ = self._ray.wait(list(self._under_way), timeout=LOOK_SECONDS)
                for stream in ready:
                    yield from self._advance(stream)
        finally:
            for stream in self._under_way:
                self._ray.cancel(stream, force=True)

    def _submit(self) -> None:
        now = time.monotonic()
        self._pending.extend(parcel for due, parcel in self._later if due <= now)
        self._later = [(due, parcel) for due, parcel in self._later if due > now]
        while self._pending and (self._size is None or len(self._under_way) < self._size):
            parcel = self._pending.popleft()
            task = self._ray.remote(_perform_there).options(
                num_cpus=parcel.threads,
                num_gpus=int(parcel.on_gpu),
                num_returns="streaming",
                max_retries=0,  # the jobs of a parcel that is lost are tried again one by one, from here
                scheduling_strategy="SPREAD",
            )
            self._under_way[task.remote(parcel, self._ticket)] = Attempt(parcel)

    def _advance(self, stream: Any) -> Iterator[tuple[str, str, str | None]]:
        """The next event of a parcel."""
        from ray.exceptions import RayError, RayTaskError

        attempt = self._under_way[stream]
        try:
            said = self._ray.get(next(stream))
        except StopIteration:
            self._close(stream)
        except RayTaskError as error:
            raise _explain(error) from error
        except RayError as error:
            self._close(stream)
            again, given_up = attempt.died(_cause(error))
            self._pending.extend(again)
            yield from ((ENDED, job.name, reason) for job, reason in given_up)
        else:
            if said is None:
                yield from ((STARTED, job.name, None) for job in attempt.parcel.jobs)
            elif ended := attempt.note(*said):
                job, reason = ended
                yield ENDED, job.name, reason

    def _close(self, stream: Any) -> None:
        attempt = self._under_way.pop(stream)
        if attempt.busy:
            self._later.append((time.monotonic() + WAIT_FOR_OTHERS, attempt.busy))


def _explain(error: Any) -> ClusterError:
    """Why a worker, not a run, failed."""
    if isinstance(error.cause, IpalError):
        return ClusterError(str(error.cause))
    last = str(error).strip().splitlines()[-1]
    return ClusterError(
        f"A machine of the Ray cluster cannot make runs ({last}): install the same version of ipal on all of them."
    )


def _cause(error: Exception) -> str:
    causes = {"OutOfMemoryError": "out of memory", "NodeDiedError": "its machine was lost"}
    return causes.get(type(error).__name__, "killed: perhaps out of memory")


# ---------------------------------------------------------------------- inside a process of the cluster


@dataclass(frozen=True)
class _Ticket:
    """What a worker must know of the command."""

    token: Path
    version: str
    command: tuple[str, ...]

    def check(self) -> None:
        machine = socket.gethostname()
        if __version__ != self.version:
            raise ClusterError(
                f"{machine} has ipal {__version__}, this command is {self.version}: install the same version."
            )
        deadline = time.monotonic() + SEEN_SECONDS
        while not self.token.exists():
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"{machine} does not see the run folder {self.token.parent}: name one with --runs that all "
                    "machines of the cluster share under the same path."
                )
            time.sleep(0.1)


def _perform_there(parcel: Parcel, ticket: _Ticket) -> Iterator[tuple[int, str | None] | None]:
    """Perform a parcel; first of all None is yielded, then each job's place and what went wrong, as they end."""
    ticket.check()
    sys.argv[:] = ticket.command  # runs record the command they were made by
    yield None
    outcomes: queue.SimpleQueue[tuple[int, str | None] | BaseException | None] = queue.SimpleQueue()

    def work() -> None:
        try:
            Performer()(parcel, lambda place, reason: outcomes.put((place, reason)))
            outcomes.put(None)
        except BaseException as error:
            outcomes.put(error)

    threading.Thread(target=work, daemon=True).start()
    while outcome := outcomes.get():
        if isinstance(outcome, BaseException):
            raise outcome
        yield outcome
