"""The Ray executor: groups as tasks of a Ray cluster.

Every machine of the cluster needs the same version of ipal, and must see the run folder and the graphs under the
same paths as this one (a shared file system); that it does is checked before any run. Ray assigns CPUs (the threads of
a run) and GPUs (one per group). Without an address a local Ray is started and stopped afterwards.
"""

import logging
import math
import os
import secrets
import socket
import sys
import uuid
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ipal._version import __version__
from ipal.bench.jobs import MOST_TOGETHER, Ended, Engine, Job, JobGroup, Outcomes, pack, perform, perform_all
from ipal.errors import ClusterError, ConfigError
from ipal.system.cores import cores
from ipal.system.files import make_folder, write_atomically
from ipal.system.optional import need_extra

REACH_SECONDS = 3.0
"""Seconds to connect to an address."""
OURS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0", "RAY_AUTH_MODE": "token"}
"""Of a Ray of our own: it sends no reports, works at full priority, and obeys those alone who know its token."""


def ray_cluster(address: str | None = None) -> Engine:
    """The engine that spreads groups over the Ray cluster at `address` (default: RAY_ADDRESS, or a local Ray)."""
    need_extra("ray", "ray")
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    host, _, port = address.rpartition(":")
    if address not in {"local", "auto"}:
        if not host or "://" in address or not port.isdecimal():
            raise ConfigError(
                f"The address of a Ray cluster is HOST:PORT of its head, or auto, on a machine of it; got '{address}'."
            )
        try:
            socket.create_connection((host.strip("[]"), int(port)), REACH_SECONDS).close()
        except (OSError, OverflowError) as error:
            raise _unreachable(address, error) from error
    return partial(run_all, address=address)


def _unreachable(address: str, why: Exception) -> ClusterError:
    reason = " ".join(str(why).split()).partition(". ")[0]
    if address == "local":
        return ClusterError(f"Ray could not be started on this machine ({reason}): --engine local does without.")
    return ClusterError(
        f"No Ray cluster can be reached at {address} ({reason}): start one there with 'ray start --head', correct "
        "--address or, where the cluster asks for a token, set RAY_AUTH_MODE=token."
    )


def run_all(
    jobs: Sequence[Job], size: int | None, started: Callable[[Job], None], *, address: str
) -> Generator[Ended, None, None]:
    """Perform all jobs on a Ray cluster; see `Engine`."""
    if not jobs:
        return
    if wrong := {job.config.device for job in jobs if job.on_gpu} - {"cuda"}:
        raise ConfigError(f"Ray itself hands out the GPUs: set device to cuda, not {min(wrong)}.")
    jobs = [replace(job, runs=job.runs.absolute(), data_root=job.data_root.absolute()) for job in jobs]
    threads = max(job.config.threads for job in jobs)
    options: dict[str, Any] = {}
    if address == "local":
        for name, value in (OURS | {"RAY_AUTH_TOKEN": secrets.token_hex(32)}).items():
            os.environ.setdefault(name, value)  # read when Ray is loaded
        options = {"num_cpus": size * threads if size else max(cores(), threads), "include_dashboard": False}
    else:
        os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "1")  # of 40 seconds each
    import ray

    try:
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **options)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise _unreachable(address, error) from error
    folder = jobs[0].runs
    make_folder(folder)
    shared = folder / f".shared-{uuid.uuid4().hex}"
    try:
        write_atomically(shared, shared.name)
        machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        room = sum(int(machine.get("CPU", 0)) for machine in machines)  # what is begun beyond that waits in Ray
        there = ray.remote(_perform_there)

        def submit(group: JobGroup) -> "Future[Outcomes]":
            task = there.options(
                num_cpus=group.threads,
                num_gpus=int(group.on_gpu),
                max_retries=0,  # the jobs of a group that is lost are tried again one by one, from here
                scheduling_strategy="SPREAD",
            )
            found: Future[Outcomes] = task.remote(group, shared, __version__, tuple(sys.argv)).future()
            return found

        yield from perform_all(submit, _placed(jobs, machines), size or max(1, room), started, _death)
    finally:
        shared.unlink(missing_ok=True)
        ray.shutdown()


def _placed(jobs: Sequence[Job], machines: Sequence[dict[str, float]]) -> list[JobGroup]:
    """The jobs in groups, at least one for every GPU. Refuses resources that no machine has; Ray would wait forever."""
    gpus = sum(int(machine.get("GPU", 0)) for machine in machines)
    on_gpu = sum(job.on_gpu for job in jobs)
    groups = pack(jobs, min(MOST_TOGETHER, max(1, math.ceil(on_gpu / max(1, gpus)))))
    for group in groups:
        needed = {"CPU": group.threads, "GPU": int(group.on_gpu)}
        if not any(all(machine.get(kind, 0) >= count for kind, count in needed.items()) for machine in machines):
            gpu = " and a GPU" if group.on_gpu else ""
            raise ClusterError(
                f"No machine of the Ray cluster has the {group.threads} CPU(s){gpu} that a run asks for: add one "
                "that has, or change 'threads' or 'device'."
            )
    return groups


def _death(error: Exception) -> str:
    """Why a worker has died; an error where a worker, not a run, has failed."""
    from ray.exceptions import RayError, RayTaskError

    if isinstance(error, RayTaskError):
        last = error.cause if isinstance(error.cause, ClusterError) else str(error).strip().splitlines()[-1]
        raise ClusterError(f"A machine of the Ray cluster cannot make runs: {last}") from error
    if not isinstance(error, RayError):
        raise error
    causes = {"OutOfMemoryError": "out of memory", "NodeDiedError": "its machine was lost"}
    return causes.get(type(error).__name__, "killed: perhaps out of memory")


def _perform_there(group: JobGroup, shared: Path, version: str, command: Sequence[str]) -> Outcomes:
    """Perform a group, on a machine that must see a file and have this version; runs record their command."""
    machine = socket.gethostname()
    if __version__ != version:
        raise ClusterError(f"{machine} has ipal {__version__}, this command is {version}: install the same.")
    if not shared.exists():
        raise ClusterError(
            f"{machine} does not see the run folder {shared.parent}: name one with --runs that all machines of the "
            "cluster share under the same path."
        )
    sys.argv[:] = command
    return perform(group, {})
