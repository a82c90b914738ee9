"""The command line: ``tailrace serve``, ``convert``, ``ask``, ``demo``, ``doctor`` and ``providers``.

Errors are printed in one line on stderr. Exit status 2: the input or the settings cannot be used; 130: interrupted before
there was a result.
"""

import os
import signal
import sys

INTERRUPTED = 130
"""The exit status of a program that Ctrl-C ended, by the convention of shells."""


def main() -> None:
    """Run the command line; the entry point of the ``tailrace`` program.

    Importing a command's modules takes a second or more, during which Ctrl-C must behave as it does later. The handler is
    therefore set before any import.
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
        # The operator may see details that callers may not.
        print(f"tailrace: {getattr(error, 'diagnosis', '') or error}", file=sys.stderr)  # noqa: T201
        sys.exit(2)
    finally:
        if catches:
            signal.signal(signal.SIGINT, _leave)  # during the shutdown of the interpreter, too


def _leave(_signal: int, _frame: object) -> None:
    """End at once: there is nothing to undo, and modules that are being imported may catch an exception."""
    os._exit(INTERRUPTED)
