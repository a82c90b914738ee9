"""The operations of the HTTP+JSON binding of A2A 1.0 and 0.3."""

from collections.abc import Mapping
from typing import Any, cast

from pydantic.json_schema import JsonSchemaMode, models_json_schema

from tailrace.server.protocols.a2a.http_json import METHODS_WITH_BODY, ROUTES, Route
from tailrace.server.protocols.a2a.http_json_v0_3 import ROUTES as OLD_ROUTES
from tailrace.server.protocols.openapi.builders import (
    SSE_TYPE,
    Address,
    Json,
    array_of,
    content,
    errors,
    event_schema,
    nullable,
    object_of,
    operation,
    parameter,
    response,
    schema_reference,
    string_schema,
)
from tailrace.streaming.a2a.models import A2AModel, AgentCard, StreamResponse, Task
from tailrace.streaming.a2a.requests import (
    Conversation,
    ListConversationsResponse,
    ListedConversation,
    ListTaskPushNotificationConfigsResponse,
    ListTasksResponse,
    SendMessageResponse,
    TaskPushNotificationConfig,
)
from tailrace.streaming.a2a.v1_0 import REQUESTS
from tailrace.streaming.a2a.version_codec import Operation

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
    Operation.DELETE_TASK: None,
    Operation.DELETE_CONVERSATION: None,
    Operation.LIST_CONVERSATIONS: ListConversationsResponse,
    Operation.RENAME_CONVERSATION: ListedConversation,
}

_SUMMARIES: Mapping[Operation, str] = {
    Operation.SEND_MESSAGE: "Send a message, and wait for the task",
    Operation.SEND_STREAMING_MESSAGE: "Send a message, and stream the task",
    Operation.GET_TASK: "Get a task",
    Operation.LIST_TASKS: "List tasks",
    Operation.CANCEL_TASK: "Cancel a task",
    Operation.SUBSCRIBE_TO_TASK: "Stream a task",
    Operation.CREATE_PUSH_CONFIG: "Create a push notification config",
    Operation.GET_PUSH_CONFIG: "Get a push notification config",
    Operation.LIST_PUSH_CONFIGS: "List the push notification configs of a task",
    Operation.DELETE_PUSH_CONFIG: "Delete a push notification config",
    Operation.GET_EXTENDED_CARD: "Get the extended agent card",
    Operation.GET_CONVERSATION: "Get the messages of a conversation",
    Operation.DELETE_TASK: "Delete a task with its content",
    Operation.DELETE_CONVERSATION: "Delete a conversation with its tasks",
    Operation.LIST_CONVERSATIONS: "List conversations",
    Operation.RENAME_CONVERSATION: "Rename a conversation",
}

_SENDS = (Operation.SEND_MESSAGE, Operation.SEND_STREAMING_MESSAGE)

_BODY_REQUIRED = (*_SENDS, Operation.CREATE_PUSH_CONFIG, Operation.RENAME_CONVERSATION)

_CURSOR = string_schema("The number of the last event that the client received.", pattern="^[0-9]{1,15}$")


def http_json() -> dict[Address, Json]:
    """Return the operations of A2A 1.0, with and without a tenant in the path."""
    schemas = model_schemas()
    operations: dict[Address, Json] = {}
    for prefix in ("", "/{tenant}"):
        for route in ROUTES:
            operations[(route.method, prefix + route.path)] = _operation(route, schemas, prefix)
    return operations


def model_schemas() -> dict[str, Json]:
    """Return the schemas of the requests and results of A2A 1.0, by class name."""
    models = {REQUESTS[each] for each in Operation}
    models |= {result for result in _RESULTS.values() if result is not None}
    pairs: list[tuple[type[A2AModel], JsonSchemaMode]] = [
        (model, "validation") for model in sorted(models, key=lambda each: each.__name__)
    ]
    _, definitions = models_json_schema(pairs, ref_template="#/components/schemas/{model}")
    schemas = cast("dict[str, Json]", definitions["$defs"])
    for schema in schemas.values():
        _accept_null(schema)
    return schemas


