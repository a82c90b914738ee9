"""A plain client of the HTTP+JSON binding that returns the wire format unchanged."""

import json
from typing import Any

from support.rpc import Rpc
from tailrace.wrappers import SSEDecoder


class HttpJson:
    """Sends requests to one server.

    Args:
        rpc: The client whose connections and base URL are used.
    """

    def __init__(self, rpc: Rpc) -> None:
        self.rpc = rpc

    async def ask(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        """The status and the JSON of a response."""
        status, _, answer = await self.exchange(method, path, body, headers)
        return status, json.loads(answer)

    async def exchange(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """The status, the headers (by lower-case name) and the body of a response."""
        data = json.dumps(body).encode() if body is not None else None
        given = {"content-type": "application/json"} if body is not None else {}
        async with self.rpc.http.request(
            method, self.rpc.url + path, data=data, headers={**given, **(headers or {})}
        ) as response:
            found = {name.lower(): value for name, value in response.headers.items()}
            return response.status, found, await response.read()

    async def ok(self, method: str, path: str, body: object = None) -> Any:
        """The JSON of a successful response."""
        status, answer = await self.ask(method, path, body)
        assert status == 200, answer
        return answer

    async def stream(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> list[tuple[str, str, Any]]:
        """The id, type and data of each event."""
        decoder = SSEDecoder()
        async with self.rpc.http.request(method, self.rpc.url + path, json=body, headers=headers) as response:
            assert response.headers["content-type"].startswith("text/event-stream"), await response.text()
            body_bytes = await response.read()
        return [(event.id, event.event, json.loads(event.data)) for event in decoder.feed(body_bytes)]
