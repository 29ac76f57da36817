"""Snippets of Markdown pages: what each kind is, and how it is checked. One way for the README and the documentation.

    ```python                      run; all blocks of a page one after the other, in one namespace and one folder
    ```console                     every line is run in that folder, in between
    ```LANGUAGE title="a file"     written to that file, for what follows
    ```console title="needs …"     resolved, not run: the real parser takes each line, settings and files are looked up
    ```console title="runs until …"  the same
    ```text, ```math               shown

Anything else has no place on a page.
"""

import json
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from pathlib import Path
from typing import Any

import typer.main
import yaml

from ipal.bench.experiment_file import read_experiment
from ipal.bench.jobs import Ended, Engine, Job, pack, perform
from ipal.cli import app
from ipal.cli.experiment import wanted_run
from ipal.config import RunConfig, override, parse_assignment
from ipal.data.datasets import catalog
from ipal.runs.resolved import check_settings
from tests.support import Outcome

PROJECT = Path(__file__).parents[1]
SHOWN = {"text", "math"}
NOT_RUN = ("needs ", "runs until ")
OTHERS = {"docker", "curl", "export", "git", "mlflow", "ray", "tensorboard", "wandb"}
"""Programs of others: allowed where nothing is run."""

FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^\n`]*)\n(?P<text>.*?)^(?P=indent)```\s*?$", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`(ipal [a-z][^`]*)`")


