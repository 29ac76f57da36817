"""A real Ray: runs spread over two of its nodes, killed, interrupted; and a Ray that is not there."""

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file

from ipal.bench import ray_executor
from ipal.bench.experiment_file import read_experiment
from ipal.bench.jobs import JobGroup, local
from ipal.bench.suite import execute, make_engine, prepare
from ipal.errors import ConfigError
from ipal.runs import runner
from ipal.runs.manifest import manifest_path
from tests.bench.live import SLOW, checkpoints, children, is_alive, start_python, wait_until
from tests.bench.support import Silent, plan, write
from tests.conftest import PROJECT
from tests.support import Watcher, complaint

if importlib.util.find_spec("ray") is None:  # not imported here: a Ray reads its token when it is loaded
    pytest.skip("Ray is not installed: pip install 'ipal[ray]'", allow_module_level=True)


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """A cluster with room for two processes, that only those with its token may use."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", f"--port={port}", "--block"]
    log = tmp_path_factory.mktemp("ray") / "head.log"
    with pytest.MonkeyPatch.context() as patch, log.open("w") as output:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(PROJECT), os.environ.get("PYTHONPATH", "")]))
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", os.urandom(32).hex())
        patch.setenv("RAY_worker_niceness", "0")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        head = subprocess.Popen([*command, "--num-cpus=2", "--include-dashboard=false"], stdout=output, stderr=output)
        wait_until(lambda: head.poll() is not None or "Ray runtime started" in log.read_text(), "Ray starts")
        assert head.poll() is None, log.read_text()
        yield f"127.0.0.1:{port}"
        head.terminate()
        head.wait(30)


def at_work_on(folder: Path) -> list[int]:
    """The processes that hold the lock of a run."""
    found = []
    for handle in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            if os.readlink(handle) == str(folder / ".lock"):
                found.append(int(handle.parts[2]))
    return found


def numbers(folder: Path):
    """All of a run that time and place do not change."""
    result = json.loads((folder / "result.json").read_text())
    for varying in ("timing", "peak_memory_bytes"):
        del result[varying]
    texts = [(folder / name).read_text() for name in ("config.yaml", "history.csv")]
    return result, texts, {name: tensor.tolist() for name, tensor in load_file(folder / "model.safetensors").items()}


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes in /proc")
def test_a_cluster_gives_the_same_results_even_if_its_processes_die(address, tmp_path, monkeypatch):
    entries = "a: {train.epochs: 1}\nb: {train.epochs: 2}\nslow: {train.epochs: 100}"
    file = read_experiment(write(tmp_path, entries, SLOW))
    alone, spread = (prepare([file], tmp_path / name) for name in ("alone", "spread"))
    for job in alone.jobs.values():
        runner.run(runner.resolve(job.config), job.folder, Watcher())
    execute(alone, 1, Silent(), local())

    first, second, slow = spread.jobs.values()

    def kill_in_the_middle():
        wait_until(slow.folder.checkpoint.exists, "the slow run under way")
        for process in at_work_on(slow.folder.path):
            os.kill(process, signal.SIGKILL)

    killer = threading.Thread(target=kill_in_the_middle, daemon=True)
    killer.start()
    started = []
    engine = make_engine("ray", address)
    groups = [JobGroup((slow,)), JobGroup((first, second))]
    with monkeypatch.context() as patched, closing(engine([slow, first, second], None, started.append)) as outcomes:
        patched.setattr(ray_executor, "pack", lambda *_: groups)
        reasons = {job.name: reason for job, reason in outcomes}
    killer.join()
    assert reasons == dict.fromkeys(spread.jobs)
    assert (slow.folder.path / "log.txt").read_text().count("resumed") == 1
    assert {job.name for job in started} == spread.jobs.keys()
    execute(spread, 1, Silent(), engine)  # nothing is left to do: the manifest
    for mine, theirs in zip(spread.jobs.values(), alone.jobs.values(), strict=True):
        assert numbers(mine.folder.path) == numbers(theirs.folder.path)
    manifests = [manifest_path(tmp_path / name, "x").read_bytes() for name in ("alone", "spread")]
    assert manifests[0] == manifests[1]
    assert not list((tmp_path / "spread").glob(".shared-*"))


def test_what_nobody_can_do_is_refused(address, tmp_path, monkeypatch, command):
    write(tmp_path, "ipal:")
    write(tmp_path, "ipal: {threads: 64}", name="large.yaml")
    there = ("--engine", "ray", "--address", address)
    complaint(command("bench", "large.yaml", *there), "64 CPU(s)", "'threads'", underway=True)
    monkeypatch.setattr(ray_executor, "write_atomically", lambda *_: None)
    complaint(command("bench", "x.yaml", *there), f"{tmp_path}/runs", "--runs", underway=True)


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes in /proc")
def test_without_an_address_ray_is_started_for_the_command_and_ends_with_it(tmp_path):
    write(tmp_path, "slow: {train.epochs: 600}", SLOW)
    process = start_python(tmp_path, "--engine", "ray")
    wait_until(lambda: checkpoints(tmp_path / "runs"), "a run under way")
    family = [process.pid]
    for member in family:
        family += children(member)
    os.killpg(process.pid, signal.SIGINT)
    out, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Start the same command again" in said
    assert "Traceback" not in said
    assert out == ""
    assert len(family) > 4  # Ray is a family of processes
    wait_until(lambda: not any(map(is_alive, family)), "Ray ends", seconds=10)


# ---------------------------------------------------------------------- no Ray


def test_an_address_where_nobody_answers_is_reported_at_once(command, tmp_path, monkeypatch):
    write(tmp_path, "ipal:")
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = f"127.0.0.1:{server.getsockname()[1]}"
    monkeypatch.setenv("RAY_ADDRESS", closed)
    complaint(command("bench", "x.yaml", "--engine", "ray"), closed, "ray start --head")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--engine", "rai"), ["Did you mean 'ray'?"]),
        (("--address", "127.0.0.1:1"), ["--engine ray"]),
        (("--engine", "ray", "--address", "here"), ["HOST:PORT", "'here'"]),
    ],
)
def test_options_that_do_not_fit_get_a_sentence(command, tmp_path, options, words):
    write(tmp_path, "ipal:")
    complaint(command("bench", "x.yaml", *options), *words)


def test_without_ray_the_sentence_says_how_to_get_it(command, tmp_path, monkeypatch):
    write(tmp_path, "ipal:")
    monkeypatch.setattr("ipal.system.optional.find_spec", lambda name: None)
    complaint(command("bench", "x.yaml", "--engine", "ray"), "pip install 'ipal[ray]'")


def test_ray_hands_out_gpus_itself(tmp_path):
    (job,) = plan(write(tmp_path, "ipal:"), seeds=(0,)).jobs.values()
    second = replace(job, config=job.config.model_copy(update={"device": "cuda:1"}))
    with pytest.raises(ConfigError, match="set device to cuda, not cuda:1"):
        next(make_engine("ray")([second], None, lambda job: None))
