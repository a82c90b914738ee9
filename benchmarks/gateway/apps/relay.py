"""A relay that parses nothing: it forwards bytes between client and upstream.

Its cost is the lower limit for a Python server.
"""

import argparse
import asyncio
from typing import cast

import uvloop


class Upstream(asyncio.Protocol):
    """The upstream connection of a client."""

    def __init__(self, client: asyncio.Transport) -> None:
        self._client = client

    def data_received(self, data: bytes) -> None:
        """Forward the data."""
        self._client.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the other connection, too."""
        self._client.close()


class Client(asyncio.Protocol):
    """A client's connection."""

    def __init__(self, host: str, port: int) -> None:
        self._address = host, port
        self._transport: asyncio.Transport
        self._upstream: asyncio.Transport | None = None
        self._early: list[bytes] = []
        self._calling: asyncio.Task[None]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connect to the upstream."""
        self._transport = cast("asyncio.Transport", transport)
        self._calling = asyncio.get_running_loop().create_task(self._call())

    async def _call(self) -> None:
        loop = asyncio.get_running_loop()
        upstream, _ = await loop.create_connection(lambda: Upstream(self._transport), *self._address)
        self._upstream = upstream
        for data in self._early:
            self._upstream.write(data)

    def data_received(self, data: bytes) -> None:
        """Forward the data."""
        if self._upstream is None:
            self._early.append(data)
        else:
            self._upstream.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the other connection, too."""
        if self._upstream is not None:
            self._upstream.close()


async def _serve(port: int, upstream: int) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Client("127.0.0.1", upstream), "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--upstream", type=int, required=True, help="its port on this machine")
    arguments = parser.parse_args()
    uvloop.run(_serve(arguments.port, arguments.upstream))


if __name__ == "__main__":
    main()
