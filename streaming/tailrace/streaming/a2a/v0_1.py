"""The codec for A2A versions before 0.2, with the method ``tasks/send``, and the member ``type`` in parts.

The client creates the ids of its tasks: a message with an unknown task id starts a task. Messages have no ids, so this module
creates them. ``index``, ``append`` and ``lastChunk`` are members of the artifact. Streams have no event with the complete task.

Source: A2A 0.1.0, and sample code of that version.
"""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, cast
from uuid import uuid4

import msgspec
from pydantic import ValidationError

from tailrace.streaming.a2a.card_v0_3 import write_card as write_card_v0_3
from tailrace.streaming.a2a.errors import A2AError, InvalidParamsError
from tailrace.streaming.a2a.event import Event
from tailrace.streaming.a2a.json_encoding import encode_json
from tailrace.streaming.a2a.models import A2AModel, AgentCard
from tailrace.streaming.a2a.requests import SendMessageRequest, TaskPushNotificationConfig
from tailrace.streaming.a2a.v0_3 import (
    DEFAULT_CONFIG_ID,
    Fields,
    mapping,
    present_fields,
    read_config,
    read_part,
    write_config,
    write_part,
)
from tailrace.streaming.a2a.v1_0 import REQUESTS
from tailrace.streaming.a2a.version_codec import Dialect, Operation

_STATES = {
    "TASK_STATE_SUBMITTED": "submitted",
    "TASK_STATE_WORKING": "working",
    "TASK_STATE_COMPLETED": "completed",
    "TASK_STATE_FAILED": "failed",
    "TASK_STATE_CANCELED": "canceled",
    "TASK_STATE_INPUT_REQUIRED": "input-required",
    # States of later versions become the most similar state.
    "TASK_STATE_REJECTED": "failed",
    "TASK_STATE_AUTH_REQUIRED": "input-required",
}
_ROLES = {"user": "ROLE_USER", "agent": "ROLE_AGENT"}

_SCOPE = 32  # number of hexadecimal digits; see `client_id`
_HEX = frozenset("0123456789abcdef")

_decode = msgspec.json.Decoder().decode


class Version01(Dialect):
    """Codec for A2A before 0.2. Artifacts are numbered in the order in which they appear in a stream."""

    version = "0.1"
    clients_create_task_ids = True
    methods: ClassVar[Mapping[str, Operation]] = {
        "tasks/send": Operation.SEND_MESSAGE,
        "tasks/sendSubscribe": Operation.SEND_STREAMING_MESSAGE,
        "tasks/get": Operation.GET_TASK,
        "tasks/cancel": Operation.CANCEL_TASK,
        "tasks/resubscribe": Operation.SUBSCRIBE_TO_TASK,
        "tasks/pushNotification/set": Operation.CREATE_PUSH_CONFIG,
        "tasks/pushNotification/get": Operation.GET_PUSH_CONFIG,
    }

    def __init__(self) -> None:
        self._indexes: dict[str, int] = {}

    def for_stream(self, artifact_ids: Iterable[str] = ()) -> "Version01":
        """Return a codec that numbers the artifacts of one stream."""
        dialect = Version01()
        for artifact_id in artifact_ids:
            dialect._index(artifact_id)
        return dialect

    def read_request(self, operation: Operation, params: Mapping[str, Any]) -> A2AModel:
        """Validate the request. The message has the task id that the client sent."""
        fields = present_fields(params)
        if operation in (Operation.SEND_MESSAGE, Operation.SEND_STREAMING_MESSAGE):
            return self._read_send(fields)
        if operation is Operation.CREATE_PUSH_CONFIG:
            config = read_config(fields.get("pushNotificationConfig"))
            fields = {**config, "taskId": fields.get("id"), "id": DEFAULT_CONFIG_ID}
        elif operation is Operation.GET_PUSH_CONFIG:
            fields = {"taskId": fields.get("id"), "id": DEFAULT_CONFIG_ID}
        elif operation is Operation.GET_TASK:
            # By default, the task has no history in this version.
            fields = {"id": fields.get("id"), "historyLength": fields.get("historyLength", 0)}
        return _validate(REQUESTS[operation], fields)

    def write_result(self, operation: Operation, result: A2AModel | None) -> bytes:
        """Return the task or the webhook as JSON, without a wrapper object."""
        if result is None:
            return b"null"
        if isinstance(result, TaskPushNotificationConfig):
            written = write_config(result)
            return encode_json(
                {
                    "id": client_id(written["taskId"]),
                    "pushNotificationConfig": written["pushNotificationConfig"],
                }
            )
        fields = result.to_dict()
        return encode_json(_write_task(fields) if "status" in fields else _message_as_task(fields))

    def write_event(self, event: Event, *, is_last: bool) -> bytes | None:
        """Encode a status or artifact event. An event with the complete task becomes a status event.

        The result is None for a submitted task, because streams of this version begin when the task starts.
        """
        [(kind, fields)] = cast("Fields", _decode(event.body)).items()
        if kind == "task":
            for artifact in fields.get("artifacts", ()):
                self._index(artifact["artifactId"])
            if not is_last and fields["status"]["state"] == "TASK_STATE_SUBMITTED":
                return None
            fields = {"taskId": fields["id"], "status": fields["status"]}
            kind = "statusUpdate"
        if kind == "message":
            return encode_json(_message_as_event(fields))
        rest: Fields = {"metadata": fields["metadata"]} if "metadata" in fields else {}
        if kind == "statusUpdate":
            status = _write_status(fields["status"])
            return encode_json(
                {"id": client_id(fields["taskId"]), "status": status, "final": is_last, **rest}
            )
        artifact = _write_artifact(fields["artifact"], self._index(fields["artifact"]["artifactId"]))
        artifact |= {name: fields[name] for name in ("append", "lastChunk") if name in fields}
        return encode_json({"id": client_id(fields["taskId"]), "artifact": artifact, **rest})

    def write_error(self, error: A2AError) -> dict[str, Any]:
        """Return the code, message and details of the error."""
        return error.to_jsonrpc()

    def _index(self, artifact_id: str) -> int:
        return self._indexes.setdefault(artifact_id, len(self._indexes))

    def _read_send(self, fields: Fields) -> SendMessageRequest:
        message = mapping(fields.get("message"), "message")
        parts = message.get("parts", [])
        if not isinstance(parts, list):
            raise InvalidParamsError("message.parts: must be a list")
        if not isinstance(fields.get("id"), str) or not fields["id"]:
            raise InvalidParamsError("id: the client names the task")
        role = message.get("role")
        read: Fields = {
            "messageId": str(uuid4()),
            "role": _ROLES.get(role, role) if isinstance(role, str) else None,
            "parts": [
                read_part(part, f"message.parts[{at}]", "type")
                for at, part in enumerate(cast("list[object]", parts))
            ],
            "taskId": fields["id"],
            "contextId": fields.get("sessionId", ""),
            "metadata": message.get("metadata", {}),
        }
        configuration: Fields = {"historyLength": fields.get("historyLength", 0)}
        if "acceptedOutputModes" in fields:
            configuration["acceptedOutputModes"] = fields["acceptedOutputModes"]
        if "pushNotification" in fields:
            webhook = {**read_config(fields["pushNotification"]), "id": DEFAULT_CONFIG_ID}
            configuration["taskPushNotificationConfig"] = webhook
        request = {"message": read, "configuration": configuration, "metadata": fields.get("metadata", {})}
        return _validate(SendMessageRequest, request)


