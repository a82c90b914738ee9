"""A2A 1.0 over gRPC: the service ``lf.a2a.v1.A2AService`` (section 10 of the specification)."""

from collections.abc import Mapping
from typing import Any, ClassVar, cast

from a2a.types import a2a_pb2
from google.protobuf.message import Message as ProtoMessage

from tailrace.server.protocols.a2a.grpc_version import GrpcVersion
from tailrace.server.protocols.a2a.sdk_events import to_stream_response
from tailrace.server.protocols.a2a.sdk_types import from_sdk, to_sdk
from tailrace.streaming.a2a.event import Event
from tailrace.streaming.a2a.models import A2AModel, Message, Task
from tailrace.streaming.a2a.requests import SendMessageResponse
from tailrace.streaming.a2a.v1_0 import REQUESTS
from tailrace.streaming.a2a.version_codec import EXTENSION_OPERATIONS, Operation


class Grpc10(GrpcVersion):
    """A2A 1.0 with the protobuf messages of the SDK."""

    version = "1.0"
    accepts = frozenset({"1.0"})
    descriptor: ClassVar[Any] = a2a_pb2.DESCRIPTOR.services_by_name["A2AService"]
    operations: ClassVar[Mapping[str, Operation]] = {
        str(operation): operation for operation in Operation if operation not in EXTENSION_OPERATIONS
    }

    def read_request(self, operation: Operation, message: ProtoMessage) -> A2AModel:
        """Decode and validate a request."""
        return from_sdk(message, REQUESTS[operation])

    def write_result(
        self, operation: Operation, result: A2AModel | None, kind: type[ProtoMessage]
    ) -> ProtoMessage:
        """Encode a result. The result of ``SendMessage`` is wrapped in a ``SendMessageResponse``."""
        if result is None:
            return kind()
        if operation is Operation.SEND_MESSAGE:
            sent = cast("Task | Message", result)
            result = (
                SendMessageResponse(task=sent)
                if isinstance(sent, Task)
                else SendMessageResponse(message=sent)
            )
        return to_sdk(result, kind)

    def write_event(self, event: Event, *, is_last: bool) -> ProtoMessage:
        """Encode a ``StreamResponse``. The metadata of the stream extension contains the number of the event."""
        return to_stream_response(event)
