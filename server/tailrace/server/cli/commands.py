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
"""The commands: module and function of each."""


def create_cli(names: Iterable[str] = tuple(COMMANDS), *, completion: bool = True) -> typer.Typer:
    """Create the command line with some commands; only their modules are imported.

    Args:
        names: The names of the commands.
        completion: Add the options that install the shell's completion.
    """
    app = typer.Typer(
        name="tailrace",
        help="The stream of any LLM API in, an A2A agent out.",
        no_args_is_help=True,
        add_completion=completion,
        pretty_exceptions_enable=False,
    )
    app.callback()(_tailrace)  # so that a single command is named, too
    for name in names:
        app.command(name)(getattr(import_module(f"tailrace.server.cli.{name}"), COMMANDS[name]))
    return app


def _show_version(requested: bool) -> None:
    if requested:
        print(f"tailrace {version('tailrace')}")  # noqa: T201
        raise typer.Exit


def _tailrace(
    _version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version and exit."),
    ] = False,
) -> None:
    pass
