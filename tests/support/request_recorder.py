"""An ASGI application that records the requests to another one, byte for byte."""

from dataclasses import dataclass, field
from typing import Any

import msgspec


@dataclass
class WireRequest:
    """A request.

    Attributes:
        method: Its HTTP method.
        path: Its path, with the query.
        headers: By lower-case name.
        body: The part of the body that was read.
    """

    method: str
    path: str
    headers: dict[str, str]
    body: bytearray = field(default_factory=bytearray)

    @property
    def json(self) -> Any:
        """The body."""
        return msgspec.json.decode(self.body)

    @property
    def bytes(self) -> bytes:
        """The complete request as one text to search."""
        headers = "\n".join(f"{name}: {value}" for name, value in self.headers.items())
        return f"{self.method} {self.path}\n{headers}\n\n".encode() + bytes(self.body)


class Recorder:
    """Records the requests to an application.

    Args:
        app: The application.

    Attributes:
        requests: All requests so far.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self.requests: list[WireRequest] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode().lower(): value.decode("latin-1") for name, value in scope["headers"]}
        path = scope["path"] + (f"?{scope['query_string'].decode()}" if scope["query_string"] else "")
        request = WireRequest(scope["method"], path, headers)
        self.requests.append(request)

        async def recorded() -> Any:
            message = await receive()
            request.body.extend(message.get("body", b""))
            return message

        await self._app(scope, recorded, send)

    def sent(self, method: str = "SendStreamingMessage") -> list[dict[str, Any]]:
        """The messages of the JSON-RPC requests of one method, in order."""
        bodies = [each.json for each in self.requests if each.method == "POST"]
        return [body["params"]["message"] for body in bodies if body.get("method") == method]
