"""The commands of ``tailrace``: ``serve``, ``convert``, ``ask``, ``demo``, ``doctor`` and ``providers``."""

from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import version
from typing import Annotated

import typer

COMMANDS = {
    "demo": "demo",
    "serve": "serve",
    "convert": "convert",
    "ask": "ask",
    "doctor": "doctor",
    "providers": "list_providers",
}
"""Each is a module here; the function in it that does it."""


def create_cli(names: Iterable[str] = tuple(COMMANDS), *, completion: bool = True) -> typer.Typer:
    """The command line with these commands; only their modules are imported: a server needs nothing that draws.

    Args:
        names: Of the commands.
        completion: Take the options that install the shell's completion, too.
    """
    app = typer.Typer(
        name="tailrace",
        help="The stream of any LLM API in, an A2A agent out.",
        no_args_is_help=True,
        add_completion=completion,
        pretty_exceptions_enable=False,
    )
    app.callback()(_tailrace)  # so that a command is named even where there is only one
    for name in names:
        app.command(name)(getattr(import_module(f"tailrace.server.cli.{name}"), COMMANDS[name]))
    return app


def _tell_version(asked: bool) -> None:
    if asked:
        print(f"tailrace {version('tailrace')}")  # noqa: T201
        raise typer.Exit


def _tailrace(
    _version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_tell_version, help="Say the version."),
    ] = False,
) -> None:
    pass
