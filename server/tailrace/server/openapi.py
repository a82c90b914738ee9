"""The addresses of the HTTP+JSON binding as an OpenAPI description, made from its routes and the models behind them.

For people and tools; an A2A client needs the card alone. The same addresses with a tenant before them are left out.
"""

import json
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, cast

from fastapi import APIRouter, Request, Response
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from tailrace.server.bindings.http_json import ROUTES, Route
from tailrace.server.caching import cached_response
from tailrace.streaming.a2a.dialect import Operation
from tailrace.streaming.a2a.models import A2AModel, AgentCard, StreamResponse, Task
from tailrace.streaming.a2a.requests import (
    Conversation,
    ListTaskPushNotificationConfigsResponse,
    ListTasksResponse,
    SendMessageResponse,
    TaskPushNotificationConfig,
)
from tailrace.streaming.a2a.v1_0 import REQUESTS

DESCRIPTION_PATH = "/openapi.json"

Json = dict[str, Any]

_RESULTS: Mapping[Operation, type[A2AModel] | None] = {
    Operation.SEND_MESSAGE: SendMessageResponse,
    Operation.SEND_STREAMING_MESSAGE: StreamResponse,
    Operation.GET_TASK: Task,
    Operation.LIST_TASKS: ListTasksResponse,
    Operation.CANCEL_TASK: Task,
    Operation.SUBSCRIBE_TO_TASK: StreamResponse,
    Operation.CREATE_PUSH_CONFIG: TaskPushNotificationConfig,
    Operation.GET_PUSH_CONFIG: TaskPushNotificationConfig,
    Operation.LIST_PUSH_CONFIGS: ListTaskPushNotificationConfigsResponse,
    Operation.DELETE_PUSH_CONFIG: None,
    Operation.GET_EXTENDED_CARD: AgentCard,
    Operation.GET_CONVERSATION: Conversation,
}

_ERRORS = {
    "400": "The request is wrong, or cannot be answered in the present state of the task.",
    "401": "It must be said who asks.",
    "403": "This caller may not.",
    "404": "The caller has no such task.",
    "413": "The request is too large.",
    "415": "The request is not JSON.",
    "500": "The fault is the server's.",
}

_ERROR: Json = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "description": "google.rpc.Status (A2A 1.0, section 11.6).",
            "required": ["code", "status", "message", "details"],
            "properties": {
                "code": {"type": "integer", "description": "The HTTP status."},
                "status": {"type": "string", "description": "The name of the gRPC status."},
                "message": {"type": "string"},
                "details": {"type": "array", "items": {"type": "object", "required": ["@type"]}},
            },
        }
    },
}

_EVENT: Json = {
    "type": "object",
    "description": "One of the server-sent events.",
    "required": ["data"],
    "properties": {
        "id": {"type": "string", "description": "The number of the event."},
        "event": {"type": "string"},
        "data": {
            "type": "string",
            "contentMediaType": "application/json",
            "contentSchema": {"$ref": "#/components/schemas/StreamResponse"},
        },
    },
}


def describe() -> Json:
    """The description, as OpenAPI 3.1."""
    models = {REQUESTS[route.operation] for route in ROUTES}
    models |= {result for result in _RESULTS.values() if result is not None}
    pairs: list[tuple[type[A2AModel], JsonSchemaMode]] = [
        (model, "validation") for model in sorted(models, key=lambda each: each.__name__)
    ]
    _, definitions = models_json_schema(pairs, ref_template="#/components/schemas/{model}")
    schemas = cast("Json", definitions["$defs"])
    paths: dict[str, Json] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "A2A 1.0 over HTTP+JSON",
            "version": version("tailrace"),
            "description": "Every address is also there with a tenant before it: `/{tenant}/tasks`.",
        },
        "servers": [{"url": "./"}],
        "paths": paths,
        "components": {"schemas": {**schemas, "Error": _ERROR}},
    }


def add_description_to(router: APIRouter) -> None:
    """Put the address of the description into a router."""
    body = json.dumps(describe()).encode()

    async def description(request: Request) -> Response:
        return cached_response(request, body)

    router.add_api_route(DESCRIPTION_PATH, description, methods=["GET"], include_in_schema=False)


def _operation(route: Route, schemas: Json) -> Json:
    request = REQUESTS[route.operation]
    result = _RESULTS[route.operation]
    described: Json = {
        # Two methods of one address may ask for the same.
        "operationId": f"{route.operation}By{route.method.title()}" if route.ends else str(route.operation),
        "parameters": _parameters(route, schemas[request.__name__]),
        "responses": {
            "200": {"description": "The answer.", "content": _content(route, result)},
            **{code: _error(description) for code, description in _ERRORS.items()},
        },
    }
    if route.method == "POST":
        described["requestBody"] = {
            "required": route.operation in (Operation.SEND_MESSAGE, Operation.SEND_STREAMING_MESSAGE),
            "content": {"application/json": {"schema": _reference(request)}},
        }
    return described


def _parameters(route: Route, schema: Json) -> list[Json]:
    """The request's fields that stand in the path and, for a method without a body, in the query."""
    parameters: list[Json] = []
    for name, field in schema["properties"].items():
        in_path = f"{{{name}}}" in route.path
        if in_path or (route.method != "POST" and name != "tenant"):
            parameters.append(
                {
                    "name": name,
                    "in": "path" if in_path else "query",
                    "required": in_path,
                    "schema": _given(field),
                }
            )
    return parameters


def _given(field: Json) -> Json:
    """The schema of a field that is there: a parameter that is not set is left out."""
    field = next((each for each in field.get("anyOf", ()) if each.get("type") != "null"), field)
    return {name: value for name, value in field.items() if name not in ("default", "title")}


def _content(route: Route, result: type[A2AModel] | None) -> Json:
    if route.operation.streams:
        return {"text/event-stream": {"schema": _EVENT}}
    return {"application/json": {"schema": {"type": "object"} if result is None else _reference(result)}}


def _error(description: str) -> Json:
    schema = {"$ref": "#/components/schemas/Error"}
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _reference(model: type[A2AModel]) -> Json:
    return {"$ref": f"#/components/schemas/{model.__name__}"}
