"""The command line: ``tailrace serve``, ``convert``, ``ask``, ``demo``, ``doctor`` and ``providers``.

What goes wrong is said in one line on stderr. Exit status 2: the input or the settings cannot be used; 130: interrupted
before there was a result.
"""

import os
import signal
import sys

INTERRUPTED = 130
"""The exit status of a program that Ctrl-C ended, as shells have it."""


def main() -> None:
    """Run the command line; the entry point of the ``tailrace`` program.

    To import what a command needs takes a second or more, in which Ctrl-C must do what it does later. So nothing is
    imported before it is seen to.
    """
    before = signal.getsignal(signal.SIGINT)
    catches = before is signal.default_int_handler  # a shell has jobs in the background ignore it
    if catches:
        signal.signal(signal.SIGINT, _leave)
    from tailrace.server.cli.commands import COMMANDS, create_cli
    from tailrace.wrappers.errors import TailraceError

    named = [name for name in sys.argv[1:2] if name in COMMANDS]
    run = create_cli(named or COMMANDS, completion=not named)
    try:
        signal.signal(signal.SIGINT, before)
        run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except TailraceError as error:
        print(f"tailrace: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(2)
    finally:
        if catches:
            signal.signal(signal.SIGINT, _leave)  # the interpreter has things to end, too


def _leave(_signal: int, _frame: object) -> None:
    """End at once: there is nothing to undo, and modules that are being imported take exceptions for their own."""
    os._exit(INTERRUPTED)