@dataclass(frozen=True)
class Block:
    """One fence of a page."""

    page: str
    line: int
    language: str
    title: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def kind(self) -> str:
        """What becomes of it: run, resolve, write or show."""
        if self.language in SHOWN:
            return "show"
        if self.language == "console" and self.title.startswith(NOT_RUN):
            return "resolve"
        if self.title:
            assert self.language != "console", f"{self.place}: a title of a console block begins with {NOT_RUN}"
            return "write"
        assert self.language in {"python", "console"}, f"{self.place}: no way to check '{self.language}'"
        return "run"

    @property
    def commands(self) -> list[str]:
        """The lines of a console block, without comments; a backslash joins two."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [line for line in lines if line.strip() and not line.lstrip().startswith("#")]


def blocks(path: Path) -> list[Block]:
    """All fences of a page, in order."""
    text = path.read_text(encoding="utf-8")
    name = path.relative_to(PROJECT).as_posix()
    assert len(re.findall(r"^ *```", text, re.MULTILINE)) == 2 * len(FENCE.findall(text)), f"{name}: an open fence"
    return [_block(name, found, text) for found in FENCE.finditer(text)]


def _block(page: str, found: re.Match[str], text: str) -> Block:
    language, _, rest = found["info"].strip().partition(" ")
    title = re.search(r'title="([^"]*)"', rest)
    return Block(
        page,
        text.count("\n", 0, found.start()) + 1,
        language,
        title[1] if title else "",
        re.sub(rf"^{found['indent']}", "", found["text"], flags=re.MULTILINE),
    )


# ---------------------------------------------------------------------- run


class Visitor:
    """Somebody who does what a page says, in a folder of their own."""

    def __init__(self, folder: Path, command: Callable[..., Outcome], pip_install: Callable[[], None]) -> None:
        self.folder, self._command, self._pip_install = folder, command, pip_install
        self.namespace: dict[str, Any] = {"__name__": "__snippet__"}
        for given in ("experiments", "examples"):
            (folder / given).symlink_to(PROJECT / given)

    def leave(self) -> None:
        """End what a page has started, also where it was not followed to its end."""
        for program in self.namespace.values():
            if isinstance(program, subprocess.Popen) and program.poll() is None:
                program.kill()
                program.communicate()
        self.namespace.clear()

    def follow(self, block: Block) -> str:
        """Do what a block says; returns what commands printed."""
        if block.kind == "write":
            (self.folder / block.title).write_text(block.text, encoding="utf-8")
        elif block.kind == "resolve":
            for line in block.commands:
                resolve(line, block.place)
        elif block.kind == "run" and block.language == "python":
            exec(compile(block.text, block.place, "exec", dont_inherit=True), self.namespace)
        elif block.kind == "run":
            return "".join(self._run(line, block.place) for line in block.commands)
        return ""

    def _run(self, line: str, place: str) -> str:
        program, *arguments = shlex.split(line, comments=True)
        if program == "ipal":
            done = self._command(*arguments)
            assert done.code == 0, f"{place}: {line}\n{done.err}"
            return done.out + done.err
        if line == "pip install -e .":
            self._pip_install()
            return ""
        if program == "python":
            return self._run_file(arguments, f"{place}: {line}")
        assert program == "make", f"{place}: '{line}' cannot be run here: give the block a title {NOT_RUN}"
        resolve(line, place)  # what `make run` does has a test of its own, and `make test` is this one
        return ""

    def _run_file(self, arguments: list[str], place: str) -> str:
        """A program that the page has written, in this process: torch is loaded already."""
        before, sys.argv = sys.argv, list(arguments)
        code: Any = 0
        try:
            runpy.run_path(str(self.folder / arguments[0]), run_name="__main__")
        except SystemExit as stop:
            code = stop.code
        finally:
            sys.argv = before
        assert not code, f"{place}: ended with {code}"
        return ""


def in_this_process(address: str | None = None) -> Engine:
    """An engine for a bench that starts no processes: the same runs, sooner. Processes have tests of their own."""

    def engine(jobs: Sequence[Job], size: int | None, started: Callable[[Job], None]) -> Iterator[Ended]:
        for group in pack(jobs):
            for job in group.jobs:
                started(job)
            reasons = perform(group, {})
            yield from ((job, reasons[job.name]) for job in group.jobs)

    return engine  # type: ignore[return-value]


# ---------------------------------------------------------------------- resolve


def resolve(line: str, place: str) -> None:
    """A command that is not run: it must still be one, with options, settings and files that exist."""
    words = shlex.split(line, comments=True)
    program, *arguments = words
    if program == "ipal":
        _resolve_ipal(arguments, place)
    elif program == "make":
        assert re.search(rf"^{arguments[0]}:", (PROJECT / "Makefile").read_text(), re.MULTILINE), f"{place}: {line}"
    elif program == "pip":
        _resolve_extras(line, place)
    elif program == "python":
        assert (PROJECT / arguments[0]).is_file(), f"{place}: {line}"
    else:
        assert program in OTHERS, f"{place}: what is '{program}'?"


def _resolve_extras(line: str, place: str) -> None:
    known = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra in [name for found in re.findall(r"\[([\w,]+)\]", line) for name in found.split(",")]:
        assert extra in known, f"{place}: there is no extra '{extra}'"


def _resolve_ipal(arguments: list[str], place: str) -> None:
    name, given = parsed(arguments)
    for path in _paths(given):
        if path.parts[0] in {"experiments", "docs", "examples"} and name != "report":
            assert (PROJECT / path).exists(), f"{place}: there is no {path}"
    if name == "bench":
        for path in given["files"]:
            _read_once(PROJECT / path)
    if given.get("dataset") and not str(given["dataset"]).endswith((".npz", ".graph")):
        for one in catalog.names_in(given["dataset"], Path("nowhere")):
            assert catalog.find(one, Path("nowhere")), place
    if "settings" in given:
        options = RunConfig.model_fields.keys() - {"settings", "split", "seed", "protocol"} | {"preset"}
        options = {one: given[one] for one in options & given.keys()}
        tree = {one: value for one, value in options.items() if value is not None}
        preset, settings = tree.pop("preset", None), map(parse_assignment, given["settings"] or [])
        check_settings(wanted_run(reduce(override, settings, tree), preset=preset))


@cache
def _read_once(path: Path) -> None:
    read_experiment(path)


def parsed(arguments: list[str]) -> tuple[str, dict[str, Any]]:
    """A command by the real parser: its name, and its values by parameter. What is wrong is raised."""
    group = _group()
    context = group.make_context("ipal", list(arguments), resilient_parsing=True)
    command = group.get_command(context, arguments[0])
    assert command is not None, f"there is no command 'ipal {arguments[0]}'"
    return arguments[0], dict(command.make_context(arguments[0], list(arguments[1:]), parent=context).params)


def commands() -> set[str]:
    """Names of all commands."""
    return set(_group().commands)


@cache
def _group() -> Any:
    return typer.main.get_command(app)


def _paths(given: dict[str, Any]) -> Iterator[Path]:
    for value in given.values():
        for one in value if isinstance(value, list | tuple) else [value]:
            if isinstance(one, Path):
                yield one


def named_in_text(path: Path) -> list[str]:
    """Commands within sentences, as `ipal report --html`; fences are not looked at."""
    return INLINE.findall(FENCE.sub("", path.read_text(encoding="utf-8")))


def check_written(block: Block) -> None:
    """What is written to a file is at least what it says it is."""
    if block.language in {"yaml", "json"}:
        {"yaml": yaml.safe_load, "json": json.loads}[block.language](block.text)
    if block.language == "python":
        compile(block.text, block.place, "exec")
