"""``python -m fuzz``, with ``tests`` and the project's root on the path.

Run both fuzzers one after the other, each for half of the time: `fuzz.running` for the decoders, and `fuzz.requests.hunting`
for a running server. ``--decoders`` or ``--requests``, as the first argument, runs one of them with its own options.
"""

import sys

from fuzz import running
from fuzz.requests import hunting

_USAGE = "usage: python -m fuzz [--minutes N] | --decoders [OPTIONS] | --requests [OPTIONS]; --help after one of them"


def main(arguments: list[str]) -> int:
    """Run the command line; the exit code is 1 if a fault was found."""
    # `make fuzz` puts the time first and its own arguments after it.
    minutes, rest = (arguments[:2], arguments[2:]) if arguments[:1] == ["--minutes"] else ([], arguments)
    if rest[:1] == ["--decoders"]:
        return running.main([*minutes, *rest[1:]])
    if rest[:1] == ["--requests"]:
        return hunting.main([*minutes, *rest[1:]])
    if rest:
        print(_USAGE)
        return 2
    half = ["--minutes", str(float(minutes[1]) / 2)] if minutes else []
    return max(running.main(half), hunting.main(half))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
