"""A plain JSON-RPC client that returns the wire format unchanged."""

import json
from collections.abc import Callable
from typing import Any, Self
from uuid import uuid4

import aiohttp

from tailrace.wrappers import SSEDecoder


class Rpc:
    """Calls one server; use as an async context manager.

    Args:
        url: The server's base URL.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.http: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        self.http = aiohttp.ClientSession()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.close()

    async def raw(
        self, body: bytes, headers: dict[str, str] | None = None, path: str = "/"
    ) -> tuple[int, dict[str, Any]]:
        """Post bytes; return the status and the JSON of the response."""
        given = {"content-type": "application/json", **(headers or {})}
        async with self.http.post(self.url + path, data=body, headers=given) as response:
            return response.status, await response.json(content_type=None)

    async def call(self, method: str, params: Any, headers: dict[str, str] | None = None) -> dict[str, Any]:
        """Call a method; return the complete JSON-RPC response."""
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        status, answer = await self.raw(json.dumps(body).encode(), headers)
        assert status == 200
        assert answer["id"] == 1
        return answer

    async def result(self, method: str, params: Any) -> dict[str, Any]:
        """Call a method that succeeds; return its result."""
        answer = await self.call(method, params)
        assert "error" not in answer, answer
        return answer["result"]

    async def error(self, method: str, params: Any, headers: dict[str, str] | None = None) -> dict[str, Any]:
        """Call a method that fails; return the error object."""
        answer = await self.call(method, params, headers)
        assert "result" not in answer, answer
        return answer["error"]

    async def stream(
        self,
        method: str,
        params: Any,
        headers: dict[str, str] | None = None,
        seen: Callable[[list[tuple[int, dict[str, Any]]]], None] | None = None,
    ) -> list[tuple[int, dict[str, Any]]]:
        """Call a streaming method; return the number and result of each event.

        ``seen`` is called with all events so far after each read.
        """
        body = {"jsonrpc": "2.0", "id": "s", "method": method, "params": params}
        events: list[tuple[int, dict[str, Any]]] = []
        decoder = SSEDecoder()
        async with self.http.post(self.url + "/", json=body, headers=headers) as response:
            assert response.headers["content-type"].startswith("text/event-stream"), await response.text()
            async for data in response.content.iter_any():
                for event in decoder.feed(data):
                    answer = json.loads(event.data)
                    assert answer["id"] == "s"
                    events.append((int(event.id or 0), answer["result"]))
                if seen is not None:
                    seen(events)
        return events


def message(text: str = "hello", **fields: Any) -> dict[str, Any]:
    """The parameters of a send with one text part."""
    return {"message": {"messageId": str(uuid4()), "role": "ROLE_USER", "parts": [{"text": text}], **fields}}


async def tasks_of(url: str, context_id: str) -> list[dict[str, Any]]:
    """The tasks of a conversation, with their artifacts."""
    async with Rpc(url) as rpc:
        listed = await rpc.result("ListTasks", {"contextId": context_id, "includeArtifacts": True})
    return listed["tasks"]


def text_of(task: dict[str, Any], artifact_id: str = "text") -> str:
    """The text of the task's artifact; empty without an artifact."""
    for artifact in task.get("artifacts", []):
        if artifact["artifactId"] == artifact_id:
            [part] = artifact["parts"]
            return part["text"]
    return ""


def streamed_text(events: list[tuple[int, dict[str, Any]]]) -> str:
    """The text of all artifact events, joined."""
    return "".join(
        part.get("text", "")
        for _, event in events
        if "artifactUpdate" in event
        for part in event["artifactUpdate"]["artifact"]["parts"]
    )