def client_id(task_id: str) -> str:
    """Return the task id that the client created.

    The server appends ``~`` and 32 hexadecimal digits to it. Any other id is returned unchanged.
    """
    name, _, scope = task_id.rpartition("~")
    return name if name and len(scope) == _SCOPE and _HEX.issuperset(scope) else task_id


def _validate(model: type[Any], fields: Fields) -> Any:
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise InvalidParamsError.from_validation(error) from None


# --- writing: from the JSON of 1.0 ------------------------------------------------------------------------------


def _write_task(fields: Fields) -> Fields:
    task: Fields = {
        "id": client_id(fields["id"]),
        "sessionId": fields.get("contextId", ""),
        "status": _write_status(fields["status"]),
    }
    if "artifacts" in fields:
        task["artifacts"] = [
            _write_artifact(artifact, index) for index, artifact in enumerate(fields["artifacts"])
        ]
    if "history" in fields:
        task["history"] = [_write_message(message) for message in fields["history"]]
    if "metadata" in fields:
        task["metadata"] = fields["metadata"]
    return task


def _message_as_task(message: Fields) -> Fields:
    """Convert a direct message to a completed task, because this version has no direct messages."""
    return {
        "id": client_id(message.get("taskId") or message["messageId"]),
        "sessionId": message.get("contextId", ""),
        "status": {"state": "completed", "message": _write_message(message)},
    }


def _message_as_event(message: Fields) -> Fields:
    task = _message_as_task(message)
    return {"id": task["id"], "status": task["status"], "final": True}


def _write_message(fields: Fields) -> Fields:
    role = "user" if fields["role"] == "ROLE_USER" else "agent"
    message: Fields = {"role": role, "parts": [write_part(part, "type") for part in fields["parts"]]}
    if "metadata" in fields:
        message["metadata"] = fields["metadata"]
    return message


def _write_status(fields: Fields) -> Fields:
    status = {**fields, "state": _STATES.get(fields["state"], "unknown")}
    if "message" in fields:
        status["message"] = _write_message(fields["message"])
    return status


def _write_artifact(fields: Fields, index: int) -> Fields:
    names = ("name", "description", "metadata")
    artifact: Fields = {name: fields[name] for name in names if name in fields}
    return {**artifact, "parts": [write_part(part, "type") for part in fields["parts"]], "index": index}


def write_card(card: AgentCard) -> Fields:
    """Return the card in the format of this version."""
    fields = card.to_dict()
    capabilities = fields["capabilities"]
    # The name of the HTTP authentication scheme, otherwise the type of the security scheme.
    schemes = [
        str(scheme.get("scheme") or scheme["type"])
        for scheme in write_card_v0_3(card).get("securitySchemes", {}).values()
    ]
    unchanged = ("name", "description", "version", "documentationUrl", "provider", "defaultInputModes")
    return {name: fields[name] for name in (*unchanged, "defaultOutputModes") if name in fields} | {
        "url": fields["supportedInterfaces"][0]["url"],
        "capabilities": {
            "streaming": capabilities.get("streaming", False),
            "pushNotifications": capabilities.get("pushNotifications", False),
            "stateTransitionHistory": False,
        },
        "skills": [
            {name: value for name, value in skill.items() if name != "securityRequirements"}
            for skill in fields["skills"]
        ],
        **({"authentication": {"schemes": schemes}} if schemes else {}),
    }
