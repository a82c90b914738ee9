"""A plain caller of the HTTP+JSON binding for tests: what goes over the wire, and nothing made nicer."""

import json
from typing import Any

from support.rpc import Rpc
from tailrace.wrappers import SSEDecoder


class HttpJson:
    """Asks the addresses of one server.

    Args:
        rpc: Whose connections are used; its URL is the base of all addresses.
    """

    def __init__(self, rpc: Rpc) -> None:
        self.rpc = rpc

    async def ask(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        """The status and the JSON of an answer."""
        status, _, answer = await self.exchange(method, path, body, headers)
        return status, json.loads(answer)

    async def exchange(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """The status, the headers (by lower-case name) and the body of an answer."""
        data = json.dumps(body).encode() if body is not None else None
        given = {"content-type": "application/json"} if body is not None else {}
        async with self.rpc.http.request(
            method, self.rpc.url + path, data=data, headers={**given, **(headers or {})}
        ) as response:
            found = {name.lower(): value for name, value in response.headers.items()}
            return response.status, found, await response.read()

    async def ok(self, method: str, path: str, body: object = None) -> Any:
        """The JSON of an answer that is no error."""
        status, answer = await self.ask(method, path, body)
        assert status == 200, answer
        return answer

    async def stream(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> list[tuple[str, str, Any]]:
        """Every event as its id, its type and its data."""
        decoder = SSEDecoder()
        async with self.rpc.http.request(method, self.rpc.url + path, json=body, headers=headers) as response:
            assert response.headers["content-type"].startswith("text/event-stream"), await response.text()
            body_bytes = await response.read()
        return [(event.id, event.event, json.loads(event.data)) for event in decoder.feed(body_bytes)]
