"""``python -m tailrace.server.cli``: runs the command line without the program ``tailrace``."""

from tailrace.server.cli import main

main()
