"""``python -m fuzz``, with ``tests`` and the project's root on the path.

Run both fuzzers one after the other, each for half of the time: `fuzz.decoder_fuzzer` for the decoders, and `fuzz.requests.request_fuzzer`
for a running server. ``--decoders`` or ``--requests``, as the first argument, runs one of them with its own options.
"""

import sys

from fuzz import decoder_fuzzer
from fuzz.requests import request_fuzzer

_USAGE = "usage: python -m fuzz [--minutes N] | --decoders [OPTIONS] | --requests [OPTIONS]; --help after one of them"


def main(arguments: list[str]) -> int:
    """Run the command line; the exit code is 1 if a fault was found."""
    # `make fuzz` puts the time first and its own arguments after it.
    minutes, rest = (arguments[:2], arguments[2:]) if arguments[:1] == ["--minutes"] else ([], arguments)
    if rest[:1] == ["--decoders"]:
        return decoder_fuzzer.main([*minutes, *rest[1:]])
    if rest[:1] == ["--requests"]:
        return request_fuzzer.main([*minutes, *rest[1:]])
    if rest:
        print(_USAGE)
        return 2
    half = ["--minutes", str(float(minutes[1]) / 2)] if minutes else []
    return max(decoder_fuzzer.main(half), request_fuzzer.main(half))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
