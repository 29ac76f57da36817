"""The page of all commands and their options, from the parser itself: it cannot be out of date."""

import re
from typing import Any

import typer.main

from ipal.cli import app

INTRODUCTION = """# Commands

Every command and option of this version, as `ipal COMMAND --help` shows them. What a command prints for a script comes
with `--json`, on stdout; notes and progress are on stderr. Exit codes: 0 done; 2 something you can put right, said in
one sentence; 130 interrupted by Ctrl-C.
"""


def everything() -> str:
    """All commands, in the order of `ipal --help`."""
    group: Any = typer.main.get_command(app)
    context = group.make_context("ipal", [], resilient_parsing=True)
    parts = [INTRODUCTION]
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        own = command.make_context(name, [], parent=context, resilient_parsing=True)
        about, _, more = (command.help or "").strip().partition("\n\n")
        shown = [parameter for parameter in command.get_params(own) if not getattr(parameter, "hidden", False)]
        arguments = [one for one in shown if one.param_type_name == "argument"]
        options = [one for one in shown if one.param_type_name == "option" and "--help" not in one.opts]
        usage = " ".join(["ipal", name, *(_argument(one) for one in arguments), "[OPTIONS]"])
        parts += [f"## ipal {name}", _plain(about), _plain(more), f"```text\n{usage}\n```"]
        parts += [_table("argument", arguments, own), _table("option", options, own)]
    return "\n\n".join(filter(None, parts)) + "\n"


def _table(kind: str, parameters: list[Any], context: Any) -> str:
    if not parameters:
        return ""
    lines = [f"| {kind} | what it is |", "|---|---|"]
    for parameter in parameters:
        spelling, about = parameter.get_help_record(context)
        # Types are named as people say them: `<list[str]>` may be given again and again, `<int range>` has limits.
        spelling = re.sub(r"list\[(\w+)\]", r"\1", spelling).replace(" range", "")
        spelling = _argument(parameter).strip("[]") if kind == "argument" else spelling
        lines.append(f"| `{spelling}` | {_plain(about)} |")
    return "\n".join(lines)


def _argument(parameter: Any) -> str:
    """As in the usage line: in brackets where it may be left out."""
    name = (parameter.metavar or parameter.name.upper()).strip("[].")
    name += "…" if parameter.nargs != 1 or "..." in (parameter.metavar or "") else ""
    return name if parameter.required else f"[{name}]"


def _plain(text: str) -> str:
    """One line, in which nothing is Markdown or HTML by accident."""
    return re.sub(r"([|*\[\]])", r"\\\1", " ".join(text.split())).replace("<", "&lt;")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put the list in place of the page that a code host shows."""
    return everything() if page.file.src_uri == "commands.md" else markdown
