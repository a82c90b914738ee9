"""A2A 0.3 over HTTP+JSON and gRPC: the ProtoJSON of the 0.3 proto, which is not the JSON of 0.3's JSON-RPC.

A message's parts are its ``content``, a part has no ``kind``, files and data are wrapped once more, states and roles
have the proto's names (``TASK_STATE_CANCELLED`` with two L), and results are wrapped as in 1.0. The prose of 0.3 promised
the objects of JSON-RPC on this binding as well, so those are read too; ProtoJSON alone is written.

The bytes of a file are another deviation. ``file_with_bytes`` holds bytes, which ProtoJSON writes in base64. The official
clients in Python, Go and Java put the base64 text of JSON-RPC there, so that what arrives is encoded twice, and expect the
same of what they read; the one in JavaScript does not. They are distinguished by the names of their HTTP and gRPC libraries.

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
from tailrace.streaming.a2a.dialect import Operation
from tailrace.streaming.a2a.encoding import encode_json
from tailrace.streaming.a2a.errors import InvalidParamsError
from tailrace.streaming.a2a.event import Event
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
    given_fields,
    mapping,
    read_config,
    read_part,
    read_send,
)
from tailrace.streaming.a2a.v0_3 import write_config as write_kind_config
from tailrace.streaming.a2a.v1_0 import REQUESTS

# The one state that 0.3 spells otherwise than 1.0.
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


class Version03Http(Version03):
    """A2A 0.3 over HTTP+JSON.

    The fields of a request are those of its body or query and of its path: ``id`` names the task, for webhooks
    ``taskId`` does and ``configId`` names the webhook.

    Args:
        encodes_twice: The bytes of files are base64 text.
    """

    def __init__(self, *, encodes_twice: bool = False) -> None:
        self._encodes_twice = encodes_twice

    def for_client(self, user_agent: str) -> "Version03Http":
        """The codec with the client's reading of file bytes."""
        return Version03Http(encodes_twice=True) if user_agent.startswith(_ENCODES_TWICE) else self

    def read_request(self, operation: Operation, params: Mapping[str, Any]) -> A2AModel:
        """The request, validated; fields that are wrong are named as 1.0 names them."""
        fields = _camel(given_fields(params))
        if operation in (Operation.SEND_MESSAGE, Operation.SEND_STREAMING_MESSAGE):
            fields = _read_send(fields)
            if self._encodes_twice:
                _decode_files(fields["message"])
        elif operation is Operation.CREATE_PUSH_CONFIG:
            fields = _read_create(fields)
        elif operation in (Operation.GET_PUSH_CONFIG, Operation.DELETE_PUSH_CONFIG):
            task_id = fields.get("taskId")
            fields = {"taskId": task_id, "id": config_id(fields.get("configId"), task_id)}
        elif operation is Operation.LIST_PUSH_CONFIGS:
            fields = {"taskId": fields.get("taskId")}
        elif fields.get("historyLength") == 0:
            del fields["historyLength"]  # the proto's default, "not set"
        try:
            return REQUESTS[operation].model_validate(fields)
        except ValidationError as error:
            raise InvalidParamsError.from_validation(error) from None

    def write_result(self, operation: Operation, result: A2AModel | None) -> bytes:
        """The message of the proto; an empty object for a deletion, a list of tasks for a list."""
        return encode_json(self.result_fields(operation, result))

    def result_fields(self, operation: Operation, result: A2AModel | None) -> object:
        """The same before it is encoded."""
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

    def write_event(self, event: Event, *, closes: bool) -> bytes:
        """A ``StreamResponse`` of the proto."""
        return encode_json(self.event_fields(event, closes=closes))

    def event_fields(self, event: Event, *, closes: bool) -> Fields:
        """The same before it is encoded."""
        [(kind, fields)] = cast("Fields", _decode(event.body)).items()
        fields = self._with_files(fields)
        if kind == "task":
            written = write_task(fields)
        elif kind == "message":
            written = write_message(fields)
        elif kind == "statusUpdate":
            written = {**fields, "status": write_status(fields["status"]), "final": closes}
        else:
            written = {**fields, "artifact": write_artifact(fields["artifact"])}
        return {kind: written}

    def _with_files(self, fields: Fields) -> Fields:
        """An object in the JSON of 1.0 with the bytes of its files as this client reads them."""
        if self._encodes_twice:
            for part in _parts_of(fields):
                if "raw" in part:
                    part["raw"] = b64encode(part["raw"].encode()).decode()
        return fields


def _parts_of(fields: Fields) -> Iterator[Fields]:
    """The parts of a task, a message, or an event, wherever they are."""
    yield from fields.get("parts", ())
    for name in ("status", "message", "artifact"):
        if name in fields:
            yield from _parts_of(fields[name])
    for name in ("history", "artifacts"):
        for each in fields.get(name, ()):
            yield from _parts_of(each)


def _decode_files(message: Fields) -> None:
    """Decode the bytes of a message's files once, where they are base64 text."""
    for part in message["parts"]:
        try:
            text = b64decode(part["raw"], validate=True)
            b64decode(text, validate=True)
            part["raw"] = text.decode("ascii")
        except (KeyError, TypeError, ValueError, binascii.Error):
            continue


