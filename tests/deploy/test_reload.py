"""Another model in the place of the one that is served: no request is lost, and a broken file changes nothing."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from ipal.config import ProtocolConfig
from ipal.data.datasets import Dataset
from ipal.data.streams import TaskStream
from ipal.deploy.predict import predict
from ipal.deploy.serving.answerer import Answerer
from ipal.deploy.serving.answers import Reply, Settings
from ipal.deploy.serving.app import make_app
from ipal.deploy.serving.bodies import NPZ, npz_body
from ipal.errors import StoreError
from ipal.estimator import files
from ipal.estimator.model import Model
from ipal.methods.ncm import NCM
from tests.deploy.conftest import LIMITS
from tests.deploy.support import LocalClient, post, refused
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
    made.app.state.server.answerer.close()


def ask(local: LocalClient, tiny: Dataset) -> Any:
    return post(local, npz_body(tiny.graph), NPZ, **BEARER)


def test_another_model_takes_the_place(local: LocalClient, model: Path, other: Model, tiny: Dataset) -> None:
    first = version_of(model)
    answer = ask(local, tiny)
    assert answer.json()["version"] == answer.headers["x-model-version"] == first
    assert local.get("/health").json() == {"status": "ok", "version": first}
    assert local.post("/reload", headers=BEARER).json() == {"version": first, "before": first}
    files.save(other, model)
    assert ask(local, tiny).json()["version"] == first, "nobody has asked for it"
    second = version_of(model)
    assert local.post("/reload", headers=BEARER).json() == {"version": second, "before": first}
    answer = ask(local, tiny)
    assert answer.json()["version"] == answer.headers["x-model-version"] == second
    assert answer.json()["predicted"] == predict(other, tiny.graph).labels
    assert local.get("/memory", headers=BEARER).json()["classes"] == [0, 1, 2, 3, 4, 5]
    assert "6 classes" in local.get("/docs", headers=BEARER).text
    text = local.get("/metrics", headers=BEARER).text
    assert 'ipal_reloads_total{outcome="done"} 2.0' in text
    assert f'ipal_model_info{{version="{second}"}} 1.0' in text
    assert first not in text


@pytest.mark.parametrize("how", ["nonsense", "cut short", "gone", "a folder"])
def test_a_broken_file_changes_nothing(local: LocalClient, model: Path, tiny: Dataset, how: str) -> None:
    first, content = version_of(model), model.read_bytes()
    if how in ("gone", "a folder"):
        model.unlink()
        if how == "a folder":
            model.mkdir()
    else:
        model.write_bytes(b"nonsense" if how == "nonsense" else content[: len(content) // 2])
    sentence = refused(local.post("/reload", headers=BEARER), 409, f"{first} goes on", str(model))
    assert "ipal-serve-" not in sentence or "copied" in sentence
    assert "\n" not in sentence
    assert ask(local, tiny).json()["version"] == first
    assert 'ipal_reloads_total{outcome="failed"} 1.0' in local.get("/metrics", headers=BEARER).text
    if how == "nonsense":
        model.write_bytes(content)
        assert local.post("/reload", headers=BEARER).status_code == 200


def test_without_a_token_there_is_no_such_route(model: Path) -> None:
    local = LocalClient(make_app(model, LIMITS))
    refused(local.post("/reload"), 404)
    local.app.state.server.answerer.close()


def test_who_has_begun_with_a_model_ends_with_it(
    model: Path, other: Model, tiny: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    answerer = Answerer(model, Settings(LIMITS))
    first, seen = answerer.version, []

    def slow(used: Model, *words: Any, **options: Any) -> Any:
        seen.append(used.name)
        if len(seen) == 1:
            begun.set()
            assert go_on.wait(10)
        return predict(used, *words, **options)

    asked = answerer.ask(npz_body(tiny.graph), NPZ)
    asked.result(10)
    monkeypatch.setattr("ipal.deploy.serving.answers.predict", slow)
    asked = answerer.ask(npz_body(tiny.graph), NPZ)
    assert begun.wait(10)
    files.save(other, model)
    assert answerer.reload().result(30)["method"] == "ncm"
    later = answerer.ask(npz_body(tiny.graph), NPZ)
    go_on.set()
    before, after = asked.result(10), later.result(10)
    assert isinstance(before, Reply)
    assert isinstance(after, Reply)
    assert (before.version, after.version) == (first, version_of(model))
    answerer.close()


def test_a_model_that_cannot_be_loaded_at_the_start_is_said(tmp_path: Path) -> None:
    (tmp_path / "broken").write_bytes(b"nonsense")
    with pytest.raises(StoreError) as error:
        Answerer(tmp_path / "broken", Settings(LIMITS))
    assert str(tmp_path / "broken") in str(error.value)
    assert "ipal-serve" not in str(error.value)


# ---------------------------------------------------------------------- processes


def answered(answerer: Answerer, body: bytes) -> Reply:
    reply = answerer.ask(body, NPZ).result(60)
    assert isinstance(reply, Reply), reply
    return reply


def test_processes_answer_are_replaced_and_follow_the_model(model: Path, other: Model, tiny: Dataset) -> None:
    """One test: each process takes seconds to start."""
    body, restarts = npz_body(tiny.graph), []
    answerer = Answerer(model, Settings(LIMITS), workers=2, restarted=lambda: restarts.append(1))
    try:
        first = answerer.version
        replies = [answerer.ask(body, NPZ) for _ in range(4)]
        assert {answered_.result(60).version for answered_ in replies} == {first}  # type: ignore[union-attr]
        refusal = answerer.ask(b"nonsense", NPZ).result(60)
        assert "no readable .npz" in str(refusal)
        # A broken file changes nothing; another model is used by both.
        content = model.read_bytes()
        model.write_bytes(content[:-100])
        with pytest.raises(StoreError, match=f"{first} goes on"):
            answerer.reload().result(60)
        assert answered(answerer, body).version == first
        files.save(other, model)
        assert answerer.reload().result(60)["method"] == "ncm"
        second = version_of(model)
        assert {answered(answerer, body).version for _ in range(6)} == {second}
        # One that is killed is started again, with the model in use: not with what the file holds by then.
        model.write_bytes(b"nonsense")
        os.kill(answerer._team[0].process.pid, signal.SIGKILL)  # type: ignore[union-attr]
        deadline = time.monotonic() + 60
        while len(restarts) < 1 or not answerer._team[0].is_alive:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        replies = [answerer.ask(body, NPZ) for _ in range(4)]
        assert {answered_.result(60).version for answered_ in replies} == {second}  # type: ignore[union-attr]
        processes = [one.process for one in answerer._team]  # type: ignore[union-attr]
    finally:
        answerer.close()
    assert not any(process.is_alive() for process in processes)


# ---------------------------------------------------------------------- the command


def test_the_command_follows_a_signal_and_a_watched_file(model: Path, other: Model, known: Model) -> None:
    command = [sys.executable, "-m", "ipal", "serve", str(model), "--port", "0", "--watch"]
    environment = {**os.environ, "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as server:
        assert server.stdout is not None
        address = server.stdout.readline().removeprefix("Listening on ").strip()

        def in_use(version: str) -> None:
            deadline = time.monotonic() + 30
            while json.load(urlopen(f"{address}/health"))["version"] != version:
                assert time.monotonic() < deadline
                time.sleep(0.05)

        try:
            for one in (other, known):
                files.save(one, model)
                in_use(version_of(model))
            model.write_bytes(b"nonsense")
            time.sleep(0.1)
            server.send_signal(signal.SIGHUP)
            assert server.stderr is not None
            while "goes on" not in (line := server.stderr.readline()):
                assert line
            files.save(other, model)
            server.send_signal(signal.SIGHUP)
            in_use(version_of(model))
        finally:
            server.send_signal(signal.SIGINT)
        _, said = server.communicate(timeout=30)
    assert server.returncode == 0
    assert f"Version {version_of(model)} is in use." in said
    assert "Traceback" not in said
