"""The codec for A2A 0.3 over HTTP+JSON and gRPC. The format is ProtoJSON, with the proto of 0.3.

The format differs from the JSON of JSON-RPC: the parts of a message are in ``content``, parts have no ``kind``, and files and
data have an additional wrapper object. States and roles have the names of the proto (``TASK_STATE_CANCELLED`` with two L).
However, the specification describes the JSON of JSON-RPC for HTTP+JSON too. Requests may therefore have either format. Responses
are always ProtoJSON.

ProtoJSON encodes the bytes of a file as base64. The official clients in Python, Go and Java encode files twice, and expect the
same in responses. The official client in JavaScript encodes files once. As a server, tailrace detects the client by its user
agent. As a client, it detects the encoding of a server by the header ``X-Powered-By`` of the agent card's response
(`tailrace.server.remote.agent_card`).

Source: A2A 0.3.0, ``specification/grpc/a2a.proto``.
"""

import binascii
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from typing import Any, cast

import msgspec
from pydantic import ValidationError
from pydantic.alias_generators import to_camel

from tailrace.streaming.a2a.card_v0_3 import write_card
from tailrace.streaming.a2a.errors import InvalidParamsError
from tailrace.streaming.a2a.event import Event
from tailrace.streaming.a2a.json_encoding import encode_json
from tailrace.streaming.a2a.models import A2AModel, AgentCard
from tailrace.streaming.a2a.requests import (
    ListTaskPushNotificationConfigsResponse,
    ListTasksResponse,
    TaskPushNotificationConfig,
)
from tailrace.streaming.a2a.v0_3 import (
    DEFAULT_CONFIG_ID,
    Fields,
    Version03,
    config_id,
    mapping,
    present_fields,
    read_config,
    read_part,
    read_send,
)
from tailrace.streaming.a2a.v0_3 import write_config as write_kind_config
from tailrace.streaming.a2a.v1_0 import REQUESTS
from tailrace.streaming.a2a.version_codec import Operation

# The only state whose name differs from 1.0.
_STATE_NAMES = {"TASK_STATE_CANCELED": "TASK_STATE_CANCELLED"}

_decode = msgspec.json.Decoder().decode


_ENCODES_TWICE = (
    "python-httpx/",
    "grpc-python",
    "Go-http-client/",
    "grpc-go/",
    "Java-http-client/",
    "grpc-java",
)


