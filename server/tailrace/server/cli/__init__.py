"""The command line: ``tailrace serve``, ``convert``, ``ask``, ``demo`` and ``providers``.

What goes wrong is said in one line on stderr. Exit status 2: the input or the settings cannot be used.
"""

import sys

import typer

from tailrace.server.cli.ask import ask
from tailrace.server.cli.convert import convert
from tailrace.server.cli.demo import demo
from tailrace.server.cli.providers import list_providers
from tailrace.server.cli.serve import serve
from tailrace.wrappers import TailraceError

app = typer.Typer(
    name="tailrace",
    help="The stream of any LLM API in, an A2A agent out.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (demo, serve, convert, ask):
    app.command()(command)
app.command("providers")(list_providers)


def main() -> None:
    """Run the command line; the entry point of the ``tailrace`` program."""
    try:
        app()
    except TailraceError as error:
        print(f"tailrace: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(2)
