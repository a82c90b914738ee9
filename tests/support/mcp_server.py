"""An MCP server (Model Context Protocol) with tools for tests, created with the class of the official SDK.

It is an ASGI application (`McpServer.app`), or a program that uses standard input and output.
"""

import base64
import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
from mcp.server import Server
from mcp.server.stdio import stdio_server
from mcp.types import (
    AudioContent,
    BlobResourceContents,
    CallToolRequestParams,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ListToolsResult,
    PaginatedRequestParams,
    ResourceLink,
    TextContent,
    TextResourceContents,
    Tool,
    ToolAnnotations,
)

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNg+M9QDwADgQGAXlQ1nQAAAABJRU5ErkJggg=="
)
"""A PNG of one pixel."""

PAGES = (("echo", "pid", "picture"), ("attachments", "count", "fail"), ("wait", "meet", "die", "lie"))
"""The names of the tools in the order of the list."""


class McpServer:
    """The server.

    Attributes:
        waiting: Set when a call of ``wait`` is running.
        cancelled: Set when such a call was cancelled.
        go_on: Ends such calls when set.
        meeting: The number of calls of ``meet`` that wait for each other.
        app: The ASGI application; its endpoint is ``/mcp``.
    """

    def __init__(self) -> None:
        self.waiting = anyio.Event()
        self.cancelled = anyio.Event()
        self.go_on = anyio.Event()
        self.meeting = 1
        self._met = 0
        self._all_met = anyio.Event()
        self.server = Server[Any]("test", on_list_tools=self._list, on_call_tool=self._call)
        self.app = self.server.streamable_http_app()

    async def _list(self, _context: object, params: PaginatedRequestParams | None) -> ListToolsResult:
        page = int(params.cursor) if params is not None and params.cursor else 0
        tools = [
            Tool(
                name=name,
                description=f"The tool {name}.",
                input_schema={"type": "object"},
                output_schema=_OUT.get(name),
                annotations=_HINTS.get(name),
            )
            for name in PAGES[page]
        ]
        following = str(page + 1) if page + 1 < len(PAGES) else None
        return ListToolsResult(tools=tools, next_cursor=following)

    async def _call(self, _context: object, params: CallToolRequestParams) -> CallToolResult:
        arguments = params.arguments or {}
        if params.name in _SIMPLE:
            return _SIMPLE[params.name](arguments)
        return await {"wait": self._wait, "meet": self._meet}[params.name]()

    async def _wait(self) -> CallToolResult:
        self.waiting.set()
        try:
            await self.go_on.wait()
        except anyio.get_cancelled_exc_class():
            self.cancelled.set()
            raise
        return _text("waited")

    async def _meet(self) -> CallToolResult:
        self._met += 1
        if self._met == self.meeting:
            self._all_met.set()
        await self._all_met.wait()
        return _text("met")


class WithSessions:
    """The application of an `McpServer`, which treats each client as a client of a protocol version with sessions (before 2026).

    Attributes:
        sessions: The ids of sessions, as clients name them.
        methods: The methods of requests that name a session.
    """

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app
        self.sessions = list[str]()
        self.methods = list[str]()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        body, more = b"", scope["method"] == "POST"
        while more:
            received = await receive()
            body += received.get("body", b"")
            more = received.get("more_body", False)
        request: dict[str, Any] = json.loads(body) if body else {}
        if request.get("method") == "server/discover":
            answer = {
                "jsonrpc": "2.0",
                "id": request["id"],
                "error": {"code": -32601, "message": "Method not found"},
            }
            kind = [(b"content-type", b"application/json")]
            await send({"type": "http.response.start", "status": 404, "headers": kind})
            await send({"type": "http.response.body", "body": json.dumps(answer).encode()})
            return
        session = headers.get("mcp-session-id")
        if session is not None:
            self.methods.append(request.get("method", scope["method"]))
            if session not in self.sessions:
                self.sessions.append(session)
        replayed = False

        async def replay() -> Any:
            nonlocal replayed
            if replayed or scope["method"] != "POST":
                return await receive()
            replayed = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, replay, send)


def _text(text: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=text)])


def _echo(arguments: dict[str, Any]) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=text) for text in arguments["texts"]])


def _pid(_arguments: dict[str, Any]) -> CallToolResult:
    print("the pid was asked for", file=sys.stderr)
    return _text(str(os.getpid()))


def _picture(_arguments: dict[str, Any]) -> CallToolResult:
    picture = ImageContent(data=base64.b64encode(PIXEL).decode(), mime_type="image/png")
    return CallToolResult(content=[TextContent(text="a pixel"), picture])


def _attachments(_arguments: dict[str, Any]) -> CallToolResult:
    blocks: list[ContentBlock] = [
        AudioContent(data="AAAA", mime_type="audio/wav"),
        EmbeddedResource(
            resource=TextResourceContents(uri="memo://1", text="a memo", mime_type="text/plain")
        ),
        EmbeddedResource(resource=BlobResourceContents(uri="memo://2", blob="AAAAAA==")),
        ResourceLink(uri="file:///a.txt", name="a.txt"),
    ]
    return CallToolResult(content=blocks, structured_content={"files": 3})


def _count(arguments: dict[str, Any]) -> CallToolResult:
    return CallToolResult(content=[TextContent(text="…")], structured_content={"n": len(arguments)})


def _fail(_arguments: dict[str, Any]) -> CallToolResult:
    return CallToolResult(content=[TextContent(text="no luck")], is_error=True)


def _die(_arguments: dict[str, Any]) -> CallToolResult:
    os._exit(3)


def _lie(_arguments: dict[str, Any]) -> CallToolResult:
    return CallToolResult(content=[], structured_content={"n": "not a number"})


_NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
_OUT = {"count": _NUMBER, "lie": _NUMBER}
_HINTS = {
    "echo": ToolAnnotations(read_only_hint=True),
    "count": ToolAnnotations(idempotent_hint=True),
    "die": ToolAnnotations(read_only_hint=False, idempotent_hint=False),
}
_SIMPLE: dict[str, Callable[[dict[str, Any]], CallToolResult]] = {
    "echo": _echo,
    "pid": _pid,
    "picture": _picture,
    "attachments": _attachments,
    "count": _count,
    "fail": _fail,
    "die": _die,
    "lie": _lie,
}


async def main() -> None:
    """Serve over standard input and output until the input ends."""
    server = McpServer().server
    print("ready", file=sys.stderr)
    async with stdio_server() as (received, sent):
        await server.run(received, sent, server.create_initialization_options())


if __name__ == "__main__":
    anyio.run(main)
