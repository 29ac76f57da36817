"""The Ray executor: groups on the machines of a cluster.

Every machine of the cluster needs the same version of ipal, and must see the run folder and the graphs under the
same paths as this one (a shared file system); that the run folder really is shared is checked before any run. Ray
assigns CPUs (the threads of a run) and GPUs (one per group). Without an address a local Ray is started and stopped
afterwards.

A separate process talks to Ray: it can be ended on a timeout, its output stays apart, and a failing cluster does not
end this process.
"""

import functools
import importlib.util
import logging
import os
import secrets
import socket
import sys
import time
import uuid
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ipal._version import __version__
from ipal.bench.jobs import (
    Ended,
    Engine,
    GroupRunner,
    Job,
    JobGroup,
    ProcessDiedError,
    Report,
    perform_all,
    split,
)
from ipal.bench.local_executor import Child, Pipe
from ipal.errors import ClusterError, ConfigError, IpalError
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
    _check_address(address)
    return functools.partial(run_all, address=address)


def _check_address(address: str) -> None:
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
        socket.create_connection((host.strip("[]"), int(port)), REACH_SECONDS).close()
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
    groups: Sequence[JobGroup], size: int | None, started: Callable[[Job], None], *, address: str
) -> Generator[Ended, None, None]:
    """Perform all groups on a Ray cluster; see `Engine`."""
    jobs = {job.name: job for group in groups for job in group.jobs}
    if not jobs:
        return
    for job in jobs.values():
        if job.on_gpu and job.config.device != "cuda":
            raise ConfigError(f"Ray itself hands out the GPUs: set device to cuda, not {job.config.device}.")
    with _shared_file(next(iter(jobs.values())).runs) as shared:
        origin = _Origin(shared, __version__, tuple(sys.argv))
        with _driver([_absolute(group) for group in groups], size, address, origin) as driver:
            patience = START_SECONDS if address == "local" else CONNECT_SECONDS
            if not driver.pipe.poll(patience):
                driver.end()  # it does not react
                raise _unreachable(address, f"no answer within {patience:.0f} seconds")
            _received(driver)  # that it is connected
            left = len(jobs)
            while left:
                name, has_ended, reason = _received(driver)
                if has_ended:
                    left -= 1
                    yield jobs[name], reason
                else:
                    started(jobs[name])


def _absolute(group: JobGroup) -> JobGroup:
    """The group with absolute paths."""
    jobs = (replace(job, runs=job.runs.absolute(), data_root=job.data_root.absolute()) for job in group.jobs)
    return replace(group, jobs=tuple(jobs))


@contextmanager
def _shared_file(folder: Path) -> Iterator[Path]:
    """A temporary file that every machine must see."""
    make_folder(folder)
    shared = folder.absolute() / f".shared-{uuid.uuid4().hex}"
    write_atomically(shared, shared.name)
    try:
        yield shared
    finally:
        shared.unlink(missing_ok=True)


@contextmanager
def _driver(*task: Any) -> Iterator[Child]:
    """The process that talks to Ray."""
    driver = Child(_drive, *task)
    try:
        yield driver
    finally:
        driver.pipe.close()  # which ends the process
        driver.process.join(LEAVE_SECONDS)
        driver.end()


def _received(driver: Child) -> Any:
    """The next message, unless it is an error."""
    try:
        message = driver.pipe.recv()
    except EOFError:
        raise ClusterError(
            "The connection to Ray broke down: see to the cluster, then repeat the command; nothing saved is lost."
        ) from None
    if isinstance(message, ClusterError):
        raise message
    return message


# ---------------------------------------------------------------------- inside the process that talks to Ray


def _drive(pipe: "Pipe[Any, Any]", groups: list[JobGroup], size: int | None, address: str, origin: "_Origin") -> None:
    """Sends None when connected, then the name of a job, whether it has ended, and why it failed; or an error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    with suppress(BrokenPipeError):  # the rest is not wanted
        try:
            ray = _connect(address, groups, size)
            try:
                pipe.send(None)
                pool = _Cluster(ray, pipe, origin)
                started = lambda job: pipe.send((job.name, False, None))  # noqa: E731
                for job, reason in perform_all(pool, pool.placed(groups), size, started):
                    pipe.send((job.name, True, reason))
            finally:
                ray.shutdown()
        except ClusterError as error:
            pipe.send(error)
        finally:
            origin.shared.unlink(missing_ok=True)  # if no other process is left to do it


def _connect(address: str, groups: list[JobGroup], size: int | None) -> Any:
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
        first = " ".join(str(error).split()).partition(". ")[0]
        raise _unreachable(address, first) from error
    return ray


class _Cluster:
    """Processes of a Ray cluster."""

    def __init__(self, ray: Any, pipe: "Pipe[Any, Any]", origin: "_Origin") -> None:
        self._ray, self._pipe, self._origin = ray, pipe, origin

    def placed(self, groups: Sequence[JobGroup]) -> list[JobGroup]:
        """The groups, split to give every GPU one. Refuses resources that no machine has; Ray would wait forever."""
        machines = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        gpus = sum(int(machine.get("GPU", 0)) for machine in machines)
        on_gpu = [group for group in groups if group.on_gpu]
        for group in groups:
            needed = {"CPU": group.threads, "GPU": int(group.on_gpu)}
            if not any(all(machine.get(kind, 0) >= count for kind, count in needed.items()) for machine in machines):
                gpu = " and a GPU" if group.on_gpu else ""
                raise ClusterError(
                    f"No machine of the Ray cluster has the {group.threads} CPU(s){gpu} that a run asks for: add one "
                    "that has, or change 'threads' or 'device'."
                )
        return [*(split(on_gpu, gpus) if on_gpu else ()), *(group for group in groups if not group.on_gpu)]

    def submit(self, group: JobGroup) -> Any:
        task = self._ray.remote(_perform_there).options(
            num_cpus=group.threads,
            num_gpus=int(group.on_gpu),
            num_returns="streaming",
            max_retries=0,  # the jobs of a group that is lost are tried again one by one, from here
            scheduling_strategy="SPREAD",
        )
        return task.remote(group, self._origin)

    def ready(self, handles: Collection[Any], seconds: float) -> Collection[Any]:
        if self._pipe.poll():  # it is closed
            raise BrokenPipeError
        if not handles:
            time.sleep(seconds)
            return []
        ready: list[Any] = self._ray.wait(list(handles), timeout=seconds)[0]
        return ready

    def report(self, handle: Any) -> Report:
        from ray.exceptions import RayError, RayTaskError

        try:
            report: Report = self._ray.get(next(handle))
            return report
        except StopIteration:
            return "finished"
        except RayTaskError as error:
            raise _explain(error) from error
        except RayError as error:
            raise ProcessDiedError(_cause(error)) from error

    def cancel(self, handle: Any) -> None:
        self._ray.cancel(handle, force=True)


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


def _perform_there(group: JobGroup, origin: _Origin) -> Iterator[Report]:
    """Perform a group, and report."""
    origin.check()
    sys.argv[:] = origin.command  # runs record the command they were made by
    yield "started"
    yield from GroupRunner()(group)