def _accept_null(schema: Json) -> None:
    """Let optional members of a schema accept null, which is equivalent to a missing member."""
    required = schema.get("required", ())
    properties: dict[str, Json] = schema.get("properties", {})
    for name, member in properties.items():
        member.pop("default", None)
        if (
            name not in required
            and member.keys() - {"title"}
            and {"type": "null"} not in member.get("anyOf", ())
        ):
            properties[name] = nullable(member)


def _operation(route: Route, schemas: Mapping[str, Json], prefix: str) -> Json:
    request, result = REQUESTS[route.operation], _RESULTS[route.operation]
    name = str(route.operation) + ("ByGet" if route.for_event_source else "") + ("OfTenant" if prefix else "")
    parameters = _parameters(route, schemas[request.__name__])
    if prefix:
        parameters.insert(0, parameter("tenant", string_schema(), "path"))
    body = (
        schema_reference(request.__name__)
        if route.operation in _SENDS
        else _body_of(schemas[request.__name__], route)
    )
    return operation(
        name,
        _SUMMARIES[route.operation],
        {
            "200": response("The result.", _result(route.operation, result), _links(route, prefix)),
            **({"204": response("The task is over.")} if route.for_event_source else {}),
            **errors("Error"),
        },
        tag="A2A 1.0 over HTTP+JSON",
        parameters=parameters,
        body=body if route.method in METHODS_WITH_BODY else None,
        body_required=route.operation in _BODY_REQUIRED,
    )


def _links(route: Route, prefix: str) -> Json:
    """Return links to operations that accept the id of the created object."""
    tenant = {"tenant": "$request.path.tenant"} if prefix else {}
    if route.operation is Operation.SEND_MESSAGE:
        taken = ("id", "$response.body#/task/id")
        targets = (Operation.GET_TASK, Operation.CANCEL_TASK)
    elif route.operation is Operation.CREATE_PUSH_CONFIG:
        taken = ("id", "$response.body#/id")
        tenant = {**tenant, "taskId": "$request.path.taskId"}
        targets = (Operation.GET_PUSH_CONFIG, Operation.DELETE_PUSH_CONFIG)
    else:
        return {}
    ending = "OfTenant" if prefix else ""
    parameters = {**tenant, taken[0]: taken[1]}
    return {str(each): {"operationId": f"{each}{ending}", "parameters": parameters} for each in targets}


def _body_of(schema: Json, route: Route) -> Json:
    """Return the schema of a request body: all members of the request that are not in the path."""
    members = {
        name: member for name, member in schema["properties"].items() if f"{{{name}}}" not in route.path
    }
    required = [name for name in schema.get("required", ()) if name in members]
    return {"type": "object", "properties": members, **({"required": required} if required else {})}


def _parameters(route: Route, schema: Json) -> list[Json]:
    """Return the parameters of a request: its members in the path and, without a body, in the query."""
    parameters: list[Json] = []
    for name, member in schema["properties"].items():
        if f"{{{name}}}" in route.path:
            parameters.append(parameter(name, string_schema(), "path"))
        elif route.method not in METHODS_WITH_BODY and name != "tenant":
            parameters.append(parameter(name, _present_member(member)))
    return parameters + _of_streams(route)


def _of_streams(route: Route) -> list[Json]:
    if route.operation is not Operation.SUBSCRIBE_TO_TASK:
        return []
    return [parameter("Last-Event-ID", _CURSOR, "header"), parameter("after", _CURSOR)]


def _present_member(member: Json) -> Json:
    while "anyOf" in member:
        member = next(each for each in member["anyOf"] if each.get("type") != "null")
    return {name: value for name, value in member.items() if name not in ("default", "title")}


def _result(operation: Operation, result: type[A2AModel] | None) -> Json:
    if operation.streams:
        return content(event_schema("StreamResponse"), SSE_TYPE)
    return content({"type": "object"} if result is None else schema_reference(result.__name__))


# --- 0.3 ------------------------------------------------------------------------------------------------------------

_ANY_OBJECT: Json = {"type": "object"}

