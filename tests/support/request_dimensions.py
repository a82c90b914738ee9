"""Request bodies that are large in one dimension each: the cost of a request must be linear in its size."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

EXTENSION = "urn:tailrace:ext:stream:v1"

Make = Callable[[int], bytes]


@dataclass(frozen=True)
class Dimension:
    """One dimension of a request.

    Attributes:
        name: The kind of the ``n`` elements.
        path: The endpoint.
        make: Returns the body with ``n`` elements.
        largest: The ``n`` of the largest request worth sending.
        headers: The headers of the request.
    """

    name: str
    path: str
    make: Make
    largest: int
    headers: dict[str, str] = field(default_factory=dict[str, str])


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def rpc(message: object, method: str = "SendMessage", **params: Any) -> bytes:
    """A JSON-RPC request that sends a message."""
    return _json({"jsonrpc": "2.0", "id": 1, "method": method, "params": {"message": message, **params}})


def _message(parts: Any, **members: object) -> dict[str, object]:
    return {"messageId": "m", "role": "ROLE_USER", "parts": parts, **members}


def _nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def _with_facts(**facts: object) -> bytes:
    return rpc(_message([{"text": "hi"}]), metadata={EXTENSION: facts})


def _tools(count: int) -> list[dict[str, Any]]:
    return [{"name": f"t{at}", "parameters": {"type": "object", "properties": {}}} for at in range(count)]


def _chat(messages: list[Any], **members: object) -> bytes:
    return _json({"model": "", "messages": messages, **members})


def _turns(count: int) -> list[dict[str, Any]]:
    """A conversation as clients send it: questions, tool calls, their results, responses."""
    turns: list[dict[str, Any]] = []
    for at in range(count // 4):
        call = {"id": f"c{at}", "type": "function", "function": {"name": "look", "arguments": '{"at":1}'}}
        turns += [
            {"role": "user", "content": f"question {at}"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{at}", "content": "found"},
            {"role": "assistant", "content": "an answer"},
        ]
    return [*turns, {"role": "user", "content": "and now?"}]


def _ui_message(role: str, *parts: object) -> dict[str, object]:
    return {"id": "m", "role": role, "parts": list(parts)}


def _ui_turns(count: int) -> list[object]:
    text = {"type": "text", "text": "said"}
    pairs = [_ui_message("user", text), _ui_message("assistant", {"type": "step-start"}, text)]
    return [*(pairs * (count // 2)), _ui_message("user", text)]


def _schema(**members: object) -> bytes:
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object", **members}}}
    return _chat([{"role": "user", "content": "x"}], response_format=form)


def _properties(count: int, of: Any) -> dict[str, Any]:
    return {f"p{at}": of for at in range(count)}


_CHAT, _RESPONSES, _UI, _AG = "/v1/chat/completions", "/v1/responses", "/ai-sdk", "/ag-ui"
_BIG = 15 * 2**19

DIMENSIONS = (
    Dimension("arrays", "/", lambda n: b"[" + b"[]," * n + b"[]]", 5_000_000),
    Dimension("levels", "/", lambda n: b"[" * n, 8_000_000),
    Dimension("members of params", "/", lambda n: rpc(_message([]), **_properties(n, 1)), 1_000_000),
    Dimension("parts", "/", lambda n: rpc(_message([{"text": "x"}] * n)), 1_000_000),
    Dimension("wrong parts", "/", lambda n: rpc(_message([{"text": 1}] * n)), 1_000_000),
    Dimension("empty parts", "/", lambda n: rpc(_message([{}] * n)), 5_000_000),
    Dimension("null parts", "/", lambda n: rpc(_message([None] * n)), 3_000_000),
    Dimension("file parts", "/", lambda n: rpc(_message([{"raw": "AAAA"}] * n)), 500_000),
    Dimension("data parts", "/", lambda n: rpc(_message([{"data": {"a": [1]}}] * n)), 500_000),
    Dimension("text", "/", lambda n: rpc(_message([{"text": "x" * n}])), _BIG),
    Dimension("text, not ASCII", "/", lambda n: rpc(_message([{"text": "\u20ac" * (n // 6)}])), _BIG),
    Dimension("surrogates", "/", lambda n: rpc(_message([{"text": "\ud800" * (n // 6)}])), _BIG),
    Dimension("file", "/", lambda n: rpc(_message([{"raw": "A" * (n // 4 * 4)}])), _BIG),
    Dimension("data", "/", lambda n: rpc(_message([{"data": list(range(n))}])), 2_000_000),
    Dimension("data keys", "/", lambda n: rpc(_message([{"data": _properties(n, 0)}])), 1_000_000),
    Dimension("data levels", "/", lambda n: rpc(_message([{"data": _nested(n)}])), 900),
    Dimension("long numbers", "/", lambda n: rpc(_message([{"data": [1.2345678901e-305] * n}])), 700_000),
    Dimension("digits", "/", lambda n: b'{"id":' + b"1" * n + b"}", _BIG),
    Dimension("message metadata", "/", lambda n: rpc(_message([{"text": "x"}], metadata=_properties(n, 1))), 900_000),
    Dimension("extensions", "/", lambda n: rpc(_message([{"text": "x"}], extensions=["x"] * n)), 2_000_000),
    Dimension("references", "/", lambda n: rpc(_message([{"text": "x"}], referenceTaskIds=["x"] * n)), 2_000_000),
    Dimension("tool results", "/", lambda n: rpc(_message([{"data": {"tool_results": [{"call_id": str(at), "output": ""} for at in range(n)]}}])), 300_000),
    Dimension("method name", "/", lambda n: _json({"jsonrpc": "2.0", "id": 1, "method": "x" * n}), _BIG),
    Dimension("request id", "/", lambda n: _json({"jsonrpc": "2.0", "id": "x" * n, "method": "x"}), _BIG),
    Dimension("task id", "/", lambda n: _json({"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": "x" * n}}), _BIG),
    Dimension("page token", "/", lambda n: _json({"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {"pageToken": "W" * n}}), _BIG),
    Dimension("context id", "/", lambda n: rpc(_message([{"text": "x"}], contextId="x" * n)), _BIG),
    Dimension("role", "/", lambda n: rpc(_message([{"text": "x"}]) | {"role": "x" * n}), _BIG),
    Dimension("output modes", "/", lambda n: rpc(_message([{"text": "x"}]), configuration={"acceptedOutputModes": ["x"] * n}), 2_000_000),
    Dimension("0.3 parts", "/", lambda n: rpc({"messageId": "m", "role": "user", "kind": "message", "parts": [{"kind": "text", "text": "x"}] * n}, "message/send"), 400_000),
    Dimension("0.3 metadata", "/", lambda n: rpc({"messageId": "m", "role": "user", "kind": "message", "parts": [{"kind": "text", "text": "x"}], "metadata": _properties(n, 1)}, "message/send"), 400_000),
    Dimension("facts: tools", "/", lambda n: _with_facts(tools=_tools(n)), 200_000),
    Dimension("facts: stop", "/", lambda n: _with_facts(stop=["x"] * n), 2_000_000),
    Dimension("facts: output", "/", lambda n: _with_facts(output={"schema": {"type": "object", "properties": _properties(n, {})}}), 500_000),
    Dimension("REST parts", "/message:send", lambda n: _json({"message": _message([{"text": "x"}] * n)}), 1_000_000),
    Dimension("REST 0.3 parts", "/v1/message:send", lambda n: _json({"message": {"messageId": "m", "role": "ROLE_USER", "content": [{"text": "x"}] * n}}), 1_000_000),
    Dimension("chat messages", _CHAT, lambda n: _chat([{"role": "user", "content": "x"}] * n), 500_000),
    Dimension("chat turns", _CHAT, lambda n: _chat(_turns(n)), 100_000),
    Dimension("chat turns under a key", _CHAT, lambda n: _chat(_turns(n), metadata={"conversation_id": "k"}), 100_000),
    Dimension("chat system messages", _CHAT, lambda n: _chat([{"role": "system", "content": "x"}] * n), 500_000),
    Dimension("chat tool messages", _CHAT, lambda n: _chat([{"role": "tool", "tool_call_id": "c", "content": "x"}] * n), 300_000),
    Dimension("chat unanswered calls", _CHAT, lambda n: _chat([{"role": "assistant", "tool_calls": [{"id": f"c{at}", "type": "function", "function": {"name": "f", "arguments": "{}"}} for at in range(n)]}, *({"role": "tool", "content": "x"} for _ in range(n)), {"role": "user", "content": "x"}]), 100_000),
    Dimension("chat content parts", _CHAT, lambda n: _chat([{"role": "user", "content": [{"type": "text", "text": "x"}] * n}]), 400_000),
    Dimension("chat wrong messages", _CHAT, lambda n: _chat([1] * n), 4_000_000),
    Dimension("chat empty messages", _CHAT, lambda n: _chat([{}] * n), 4_000_000),
    Dimension("chat text", _CHAT, lambda n: _chat([{"role": "user", "content": "x" * n}]), _BIG),
    Dimension("chat arguments", _CHAT, lambda n: _chat([{"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "[" + "1," * (n // 2) + "1]"}}]}, {"role": "tool", "tool_call_id": "c", "content": "x"}]), _BIG),
    Dimension("chat image", _CHAT, lambda n: _chat([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * (n // 4 * 4)}}]}]), _BIG),
    Dimension("chat role", _CHAT, lambda n: _chat([{"role": "x" * n}]), _BIG),
    Dimension("chat model", _CHAT, lambda n: _json({"model": "x" * n, "messages": [{"role": "user", "content": "x"}]}), _BIG),
    Dimension("chat tools", _CHAT, lambda n: _chat([{"role": "user", "content": "x"}], tools=[{"type": "function", "function": tool} for tool in _tools(n)]), 200_000),
    Dimension("chat stop", _CHAT, lambda n: _chat([{"role": "user", "content": "x"}], stop=["x"] * n), 3_000_000),
    Dimension("chat metadata", _CHAT, lambda n: _chat([{"role": "user", "content": "x"}], metadata=_properties(n, "x")), 900_000),
    Dimension("schema properties", _CHAT, lambda n: _schema(properties=_properties(n, {"type": "string"})), 500_000),
    Dimension("schema enum", _CHAT, lambda n: _schema(enum=list(range(n))), 2_000_000),
    Dimension("schema enum of objects", _CHAT, lambda n: _schema(enum=[{"a": at} for at in range(n)]), 900_000),
    Dimension("schema required", _CHAT, lambda n: _schema(required=[f"p{at}" for at in range(n)]), 900_000),
    Dimension("schema references", _CHAT, lambda n: _schema(properties=_properties(n, {"$ref": "#/$defs/a"}), **{"$defs": {"a": {"pattern": "^(a+)+\\1$"}}}), 500_000),
    Dimension("schema back-references", _CHAT, lambda n: _schema(properties=_properties(n, {"pattern": "^(a+)+\\1$"})), 400_000),
    Dimension("schema patterns", _CHAT, lambda n: _schema(properties=_properties(n, {"pattern": "^[\\p{L}\\p{N}]{60}$"})), 400_000),
    Dimension("schema large patterns", _CHAT, lambda n: _schema(properties=_properties(n, {"pattern": "\\w{500}"})), 100_000),
    Dimension("schema long pattern", _CHAT, lambda n: _schema(pattern="(a|b)?" * n), 1_000_000),
    Dimension("schema branches", _CHAT, lambda n: _schema(anyOf=[{"properties": {"a": {"const": at}}} for at in range(n)]), 200_000),
    Dimension("schema definitions", _CHAT, lambda n: _schema(**{"$defs": {f"d{at}": {"$ref": f"#/$defs/d{at + 1}"} for at in range(n)}, "$ref": "#/$defs/d0"}), 300_000),
    Dimension("schema unused definitions", _CHAT, lambda n: _schema(**{"$defs": {f"d{at}": {"pattern": "^(a+)+$", "$id": f"u:{at}"} for at in range(n)}}), 300_000),
    Dimension("tool patterns", _CHAT, lambda n: _chat([{"role": "user", "content": "x"}], tools=[{"type": "function", "function": {"name": "t", "parameters": {"type": "object", "properties": _properties(n, {"pattern": "\\w{500}"})}}}]), 200_000),
    Dimension("prompts", "/v1/completions", lambda n: _json({"prompt": ["x"] * n}), 4_000_000),
    Dimension("prompt", "/v1/completions", lambda n: _json({"prompt": "x" * n}), _BIG),
    Dimension("embedding inputs", "/v1/embeddings", lambda n: _json({"model": "m", "input": ["x"] * n}), 4_000_000),
    Dimension("embedding tokens", "/v1/embeddings", lambda n: _json({"model": "m", "input": [[1, 2, 3]] * n}), 1_000_000),
    Dimension("choices", _CHAT, lambda n: _chat([{"role": "user", "content": "x" * n}], n=16), _BIG // 16),
    Dimension("native tools", _RESPONSES, lambda n: _json({"input": "x", "tools": [{"type": "custom", "name": f"t{at}"} for at in range(n)]}), 300_000),
    Dimension("responses items", _RESPONSES, lambda n: _json({"input": [{"role": "user", "content": "x"}] * n}), 500_000),
    Dimension("responses turns", _RESPONSES, lambda n: _json({"input": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}] * (n // 2) + [{"role": "user", "content": "x"}]}), 300_000),
    Dimension("responses outputs", _RESPONSES, lambda n: _json({"input": [{"type": "function_call_output", "call_id": f"c{at}", "output": "x"} for at in range(n)]}), 200_000),
    Dimension("responses reasoning", _RESPONSES, lambda n: _json({"input": [{"type": "reasoning", "id": f"r{at}", "summary": []} for at in range(n)] + [{"role": "user", "content": "x"}]}), 200_000),
    Dimension("responses wrong items", _RESPONSES, lambda n: _json({"input": [1] * n}), 4_000_000),
    Dimension("responses text", _RESPONSES, lambda n: _json({"input": "x" * n}), _BIG),
    Dimension("AI SDK messages", _UI, lambda n: _json({"id": "c", "messages": [_ui_message("user", {"type": "text", "text": "x"})] * n}), 200_000),
    Dimension("AI SDK turns", _UI, lambda n: _json({"id": "c", "messages": _ui_turns(n)}), 100_000),
    Dimension("AI SDK parts", _UI, lambda n: _json({"id": "c", "messages": [_ui_message("user", *[{"type": "text", "text": "x"}] * n)]}), 400_000),
    Dimension("AI SDK steps", _UI, lambda n: _json({"id": "c", "messages": [_ui_message("assistant", *[{"type": "step-start"}, {"type": "text", "text": "x"}] * n), _ui_message("user", {"type": "text", "text": "x"})]}), 200_000),
    Dimension("AI SDK text", _UI, lambda n: _json({"id": "c", "messages": [_ui_message("user", {"type": "text", "text": "x" * n})]}), _BIG),
    Dimension("AI SDK image", _UI, lambda n: _json({"id": "c", "messages": [_ui_message("user", {"type": "file", "mediaType": "image/png", "url": "data:image/png;base64," + "A" * (n // 4 * 4)})]}), _BIG),
    Dimension("AI SDK wrong messages", _UI, lambda n: _json({"id": "c", "messages": [1] * n}), 3_000_000),
    Dimension("AI SDK system", _UI, lambda n: _json({"id": "c", "messages": [_ui_message("system", {"type": "text", "text": "x"})] * n}), 200_000),
    Dimension("AG-UI messages", _AG, lambda n: _json({"threadId": "t", "runId": "r", "messages": [{"role": "user", "content": "x"}] * n}), 300_000),
    Dimension("AG-UI turns", _AG, lambda n: _json({"threadId": "t", "runId": "r", "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}] * (n // 2) + [{"role": "user", "content": "x"}]}), 200_000),
    Dimension("AG-UI tool messages", _AG, lambda n: _json({"threadId": "t", "runId": "r", "messages": [{"role": "tool", "toolCallId": f"c{at}", "content": "x"} for at in range(n)]}), 200_000),
    Dimension("AG-UI context", _AG, lambda n: _json({"threadId": "t", "runId": "r", "messages": [{"role": "user", "content": "x"}], "context": [{"description": "d", "value": "v"}] * n}), 300_000),
    Dimension("AG-UI wrong messages", _AG, lambda n: _json({"threadId": "t", "runId": "r", "messages": [1] * n}), 3_000_000),
)  # fmt: skip
