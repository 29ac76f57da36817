"""The Dockerfile, and the servers behind nginx: everything that they name is there, and no address of an index."""

import re
import shlex
from pathlib import Path

import yaml

from ipal.cli.use import serve
from ipal.deploy.serving.bodies import Limits
from ipal.runs.memory_plan import parse_bytes

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "Dockerfile").read_text()
INSTRUCTIONS = [line for line in TEXT.replace("\\\n", " ").splitlines() if line and not line.startswith("#")]


def test_what_is_copied_is_there_and_sent() -> None:
    sent = [line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line[0] == "!"]
    named = [
        name
        for line in INSTRUCTIONS
        if line.startswith("COPY") and "--from" not in line
        for name in shlex.split(line)[1:-1]
    ]
    assert sorted(named) == sorted(sent)
    assert all((ROOT / name).exists() for name in named)


def test_it_runs_a_command_with_options_that_there_are() -> None:
    words = re.findall(r'"([^"]+)"', next(line for line in INSTRUCTIONS if line.startswith("ENTRYPOINT")))
    assert words[:2] == ["ipal", "serve"]
    options = {word.removeprefix("--").replace("-", "_") for word in words if word.startswith("--")}
    assert options == {"host", "port"}
    assert options <= set(serve.__annotations__)
    assert "[serve]" in TEXT
    assert "serve = [" in (ROOT / "pyproject.toml").read_text()


def test_every_version_is_pinned() -> None:
    images = [line.split()[1] for line in INSTRUCTIONS if line.startswith("FROM")]
    assert images == ["python:${PYTHON}"] * 2
    assert re.search(r"^ARG PYTHON=3\.\d+\.\d+-slim-\w+$", TEXT, re.MULTILINE)
    installs = [line for line in INSTRUCTIONS if "pip install" in line]
    assert all("constraints.txt" in line for line in installs)
    assert not re.search(r"[<>~]=", " ".join(installs))
    assert len(re.findall(r"^torch==[\d.]+$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)) == 1


def test_it_runs_as_nobody_in_particular_and_is_looked_after() -> None:
    kinds = [line.split()[0] for line in INSTRUCTIONS]
    assert kinds.index("USER") < kinds.index("ENTRYPOINT")
    assert "USER root" not in TEXT
    assert "HEALTHCHECK" in kinds
    assert "/health" in TEXT


def test_indexes_are_given_by_whoever_builds() -> None:
    assert re.findall(r"https?://[\w.]+", TEXT) == ["http://127.0.0.1"]
    assert 'ARG TORCH_INDEX=""' in TEXT
    assert 'ARG PIP_INDEX=""' in TEXT
    assert not re.search(r"IPAL_TOKEN=|TOKEN=\w", TEXT)


# ---------------------------------------------------------------------- behind nginx

EXAMPLE = ROOT / "examples" / "deploy"
SERVICES = yaml.safe_load((EXAMPLE / "compose.yaml").read_text())["services"]
NGINX = re.sub(r"#.*", "", (EXAMPLE / "nginx.conf").read_text())


def test_servers_are_started_with_options_that_there_are_and_a_token() -> None:
    ipal, nginx = SERVICES["ipal"], SERVICES["nginx"]
    options = [word.removeprefix("--").replace("-", "_") for word in ipal["command"] if word.startswith("--")]
    assert set(options) <= set(serve.__annotations__)
    assert ipal["environment"] == {"IPAL_TOKEN": "${IPAL_TOKEN:?a token is needed}"}
    assert (EXAMPLE / ipal["build"]["context"] / "Dockerfile").exists()
    assert set(ipal["build"]["args"]) <= set(re.findall(r"^ARG (\w+)", TEXT, re.MULTILINE))
    assert f"VOLUME {ipal['volumes'][0].split(':')[1]}" in TEXT
    assert f"EXPOSE {ipal['expose'][0]}" in TEXT
    assert nginx["volumes"] == ["./nginx.conf:/etc/nginx/nginx.conf:ro"]
    assert [nginx["ports"][0].split(":")[1]] == re.findall(r"listen (\d+);", NGINX)
    assert f"server ipal:{ipal['expose'][0]};" in NGINX


def test_nginx_has_the_limits_of_the_servers() -> None:
    command = SERVICES["ipal"]["command"]
    said = dict(zip(command[::2], command[1::2], strict=True))
    limits = dict(re.findall(r"^\s*(\w+) (\w+);", NGINX, re.MULTILINE))
    assert limits["client_max_body_size"] == "64m"
    assert parse_bytes(said["--max-bytes"], "--max-bytes") <= 64 * 2**20
    assert limits["client_body_timeout"] == f"{said['--timeout']}s"
    assert int(limits["proxy_read_timeout"].rstrip("s")) > 2 * Limits().seconds
    assert NGINX.count("{") == NGINX.count("}")
    lines = [line.strip() for line in NGINX.splitlines() if line.strip()]
    assert all(line.endswith((";", "{", "}")) for line in lines)