class Version03ProtoJson(Version03):
    """Codec for A2A 0.3 over HTTP+JSON and gRPC.

    ``id`` in a request is the id of the task. Requests for webhooks have ``taskId`` and ``configId`` instead.

    Args:
        encodes_twice: True if the client encodes files twice as base64.
    """

    def __init__(self, *, encodes_twice: bool = False) -> None:
        self._encodes_twice = encodes_twice

    def for_client(self, user_agent: str) -> "Version03ProtoJson":
        """Return the codec for a client, with the encoding of files of its user agent."""
        return Version03ProtoJson(encodes_twice=True) if user_agent.startswith(_ENCODES_TWICE) else self

    def read_request(self, operation: Operation, params: Mapping[str, Any]) -> A2AModel:
        """Validate the request. Errors have the field names of 1.0."""
        fields = _camel(present_fields(params))
        if operation in (Operation.SEND_MESSAGE, Operation.SEND_STREAMING_MESSAGE):
            fields = _read_send(fields)
            if self._encodes_twice:
                decode_files(fields["message"])
        elif operation is Operation.CREATE_PUSH_CONFIG:
            fields = _read_create(fields)
        elif operation in (Operation.GET_PUSH_CONFIG, Operation.DELETE_PUSH_CONFIG):
            task_id = fields.get("taskId")
            fields = {"taskId": task_id, "id": config_id(fields.get("configId"), task_id)}
        elif operation is Operation.LIST_PUSH_CONFIGS:
            fields = {"taskId": fields.get("taskId")}
        elif fields.get("historyLength") == 0:
            del fields["historyLength"]  # 0 is the default of the proto, and means "not set"
        try:
            return REQUESTS[operation].model_validate(fields)
        except ValidationError as error:
            raise InvalidParamsError.from_validation(error) from None

    def write_result(self, operation: Operation, result: A2AModel | None) -> bytes:
        """Encode the result as ProtoJSON; an empty object for a deletion."""
        return encode_json(self.result_fields(operation, result))

    def result_fields(self, operation: Operation, result: A2AModel | None) -> object:
        """Return the result as a JSON object or list."""
        if result is None:
            return {}
        if isinstance(result, ListTaskPushNotificationConfigsResponse):
            return {"configs": [write_config(config) for config in result.configs]}
        if isinstance(result, TaskPushNotificationConfig):
            return write_config(result)
        if isinstance(result, AgentCard):
            return write_card(result)
        if isinstance(result, ListTasksResponse):
            return [write_task(self._with_files(task.to_dict())) for task in result.tasks]
        fields = self._with_files(result.to_dict())
        kind, written = (
            ("task", write_task(fields)) if "status" in fields else ("message", write_message(fields))
        )
        return {kind: written} if operation is Operation.SEND_MESSAGE else written

    def write_event(self, event: Event, *, is_last: bool) -> bytes:
        """Encode the event as a ``StreamResponse`` of the proto."""
        return encode_json(self.event_fields(event, is_last=is_last))

    def event_fields(self, event: Event, *, is_last: bool) -> Fields:
        """Return the event as a JSON object."""
        [(kind, fields)] = cast("Fields", _decode(event.body)).items()
        fields = self._with_files(fields)
        if kind == "task":
            written = write_task(fields)
        elif kind == "message":
            written = write_message(fields)
        elif kind == "statusUpdate":
            written = {**fields, "status": write_status(fields["status"]), "final": is_last}
        else:
            written = {**fields, "artifact": write_artifact(fields["artifact"])}
        return {kind: written}

    def _with_files(self, fields: Fields) -> Fields:
        """Encode the files in an object (in the JSON of 1.0) as the client expects."""
        return encode_files(fields) if self._encodes_twice else fields


def encode_files(fields: Fields) -> Fields:
    """Encode the files in a task, a message, or an event as base64 a second time, in place. Return the object."""
    for part in _parts_of(fields):
        if "raw" in part:
            part["raw"] = b64encode(part["raw"].encode()).decode()
    return fields


def decode_files(fields: Fields) -> Fields:
    """Decode files that were encoded twice, in place. Return the object."""
    for part in _parts_of(fields):
        try:
            text = b64decode(part["raw"], validate=True)
            b64decode(text, validate=True)
            part["raw"] = text.decode("ascii")
        except (KeyError, TypeError, ValueError, binascii.Error):
            continue
    return fields


def _parts_of(fields: Fields) -> Iterator[Fields]:
    message, artifact = fields.get("status", {}).get("message", {}), fields.get("artifact", {})
    for each in (fields, message, artifact, *fields.get("history", ()), *fields.get("artifacts", ())):
        yield from each.get("parts", ())


# --- reading ----------------------------------------------------------------------------------------------------


def _camel(fields: Fields) -> Fields:
    """Add camelCase names for snake_case names, which ProtoJSON allows too."""
    return {to_camel(name): value for name, value in fields.items()} | fields


def _read_send(fields: Fields) -> Fields:
    # The field is ``request`` in the proto, and ``message`` in JSON.
    message = mapping(fields.get("message", fields.get("request")), "message")
    configuration = _camel(mapping(fields.get("configuration"), "configuration"))
    if "pushNotification" in configuration:
        webhook = _camel(mapping(configuration.pop("pushNotification"), "configuration.pushNotification"))
        configuration["pushNotificationConfig"] = webhook
    if configuration.get("historyLength") == 0:
        del configuration["historyLength"]  # see `read_request`
    read = read_send({**fields, "message": {}, "configuration": configuration})
    return {**read, "message": read_proto_message(_camel(message))}


def read_proto_message(fields: Fields) -> Fields:
    """Convert a message, in ProtoJSON or the JSON of JSON-RPC, to the JSON of A2A 1.0.

    Raises:
        InvalidParamsError: The parts are not a list, or a part has an unknown type.
    """
    role = fields.get("role")
    if isinstance(role, str) and not role.startswith("ROLE_"):
        fields["role"] = f"ROLE_{role.upper()}"
    parts = fields.pop("content", fields.get("parts", []))
    if not isinstance(parts, list):
        raise InvalidParamsError("message.content: must be a list")
    fields["parts"] = [
        read_proto_part(part, f"message.content[{at}]") for at, part in enumerate(cast("list[object]", parts))
    ]
    return fields


