"""The interface to a protocol version over gRPC, and its errors."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import grpc
from google.protobuf.message import Message as ProtoMessage
from google.rpc import error_details_pb2, status_pb2

from tailrace.server.protocols.a2a.sdk_types import fill
from tailrace.streaming.a2a.dialect import Operation
from tailrace.streaming.a2a.errors import A2AError
from tailrace.streaming.a2a.event import Event
from tailrace.streaming.a2a.models import A2AModel

# Bytes in the trailing metadata of a call.
MAX_MESSAGE = 512
_MAX_FACT = 256
_MAX_VIOLATIONS = 2_048


class GrpcVersion(ABC):
    """A version of the protocol as this binding speaks it.

    Attributes:
        version: As in ``a2a-version``: major and minor.
        accepts: The values of ``a2a-version`` that its service answers, beside none at all.
        descriptor: The service.
        operations: What its methods ask for.
        repeats_finished: Following a task that is over gives the task as it stands, where others refuse.
    """

    version: ClassVar[str]
    accepts: ClassVar[frozenset[str]]
    descriptor: ClassVar[Any]
    operations: ClassVar[Mapping[str, Operation]]
    repeats_finished: ClassVar[bool] = False

    def for_client(self, user_agent: str) -> "GrpcVersion":
        """The version for the calls of one client, as `Dialect.for_client`."""
        return self

    @abstractmethod
    def read_request(self, operation: Operation, message: ProtoMessage) -> A2AModel:
        """The request that a message means, validated.

        Raises:
            InvalidParamsError: It is not what the operation takes.
        """

    @abstractmethod
    def write_result(
        self, operation: Operation, result: A2AModel | None, kind: type[ProtoMessage]
    ) -> ProtoMessage:
        """The result of an operation that does not stream, as a message of that kind.

        Raises:
            InternalError: It holds what protobuf cannot carry.
        """

    @abstractmethod
    def write_event(self, event: Event, *, closes: bool) -> ProtoMessage:
        """One event of a stream, with its number; ``closes``: nothing follows on this stream.

        Raises:
            InternalError: It holds what protobuf cannot carry.
        """

    def write_status(self, error: A2AError) -> status_pb2.Status:
        """The status of an error."""
        return to_status(error)


def to_status(error: A2AError, *, name: str = "", message: str = "") -> status_pb2.Status:
    """An error of the protocol as ``google.rpc.Status``, with an ErrorInfo and perhaps a BadRequest or a RetryInfo.

    Texts are cut and violations left out beyond a few hundred bytes, so that all of it fits into metadata.

    Args:
        error: The error.
        name: The name of the status, where it is another than the error's own.
        message: What the status says, where that is not what the error says.
    """
    info, *rest = error.details()
    metadata = {name: clipped(value, _MAX_FACT) for name, value in info.get("metadata", {}).items()}
    status = status_pb2.Status(
        code=grpc.StatusCode[name or error.status].value[0],
        message=clipped(message or str(error), MAX_MESSAGE),
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
            found = {name: clipped(text, _MAX_FACT) for name, text in violation.items()}
            bad_request.field_violations.append(fill(error_details_pb2.BadRequest.FieldViolation(), found))
            if bad_request.ByteSize() > _MAX_VIOLATIONS:
                del bad_request.field_violations[-1]
                break
        status.details.add().Pack(bad_request)
    return status


def clipped(text: str, size: int) -> str:
    """At most so many bytes of a text, in UTF-8."""
    encoded = text.encode()
    return text if len(encoded) <= size else encoded[: size - 3].decode(errors="ignore") + "…"
