"""The codec for A2A 0.3 and 0.2 over JSON-RPC. It converts between their JSON and the object model of A2A 1.0.

Members that 0.3 does not define are omitted (the media type of a text, tenants). Requests may deviate from the specification:
null for "not set", lists as data, files with ``url``.

Source: A2A 0.3.0, ``types/src/types.ts``.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, cast

import msgspec
from pydantic import ValidationError

from tailrace.streaming.a2a.card_v0_3 import write_card
from tailrace.streaming.a2a.errors import A2AError, InvalidParamsError
from tailrace.streaming.a2a.event import Event
from tailrace.streaming.a2a.json_encoding import encode_json
from tailrace.streaming.a2a.models import A2AModel, AgentCard
from tailrace.streaming.a2a.requests import (
    ListTaskPushNotificationConfigsResponse,
    TaskPushNotificationConfig,
)
from tailrace.streaming.a2a.v1_0 import REQUESTS
from tailrace.streaming.a2a.version_codec import Dialect, Operation
from tailrace.wrappers.messages import shortened

Fields = dict[str, Any]

DEFAULT_CONFIG_ID = "default"
"""The id of a webhook if the client sends none."""

_STATES = {
    "submitted": "TASK_STATE_SUBMITTED",
    "working": "TASK_STATE_WORKING",
    "completed": "TASK_STATE_COMPLETED",
    "failed": "TASK_STATE_FAILED",
    "canceled": "TASK_STATE_CANCELED",
    "input-required": "TASK_STATE_INPUT_REQUIRED",
    "rejected": "TASK_STATE_REJECTED",
    "auth-required": "TASK_STATE_AUTH_REQUIRED",
}
_STATE_NAMES = {state: name for name, state in _STATES.items()}
_ROLES = {"user": "ROLE_USER", "agent": "ROLE_AGENT"}
_ROLE_NAMES = {role: name for name, role in _ROLES.items()}
_CONFIGURATION = {"acceptedOutputModes": "acceptedOutputModes", "historyLength": "historyLength"}

_decode = msgspec.json.Decoder().decode


class Version03(Dialect):
    """The codec for A2A 0.3 over JSON-RPC, which clients of 0.2 can use too."""

    version = "0.3"
    streams_errors = True
    subscribes_to_ended_tasks = (
        True  # the proto of 0.3 requires this; all bindings must behave in the same way
    )
    methods: ClassVar[Mapping[str, Operation]] = {
        "message/send": Operation.SEND_MESSAGE,
        "message/stream": Operation.SEND_STREAMING_MESSAGE,
        "tasks/get": Operation.GET_TASK,
        "tasks/cancel": Operation.CANCEL_TASK,
        "tasks/resubscribe": Operation.SUBSCRIBE_TO_TASK,
        "tasks/pushNotificationConfig/set": Operation.CREATE_PUSH_CONFIG,
        "tasks/pushNotificationConfig/get": Operation.GET_PUSH_CONFIG,
        "tasks/pushNotificationConfig/list": Operation.LIST_PUSH_CONFIGS,
        "tasks/pushNotificationConfig/delete": Operation.DELETE_PUSH_CONFIG,
        "agent/getAuthenticatedExtendedCard": Operation.GET_EXTENDED_CARD,
    }

    def read_request(self, operation: Operation, params: Mapping[str, Any]) -> A2AModel:
        """Validate the request. Errors have the field names of 1.0."""
        fields = present_fields(params)
        if operation in (Operation.SEND_MESSAGE, Operation.SEND_STREAMING_MESSAGE):
            fields = read_send(fields)
        elif operation is Operation.CREATE_PUSH_CONFIG:
            config, task_id = read_config(fields.get("pushNotificationConfig")), fields.get("taskId")
            fields = {**config, "taskId": task_id, "id": config_id(config.get("id"), task_id)}
        elif operation in (Operation.GET_PUSH_CONFIG, Operation.DELETE_PUSH_CONFIG):
            task_id = fields.get("id")
            fields = {"taskId": task_id, "id": config_id(fields.get("pushNotificationConfigId"), task_id)}
        elif operation is Operation.LIST_PUSH_CONFIGS:
            fields = {"taskId": fields.get("id")}
        try:
            return REQUESTS[operation].model_validate(fields)
        except ValidationError as error:
            raise InvalidParamsError.from_validation(error) from None

    def write_result(self, operation: Operation, result: A2AModel | None) -> bytes:
        """Encode a task, a message, a webhook, a list of webhooks, or a card; null for a deletion."""
        if result is None:
            return b"null"
        if isinstance(result, ListTaskPushNotificationConfigsResponse):
            return encode_json([write_config(config) for config in result.configs])
        if isinstance(result, TaskPushNotificationConfig):
            return encode_json(write_config(result))
        if isinstance(result, AgentCard):
            return encode_json(write_card(result))
        fields = result.to_dict()
        return encode_json(write_task(fields) if "status" in fields else write_message(fields))

    def write_event(self, event: Event, *, is_last: bool) -> bytes:
        """Encode a task, a message, a ``status-update`` or an ``artifact-update``."""
        [(kind, fields)] = cast("Fields", _decode(event.body)).items()
        if kind == "task":
            return encode_json(write_task(fields))
        if kind == "message":
            return encode_json(write_message(fields))
        if kind == "statusUpdate":
            status = write_status(fields["status"])
            return encode_json({**fields, "status": status, "final": is_last, "kind": "status-update"})
        return encode_json(
            {**fields, "artifact": write_artifact(fields["artifact"]), "kind": "artifact-update"}
        )

    def write_error(self, error: A2AError) -> dict[str, Any]:
        """Return the code, message and details as in 1.0, because 0.3 does not specify the details."""
        return error.to_jsonrpc()


# --- reading ----------------------------------------------------------------------------------------------------


def read_send(fields: Fields) -> Fields:
    """Convert the parameters of ``message/send`` or ``message/stream`` to the JSON of 1.0.

    Raises:
        InvalidParamsError: A parameter is not valid in 0.3.
    """
    read: Fields = {"message": read_message(fields.get("message"))}
    configuration = mapping(fields.get("configuration"), "configuration")
    members = {name: configuration[name] for name in _CONFIGURATION if name in configuration}
    if "pushNotificationConfig" in configuration:
        members["taskPushNotificationConfig"] = {
            "id": DEFAULT_CONFIG_ID,
            **read_config(configuration["pushNotificationConfig"]),
        }
    blocking = configuration.get("blocking", False)
    if not isinstance(blocking, bool):
        raise InvalidParamsError("configuration.blocking: must be true or false")
    members["returnImmediately"] = not blocking
    read["configuration"] = members
    if "metadata" in fields:
        read["metadata"] = fields["metadata"]
    return read


def read_message(value: object) -> Fields:
    """Convert a message to the JSON of 1.0.

    Raises:
        InvalidParamsError: The value is not an object, its parts are not a list, or a part is invalid.
    """
    fields = mapping(value, "message")
    if "role" in fields:
        fields["role"] = (
            _ROLES.get(fields["role"], fields["role"]) if isinstance(fields["role"], str) else None
        )
    parts = fields.get("parts", [])
    if not isinstance(parts, list):
        raise InvalidParamsError("message.parts: must be a list")
    fields["parts"] = [
        read_part(part, f"message.parts[{at}]") for at, part in enumerate(cast("list[object]", parts))
    ]
    return fields


def read_part(value: object, path: str, discriminator: str = "kind") -> Fields:
    """Convert a part to the JSON of 1.0.

    Args:
        value: The part.
        path: The path of the part, for the error message.
        discriminator: The member with the kind of the part: ``kind``, or ``type`` before 0.2.

    Raises:
        InvalidParamsError: The part has an unknown kind, or no content of its kind.
    """
    fields = mapping(value, path)
    # Clients of other versions may send ``type`` or ``kind``, or neither.
    kind = fields.get(discriminator) or fields.get("type") or fields.get("kind")
    kind = kind or next((name for name in ("text", "file", "data") if name in fields), None)
    read: Fields = {"metadata": fields["metadata"]} if "metadata" in fields else {}
    if kind == "text" and isinstance(fields.get("text"), str):
        return {**read, "text": fields["text"]}
    if kind == "data" and "data" in fields:
        return {**read, "data": fields["data"]}
    if kind == "file":
        file = mapping(fields.get("file"), f"{path}.file")
        names = {"filename": "name", "mediaType": "mimeType", "raw": "bytes", "url": "uri"}
        if discriminator == "type" and "bytes" not in file:
            names["raw"] = "data"  # name in the first examples of the protocol
        read |= {name: file[old_name] for name, old_name in names.items() if file.get(old_name)}
        if "url" not in read and "raw" not in read and isinstance(file.get("url"), str):
            read["url"] = file["url"]
        return read
    raise InvalidParamsError(f"{path}: a part of kind {shortened(kind)} has no content of this kind")


def read_config(value: object) -> Fields:
    """Convert a webhook to the JSON of 1.0. Only the first authentication scheme is used.

    Raises:
        InvalidParamsError: The value is not an object.
    """
    fields = mapping(value, "pushNotificationConfig")
    read = {name: fields[name] for name in ("id", "url", "token") if fields.get(name)}
    authentication = fields.get("authentication")
    if authentication:
        old_authentication = mapping(authentication, "pushNotificationConfig.authentication")
        schemes: object = old_authentication.get("schemes") or ["Bearer"]
        scheme = cast("list[object]", schemes)[0] if isinstance(schemes, list) else schemes
        read["authentication"] = {"scheme": scheme, "credentials": old_authentication.get("credentials", "")}
    return read


def config_id(config: object, task_id: object) -> object:
    """Return the id of a webhook, or the default if the client sent none. Some clients send the id of the task instead."""
    return DEFAULT_CONFIG_ID if config in (None, "", task_id) else config


def mapping(value: object, path: str) -> Fields:
    """Return an object without its null members, except ``data``. Null becomes an empty object.

    Raises:
        InvalidParamsError: The value is not an object.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidParamsError(f"{path}: must be an object")
    return present_fields(cast("Mapping[str, Any]", value))


