"""A substitute for curl on machines without it, with the options that the documents use.

``python curl.py [-s] [-N] URL [-H HEADER]... [-d BODY]``.
"""

import sys
import urllib.request


def main() -> None:
    """Send the request and print the response."""
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
                sys.stderr.close()  # avoid the same error at exit
                return


if __name__ == "__main__":
    main()
