"""The Ray executor: groups as tasks of a Ray cluster.

Every machine of the cluster needs the same version of ipal, and must see the run folder and the graphs under the
same paths as this one (a shared file system); that the run folder really is shared is checked before any run. Ray
assigns CPUs (the threads of a run) and GPUs (one per group). Without an address a local Ray is started and stopped
afterwards.

A separate process, the driver, talks to Ray: its output stays apart, and a failing cluster does not end this process.
"""

import importlib.util
import logging
import operator
import os
import secrets
import socket
import sys
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ipal._version import __version__
from ipal.bench.jobs import Ended, Engine, GroupRunner, Job, JobGroup, Outcomes, ProcessDiedError, perform_all
from ipal.bench.local_executor import ChildProcess
from ipal.errors import ClusterError, ConfigError
from ipal.system.cores import cores
from ipal.system.files import make_folder, write_atomically

REACH_SECONDS = 3.0
"""Seconds to connect to an address."""
CONNECT_SECONDS = 30.0
"""Seconds for Ray to connect."""
START_SECONDS = 60.0
"""Seconds to start a local Ray."""
LEAVE_SECONDS = 10.0
"""Seconds to disconnect, and to stop a local Ray."""
SEEN_SECONDS = 2.0
"""Seconds for a new file to appear on another machine of a network file system."""


def ray_cluster(address: str | None = None) -> Engine:
    """The engine that spreads groups over the Ray cluster at `address` (default: RAY_ADDRESS, or a local Ray)."""
    if importlib.util.find_spec("ray") is None:
        raise ConfigError("--engine ray needs Ray, which is not installed: pip install 'ipal[ray]'")
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    if "://" in address:
        raise ConfigError(
            f"The address {address} is that of a Ray client: start the command on a machine of the cluster, with "
            "--address auto or the HOST:PORT of its head."
        )
    host, _, port = address.rpartition(":")
    if address not in {"local", "auto"}:
        if not host or not port.isdecimal():
            raise ConfigError(f"The address of a Ray cluster is HOST:PORT of its head, or auto; got '{address}'.")
        try:
            socket.create_connection((host.strip("[]"), int(port)), REACH_SECONDS).close()
        except (OSError, OverflowError) as error:
            raise _unreachable(address, str(error)) from error
    return partial(run_all, address=address)


def _unreachable(address: str, why: str) -> ClusterError:
    if address == "local":
        return ClusterError(f"Ray could not be started on this machine ({why}): --engine local does without.")
    return ClusterError(
        f"No Ray cluster can be reached at {address} ({why}): start one there with 'ray start --head', correct "
        "--address or, where the cluster asks for a token, set RAY_AUTH_MODE=token."
    )


def run_all(
    groups: Sequence[JobGroup], size: int | None, started: Callable[[Job], None], *, address: str
) -> Generator[Ended, None, None]:
    """Perform all groups on a Ray cluster; see `Engine`."""
    if not groups:
        return
    for job in (job for group in groups for job in group.jobs):
        if job.on_gpu and job.config.device != "cuda":
            raise ConfigError(f"Ray itself hands out the GPUs: set device to cuda, not {job.config.device}.")
    groups = [_absolute(group) for group in groups]
    everything = JobGroup(tuple(job for group in groups for job in group.jobs))
    with _shared_file(everything.jobs[0].runs) as shared:
        origin = _Origin(shared, __version__, tuple(sys.argv))
        driver = _Driver(address, groups, size, origin)
        try:
            yield from perform_all(driver, [everything], 1, started)
        finally:
            driver.end()


class _Driver:
    """The process that talks to Ray: a pool that performs everything at once."""

    def __init__(self, address: str, groups: Sequence[JobGroup], size: int | None, origin: "_Origin") -> None:
        self._address, self._work = address, (groups, size, origin)
        self._child, self._thread = ChildProcess(_called), ThreadPoolExecutor(1)
        self._under_way = self._thread.submit(self._child.do, _connect, address, groups, size)

    def submit(self, group: JobGroup) -> "Future[Outcomes]":
        patience = START_SECONDS if self._address == "local" else CONNECT_SECONDS
        try:
            self._under_way.result(patience)
        except TimeoutError:
            self._child.end()  # it does not react
            raise _unreachable(self._address, f"no answer within {patience:.0f} seconds") from None
        except ProcessDiedError:
            raise _unreachable(self._address, "Ray ended the connection") from None
        self._under_way = self._thread.submit(self._child.do, _drive, *self._work)
        return self._under_way

    def outcomes(self, done: "Future[Outcomes]") -> Outcomes:
        try:
            return done.result()
        except ProcessDiedError:
            raise ClusterError(
                "The connection to Ray broke down: see to the cluster, then repeat the command; nothing saved is lost."
            ) from None

    def end(self) -> None:
        if not self._under_way.done():
            self._child.interrupt()
            wait([self._under_way], LEAVE_SECONDS)
        self._child.end()
        self._thread.shutdown()


def _called() -> Callable[..., Outcomes]:
    """The driver's worker calls what it is handed."""
    return operator.call


def _absolute(group: JobGroup) -> JobGroup:
    """The group with absolute paths."""
    jobs = (replace(job, runs=job.runs.absolute(), data_root=job.data_root.absolute()) for job in group.jobs)
    return replace(group, jobs=tuple(jobs))


