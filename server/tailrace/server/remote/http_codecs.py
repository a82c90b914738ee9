"""Codecs for requests and responses of a remote agent: JSON-RPC and HTTP+JSON, in A2A 1.0 and 0.3. Sans-IO.

The parameters and results of this module are JSON of A2A 1.0.
"""

import json
from collections.abc import Mapping
from itertools import count
from typing import Any, NamedTuple, cast
from urllib.parse import quote

from tailrace.server.remote.agent_card import RemoteCard
from tailrace.streaming.a2a import errors, v0_3, v0_3_proto_json
from tailrace.streaming.a2a.errors import A2AError, InvalidParamsError, MethodNotFoundError
from tailrace.streaming.a2a.json_encoding import encode_json
from tailrace.streaming.a2a.v1_0 import Version10
from tailrace.streaming.a2a.version_codec import Operation
from tailrace.wrappers import UpstreamError, UpstreamFault

Fields = dict[str, Any]

_ERRORS: Mapping[object, type[A2AError]] = {
    name: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, A2AError) and kind is not A2AError
    for name in (kind.code, kind.reason, kind.__name__)
}
"""Errors of the protocol by JSON-RPC code, by ``ErrorInfo.reason``, and by the name that HTTP+JSON of A2A 0.3 uses."""


_FILES = frozenset({"raw", "url"})
"""The members of a part with a file in A2A 1.0."""


class Request(NamedTuple):
    """An HTTP request.

    Attributes:
        method: The HTTP method.
        url: The URL.
        body: The JSON body; empty for none.
    """

    method: str
    url: str
    body: bytes


_PATHS: Mapping[Operation, tuple[tuple[str, ...], str]] = {
    Operation.SEND_MESSAGE: (("POST",), "/message:send"),
    Operation.SEND_STREAMING_MESSAGE: (("POST",), "/message:stream"),
    Operation.GET_TASK: (("GET",), "/tasks/{id}"),
    Operation.CANCEL_TASK: (("POST",), "/tasks/{id}:cancel"),
    # The specification defines GET, but older servers of the official SDK accept only POST.
    Operation.SUBSCRIBE_TO_TASK: (("POST", "GET"), "/tasks/{id}:subscribe"),
    Operation.GET_CONVERSATION: (("GET",), "/conversations/{contextId}"),
}
"""The HTTP methods of each operation in order of preference, and its path, for HTTP+JSON."""


class Binding:
    """Encodes requests and decodes responses for an interface of an agent that uses JSON-RPC or HTTP+JSON.

    Attributes:
        is_json_rpc: True for JSON-RPC, False for HTTP+JSON.
        version: The value of the header ``A2A-Version``.
    """

    def __init__(self, card: RemoteCard) -> None:
        self._card = card
        self.is_json_rpc = card.binding == "JSONRPC"
        self.version = "0.3" if card.is_v0_3 else "1.0"
        methods = (v0_3.Version03 if card.is_v0_3 else Version10).methods
        self._methods = {operation: name for name, operation in methods.items()}
        self._ids = count(1)

    def write(self, operation: Operation, fields: Fields) -> list[Request]:
        """Encode an operation as one or more alternative HTTP requests.

        The alternatives use other HTTP methods, for agents that do not support the first one.

        Args:
            operation: The operation.
            fields: The parameters as JSON of A2A 1.0.

        Raises:
            MethodNotFoundError: The protocol version does not have the operation.
        """
        card, sends = self._card, operation in (Operation.SEND_MESSAGE, Operation.SEND_STREAMING_MESSAGE)
        if operation not in self._methods:
            raise MethodNotFoundError(str(operation))
        if card.is_v0_3 and sends:
            write_message = (v0_3 if self.is_json_rpc else v0_3_proto_json).write_message
            configuration = {"blocking": True, **fields.get("configuration", {})}
            message = fields["message"]
            if card.encodes_files_twice:
                # Encode a copy, because the message may be sent again.
                message = v0_3_proto_json.encode_files(
                    {**message, "parts": [dict(part) for part in message["parts"]]}
                )
            fields = {**fields, "message": write_message(message), "configuration": configuration}
        elif card.reads_v0_3_files and sends:
            message = fields["message"]
            parts = [v0_3.write_part(part) if part.keys() & _FILES else part for part in message["parts"]]
            fields = {**fields, "message": {**message, "parts": parts}}
        if self.is_json_rpc:
            tenant = {"tenant": card.tenant} if card.tenant and not card.is_v0_3 else {}
            call = {"jsonrpc": "2.0", "id": next(self._ids), "method": self._methods[operation]}
            return [Request("POST", card.url, encode_json({**call, "params": {**fields, **tenant}}))]
        methods, path = _PATHS[operation]
        place = "v1" if card.is_v0_3 else quote(card.tenant, safe="")
        root = card.url.rstrip("/") + (f"/{place}" if place else "")
        if sends:
            return [Request("POST", root + path, encode_json(fields))]
        path = path.format_map({name: quote(value, safe="") for name, value in fields.items()})
        return [Request(method, root + path, b"") for method in methods]

    def read(self, operation: Operation, body: bytes) -> Fields:
        """Decode the result of an operation, or an event of its stream, to JSON of A2A 1.0.

        Raises:
            A2AError: The response is an error of the protocol.
            UpstreamError: The response is another error, or is not valid.
        """
        try:
            value: Any = json.loads(body)
        except (ValueError, RecursionError):
            value = None
        result: Any = None
        if isinstance(value, dict):
            fields = cast("Fields", value)
            if isinstance(fields.get("error"), dict):
                raise _as_error(fields["error"])
            if (
                isinstance(fields.get("type"), str) and fields["type"] in _ERRORS
            ):  # errors in HTTP+JSON of the official SDK before version 1.0
                raise _as_error({"code": fields["type"], "message": fields.get("message")})
            result = fields.get("result") if self.is_json_rpc else fields
        if not isinstance(result, dict):
            raise UpstreamError(
                f"the agent's response is not valid {'JSON-RPC' if self.is_json_rpc else 'A2A'}",
                fault=UpstreamFault.INVALID,
            )
        # The server of LangGraph returns objects of A2A 0.3 for methods of A2A 1.0.
        if not self._card.is_v0_3 and "kind" not in result:
            return cast("Fields", result)
        is_task = operation in (Operation.GET_TASK, Operation.CANCEL_TASK)
        try:
            read = (_task_from_v0_3 if is_task else _event_from_v0_3)(cast("Fields", result))
            if self._card.encodes_files_twice:
                for each in [read] if is_task else read.values():
                    v0_3_proto_json.decode_files(each)
            return read
        except InvalidParamsError as error:
            reason = error.detail
        except (
            TypeError,
            AttributeError,
            ValueError,
        ) as error:  # a value has an unexpected JSON type
            reason = str(error)
        raise UpstreamError(
            f"the agent sent an object that is not valid A2A 0.3: {reason}", fault=UpstreamFault.INVALID
        )