def present_fields(fields: Mapping[str, Any]) -> Fields:
    """Remove null members, except ``data``."""
    return {name: value for name, value in fields.items() if value is not None or name == "data"}


# --- writing: from the JSON of 1.0 ------------------------------------------------------------------------------


def write_task(fields: Fields) -> Fields:
    """Convert a task from the JSON of 1.0."""
    task = {**fields, "status": write_status(fields["status"]), "kind": "task"}
    if "history" in fields:
        task["history"] = [write_message(message) for message in fields["history"]]
    if "artifacts" in fields:
        task["artifacts"] = [write_artifact(artifact) for artifact in fields["artifacts"]]
    return task


def write_message(fields: Fields) -> Fields:
    """Convert a message from the JSON of 1.0."""
    return {
        **fields,
        "role": _ROLE_NAMES.get(fields["role"], "agent"),
        "parts": [write_part(part) for part in fields["parts"]],
        "kind": "message",
    }


def write_status(fields: Fields) -> Fields:
    """Convert a status from the JSON of 1.0. A state that 0.3 does not define becomes ``unknown``."""
    status = {**fields, "state": _STATE_NAMES.get(fields["state"], "unknown")}
    if "message" in fields:
        status["message"] = write_message(fields["message"])
    return status


def write_artifact(fields: Fields) -> Fields:
    """Convert an artifact, or a chunk of an artifact, from the JSON of 1.0."""
    return {**fields, "parts": [write_part(part) for part in fields["parts"]]}


def write_part(fields: Fields, discriminator: str = "kind") -> Fields:
    """Convert a part from the JSON of 1.0. In 0.3, data must be an object: other values become ``{"value": …}``."""
    part: Fields = {"metadata": fields["metadata"]} if "metadata" in fields else {}
    if "text" in fields:
        return {discriminator: "text", "text": fields["text"], **part}
    if "data" in fields:
        data = fields["data"]
        return {discriminator: "data", "data": data if isinstance(data, dict) else {"value": data}, **part}
    names = {"raw": "bytes", "url": "uri", "filename": "name", "mediaType": "mimeType"}
    file = {names[name]: fields[name] for name in names if name in fields}
    return {discriminator: "file", "file": file, **part}


def write_config(config: TaskPushNotificationConfig) -> Fields:
    """Convert a webhook and the id of its task to the JSON of 0.3."""
    written: Fields = {"id": config.id, "url": config.url}
    if config.token:
        written["token"] = config.token
    if config.authentication is not None:
        authentication: Fields = {"schemes": [config.authentication.scheme]}
        if config.authentication.credentials:
            authentication["credentials"] = config.authentication.credentials
        written["authentication"] = authentication
    return {"taskId": config.task_id, "pushNotificationConfig": written}
