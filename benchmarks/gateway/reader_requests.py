"""The requests that readers send: Chat Completions, and A2A 1.0 over JSON-RPC."""

import json
from itertools import count
from typing import Any

from benchmarks.gateway.plan import Plan

OPENAI, A2A = "openai", "a2a"
_NUMBERS = count(1)


def start(dialect: str, plan: Plan) -> bytes:
    if dialect == OPENAI:
        messages = [{"role": "user", "content": plan.prompt}]
        options = {"include_usage": True}
        body = {"model": "gpt-4o", "messages": messages, "stream": True, "stream_options": options}
        return _post("/v1/chat/completions", body)
    message = {"messageId": f"m{next(_NUMBERS)}", "role": "ROLE_USER", "parts": [{"text": plan.prompt}]}
    return _call("SendStreamingMessage", {"message": message})


def subscribe(task: str, after: int | None = None) -> bytes:
    """Return the request of a further subscriber of a task, for the new events, or those after ``after``."""
    header = "" if after is None else f"last-event-id: {after}\r\n"
    return _call("SubscribeToTask", {"id": task}, header)


def cancel(task: str) -> bytes:
    return _call("CancelTask", {"id": task})


def release() -> bytes:
    """Return the request to the upstream that releases held responses."""
    return b"POST /release HTTP/1.1\r\nhost: upstream\r\ncontent-length: 0\r\n\r\n"


def step(answers: int) -> bytes:
    """Return the request to the upstream that sends one more delta of ``answers`` held responses."""
    return f"POST /step/{answers} HTTP/1.1\r\nhost: upstream\r\ncontent-length: 0\r\n\r\n".encode()


def _call(method: str, params: dict[str, Any], header: str = "") -> bytes:
    body = {"jsonrpc": "2.0", "id": next(_NUMBERS), "method": method, "params": params}
    return _post("/", body, f"a2a-version: 1.0\r\n{header}")


def _post(path: str, body: dict[str, Any], headers: str = "") -> bytes:
    data = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer none\r\n"
        f"content-type: application/json\r\naccept: text/event-stream\r\n{headers}content-length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data
