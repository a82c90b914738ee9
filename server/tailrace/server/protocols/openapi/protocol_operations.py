"""The operations of JSON-RPC, the AI SDK and AG-UI."""

from collections.abc import Mapping

from tailrace.server.protocols.openapi.builders import (
    ERRORS,
    EVENT,
    JSON_TYPE,
    SSE_TYPE,
    TEXT_TYPE,
    Address,
    Json,
    array_of,
    content,
    errors,
    event_schema,
    object_of,
    operation,
    parameter,
    response,
    schema_reference,
    string_schema,
)
from tailrace.server.protocols.openapi.openai_operations import OPENAI_SCHEMAS, UPSTREAM_ERRORS
from tailrace.streaming.a2a.v0_1 import Version01
from tailrace.streaming.a2a.v0_3 import Version03
from tailrace.streaming.a2a.v1_0 import REQUESTS, Version10

_OBJECT: Json = {"type": "object"}
_INTEGER: Json = {"type": "integer"}
_OBJECTS = array_of(_OBJECT)

# --- JSON-RPC -------------------------------------------------------------------------------------------------------

_OLD_METHODS = sorted({*Version03.methods, *Version01.methods})
_ID: Json = {"type": ["string", "number", "null"]}


def _rpc_request(method: Json, params: Json) -> Json:
    members: Json = {"jsonrpc": {"const": "2.0"}, "id": _ID, "method": method, "params": params}
    return {"type": "object", "required": ["jsonrpc", "method"], "properties": members}


_RPC_SCHEMAS: Mapping[str, Json] = {
    "JsonRpcRequest": {
        "description": "A method of A2A 1.0 with its parameters, or a method of 0.3 or 0.1.",
        "anyOf": [
            *(
                _rpc_request({"const": name}, schema_reference(REQUESTS[each].__name__))
                for name, each in Version10.methods.items()
            ),
            _rpc_request({"enum": _OLD_METHODS}, _OBJECT),
        ],
    },
    "JsonRpcError": {
        "type": "object",
        "required": ["code", "message"],
        "properties": {"code": _INTEGER, "message": string_schema(), "data": {}},
    },
    "JsonRpcResponse": {
        "type": "object",
        "required": ["jsonrpc", "id"],
        "properties": {
            "jsonrpc": {"const": "2.0"},
            "id": _ID,
            "result": {},
            "error": schema_reference("JsonRpcError"),
        },
        "oneOf": [{"required": ["result"]}, {"required": ["error"]}],
    },
}


def json_rpc() -> dict[Address, Json]:
    """Return the operation of the JSON-RPC binding."""
    body = content(schema_reference("JsonRpcResponse"))
    responses = {
        "200": response(
            "The result or the error. Streaming methods send server-sent events, each of them a response.",
            {**body, **content(event_schema("JsonRpcResponse"), SSE_TYPE)},
        ),
        **errors("Error"),
    }
    for code in ("400", "408", "413", "415", "429", "500", "503"):
        form = {"anyOf": [schema_reference("JsonRpcResponse"), schema_reference("Error")]}
        responses[code] = response(ERRORS[code], content(form))
    described = operation(
        "jsonRpc",
        "Call a method of A2A",
        responses,
        tag="A2A over JSON-RPC",
        body=schema_reference("JsonRpcRequest"),
    )
    return {("POST", "/"): described}


# --- AI SDK and AG-UI -----------------------------------------------------------------------------------------------

_UI_SCHEMAS: Mapping[str, Json] = {
    "UIMessage": object_of(
        ("role",), id=string_schema(), role={"enum": ["system", "user", "assistant"]}, parts=_OBJECTS
    ),
    "UIChatRequest": object_of(
        ("id", "messages"),
        id=string_schema(minLength=1, maxLength=200),
        messages=array_of(schema_reference("UIMessage"), minItems=1),
        system=string_schema(),
        tools={"anyOf": [_OBJECTS, _OBJECT]},
    ),
    "RunAgentInput": object_of(
        ("threadId", "runId", "messages"),
        threadId=string_schema(minLength=1, maxLength=200),
        runId=string_schema(minLength=1),
        messages=array_of(object_of(("role",), role=string_schema())),
        tools=_OBJECTS,
        context=array_of(object_of(description=string_schema(), value={})),
        state={},
        forwardedProps={},
    ),
}


def user_interfaces() -> dict[Address, Json]:
    """Return the operations of the AI SDK and AG-UI."""
    chat_id = parameter("chat_id", string_schema(maxLength=200), "path")
    stream = content(EVENT, SSE_TYPE)
    failed = _as_text({**errors("OpenAIError"), **UPSTREAM_ERRORS})
    none = {"204": response("Nothing is running.")}
    return {
        ("POST", "/ai-sdk"): operation(
            "streamChat",
            "Send a chat's messages, and stream the response",
            {"200": response("The events.", stream), **failed},
            tag="AI SDK",
            body=schema_reference("UIChatRequest"),
        ),
        ("GET", "/ai-sdk/{chat_id}/stream"): operation(
            "resumeChat",
            "Stream the response that a chat is waiting for",
            {"200": response("The events.", stream), **none, **failed},
            tag="AI SDK",
            parameters=[chat_id],
        ),
        ("DELETE", "/ai-sdk/{chat_id}/stream"): operation(
            "stopChat",
            "Cancel the response that a chat is waiting for",
            {**none, **failed},
            tag="AI SDK",
            parameters=[chat_id],
        ),
        ("GET", "/ai-sdk/{chat_id}/messages"): operation(
            "listChatMessages",
            "Get a chat's messages, without the response that it is waiting for",
            {"200": response("The messages.", content(array_of(_OBJECT))), **failed},
            tag="AI SDK",
            parameters=[chat_id],
        ),
        ("POST", "/ag-ui"): operation(
            "runAgent",
            "Run the agent, and stream its events",
            {"200": response("The events.", stream), **errors("OpenAIError"), **UPSTREAM_ERRORS},
            tag="AG-UI",
            body=schema_reference("RunAgentInput"),
        ),
    }


def _as_text(responses: Json) -> Json:
    """Return the error responses of the AI SDK routes: text, or JSON for errors before the endpoint runs."""
    return {
        code: {**each, "content": {TEXT_TYPE: {"schema": string_schema()}, JSON_TYPE: {"schema": _OBJECT}}}
        for code, each in responses.items()
    }


SCHEMAS: Mapping[str, Json] = {**_RPC_SCHEMAS, **OPENAI_SCHEMAS, **_UI_SCHEMAS}
"""The schemas of these operations and of the OpenAI-compatible API, without those of A2A 1.0."""
