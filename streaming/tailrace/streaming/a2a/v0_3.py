"""A2A 0.3 and 0.2: the JSON-RPC objects with ``kind``, read into A2A 1.0's model and written from its JSON.

What 1.0 has and 0.3 has not is left out (a part's media type beside text, tenants); what 0.3 has and 1.0 has not is made
here (``kind``, ``final``). Input is taken as clients send it: null for "not set", lists as data, files with ``url``.

Source: A2A 0.3.0, ``types/src/types.ts``.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, cast

import msgspec
from pydantic import ValidationError

from tailrace.streaming.a2a.card_v0_3 import write_card
from tailrace.streaming.a2a.dialect import Dialect, Operation
from tailrace.streaming.a2a.encoding import encode_json
from tailrace.streaming.a2a.errors import A2AError, InvalidParamsError
from tailrace.streaming.a2a.event import Event
from tailrace.streaming.a2a.models import A2AModel, AgentCard
from tailrace.streaming.a2a.requests import (
    ListTaskPushNotificationConfigsResponse,
    TaskPushNotificationConfig,
)
from tailrace.streaming.a2a.v1_0 import REQUESTS
from tailrace.wrappers.messages import shortened

Fields = dict[str, Any]

DEFAULT_CONFIG_ID = "default"
"""The id of a webhook that was set without one, and asked for without one."""

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
    """A2A 0.3 over JSON-RPC, which clients of 0.2 understand too."""

    version = "0.3"
    streams_errors = True
    repeats_finished = True  # as the proto of 0.3 demands; its bindings are equivalent
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
        """The request, validated; fields that are wrong are named as 1.0 names them."""
        fields = given_fields(params)
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
        """The bare object: a task, a message, a list of webhooks, a card; null for a deletion."""
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

    def write_event(self, event: Event, *, closes: bool) -> bytes:
        """A task, a message, a ``status-update`` or an ``artifact-update``."""
        [(kind, fields)] = cast("Fields", _decode(event.body)).items()
        if kind == "task":
            return encode_json(write_task(fields))
        if kind == "message":
            return encode_json(write_message(fields))
        if kind == "statusUpdate":
            status = write_status(fields["status"])
            return encode_json({**fields, "status": status, "final": closes, "kind": "status-update"})
        return encode_json(
            {**fields, "artifact": write_artifact(fields["artifact"]), "kind": "artifact-update"}
        )

    def write_error(self, error: A2AError) -> dict[str, Any]:
        """Code, message and details, as in 1.0: 0.3 leaves the details open."""
        return error.to_jsonrpc()


# --- reading ----------------------------------------------------------------------------------------------------


def read_send(fields: Fields) -> Fields:
    """The parameters of a send in the JSON of 1.0.

    Raises:
        InvalidParamsError: A part of them is not what 0.3 says.
    """
    read: Fields = {"message": read_message(fields.get("message"))}
    configuration = mapping(fields.get("configuration"), "configuration")
    wanted = {name: configuration[name] for name in _CONFIGURATION if name in configuration}
    if "pushNotificationConfig" in configuration:
        wanted["taskPushNotificationConfig"] = {
            "id": DEFAULT_CONFIG_ID,
            **read_config(configuration["pushNotificationConfig"]),
        }
    blocking = configuration.get("blocking", False)
    if not isinstance(blocking, bool):
        raise InvalidParamsError("configuration.blocking: must be true or false")
    wanted["returnImmediately"] = not blocking
    read["configuration"] = wanted
    if "metadata" in fields:
        read["metadata"] = fields["metadata"]
    return read


def read_message(value: object) -> Fields:
    """A message with ``kind`` parts, in the JSON of 1.0.

    Raises:
        InvalidParamsError: It is no object, or a part is of no known kind.
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


