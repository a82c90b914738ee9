"""Builders for OpenAPI objects: operations, responses, errors, parameters, schemas and references."""

from collections.abc import Iterable, Mapping
from typing import Any

Json = dict[str, Any]

Address = tuple[str, str]
"""An HTTP method in upper case, and an OpenAPI path template."""

JSON_TYPE, SSE_TYPE, TEXT_TYPE = "application/json", "text/event-stream", "text/plain"

ERRORS: Mapping[str, str] = {
    "400": "The request is invalid, or cannot be processed in the current state of the task.",
    "401": "Authentication is required.",
    "403": "The caller, its host or its origin is not allowed.",
    "404": "The resource does not exist, or belongs to another caller.",
    "405": "The path does not support the method.",
    "408": "The request body did not arrive in time.",
    "413": "The request is larger than a limit.",
    "415": "The media type of the request body is not JSON.",
    "429": "The caller has too many open streams or running tasks.",
    "500": "The server failed.",
    "503": "The server is overloaded or is shutting down.",
}


def schema_reference(name: str) -> Json:
    """Return a reference to a component schema."""
    return {"$ref": f"#/components/schemas/{name}"}


def content(schema: Json, *media_types: str) -> Json:
    """Return the ``content`` of a body. The default media type is JSON."""
    return {media_type: {"schema": schema} for media_type in media_types or (JSON_TYPE,)}


def string_schema(description: str = "", **fields: Any) -> Json:
    """Return the schema of a string."""
    return {"type": "string", **({"description": description} if description else {}), **fields}


def nullable(schema: Json) -> Json:
    """Return a schema that also accepts null."""
    return {"anyOf": [schema, {"type": "null"}]}


def object_of(required: Iterable[str] = (), /, **properties: Json) -> Json:
    """Return the schema of an object. Optional members accept null, which is equivalent to a missing member."""
    names = list(required)
    schema: Json = {
        "type": "object",
        "properties": {
            name: member if name in names else nullable(member) for name, member in properties.items()
        },
    }
    if names:
        schema["required"] = names
    return schema


def array_of(items: Json, **fields: Any) -> Json:
    """Return the schema of an array."""
    return {"type": "array", "items": items, **fields}


def parameter(name: str, schema: Json, location: str = "query", description: str = "") -> Json:
    """Return a Parameter Object. Parameters in the path are required."""
    described: Json = {"name": name, "in": location, "required": location == "path", "schema": schema}
    return {**described, "description": description} if description else described


def response(description: str, body: Json | None = None, links: Json | None = None) -> Json:
    """Return a Response Object."""
    fields: Json = {"description": description, **({"content": body} if body else {})}
    return {**fields, "links": links} if links else fields


def errors(schema: str, codes: Iterable[str] = ERRORS, *media_types: str) -> Json:
    """Return a Response Object for each error status."""
    shape = schema_reference(schema)
    return {code: response(ERRORS[code], content(shape, *media_types)) for code in codes}


def operation(
    name: str,
    summary: str,
    responses: Json,
    *,
    tag: str,
    parameters: Iterable[Json] = (),
    body: Json | None = None,
    body_required: bool = True,
    public: bool = False,
) -> Json:
    """Return an Operation Object.

    Args:
        name: The ``operationId``.
        summary: The summary (one line).
        responses: The responses by status.
        tag: The group of the operation.
        parameters: The parameters in the path, the query and the headers.
        body: The schema of the JSON body; None for no body.
        body_required: True if a request without a body is rejected.
        public: True if the operation never requires authentication.
    """
    described: Json = {"operationId": name, "summary": summary, "tags": [tag], "responses": responses}
    all_parameters = list(parameters)
    if all_parameters:
        described["parameters"] = all_parameters
    if body is not None:
        described["requestBody"] = {"required": body_required, "content": content(body)}
    if public:
        described["security"] = []
    return described


EVENT: Json = {
    "type": "object",
    "description": "One server-sent event.",
    "required": ["data"],
    "properties": {
        "id": string_schema("The number of the event: the value for `Last-Event-ID`."),
        "event": string_schema(),
        "data": string_schema("JSON."),
    },
}


def event_schema(schema: str) -> Json:
    """Return the schema of a server-sent event whose ``data`` conforms to a component schema."""
    data = string_schema(contentMediaType=JSON_TYPE, contentSchema=schema_reference(schema))
    return {**EVENT, "properties": {**EVENT["properties"], "data": data}}


STATUS_ERROR: Json = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "description": "google.rpc.Status (A2A 1.0, section 11.6).",
            "required": ["code", "status", "message", "details"],
            "properties": {
                "code": {"type": "integer", "description": "The HTTP status."},
                "status": string_schema("The name of the gRPC status."),
                "message": string_schema(),
                "details": array_of({"type": "object", "required": ["@type"]}),
            },
        }
    },
}