def read_proto_part(value: object, path: str) -> Fields:
    """Convert a part, in ProtoJSON or the JSON of JSON-RPC, to the JSON of A2A 1.0.

    Raises:
        InvalidParamsError: The type of the part is unknown.
    """
    # Some clients send null for all other members.
    fields = {name: member for name, member in mapping(value, path).items() if member is not None}
    if "kind" in fields:
        return read_part(fields, path)
    if "data" in fields:
        data = fields["data"]
        inner = cast("Fields", data).get("data", data) if isinstance(data, Mapping) else data
        return read_part({**fields, "kind": "data", "data": inner}, path)
    if "file" in fields:
        file = _camel(mapping(fields["file"], f"{path}.file"))
        names = {"bytes": "fileWithBytes", "uri": "fileWithUri"}
        file |= {name: file[old_name] for name, old_name in names.items() if file.get(old_name)}
        return read_part({**fields, "file": file}, path)
    return read_part(fields, path)


def _read_create(fields: Fields) -> Fields:
    """Convert a request that creates a webhook.

    The body may be the request, its member ``config`` (as the HTTP rule of the proto requires), or the webhook.
    """
    config = _camel(mapping(fields.get("config", fields), "config"))
    webhook = _camel(mapping(config.get("pushNotificationConfig", config), "config.pushNotificationConfig"))
    name = config.get("name")
    config_name = (
        webhook.get("id")
        or fields.get("configId")
        or (name.rpartition("/pushNotificationConfigs/")[2] if isinstance(name, str) else None)
    )
    task_id = fields.get("taskId")
    return {
        **read_config(webhook),
        "taskId": task_id,
        "id": config_id(config_name, task_id) or DEFAULT_CONFIG_ID,
    }


# --- writing: from the JSON of 1.0 ------------------------------------------------------------------------------


def write_task(fields: Fields) -> Fields:
    """Convert a task."""
    task = {**fields, "status": write_status(fields["status"])}
    if "history" in fields:
        task["history"] = [write_message(message) for message in fields["history"]]
    if "artifacts" in fields:
        task["artifacts"] = [write_artifact(artifact) for artifact in fields["artifacts"]]
    return task


def write_message(fields: Fields) -> Fields:
    """Convert a message. References to other tasks are omitted, because the proto of 0.3 does not have them."""
    message = {name: value for name, value in fields.items() if name not in ("parts", "referenceTaskIds")}
    return {**message, "content": [write_part(part) for part in fields["parts"]]}


def write_status(fields: Fields) -> Fields:
    """Convert a status."""
    status = {**fields, "state": _STATE_NAMES.get(fields["state"], fields["state"])}
    if "message" in fields:
        status["message"] = write_message(fields["message"])
    return status


def write_artifact(fields: Fields) -> Fields:
    """Convert an artifact or a chunk of an artifact."""
    return {**fields, "parts": [write_part(part) for part in fields["parts"]]}


def write_part(fields: Fields) -> Fields:
    """Convert a part. Data that is not an object becomes ``{"value": data}``, because the proto allows only objects."""
    part: Fields = {"metadata": fields["metadata"]} if "metadata" in fields else {}
    if "text" in fields:
        return {"text": fields["text"], **part}
    if "data" in fields:
        data = fields["data"]
        return {"data": {"data": data if isinstance(data, dict) else {"value": data}}, **part}
    names = {"raw": "fileWithBytes", "url": "fileWithUri", "filename": "name", "mediaType": "mimeType"}
    return {"file": {names[name]: fields[name] for name in names if name in fields}, **part}


def write_config(config: TaskPushNotificationConfig) -> Fields:
    """Convert a webhook, and add its resource name."""
    name = f"tasks/{config.task_id}/pushNotificationConfigs/{config.id}"
    return {"name": name, "pushNotificationConfig": write_kind_config(config)["pushNotificationConfig"]}
