"""Another model in the place of the one that is served: no request is lost, and a broken file changes nothing."""

import asyncio
import hashlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from ipal.config import ProtocolConfig
from ipal.data.datasets import Dataset
from ipal.data.streams import TaskStream
from ipal.deploy.predict import predict
from ipal.deploy.serving import app as application
from ipal.deploy.serving import served as module
from ipal.deploy.serving.app import make_app
from ipal.deploy.serving.bodies import NPZ, npz_body
from ipal.deploy.serving.served import Served
from ipal.errors import StoreError
from ipal.estimator import files
from ipal.estimator.model import Model
from ipal.methods.ncm import NCM
from tests.deploy.conftest import LIMITS
from tests.deploy.support import LocalClient, completed, post, refused
from tests.learning import learned

TOKEN = "correct-horse-battery"
BEARER = {"authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="session")
def other(tiny: Dataset) -> Model:
    """Knows all six classes."""
    stream = TaskStream(tiny.graph, tiny.y, (2, 2, 2), ProtocolConfig(), seed=0)
    return learned(NCM, stream, 3)


def version_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


@pytest.fixture
def local(model: Path) -> Any:
    made = LocalClient(make_app(model, LIMITS, token=TOKEN))
    yield made
    made.app.state.server.served.close()


def ask(local: LocalClient, tiny: Dataset) -> Any:
    return post(local, npz_body(tiny.graph), NPZ, **BEARER)


def test_another_model_takes_the_place(local: LocalClient, model: Path, other: Model, tiny: Dataset) -> None:
    first = version_of(model)
    answer = ask(local, tiny)
    assert answer.json()["version"] == answer.headers["x-model-version"] == first
    assert local.get("/health").json() == {"status": "ok", "version": first, "current": True}
    assert local.post("/reload", headers=BEARER).json() == {"version": first, "before": first}
    files.save(other, model)
    assert ask(local, tiny).json()["version"] == first, "nobody has asked for it"
    assert local.get("/health").json() == {"status": "ok", "version": first, "current": False}
    assert "ipal_model_current 0.0" in local.get("/metrics", headers=BEARER).text
    second = version_of(model)
    assert local.post("/reload", headers=BEARER).json() == {"version": second, "before": first}
    answer = ask(local, tiny)
    assert answer.json()["version"] == answer.headers["x-model-version"] == second
    assert answer.json()["predicted"] == predict(other, tiny.graph).labels
    assert local.get("/memory", headers=BEARER).json()["classes"] == [0, 1, 2, 3, 4, 5]
    text = local.get("/metrics", headers=BEARER).text
    assert 'ipal_reloads_total{outcome="done"} 2.0' in text
    assert f'ipal_model_info{{version="{second}"}} 1.0' in text
    assert first not in text
    assert "ipal_model_current 1.0" in text
    assert local.get("/health").json()["current"]


@pytest.mark.parametrize("how", ["nonsense", "gone"])
def test_a_broken_file_changes_nothing(local: LocalClient, model: Path, tiny: Dataset, how: str) -> None:
    first, content = version_of(model), model.read_bytes()
    model.unlink() if how == "gone" else model.write_bytes(b"nonsense")
    sentence = refused(local.post("/reload", headers=BEARER), 409, f"{first} goes on", str(model))
    assert "\n" not in sentence
    assert ask(local, tiny).json()["version"] == first
    assert local.get("/health").json() == {"status": "ok", "version": first, "current": False}
    assert 'ipal_reloads_total{outcome="failed"} 1.0' in local.get("/metrics", headers=BEARER).text
    if how == "nonsense":
        model.write_bytes(content)
        assert local.post("/reload", headers=BEARER).status_code == 200


def test_without_a_token_there_is_no_such_route(model: Path) -> None:
    local = LocalClient(make_app(model, LIMITS))
    refused(local.post("/reload"), 404)
    local.app.state.server.served.close()


def test_who_has_begun_with_a_model_ends_with_it(
    model: Path, other: Model, tiny: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    served = Served(model, LIMITS)
    first, seen = served.loaded.version, []

    def slow(used: Model, *words: Any, **options: Any) -> Any:
        seen.append(used.name)
        if seen == ["ipal"]:
            begun.set()
            assert go_on.wait(10)
        return predict(used, *words, **options)

    monkeypatch.setattr(module, "predict", slow)
    asked = served.ask(npz_body(tiny.graph), NPZ)
    assert begun.wait(10)
    files.save(other, model)
    served.reload()
    assert served.loaded.model.name == "ncm"
    later = served.ask(npz_body(tiny.graph), NPZ)
    go_on.set()
    assert (asked.result(10).version, later.result(10).version) == (first, version_of(model))
    served.close()


def test_a_model_that_cannot_be_loaded_at_the_start_is_said(tmp_path: Path) -> None:
    (tmp_path / "broken").write_bytes(b"nonsense")
    with pytest.raises(StoreError) as error:
        Served(tmp_path / "broken", LIMITS)
    assert str(error.value).startswith(f"{tmp_path / 'broken'} is damaged")
    with pytest.raises(StoreError) as error:
        Served(tmp_path / "nope.safetensors", LIMITS)
    assert str(error.value) == f"{tmp_path / 'nope.safetensors'} does not exist."


def test_a_changed_file_is_tried_again_until_it_can_be_loaded(
    local: LocalClient, model: Path, other: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A load that fails for another reason than the file must not leave the old model for good."""
    read, tries = module.content_of, list[float]()

    def failing(path: Path) -> bytes:
        tries.append(time.monotonic())
        if len(tries) < 4:
            raise StoreError("Not now.")
        return read(path)

    monkeypatch.setattr(module, "content_of", failing)
    monkeypatch.setattr(application, "POLL", 0.05)
    server = local.app.state.server
    first = server.version
    files.save(other, model)

    async def follow() -> None:
        task = asyncio.create_task(server.follow())
        while server.version == first:
            await asyncio.sleep(0.01)
            assert time.monotonic() < deadline
        await asyncio.sleep(0.2)
        task.cancel()

    deadline = time.monotonic() + 20
    completed(follow)
    assert server.version == version_of(model)
    assert len(tries) == 4, "it is in use, and not loaded again"
    pauses = [later - sooner for sooner, later in itertools.pairwise(tries)]
    assert pauses[2] > pauses[0] + 0.05, "each pause is longer than the one before"


# ---------------------------------------------------------------------- the command


@pytest.mark.parametrize("workers", [1, 2])
def test_the_command_follows_the_file_and_workers_are_started_again(
    model: Path, other: Model, known: Model, tiny: Dataset, workers: int
) -> None:
    command = [sys.executable, "-m", "ipal", "serve", str(model), "--port", "0", "--workers", str(workers)]
    environment = {**os.environ, "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as server:
        assert server.stdout is not None
        address = server.stdout.readline().removeprefix("Listening on ").strip()
        headers = {"content-type": NPZ, "connection": "close"}

        def in_use(version: str) -> None:
            """Of all processes: one that is asked may be any of them."""
            deadline, same = time.monotonic() + 120, 0
            while same < 8:
                assert time.monotonic() < deadline
                with suppress(OSError):
                    asked = Request(f"{address}/predict", npz_body(tiny.graph, [3]), headers)
                    same = same + 1 if json.load(urlopen(asked, timeout=30))["version"] == version else 0
                time.sleep(0.05)

        try:
            in_use(version_of(model))
            files.save(other, model)
            in_use(version_of(model))
            if workers > 1:
                tasks = Path(f"/proc/{server.pid}/task").glob("*/children")
                children = [int(child) for task in tasks for child in task.read_text().split()]
                spawned = [child for child in children if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text()]
                assert len(spawned) == workers
                os.kill(spawned[0], signal.SIGKILL)
                in_use(version_of(model))
            else:
                model.write_bytes(b"nonsense")
                assert server.stderr is not None
                while "goes on" not in (line := server.stderr.readline()):
                    assert line
                files.save(known, model)
                in_use(version_of(model))
        finally:
            server.send_signal(signal.SIGINT)
        _, said = server.communicate(timeout=120)
    assert server.returncode == 0
    assert "Stopped" in said
    assert "Traceback" not in said
