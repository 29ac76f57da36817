"""Another model in the place of the one that is served: no request is lost, and a broken file changes nothing."""

import hashlib
import itertools
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
from ipal.deploy.serving import answers, server
from ipal.deploy.serving.answers import Answerer, OverloadError, Reply, Settings, Worker
from ipal.deploy.serving.app import make_app
from ipal.deploy.serving.bodies import NPZ, npz_body
from ipal.deploy.serving.server import http_server
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
    local.app.state.server.answerer.close()


def test_who_has_begun_with_a_model_ends_with_it(
    model: Path, other: Model, tiny: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    answerer = Answerer(model, Settings(LIMITS))
    first, seen = answerer.served.version, []

    def slow(used: Model, *words: Any, **options: Any) -> Any:
        seen.append(used.name)
        if seen == ["ipal"]:
            begun.set()
            assert go_on.wait(10)
        return predict(used, *words, **options)

    monkeypatch.setattr(answers, "predict", slow)
    asked = answerer.ask(npz_body(tiny.graph), NPZ)
    assert begun.wait(10)
    files.save(other, model)
    answerer.reload()
    assert answerer.served.facts()["method"] == "ncm"
    later = answerer.ask(npz_body(tiny.graph), NPZ)
    go_on.set()
    assert (asked.result(10).version, later.result(10).version) == (first, version_of(model))
    answerer.close()


def test_a_model_that_cannot_be_loaded_at_the_start_is_said(tmp_path: Path) -> None:
    (tmp_path / "broken").write_bytes(b"nonsense")
    with pytest.raises(StoreError) as error:
        Answerer(tmp_path / "broken", Settings(LIMITS))
    assert str(error.value).startswith(f"{tmp_path / 'broken'} is damaged")
    with pytest.raises(StoreError) as error:
        Answerer(tmp_path / "nope.safetensors", Settings(LIMITS))
    assert str(error.value) == f"{tmp_path / 'nope.safetensors'} does not exist."


def test_a_watched_file_is_tried_again_until_it_can_be_loaded(
    model: Path, other: Model, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A load that fails for another reason than the file must not leave the old model for good."""
    made: list[Any] = []
    read, tries, taken, started = answers.content_of, [], threading.Event(), threading.Event()

    def failing(path: Path) -> bytes:
        tries.append(time.monotonic())
        if 1 < len(tries) < 5:  # the first is at the start
            raise StoreError("Not now.")
        return read(path)

    monkeypatch.setattr(answers, "content_of", failing)
    monkeypatch.setattr(server, "POLL", 0.05)
    monkeypatch.setattr(server, "http_server", lambda app: made.append(http_server(app)) or made[-1])
    options: dict[str, Any] = {"started": lambda *_: started.set(), "replaced": lambda _: taken.set()}
    thread = threading.Thread(target=server.serve, args=(model,), kwargs={"port": 0, "watch": True, **options})
    thread.start()
    try:
        assert started.wait(20)
        answerer = made[0].config.app.state.server.answerer
        first = answerer.served.version
        files.save(other, model)
        deadline = time.monotonic() + 20
        while len(tries) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert answerer.served.version == first
        assert not answerer.is_current
        assert taken.wait(20)
        assert answerer.served.version == version_of(model)
        assert answerer.is_current
    finally:
        made[0].should_exit = True
        thread.join(20)
    assert len(tries) == 5
    pauses = [later - sooner for sooner, later in itertools.pairwise(tries[1:])]
    assert pauses[2] > pauses[0] + 0.05, "each pause is longer than the one before"
    assert caplog.text.count(f"{first} goes on, and is not what the file holds: Not now.") == 3
    assert "It is tried again in 0.05 seconds." in caplog.text
    assert "It is tried again in 0.1 seconds." in caplog.text


# ---------------------------------------------------------------------- processes


def test_processes_answer_are_replaced_and_follow_the_model(
    model: Path, other: Model, tiny: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One test: each process takes seconds to start."""
    body, restarts, temporary = npz_body(tiny.graph), [], tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr("tempfile.tempdir", None)
    workers: list[Worker] = []
    monkeypatch.setattr(answers, "Worker", lambda settings: workers.append(Worker(settings)) or workers[-1])
    answerer = Answerer(model, Settings(LIMITS), workers=2, restarted=lambda: restarts.append(1))

    def versions(number: int) -> set[str]:
        replies = [answerer.ask(body, NPZ) for _ in range(number)]
        return {reply.result(120).version for reply in replies}

    try:
        first = version_of(model)
        assert versions(4) == {first}
        refusal = answerer.ask(b"nonsense", NPZ).result(60)
        assert (refusal.status, b"no readable .npz" in refusal.content) == (400, True)
        # A broken file changes nothing; another model is used by both.
        content = model.read_bytes()
        model.write_bytes(content[:-100])
        with pytest.raises(StoreError, match=f"{first} goes on"):
            answerer.reload()
        assert versions(2) == {first}
        files.save(other, model)
        answerer.reload()
        second = version_of(model)
        assert versions(4) == {second}
        # One that is killed is started again, with the model in use: not with what the file holds by then.
        model.write_bytes(b"nonsense")
        workers[0].process.kill()
        workers[0].process.join()
        assert versions(4) == {second}
        assert restarts == [1]
        # One that ends while it answers: this request is told to come back, the next one is answered.
        real = Worker.answer

        def killed(self: Worker, *words: Any) -> Reply:
            self.process.kill()
            return real(self, *words)

        with monkeypatch.context() as patch:
            patch.setattr(Worker, "answer", killed)
            with pytest.raises(OverloadError, match="try again"):
                answerer.ask(body, NPZ).result(60)
        assert versions(1) == {second}
        assert list(temporary.iterdir()) == [], "a copy of a model"
    finally:
        answerer.close()
    assert len(workers) == 4
    assert not any(one.process.is_alive() for one in workers)


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
