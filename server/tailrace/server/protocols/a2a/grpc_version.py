"""The interface of a protocol version over gRPC, and the conversion of errors to gRPC statuses."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import grpc
from google.protobuf.message import Message as ProtoMessage
from google.rpc import error_details_pb2, status_pb2

from tailrace.server.protocols.a2a.sdk_types import fill
from tailrace.streaming.a2a.errors import A2AError
from tailrace.streaming.a2a.event import Event
from tailrace.streaming.a2a.models import A2AModel
from tailrace.streaming.a2a.version_codec import Operation

# In bytes of trailing metadata.
MAX_MESSAGE = 512
_MAX_DETAIL = 256  # a value in a detail of an error
_MAX_VIOLATIONS = 2_048  # all field violations together


class GrpcVersion(ABC):
    """A version of the protocol over gRPC.

    Attributes:
        version: Major and minor version, as in ``a2a-version``.
        accepts: Accepted values of ``a2a-version``, which may also be missing.
        subscribes_to_ended_tasks: See `Dialect`.
    """

    version: ClassVar[str]
    accepts: ClassVar[frozenset[str]]
    descriptor: ClassVar[Any]
    operations: ClassVar[Mapping[str, Operation]]
    subscribes_to_ended_tasks: ClassVar[bool] = False

    def for_client(self, user_agent: str) -> "GrpcVersion":
        """Return the version for the calls of a client; see `Dialect.for_client`."""
        return self

    @abstractmethod
    def read_request(self, operation: Operation, message: ProtoMessage) -> A2AModel:
        """Decode and validate a request.

        Raises:
            InvalidParamsError: The request is invalid.
        """

    @abstractmethod
    def write_result(
        self, operation: Operation, result: A2AModel | None, kind: type[ProtoMessage]
    ) -> ProtoMessage:
        """Encode the result of an operation without a stream.

        Raises:
            InternalError: The result contains a value that protobuf cannot represent.
        """

    @abstractmethod
    def write_event(self, event: Event, *, is_last: bool) -> ProtoMessage:
        """Encode an event of a stream, including its number.

        Raises:
            InternalError: The event contains a value that protobuf cannot represent.
        """

    def write_status(self, error: A2AError) -> status_pb2.Status:
        """Convert an error to a gRPC status."""
        return to_status(error)


def to_status(error: A2AError, *, name: str = "", message: str = "") -> status_pb2.Status:
    """Convert an error to ``google.rpc.Status``, with an ErrorInfo and, if applicable, a BadRequest or a RetryInfo.

    Because the size of metadata is limited, long texts are shortened, and field violations beyond `_MAX_VIOLATIONS` bytes are
    omitted. ``name`` and ``message`` replace the status code and the message of the error.
    """
    info, *rest = error.details()
    metadata = {
        name: shortened_to_bytes(value, _MAX_DETAIL) for name, value in info.get("metadata", {}).items()
    }
    status = status_pb2.Status(
        code=grpc.StatusCode[name or error.status].value[0],
        message=shortened_to_bytes(message or str(error), MAX_MESSAGE),
    )
    status.details.add().Pack(fill(error_details_pb2.ErrorInfo(), info | {"metadata": metadata}))
    for detail in rest:
        if "retryDelay" in detail:
            pause = error_details_pb2.RetryInfo()
            pause.retry_delay.FromJsonString(detail["retryDelay"])
            status.details.add().Pack(pause)
            continue
        bad_request = error_details_pb2.BadRequest()
        for violation in detail["fieldViolations"]:
            details = {name: shortened_to_bytes(text, _MAX_DETAIL) for name, text in violation.items()}
            bad_request.field_violations.append(fill(error_details_pb2.BadRequest.FieldViolation(), details))
            if bad_request.ByteSize() > _MAX_VIOLATIONS:
                del bad_request.field_violations[-1]
                break
        status.details.add().Pack(bad_request)
    return status


def shortened_to_bytes(text: str, size: int) -> str:
    """Shorten a text to ``size`` bytes in UTF-8, with an ellipsis."""
    encoded = text.encode()
    return text if len(encoded) <= size else encoded[: size - 3].decode(errors="ignore") + "…"
