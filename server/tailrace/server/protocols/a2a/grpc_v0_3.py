"""A2A 0.3 over gRPC: the service ``a2a.v1.A2AService``.

Protobuf messages are converted to and from ProtoJSON, the JSON of HTTP+JSON in 0.3. Only requests differ: they identify tasks and
webhooks by resource names (``tasks/ID/pushNotificationConfigs/ID``).

Source: A2A 0.3.0, ``specification/grpc/a2a.proto``. In the message of an error status, clients expect the name of the error,
followed by a colon.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, cast

from a2a.compat.v0_3 import a2a_v0_3_pb2
from google.protobuf.message import Message as ProtoMessage
from google.rpc import status_pb2

from tailrace.server.protocols.a2a.grpc_version import GrpcVersion, to_status
from tailrace.server.protocols.a2a.sdk_types import fill, to_json
from tailrace.streaming.a2a.card_v0_3 import write_proto_card
from tailrace.streaming.a2a.errors import (
    A2AError,
    ExtendedAgentCardNotConfiguredError,
    FieldViolation,
    InvalidParamsError,
    PushNotificationNotSupportedError,
    UnsupportedOperationError,
)
from tailrace.streaming.a2a.event import Event
from tailrace.streaming.a2a.models import A2AModel, AgentCard
from tailrace.streaming.a2a.stream_extension import with_extension_metadata
from tailrace.streaming.a2a.v0_3_proto_json import Version03ProtoJson
from tailrace.streaming.a2a.version_codec import Operation

Fields = dict[str, Any]

_TASKS = "tasks/"
_CONFIGS = "/pushNotificationConfigs"

# Clients of 0.3 interpret FAILED_PRECONDITION, the status in 1.0, as "cannot be canceled".
_UNIMPLEMENTED = (PushNotificationNotSupportedError, UnsupportedOperationError)


class Grpc03(GrpcVersion):
    """A2A 0.3 with the protobuf messages of the SDK."""

    version = "0.3"
    accepts = frozenset({"0.3", "0.2"})
    subscribes_to_ended_tasks: ClassVar[bool] = True
    descriptor: ClassVar[Any] = a2a_v0_3_pb2.DESCRIPTOR.services_by_name["A2AService"]
    operations: ClassVar[Mapping[str, Operation]] = {
        "SendMessage": Operation.SEND_MESSAGE,
        "SendStreamingMessage": Operation.SEND_STREAMING_MESSAGE,
        "GetTask": Operation.GET_TASK,
        "CancelTask": Operation.CANCEL_TASK,
        "TaskSubscription": Operation.SUBSCRIBE_TO_TASK,
        "CreateTaskPushNotificationConfig": Operation.CREATE_PUSH_CONFIG,
        "GetTaskPushNotificationConfig": Operation.GET_PUSH_CONFIG,
        "ListTaskPushNotificationConfig": Operation.LIST_PUSH_CONFIGS,
        "DeleteTaskPushNotificationConfig": Operation.DELETE_PUSH_CONFIG,
        "GetAgentCard": Operation.GET_EXTENDED_CARD,
    }

    def __init__(self, dialect: Version03ProtoJson | None = None) -> None:
        self._dialect = dialect or Version03ProtoJson()

    def for_client(self, user_agent: str) -> "Grpc03":
        """Return the instance that encodes the bytes of files as a client expects."""
        return Grpc03(self._dialect.for_client(user_agent))

    def read_request(self, operation: Operation, message: ProtoMessage) -> A2AModel:
        """Decode a request. Its resource names are converted to ids."""
        fields = to_json(message)
        if operation in (Operation.GET_TASK, Operation.CANCEL_TASK, Operation.SUBSCRIBE_TO_TASK):
            fields |= {"id": _task_id(fields.pop("name", ""), "name")}
        elif operation in (Operation.GET_PUSH_CONFIG, Operation.DELETE_PUSH_CONFIG):
            fields |= _config_ids(fields.pop("name", ""))
        elif operation in (Operation.CREATE_PUSH_CONFIG, Operation.LIST_PUSH_CONFIGS):
            # According to the proto's HTTP rule, ``parent`` may end with the name of the collection.
            fields |= {"taskId": _task_id(fields.pop("parent", "").removesuffix(_CONFIGS), "parent")}
        return self._dialect.read_request(operation, fields)

    def write_result(
        self, operation: Operation, result: A2AModel | None, kind: type[ProtoMessage]
    ) -> ProtoMessage:
        """Encode the result as a protobuf message."""
        if isinstance(result, AgentCard):
            return fill(kind(), write_proto_card(result))
        return fill(kind(), cast("Fields", self._dialect.result_fields(operation, result)))

    def write_event(self, event: Event, *, is_last: bool) -> ProtoMessage:
        """Encode a ``StreamResponse``. The metadata of the stream extension contains the number of the event."""
        fields = self._dialect.event_fields(event, is_last=is_last)
        [(kind, update)] = fields.items()
        if kind.endswith("Update") and event.number:
            update["metadata"] = with_extension_metadata(update.get("metadata", {}), number=event.number)
        return fill(a2a_v0_3_pb2.StreamResponse(), fields)

    def write_status(self, error: A2AError) -> status_pb2.Status:
        """Return the status. Its message is the name of the error, a colon, and the message of the error."""
        name = type(error).__name__
        if isinstance(error, ExtendedAgentCardNotConfiguredError):
            name = "AuthenticatedExtendedCardNotConfiguredError"
        status = "UNIMPLEMENTED" if isinstance(error, _UNIMPLEMENTED) else error.status
        return to_status(error, name=status, message=f"{name}: {error}")


def _task_id(name: str, field: str) -> str:
    task_id = name.removeprefix(_TASKS)
    if not name.startswith(_TASKS) or not task_id:
        raise _misnamed(field, "tasks/ID")
    return task_id


def _config_ids(name: str) -> Fields:
    task, parted, config_id = name.rpartition(f"{_CONFIGS}/")
    if not parted or not config_id or not task.removeprefix(_TASKS):
        raise _misnamed("name", f"tasks/ID{_CONFIGS}/ID")
    return {"taskId": _task_id(task, "name"), "configId": config_id}


def _misnamed(field: str, form: str) -> InvalidParamsError:
    description = f"must be {form}"
    return InvalidParamsError(f"{field}: {description}", violations=[FieldViolation(field, description)])