def read_part(value: object, where: str, discriminator: str = "kind") -> Fields:
    """A part in the JSON of 1.0.

    Args:
        value: The part.
        where: Its place, for the error.
        discriminator: The member that says what it is: ``kind``, or ``type`` before 0.2.

    Raises:
        InvalidParamsError: It is of no known kind, or does not hold what its kind says.
    """
    fields = mapping(value, where)
    # A client of another version may use that one's discriminator, or none.
    kind = fields.get(discriminator) or fields.get("type") or fields.get("kind")
    kind = kind or next((name for name in ("text", "file", "data") if name in fields), None)
    read: Fields = {"metadata": fields["metadata"]} if "metadata" in fields else {}
    if kind == "text" and isinstance(fields.get("text"), str):
        return {**read, "text": fields["text"]}
    if kind == "data" and "data" in fields:
        return {**read, "data": fields["data"]}
    if kind == "file":
        file = mapping(fields.get("file"), f"{where}.file")
        names = {"filename": "name", "mediaType": "mimeType", "raw": "bytes", "url": "uri"}
        if discriminator == "type" and "bytes" not in file:
            names["raw"] = "data"  # as the first examples had it
        read |= {name: file[given] for name, given in names.items() if file.get(given)}
        if "url" not in read and "raw" not in read and isinstance(file.get("url"), str):
            read["url"] = file["url"]
        return read
    raise InvalidParamsError(f"{where}: a part of kind {shortened(kind)} without what its kind says")


def read_config(value: object) -> Fields:
    """A webhook in the JSON of 1.0; of several authentication schemes the first counts.

    Raises:
        InvalidParamsError: It is no object.
    """
    fields = mapping(value, "pushNotificationConfig")
    read = {name: fields[name] for name in ("id", "url", "token") if fields.get(name)}
    authentication = fields.get("authentication")
    if authentication:
        given = mapping(authentication, "pushNotificationConfig.authentication")
        schemes: object = given.get("schemes") or ["Bearer"]
        scheme = cast("list[object]", schemes)[0] if isinstance(schemes, list) else schemes
        read["authentication"] = {"scheme": scheme, "credentials": given.get("credentials", "")}
    return read


def config_id(given: object, task_id: object) -> object:
    """The id of a webhook. Clients that set one webhook without an id ask for it without one, or by the task's."""
    return DEFAULT_CONFIG_ID if given in (None, "", task_id) else given


def mapping(value: object, where: str) -> Fields:
    """An object's members that are set; null counts as an empty object.

    Raises:
        InvalidParamsError: It is something else.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidParamsError(f"{where}: must be an object")
    return given_fields(cast("Mapping[str, Any]", value))


def given_fields(fields: Mapping[str, Any]) -> Fields:
    """Remove members that are null, except where a value may be any JSON."""
    return {name: value for name, value in fields.items() if value is not None or name == "data"}


# --- writing: from the JSON of 1.0 ------------------------------------------------------------------------------


def write_task(fields: Fields) -> Fields:
    """A task with its history and artifacts."""
    task = {**fields, "status": write_status(fields["status"]), "kind": "task"}
    if "history" in fields:
        task["history"] = [write_message(message) for message in fields["history"]]
    if "artifacts" in fields:
        task["artifacts"] = [write_artifact(artifact) for artifact in fields["artifacts"]]
    return task


def write_message(fields: Fields) -> Fields:
    """A message."""
    return {
        **fields,
        "role": _ROLE_NAMES.get(fields["role"], "agent"),
        "parts": [write_part(part) for part in fields["parts"]],
        "kind": "message",
    }


def write_status(fields: Fields) -> Fields:
    """A status; a state that 0.3 does not know is ``unknown``."""
    status = {**fields, "state": _STATE_NAMES.get(fields["state"], "unknown")}
    if "message" in fields:
        status["message"] = write_message(fields["message"])
    return status


def write_artifact(fields: Fields) -> Fields:
    """An artifact, or a chunk of one."""
    return {**fields, "parts": [write_part(part) for part in fields["parts"]]}


def write_part(fields: Fields, discriminator: str = "kind") -> Fields:
    """A part. Data that is no object is wrapped in one, as ``{"value": …}``: 0.3 knows no other."""
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
    """A webhook with the task that it belongs to."""
    written: Fields = {"id": config.id, "url": config.url}
    if config.token:
        written["token"] = config.token
    if config.authentication is not None:
        authentication: Fields = {"schemes": [config.authentication.scheme]}
        if config.authentication.credentials:
            authentication["credentials"] = config.authentication.credentials
        written["authentication"] = authentication
    return {"taskId": config.task_id, "pushNotificationConfig": written}