def _as_error(error: Mapping[str, Any]) -> A2AError | UpstreamError:
    text, code = str(error.get("message") or ""), error.get("code")
    details = error.get("details")
    reasons = [
        cast("Fields", each).get("reason")
        for each in cast("list[object]", details if isinstance(details, list) else [])
        if isinstance(each, dict)
    ]
    for name in (*reasons, code):
        kind = _ERRORS.get(name) if isinstance(name, str | int) else None
        if kind is not None:
            return kind(text.removeprefix(kind.message).removeprefix(": "))
    return UpstreamError(
        f"the agent reports an error: {text}", fault=UpstreamFault.PROVIDER, code=str(code), details=error
    )


# --- A2A 0.3 in both forms: JSON-RPC (with ``kind``) and HTTP+JSON (protobuf JSON) -------------------------


def _event_from_v0_3(value: Fields) -> Fields:
    """Decode an event of a stream, or the result of sending a message."""
    for name, read in _READERS.items():
        if isinstance(value.get(name), dict):
            return {name: read(value[name])}
    kind = value.get("kind") or (
        "message" if "messageId" in value else "artifact-update" if "artifact" in value else "task"
    )
    kind = {"status-update": "statusUpdate", "artifact-update": "artifactUpdate"}.get(kind, kind)
    if kind not in _READERS:
        raise InvalidParamsError(f"an event of kind {kind!r:.100}")
    return {kind: _READERS[kind](value)}


def _task_from_v0_3(value: Fields) -> Fields:
    task = _update_from_v0_3(value)
    for name, read in (("history", _message_from_v0_3), ("artifacts", _artifact_from_v0_3)):
        if isinstance(value.get(name), list):
            task[name] = [read(each) for each in value[name]]
    return task


def _update_from_v0_3(value: Fields) -> Fields:
    status = v0_3.mapping(value.get("status"), "status")
    name = str(status.get("state")).upper().replace("-", "_").removeprefix("TASK_STATE_")
    status["state"] = f"TASK_STATE_{'CANCELED' if name == 'CANCELLED' else name}"
    if "message" in status:
        status["message"] = _message_from_v0_3(status["message"])
    return {**value, "status": status}


def _message_from_v0_3(value: object) -> Fields:
    return v0_3_proto_json.read_proto_message(v0_3.mapping(value, "message"))


def _artifact_from_v0_3(value: object) -> Fields:
    artifact = v0_3.mapping(value, "artifact")
    parts = cast("list[object]", artifact.get("parts") or [])
    return {**artifact, "parts": [v0_3_proto_json.read_proto_part(part, "artifact.parts") for part in parts]}


def _artifact_update_from_v0_3(value: Fields) -> Fields:
    return {**value, "artifact": _artifact_from_v0_3(value.get("artifact"))}


_READERS = {
    "task": _task_from_v0_3,
    "message": _message_from_v0_3,
    "statusUpdate": _update_from_v0_3,
    "artifactUpdate": _artifact_update_from_v0_3,
}