SCHEMAS_0_3: Mapping[str, Json] = {
    "ErrorOf03": {
        "type": "object",
        "required": ["error", "type", "message"],
        "properties": {
            "error": string_schema("The name of the error."),
            "type": string_schema("The same."),
            "message": string_schema(),
            "code": {"type": "integer", "description": "The code of the error in JSON-RPC."},
            "details": array_of(_ANY_OBJECT),
        },
    },
    "PartOf03": object_of(
        text=string_schema(),
        file=object_of(
            fileWithBytes=string_schema(),
            fileWithUri=string_schema(),
            mimeType=string_schema(),
            name=string_schema(),
        ),
        data={},
        metadata=_ANY_OBJECT,
    ),
    "MessageOf03": {
        **object_of(
            ("messageId", "role", "content"),
            messageId=string_schema(minLength=1),
            role={"enum": ["ROLE_USER", "ROLE_AGENT"]},
            content=array_of(schema_reference("PartOf03"), minItems=1),
            contextId=string_schema(),
            taskId=string_schema(),
            metadata=_ANY_OBJECT,
            extensions=array_of(string_schema()),
        )
    },
    "EventOf03": {"type": "object", "maxProperties": 1},
    "TaskOf03": {"type": "object", "required": ["id", "status"]},
    "ConfigOf03": {"type": "object", "required": ["name", "pushNotificationConfig"]},
}

_WEBHOOK = object_of(("url",), url=string_schema(minLength=1), id=string_schema(), token=string_schema())

_BODIES_0_3: Mapping[Operation, Json] = {
    Operation.CREATE_PUSH_CONFIG: object_of(
        ("config",),
        configId=string_schema(),
        config=object_of(("pushNotificationConfig",), name=string_schema(), pushNotificationConfig=_WEBHOOK),
    ),
    Operation.CANCEL_TASK: _ANY_OBJECT,
    Operation.SUBSCRIBE_TO_TASK: _ANY_OBJECT,
    **dict.fromkeys(
        _SENDS,
        object_of(
            ("message",),
            message=schema_reference("MessageOf03"),
            configuration=object_of(
                blocking={"type": "boolean"}, acceptedOutputModes=array_of(string_schema())
            ),
            metadata=_ANY_OBJECT,
        ),
    ),
}

_RESULTS_0_3: Mapping[Operation, Json] = {
    Operation.SEND_MESSAGE: {
        "type": "object",
        "properties": {"task": schema_reference("TaskOf03"), "message": schema_reference("MessageOf03")},
    },
    Operation.GET_TASK: schema_reference("TaskOf03"),
    Operation.CANCEL_TASK: schema_reference("TaskOf03"),
    Operation.LIST_TASKS: array_of(schema_reference("TaskOf03")),
    Operation.CREATE_PUSH_CONFIG: schema_reference("ConfigOf03"),
    Operation.GET_PUSH_CONFIG: schema_reference("ConfigOf03"),
    Operation.LIST_PUSH_CONFIGS: {
        "type": "object",
        "properties": {"configs": array_of(schema_reference("ConfigOf03"))},
    },
}


def http_json_0_3() -> dict[Address, Json]:
    """Return the operations of A2A 0.3."""
    return {(route.method, route.path): _old_operation(route) for route in OLD_ROUTES}


def _old_operation(route: Route) -> Json:
    name = f"{route.operation}Of03"
    if route.operation is Operation.SUBSCRIBE_TO_TASK:
        name += f"By{route.method.title()}"
    elif not route.path.startswith("/v1/"):
        name += "OfAgent"
    parameters = [
        parameter(part.strip("{}").partition("}")[0], string_schema(), "path")
        for part in route.path.split("/")
        if part.startswith("{")
    ]
    if route.operation is Operation.GET_TASK:
        parameters.append(parameter("historyLength", {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}))
    schema = _RESULTS_0_3.get(route.operation, _ANY_OBJECT)
    body: dict[str, Any] = (
        content(event_schema("EventOf03"), SSE_TYPE) if route.operation.streams else content(schema)
    )
    return operation(
        name,
        _SUMMARIES[route.operation],
        {"200": response("The result.", body), **errors("ErrorOf03")},
        tag="A2A 0.3 over HTTP+JSON",
        parameters=[*parameters, *_of_streams(route)],
        body=_BODIES_0_3[route.operation] if route.method == "POST" else None,
        body_required=route.operation in (*_SENDS, Operation.CREATE_PUSH_CONFIG),
    )
