"""The application, and the options that several commands share.

Each command parses its options, calls one function of the library and prints the result. Heavy imports are inside the
commands, so that --help is quick.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option
from typer.core import TyperCommand, TyperGroup

from ipal._version import __version__
from ipal.cli import render

EXAMPLES = """
[bold]Examples[/bold]

  ipal run --dataset digits                     ten digits, no download

  ipal run --dataset cs --preset paper          CS-CL, as we read the paper

  ipal run --dataset nodes.csv,edges.csv        a graph in two tables

  ipal resume cs-ipal-seed0                     go on after a crash

  ipal show digits --json                       numbers for a script

[dim]IPAL_DATA names the folder with the graphs (default ~/.cache/ipal).[/dim]
"""
rare = partial(Option, rich_help_panel="More options")
"""An option that is seldom needed: the help shows it below the others."""


class _PlainFlags:
    """In the help, an option that takes no value has no type beside it."""

    def get_params(self, context: Any) -> list[Any]:
        every: list[Any] = super().get_params(context)  # type: ignore[misc]
        for one in every:
            if getattr(one, "is_flag", False):
                one.metavar = ""
        return every


class _Command(_PlainFlags, TyperCommand): ...


class _Commands(_PlainFlags, TyperGroup): ...


app = typer.Typer(
    cls=_Commands,
    help="Continual learning on graphs without keeping old nodes: learn new classes one group after the other, "
    "measure what is forgotten, resume after a crash.",
    epilog=EXAMPLES,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def add(group: str, *commands: Callable[..., None]) -> None:
    for command in commands:
        app.command(command.__name__.strip("_"), cls=_Command, rich_help_panel=group)(command)


@app.callback(invoke_without_command=True)
def whole(
    context: typer.Context, version: Annotated[bool, Option("--version", help="Show the version.")] = False
) -> None:
    if version:
        render.say(f"ipal {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help(), end="")  # some versions of typer have shown it
        raise typer.Exit(2)


RUNS = Path("runs")
Runs = Annotated[Path, rare("--runs", help="Folder of all runs.", envvar="IPAL_RUNS")]
DataRoot = Annotated[Path | None, rare("--data-root", help="Folder of graphs; default IPAL_DATA or ~/.cache/ipal.")]
AsJson = Annotated[bool, Option("--json", help="Plain JSON on stdout, for scripts.")]
ModelName = Annotated[str, Argument(metavar="MODEL", help="Model file, run folder, or (part of) a run's name.")]
GraphName = Annotated[str, Option("--graph", metavar="GRAPH", help="Name, file, folder, or nodes.csv,edges.csv.")]
Force = Annotated[bool, Option("--force", help="Overwrite an existing file.")]
Settings = Annotated[
    list[str] | None,
    Option("--set", metavar="NAME=VALUE", help="Any setting by its dotted name, as ipal.gamma=0.7; may be repeated."),
]
