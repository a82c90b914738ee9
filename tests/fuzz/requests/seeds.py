"""Valid calls: at least one for each route of the application, method of JSON-RPC and method of gRPC.

Bodies of routes are also generated from the OpenAPI description by `fuzz.requests.grammar`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any, cast

from fastapi import FastAPI
from google.protobuf.json_format import ParseDict, ParseError
from google.protobuf.message_factory import GetMessageClass

from fuzz.requests.calls import (
    CALLERS,
    COMPLETED,
    COMPLETION,
    CONFIG,
    CONTEXT,
    HOOK,
    PAGE_TOKEN,
    RESPONSE,
    WAITING,
    Call,
)
from fuzz.requests.grammar import Grammar
from tailrace.server import Settings, create_app
from tailrace.server.protocols.a2a.card import build_card
from tailrace.server.protocols.a2a.grpc_v0_3 import Grpc03
from tailrace.server.protocols.a2a.grpc_v1_0 import Grpc10
from tailrace.server.protocols.openapi import describe
from tailrace.server.settings import ENDPOINTS
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI
from tailrace.streaming.a2a.v0_1 import Version01
from tailrace.streaming.a2a.v0_3 import Version03
from tailrace.streaming.a2a.v1_0 import Version10

Json = dict[str, Any]

METHODS = ("GET", "POST", "PATCH", "DELETE")
"""The HTTP methods of routes; HEAD is the same as GET."""

SCHEMA: Json = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 20},
        "items": {"type": "array", "items": {"$ref": "#/$defs/item"}},
    },
    "required": ["name"],
    "$defs": {"item": {"anyOf": [{"type": "integer", "minimum": 0}, {"enum": ["a", None]}]}},
}
_PARAMETERS = {
    "id": COMPLETED,
    "taskId": COMPLETED,
    "configId": CONFIG,
    "contextId": CONTEXT,
    "tenant": "acme",
    "model": "tailrace",
    "chat_id": CONTEXT,
    "response_id": RESPONSE,
    "conversation_id": CONTEXT,
    "item_id": "msg_x",
    "completion_id": COMPLETION,
}
_IMAGE = "data:image/png;base64,iVBORw0KGgo="


@dataclass(frozen=True)
class Seed:
    """One endpoint and a valid call of it.

    Attributes:
        name: The displayed name: the method and the route, and the method of JSON-RPC.
        call: The call; its body is `tree` as JSON.
        tree: The JSON of the body; None without a body.
        schema: The schema of the body in the OpenAPI description, or None.
        kind: The class of the protobuf message, for gRPC.
    """

    name: str
    call: Call
    tree: Any = None
    schema: Mapping[str, Any] | None = None
    kind: Any = None


def create_fuzzed_app(settings: Settings) -> FastAPI:
    """The fuzzed application, with every route that a server can have."""
    card = build_card(settings, "http://127.0.0.1/", has_extended=True)
    return create_app(settings, extended_card=card)


def serialize(kind: Any, tree: Any) -> bytes:
    """The protobuf message that a JSON value describes; empty for values that describe none."""
    try:
        return ParseDict(tree, kind(), ignore_unknown_fields=True).SerializeToString()
    except (ParseError, TypeError, ValueError, AttributeError, RecursionError, SystemError):
        return b""


@cache
def grammar() -> Grammar:
    """The grammar of the description."""
    return Grammar(describe())


@cache
def seeds() -> Sequence[Seed]:
    """All seeds, in the same order in each run."""
    return (*_of_routes(), *_of_jsonrpc(), *_of_grpc())


def bodies_from_grammar(seed: Seed, rng: Random) -> Any:
    """Another body of the same endpoint, generated from the description; its own without a schema."""
    if seed.schema is None:
        return seed.tree
    made = grammar().value(seed.schema, rng)
    if isinstance(made, dict) and rng.random() < 0.5:
        return {**cast("Json", made), **cast("Json", seed.tree)}  # otherwise few messages are complete
    return cast("Any", made)


def _of_routes() -> list[Seed]:
    settings = Settings(
        model="openai:scripted", base_url="http://127.0.0.1:9/v1", store="sqlite://", endpoints=ENDPOINTS
    )
    described = describe()["paths"]
    found: list[Seed] = []
    for route in create_fuzzed_app(settings).routes:
        template: str = getattr(route, "path", "")
        for method in METHODS:
            if method not in (getattr(route, "methods", None) or ()):
                continue
            if (method, template) == ("POST", "/"):
                continue  # JSON-RPC: one seed for each method
            bodies = _bodies(template) if method in ("POST", "PATCH") else [None]
            short = template.removeprefix("/{tenant}").replace("{model:path}", "{model}")
            operation = described.get(short, {}).get(method.lower(), {})
            content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            query = [
                (each["name"], _QUERY.get(each["name"], "1"))
                for each in operation.get("parameters", ())
                if each["in"] == "query" and each["name"] in _QUERY
            ]
            for body in bodies:
                # A deletion names nothing that other requests name.
                deletes = method == "DELETE" and re.search(r"/(tasks|conversations)/\{\w+\}$", template)
                names = dict.fromkeys(_PARAMETERS, "deleted") if deletes else _PARAMETERS
                path = re.sub(r"\{(\w+)(:path)?\}", lambda name, names=names: names[name[1]], template)
                call = Call(method, path, [], _headers(has_body=body is not None), _json(body))
                name = f"{method} {template}"
                found.append(Seed(name, call, body, content.get("schema")))
                if query:
                    found.append(Seed(name, Call(method, path, query, _headers(has_body=False))))
    return found


_QUERY = {
    "pageSize": "1",
    "pageToken": PAGE_TOKEN,
    "historyLength": "2",
    "contextId": CONTEXT,
    "status": "TASK_STATE_COMPLETED",
    "includeArtifacts": "true",
    "query": "h",
    "relatedTo": CONTEXT,
    "stream": "true",
    "starting_after": "2",
    "limit": "1",
}


def _headers(*, has_body: bool) -> list[tuple[str, str]]:
    headers = [("X-API-Key", CALLERS["alice"])]
    return [*headers, ("Content-Type", "application/json")] if has_body else headers


def _json(tree: Any) -> bytes:
    return b"" if tree is None else json.dumps(tree).encode()


def _bodies(template: str) -> list[Any]:
    path = template.removeprefix("/{tenant}")
    if path.startswith("/v1/message:"):
        return [
            {
                "message": {
                    "messageId": "m",
                    "role": "ROLE_USER",
                    "content": [{"text": "hi"}, {"data": {"data": {"a": 1}}}],
                }
            }
        ]
    if path.startswith("/message:"):
        return [_send(), _continued()]
    if path == "/v1/tasks/{taskId}/pushNotificationConfigs":
        return [
            {
                "configId": CONFIG,
                "config": {
                    "name": CONFIG,
                    "pushNotificationConfig": {"id": CONFIG, "url": HOOK, "token": "t"},
                },
            }
        ]
    if path.endswith("/pushNotificationConfigs"):
        return [_push()]
    if path == "/v1/chat/completions":
        return [_chat(), _chat(stream=True), {"messages": [{"role": "user", "content": "hi"}]}]
    if path == "/v1/chat/completions/{completion_id}":
        return [{"metadata": {"a": "b"}}]
    if path == "/v1/completions":
        return [{"prompt": "hi"}, {"prompt": ["a", "b"], "n": 2, "stream": True}]
    if path == "/v1/embeddings":
        return [
            {"model": "embed", "input": "hi"},
            {"model": "embed", "input": [[1, 2], [3]], "dimensions": 4},
        ]
    if path == "/v1/responses":
        return [_responses(), {"input": "hi", "stream": True}, {"input": "hi", "background": True}]
    if path == "/conversations/{contextId}":
        return [{"title": "Rivers"}]
    if path == "/ai-sdk":
        return [_ai_sdk()]
    if path == "/ag-ui":
        return [_ag_ui(), {"threadId": CONTEXT, "runId": "r", "messages": []}]
    return [{}]


def _facts() -> Json:
    tool = {"name": "locate", "description": "Find a place.", "parameters": SCHEMA}
    return {
        "tools": [tool],
        "toolChoice": {"mode": "auto"},
        "output": {"schema": SCHEMA, "name": "place"},
        "maxOutputTokens": 50,
        "temperature": 0.5,
        "instructions": "Be brief.",
    }


def _message(**fields: Any) -> Json:
    parts = [
        {"text": "hello", "metadata": {"a": 1}},
        {"data": {"rows": [1, 2, {"b": None}]}, "mediaType": "application/json"},
        {"raw": "iVBORw0KGgo=", "mediaType": "image/png", "filename": "a.png"},
        {"url": "https://example.com/a.png", "mediaType": "image/png"},
    ]
    return {
        "messageId": "m",
        "role": "ROLE_USER",
        "parts": parts,
        "metadata": {"key": {"deep": [1]}},
        "extensions": [EXTENSION_URI],
        "referenceTaskIds": [COMPLETED],
        **fields,
    }


def _send() -> Json:
    return {
        "message": _message(contextId=CONTEXT),
        "configuration": {
            "acceptedOutputModes": ["text/plain"],
            "historyLength": 3,
            "returnImmediately": False,
            "taskPushNotificationConfig": {"url": HOOK, "token": "t"},
        },
        "metadata": {EXTENSION_URI: _facts()},
    }


def _continued() -> Json:
    """The results of a tool for the task that requires them."""
    results = [{"call_id": "call-1", "name": "locate", "output": {"found": True}}]
    return {"message": _message(taskId=WAITING, parts=[{"data": {"tool_results": results}}])}


def _push() -> Json:
    return {
        "id": CONFIG,
        "url": HOOK,
        "token": "t",
        "authentication": {"scheme": "Bearer", "credentials": "c"},
    }


def _chat(**fields: Any) -> Json:
    call = {"id": "call-1", "type": "function", "function": {"name": "locate", "arguments": '{"name": "x"}'}}
    content = [
        {"type": "text", "text": "hi"},
        {"type": "image_url", "image_url": {"url": _IMAGE}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"}},
    ]
    return {
        "model": "tailrace",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": content, "name": "ada"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call-1", "content": "there"},
            {"role": "user", "content": "and now?"},
        ],
        "tools": [{"type": "function", "function": {"name": "locate", "parameters": SCHEMA, "strict": True}}],
        "tool_choice": "auto",
        "response_format": {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA}},
        "stream_options": {"include_usage": True},
        "stop": ["END"],
        "max_tokens": 50,
        "temperature": 0.5,
        "seed": 7,
        "metadata": {"conversation_id": CONTEXT},
        "user": "ada",
        **fields,
    }


def _responses() -> Json:
    return {
        "model": "tailrace",
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "hm"}]},
            {"type": "function_call", "call_id": "call-1", "name": "locate", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "call-1", "output": "there"},
            {"role": "user", "content": [{"type": "input_image", "image_url": _IMAGE}]},
        ],
        "tools": [{"type": "function", "name": "locate", "parameters": SCHEMA, "strict": True}],
        "tool_choice": {"type": "function", "name": "locate"},
        "text": {"format": {"type": "json_schema", "name": "place", "schema": SCHEMA}},
        "metadata": {"conversation_id": CONTEXT, "a": "b"},
        "reasoning": {"effort": "low"},
        "max_output_tokens": 50,
    }


def _ai_sdk() -> Json:
    called = {"type": "tool-locate", "toolCallId": "call-1", "state": "output-available"}
    return {
        "id": CONTEXT,
        "trigger": "submit-message",
        "system": "Be brief.",
        "messages": [
            {
                "id": "1",
                "role": "user",
                "parts": [
                    {"type": "text", "text": "hi"},
                    {"type": "file", "mediaType": "image/png", "url": _IMAGE, "filename": "a.png"},
                ],
            },
            {
                "id": "2",
                "role": "assistant",
                "parts": [
                    {"type": "step-start"},
                    {"type": "reasoning", "text": "hm"},
                    {**called, "input": {"name": "x"}, "output": {"found": True}},
                    {"type": "step-start"},
                    {"type": "text", "text": "there"},
                ],
            },
            {"id": "3", "role": "user", "parts": [{"type": "text", "text": "and now?"}]},
        ],
        "tools": [{"name": "locate", "parameters": SCHEMA}],
        "temperature": 0.5,
    }


def _ag_ui() -> Json:
    call = {"id": "call-1", "type": "function", "function": {"name": "locate", "arguments": "{}"}}
    return {
        "threadId": CONTEXT,
        "runId": "r",
        "state": {"a": 1},
        "messages": [
            {"id": "1", "role": "system", "content": "Be brief."},
            {"id": "2", "role": "user", "content": [{"type": "text", "text": "hi"}]},
            {"id": "3", "role": "assistant", "content": "ok", "toolCalls": [call]},
            {"id": "4", "role": "tool", "toolCallId": "call-1", "content": "there"},
            {"id": "5", "role": "user", "content": "and now?"},
        ],
        "tools": [{"name": "locate", "description": "d", "parameters": SCHEMA}],
        "context": [{"description": "where", "value": "here"}],
        "forwardedProps": {"temperature": 0.5},
    }


# --- JSON-RPC -------------------------------------------------------------------------------------------------------


def _of_jsonrpc() -> list[Seed]:
    found: list[Seed] = []
    dialects = (("1.0", Version10.methods), ("0.3", Version03.methods), ("0.1", Version01.methods))
    for version, methods in dialects:
        for method, operation in methods.items():
            for params in _params(version, str(operation)):
                body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
                headers = [*_headers(has_body=True), ("A2A-Version", version)]
                name = f"POST / {version} {method}"
                found.append(Seed(name, Call("POST", "/", [], headers, _json(body)), body))
    return found


def _params(version: str, operation: str) -> list[Any]:
    if "Message" in operation:
        return {"1.0": [_send(), _continued()], "0.3": [_send_0_3()], "0.1": [_send_0_1()]}[version]
    if version == "0.3" and operation == "CreateTaskPushNotificationConfig":
        config = {"id": CONFIG, "url": HOOK, "authentication": {"schemes": ["Bearer"], "credentials": "c"}}
        return [{"taskId": COMPLETED, "pushNotificationConfig": config}]
    if version == "0.3" and "PushNotification" in operation:
        return [{"id": COMPLETED, "pushNotificationConfigId": CONFIG}]
    if version == "0.1" and operation == "CreateTaskPushNotificationConfig":
        return [{"id": CONTEXT, "pushNotificationConfig": {"url": HOOK, "token": "t"}}]
    if version == "0.1":
        return [{"id": CONTEXT, "historyLength": 2, "metadata": {"a": 1}}]
    return [_fields(operation)]


def _fields(operation: str) -> Json:
    """The fields of every other operation of 1.0."""
    if operation == "CreateTaskPushNotificationConfig":
        return {"taskId": COMPLETED, **_push()}
    if operation == "ListTaskPushNotificationConfigs":
        return {"taskId": COMPLETED, "pageSize": 1}
    if "PushNotification" in operation:
        return {"taskId": COMPLETED, "id": CONFIG}
    if operation == "ListTasks":
        return {
            "contextId": CONTEXT,
            "pageSize": 1,
            "pageToken": PAGE_TOKEN,
            "status": "TASK_STATE_COMPLETED",
            "historyLength": 1,
            "includeArtifacts": True,
        }
    if operation == "ListConversations":
        return {"query": "h", "pageSize": 1, "pageToken": PAGE_TOKEN, "relatedTo": CONTEXT}
    if operation == "RenameConversation":
        return {"contextId": CONTEXT, "title": "Rivers"}
    if operation == "GetConversation":
        return {"contextId": CONTEXT}
    if operation in ("DeleteTask", "DeleteConversation"):  # not those that other requests name
        return {"id": "deleted"} if operation == "DeleteTask" else {"contextId": "deleted"}
    return {"id": COMPLETED, "historyLength": 2, "metadata": {"a": 1}}


def _send_0_3() -> Json:
    parts = [
        {"kind": "text", "text": "hi", "metadata": {"a": 1}},
        {"kind": "data", "data": {"a": [1]}},
        {"kind": "file", "file": {"bytes": "iVBORw0KGgo=", "mimeType": "image/png", "name": "a.png"}},
        {"kind": "file", "file": {"uri": "https://example.com/a.png", "mimeType": "image/png"}},
    ]
    return {
        "message": {
            "kind": "message",
            "messageId": "m",
            "role": "user",
            "parts": parts,
            "contextId": CONTEXT,
            "metadata": {"a": {"b": 1}},
            "extensions": [EXTENSION_URI],
        },
        "configuration": {
            "acceptedOutputModes": ["text/plain"],
            "blocking": True,
            "historyLength": 2,
            "pushNotificationConfig": {"url": HOOK},
        },
        "metadata": {EXTENSION_URI: _facts()},
    }


def _send_0_1() -> Json:
    return {
        "id": CONTEXT,
        "sessionId": CONTEXT,
        "message": {
            "role": "user",
            "parts": [{"type": "text", "text": "hi"}, {"type": "data", "data": {"a": 1}}],
            "metadata": {"a": 1},
        },
        "acceptedOutputModes": ["text/plain"],
        "historyLength": 2,
        "pushNotification": {"url": HOOK},
        "metadata": {"a": 1},
    }


# --- gRPC -----------------------------------------------------------------------------------------------------------


def _of_grpc() -> list[Seed]:
    found: list[Seed] = []
    for version in (Grpc10, Grpc03):
        service = version.descriptor
        for method in service.methods:
            kind = GetMessageClass(method.input_type)
            tree = _proto_fields(version.version, method.name, str(version.operations[method.name]))
            path = f"/{service.full_name}/{method.name}"
            headers = [("x-api-key", CALLERS["alice"])]
            call = Call(path, "", [], headers, serialize(kind, tree), method.server_streaming)
            found.append(Seed(f"gRPC {path}", call, tree, None, kind))
    return found


def _proto_fields(version: str, method: str, operation: str) -> Json:
    if version == "1.0":
        return _send() if "Message" in operation else _fields(operation)
    task = f"tasks/{COMPLETED}"
    if "Message" in operation:
        content: list[Json] = [{"text": "hi"}, {"data": {"data": {"a": [1]}}}]
        content.append({"file": {"fileWithBytes": "AAAA", "mimeType": "image/png"}})
        message = {"messageId": "m", "role": "ROLE_USER", "contextId": CONTEXT, "content": content}
        return {"request": message, "configuration": {"historyLength": 2}, "metadata": {"a": {"b": [1]}}}
    if operation == "CreateTaskPushNotificationConfig":
        config = {"id": CONFIG, "url": HOOK, "token": "t"}
        name = f"{task}/pushNotificationConfigs/{CONFIG}"
        named = {"name": name, "pushNotificationConfig": config}
        return {"parent": task, "configId": CONFIG, "config": named}
    if operation == "ListTaskPushNotificationConfigs":
        return {"parent": task, "pageSize": 1}
    if "PushNotification" in operation:
        return {"name": f"{task}/pushNotificationConfigs/{CONFIG}"}
    return {"name": task} if method != "GetAgentCard" else {}