# --- reading ----------------------------------------------------------------------------------------------------


def _camel(fields: Fields) -> Fields:
    """A message of the proto by its JSON names: parsers of ProtoJSON take the proto's own (snake_case), too."""
    return {to_camel(name): value for name, value in fields.items()} | fields


def _read_send(fields: Fields) -> Fields:
    # The name of the field in the proto is another than in its JSON.
    message = mapping(fields.get("message", fields.get("request")), "message")
    configuration = _camel(mapping(fields.get("configuration"), "configuration"))
    if "pushNotification" in configuration:
        webhook = _camel(mapping(configuration.pop("pushNotification"), "configuration.pushNotification"))
        configuration["pushNotificationConfig"] = webhook
    if configuration.get("historyLength") == 0:
        del configuration["historyLength"]  # no limit
    read = read_send({**fields, "message": {}, "configuration": configuration})
    return {**read, "message": read_proto_message(_camel(message))}


def read_proto_message(fields: Fields) -> Fields:
    """A message, of the proto or of JSON-RPC, in the JSON of 1.0.

    Raises:
        InvalidParamsError: Its parts are no list, or one of them is of no known kind.
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


def read_proto_part(value: object, where: str) -> Fields:
    """A part, of the proto or of JSON-RPC, in the JSON of 1.0.

    Args:
        value: The part.
        where: Its place, for the error.

    Raises:
        InvalidParamsError: It is of no known kind.
    """
    # A client that writes out all members means only the one that is not null.
    fields = {name: member for name, member in mapping(value, where).items() if member is not None}
    if "kind" in fields:
        return read_part(fields, where)
    if "data" in fields:
        data = fields["data"]
        inner = cast("Fields", data).get("data", data) if isinstance(data, Mapping) else data
        return read_part({**fields, "kind": "data", "data": inner}, where)
    if "file" in fields:
        file = _camel(mapping(fields["file"], f"{where}.file"))
        names = {"bytes": "fileWithBytes", "uri": "fileWithUri"}
        file |= {name: file[given] for name, given in names.items() if file.get(given)}
        return read_part({**fields, "file": file}, where)
    return read_part(fields, where)


def _read_create(fields: Fields) -> Fields:
    """The whole request, or its ``config`` alone (so the proto's own HTTP rule), or the bare webhook."""
    named = _camel(mapping(fields.get("config", fields), "config"))
    webhook = _camel(mapping(named.get("pushNotificationConfig", named), "config.pushNotificationConfig"))
    name = named.get("name")
    given = (
        webhook.get("id")
        or fields.get("configId")
        or (name.rpartition("/pushNotificationConfigs/")[2] if isinstance(name, str) else None)
    )
    task_id = fields.get("taskId")
    return {**read_config(webhook), "taskId": task_id, "id": config_id(given, task_id) or DEFAULT_CONFIG_ID}


# --- writing: from the JSON of 1.0 ------------------------------------------------------------------------------


def write_task(fields: Fields) -> Fields:
    """A task with its history and artifacts."""
    task = {**fields, "status": write_status(fields["status"])}
    if "history" in fields:
        task["history"] = [write_message(message) for message in fields["history"]]
    if "artifacts" in fields:
        task["artifacts"] = [write_artifact(artifact) for artifact in fields["artifacts"]]
    return task


def write_message(fields: Fields) -> Fields:
    """A message, without references to other tasks, which the proto of 0.3 has not."""
    message = {name: value for name, value in fields.items() if name not in ("parts", "referenceTaskIds")}
    return {**message, "content": [write_part(part) for part in fields["parts"]]}


def write_status(fields: Fields) -> Fields:
    """A status."""
    status = {**fields, "state": _STATE_NAMES.get(fields["state"], fields["state"])}
    if "message" in fields:
        status["message"] = write_message(fields["message"])
    return status


def write_artifact(fields: Fields) -> Fields:
    """An artifact, or a chunk of one."""
    return {**fields, "parts": [write_part(part) for part in fields["parts"]]}


def write_part(fields: Fields) -> Fields:
    """A part. Data that is no object is wrapped in one, as ``{"value": …}``: the proto knows no other."""
    part: Fields = {"metadata": fields["metadata"]} if "metadata" in fields else {}
    if "text" in fields:
        return {"text": fields["text"], **part}
    if "data" in fields:
        data = fields["data"]
        return {"data": {"data": data if isinstance(data, dict) else {"value": data}}, **part}
    names = {"raw": "fileWithBytes", "url": "fileWithUri", "filename": "name", "mediaType": "mimeType"}
    return {"file": {names[name]: fields[name] for name in names if name in fields}, **part}


def write_config(config: TaskPushNotificationConfig) -> Fields:
    """A webhook under its resource name."""
    name = f"tasks/{config.task_id}/pushNotificationConfigs/{config.id}"
    return {"name": name, "pushNotificationConfig": write_kind_config(config)["pushNotificationConfig"]}
