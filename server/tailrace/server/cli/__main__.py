"""``python -m tailrace.server.cli``: the command line without the installed program."""

from tailrace.server.cli import main

main()
