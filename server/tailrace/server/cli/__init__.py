"""The command line: ``tailrace serve``, ``record``, ``convert``, ``ask``, ``demo``, ``doctor`` and ``providers``.

A `TailraceError` is printed in one line on stderr; the exit status is 2. Exit status 130: the command was interrupted before it
had a result. ``tailrace COMMAND --help`` lists other exit statuses.
"""

import signal
import sys

from tailrace.server.cli.interrupts import INTERRUPTED, end_at_once, ending_at_once


def main() -> None:
    """Run the command line; the entry point of the ``tailrace`` program."""
    catches = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with ending_at_once():
        from tailrace.server.cli.commands import create_cli
    try:
        create_cli()()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:
        from tailrace.wrappers.errors import TailraceError
        from tailrace.wrappers.redaction.log_escaping import printable

        if not isinstance(error, TailraceError):
            raise
        # `diagnosis` has details for operators.
        print(f"tailrace: {printable(getattr(error, 'diagnosis', '') or error)}", file=sys.stderr)  # noqa: T201
        sys.exit(2)
    finally:
        if catches:
            signal.signal(signal.SIGINT, end_at_once)  # also end immediately while the interpreter shuts down