@contextmanager
def _shared_file(folder: Path) -> Iterator[Path]:
    """A temporary file that every machine must see."""
    make_folder(folder)
    shared = folder / f".shared-{uuid.uuid4().hex}"
    write_atomically(shared, shared.name)
    try:
        yield shared
    finally:
        shared.unlink(missing_ok=True)


# ---------------------------------------------------------------------- inside the driver


def _connect(address: str, groups: Sequence[JobGroup], size: int | None) -> Outcomes:
    """Connect to Ray; nothing is done yet."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
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
        threads = max(group.threads for group in groups)
        options = {"num_cpus": size * threads if size else max(cores(), threads), "include_dashboard": False}
    import ray

    try:
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **options)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise _unreachable(address, " ".join(str(error).split()).partition(". ")[0]) from error
    return {}


def _drive(groups: Sequence[JobGroup], size: int | None, origin: "_Origin") -> Outcomes:
    import ray

    pool = _Cluster(ray, origin)
    try:
        machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        placed = _placed(groups, machines)
        ended = perform_all(pool, placed, size or _room(placed, machines), lambda job: None)
        return {job.name: reason for job, reason in ended}
    finally:
        pool.end()
        ray.shutdown()


def _placed(groups: Sequence[JobGroup], machines: Sequence[dict[str, float]]) -> list[JobGroup]:
    """The groups, split to give every GPU one. Refuses resources that no machine has; Ray would wait forever."""
    for group in groups:
        needed = {"CPU": group.threads, "GPU": int(group.on_gpu)}
        if not any(all(machine.get(kind, 0) >= count for kind, count in needed.items()) for machine in machines):
            gpu = " and a GPU" if group.on_gpu else ""
            raise ClusterError(
                f"No machine of the Ray cluster has the {group.threads} CPU(s){gpu} that a run asks for: add one "
                "that has, or change 'threads' or 'device'."
            )
    gpus = sum(int(machine.get("GPU", 0)) for machine in machines)
    return [*split([group for group in groups if group.on_gpu], gpus), *(one for one in groups if not one.on_gpu)]


def split(groups: Sequence[JobGroup], places: int) -> list[JobGroup]:
    """Halve the largest groups until there is one for every place, or nothing left to halve."""
    found = list(groups)
    while 0 < len(found) < places and (largest := max(found, key=lambda group: len(group.jobs))).jobs[1:]:
        middle = (len(largest.jobs) + 1) // 2
        halves = largest.jobs[:middle], largest.jobs[middle:]
        place = found.index(largest)
        found[place : place + 1] = [replace(largest, jobs=half) for half in halves]
    return found


def _room(groups: Sequence[JobGroup], machines: Sequence[dict[str, float]]) -> int:
    """How many groups the machines have room for at most: what is begun beyond that waits in Ray."""
    fewest = min(group.threads for group in groups)
    return max(1, sum(int(machine.get("CPU", 0)) // fewest for machine in machines))


class _Cluster:
    """Tasks of a Ray cluster."""

    def __init__(self, ray: Any, origin: "_Origin") -> None:
        self._ray, self._origin = ray, origin
        self._tasks: dict[Future[Outcomes], Any] = {}

    def submit(self, group: JobGroup) -> "Future[Outcomes]":
        task = self._ray.remote(_perform_there).options(
            num_cpus=group.threads,
            num_gpus=int(group.on_gpu),
            max_retries=0,  # the jobs of a group that is lost are tried again one by one, from here
            scheduling_strategy="SPREAD",
        )
        reference = task.remote(group, self._origin)
        future: Future[Outcomes] = reference.future()
        self._tasks[future] = reference
        return future

    def outcomes(self, done: "Future[Outcomes]") -> Outcomes:
        from ray.exceptions import RayError, RayTaskError

        del self._tasks[done]
        try:
            return done.result()
        except RayTaskError as error:  # a worker, not a run, has failed
            if isinstance(error.cause, ClusterError):
                raise ClusterError(str(error.cause)) from error
            last = str(error).strip().splitlines()[-1]
            raise ClusterError(
                f"A machine of the Ray cluster cannot make runs ({last}): install the same version of ipal on all of "
                "them."
            ) from error
        except RayError as error:
            causes = {"OutOfMemoryError": "out of memory", "NodeDiedError": "its machine was lost"}
            cause = causes.get(type(error).__name__, "killed: perhaps out of memory")
            raise ProcessDiedError(cause) from error

    def end(self) -> None:
        for reference in self._tasks.values():
            self._ray.cancel(reference, force=True)


# ---------------------------------------------------------------------- inside a process of the cluster


@dataclass(frozen=True)
class _Origin:
    """What a process of the cluster must know of the command."""

    shared: Path
    version: str
    command: tuple[str, ...]

    def check(self) -> None:
        machine = socket.gethostname()
        if __version__ != self.version:
            raise ClusterError(
                f"{machine} has ipal {__version__}, this command is {self.version}: install the same version."
            )
        deadline = time.monotonic() + SEEN_SECONDS
        while not self.shared.exists():
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"{machine} does not see the run folder {self.shared.parent}: name one with --runs that all "
                    "machines of the cluster share under the same path."
                )
            time.sleep(0.1)


def _perform_there(group: JobGroup, origin: _Origin) -> Outcomes:
    """Perform a group."""
    origin.check()
    sys.argv[:] = origin.command  # runs record the command they were made by
    return GroupRunner()(group)
