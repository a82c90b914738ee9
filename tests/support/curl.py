"""A stand-in for curl on machines that have none: as much of it as the documents use.

``python curl.py [-s] [-N] URL [-H HEADER]... [-d BODY]``: a GET, or a POST with a body, whose answer is written as it comes.
"""

import sys
import urllib.request


def main() -> None:
    """Ask, and write the answer until its end or the reader's."""
    headers: dict[str, str] = {}
    address, body = "", None
    words = iter(sys.argv[1:])
    for word in words:
        if word == "-H":
            name, _, value = next(words).partition(":")
            headers[name] = value.strip()
        elif word == "-d":
            body = next(words).encode()
        elif not word.startswith("-"):
            address = word
    request = urllib.request.Request(address, body, headers)
    with urllib.request.urlopen(request) as response:
        while piece := response.read1():
            try:
                sys.stdout.buffer.write(piece)
                sys.stdout.buffer.flush()
            except BrokenPipeError:
                sys.stderr.close()  # nobody is to be told at the interpreter's end either
                return


if __name__ == "__main__":
    main()
