"""A client in a separate thread, so that it does not block the server's event loop."""

import asyncio
import http.client
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

_TIMEOUT = 50.0  # seconds

JSON = {"content-type": "application/json"}


class Posted(NamedTuple):
    """A response.

    Attributes:
        status: Its HTTP status.
        headers: By lower-case name.
        body: Its body.
    """

    status: int
    headers: dict[str, str]
    body: bytes


async def post(url: str, body: bytes, headers: Mapping[str, str] = JSON, *, method: str = "POST") -> Posted:
    """Send a request on a new connection and read the complete response."""
    return await asyncio.to_thread(_post, url, body, dict(headers), method)


def _post(url: str, body: bytes, headers: dict[str, str], method: str) -> Posted:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_TIMEOUT)
    try:
        connection.request(method, parts.path + (f"?{parts.query}" if parts.query else ""), body, headers)
        response = connection.getresponse()
        found = {name.lower(): value for name, value in response.getheaders()}
        return Posted(response.status, found, response.read())
    finally:
        connection.close()
