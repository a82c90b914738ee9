"""The errors of A2A 1.0: one class an error, with every number and name a binding needs to report it.

::

    ProtocolError                                       tailrace.wrappers
    └── A2AError                                        JSON-RPC  HTTP
        ├── TaskNotFoundError                           -32001    404
        ├── TaskNotCancelableError                      -32002    400
        ├── PushNotificationNotSupportedError           -32003    400
        ├── UnsupportedOperationError                   -32004    400
        ├── ContentTypeNotSupportedError                -32005    400
        ├── InvalidAgentResponseError                   -32006    500
        ├── ExtendedAgentCardNotConfiguredError         -32007    400
        ├── ExtensionSupportRequiredError               -32008    400
        ├── VersionNotSupportedError                    -32009    400
        ├── InvalidRequestError                         -32600    400
        ├── MethodNotFoundError                         -32601    404
        ├── InvalidParamsError                          -32602    400
        ├── InternalError                               -32603    500
        └── ParseError                                  -32700    400

The HTTP and gRPC statuses are those of A2A 1.0.1; 1.0.0 had others for five of the errors.

Source: A2A 1.0.1, sections 3.3.2 (errors), 5.4 (mapping) and 9.5 (JSON-RPC error object); ``google.rpc.ErrorInfo``
and ``google.rpc.BadRequest``.
"""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, NamedTuple

from pydantic import ValidationError
from pydantic.alias_generators import to_camel

from tailrace.wrappers import ProtocolError
from tailrace.wrappers.messages import clipped

_DOMAIN = "a2a-protocol.org"
_MESSAGES = {"tuple_type": "Input should be a valid list"}  # JSON has no tuples
_MAX_VIOLATIONS = 20  # a request of ten thousand wrong parts must not get an answer larger than itself


class FieldViolation(NamedTuple):
    """One field of a request that is wrong.

    Attributes:
        field: Where, in the names of the JSON: ``message.parts[0].url``; indices count from 0.
        description: What is wrong with it. Never holds the value that was sent.
    """

    field: str
    description: str


class A2AError(ProtocolError):
    """Base of the errors of the protocol; raise one of its subclasses.

    Args:
        detail: What happened, for the caller's eyes; empty when the standard message says it all.
        metadata: Facts for programs (``{"taskId": …}``), string to string.
        violations: The fields that are wrong.

    Attributes:
        code: The JSON-RPC error code.
        http_status: The HTTP status of the HTTP+JSON binding. (JSON-RPC errors travel with status 200.)
        status: The name of the gRPC status, which the HTTP+JSON error body carries too.
        reason: ``ErrorInfo.reason``.
        message: The standard message.
        detail: As given.
        metadata: As given.
        violations: As given.
    """

    code: ClassVar[int]
    http_status: ClassVar[int]
    status: ClassVar[str]
    reason: ClassVar[str]
    message: ClassVar[str]

    def __init__(
        self,
        detail: str = "",
        *,
        metadata: Mapping[str, str] | None = None,
        violations: Iterable[FieldViolation] = (),
    ) -> None:
        detail = clipped(detail)
        super().__init__(detail)
        self.detail = detail
        self.metadata = {name: clipped(value) for name, value in (metadata or {}).items()}
        self.violations = tuple(violations)

    def __str__(self) -> str:
        """The standard message, then the detail: ``Task not found: no task "t1"``."""
        return f"{self.message}: {self.detail}" if self.detail else self.message

    def to_jsonrpc(self) -> dict[str, Any]:
        """The ``error`` member of a JSON-RPC response.

        Returns:
            ``{"code", "message", "data"}``; data is a list with one ErrorInfo and, where fields are wrong, one
            BadRequest.
        """
        return {"code": self.code, "message": str(self), "data": self.details()}

    def details(self) -> list[dict[str, Any]]:
        """The typed details alone, as every binding carries them: an ErrorInfo, then perhaps a BadRequest."""
        info: dict[str, Any] = {
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            "reason": self.reason,
            "domain": _DOMAIN,
        }
        if self.metadata:
            info["metadata"] = dict(self.metadata)
        if not self.violations:
            return [info]
        bad_request = {
            "@type": "type.googleapis.com/google.rpc.BadRequest",
            "fieldViolations": [violation._asdict() for violation in self.violations],
        }
        return [info, bad_request]


class TaskNotFoundError(A2AError):
    """No task of this id, or none that this caller may see: the answer is the same."""

    code = -32001
    http_status = 404
    status = "NOT_FOUND"
    reason = "TASK_NOT_FOUND"
    message = "Task not found"


class TaskNotCancelableError(A2AError):
    """The task is over, so there is nothing to cancel."""

    code = -32002
    http_status = 400
    status = "FAILED_PRECONDITION"
    reason = "TASK_NOT_CANCELABLE"
    message = "Task cannot be canceled"


class PushNotificationNotSupportedError(A2AError):
    """The agent sends no push notifications."""

    code = -32003
    http_status = 400
    status = "FAILED_PRECONDITION"
    reason = "PUSH_NOTIFICATION_NOT_SUPPORTED"
    message = "Push Notification is not supported"


class UnsupportedOperationError(A2AError):
    """The agent does not do this, or not in the task's present state."""

    code = -32004
    http_status = 400
    status = "FAILED_PRECONDITION"
    reason = "UNSUPPORTED_OPERATION"
    message = "This operation is not supported"


class ContentTypeNotSupportedError(A2AError):
    """A part has a media type that the agent does not take."""

    code = -32005
    http_status = 400
    status = "INVALID_ARGUMENT"
    reason = "CONTENT_TYPE_NOT_SUPPORTED"
    message = "Incompatible content types"


class InvalidAgentResponseError(A2AError):
    """The agent's own code produced what the protocol does not allow."""

    code = -32006
    http_status = 500
    status = "INTERNAL"
    reason = "INVALID_AGENT_RESPONSE"
    message = "Invalid agent response"


class ExtendedAgentCardNotConfiguredError(A2AError):
    """The agent declares an extended card but has none."""

    code = -32007
    http_status = 400
    status = "FAILED_PRECONDITION"
    reason = "EXTENDED_AGENT_CARD_NOT_CONFIGURED"
    message = "Authenticated Extended Card is not configured"


class ExtensionSupportRequiredError(A2AError):
    """The agent requires an extension that the client did not list."""

    code = -32008
    http_status = 400
    status = "FAILED_PRECONDITION"
    reason = "EXTENSION_SUPPORT_REQUIRED"
    message = "Extension support required"


class VersionNotSupportedError(A2AError):
    """The request names a protocol version that is not spoken here."""

    code = -32009
    http_status = 400
    status = "FAILED_PRECONDITION"
    reason = "VERSION_NOT_SUPPORTED"
    message = "Version not supported"


class ParseError(A2AError):
    """The body is not JSON."""

    code = -32700
    http_status = 400
    status = "INVALID_ARGUMENT"
    reason = "PARSE_ERROR"
    message = "Invalid JSON payload"


class InvalidRequestError(A2AError):
    """The body is JSON, but not a JSON-RPC request."""

    code = -32600
    http_status = 400
    status = "INVALID_ARGUMENT"
    reason = "INVALID_REQUEST"
    message = "Request payload validation error"


class MethodNotFoundError(A2AError):
    """No method of this name."""

    code = -32601
    http_status = 404
    status = "NOT_FOUND"
    reason = "METHOD_NOT_FOUND"
    message = "Method not found"


class InvalidParamsError(A2AError):
    """The parameters are not what the method takes."""

    code = -32602
    http_status = 400
    status = "INVALID_ARGUMENT"
    reason = "INVALID_PARAMS"
    message = "Invalid parameters"

    @classmethod
    def from_validation(cls, error: ValidationError) -> "InvalidParamsError":
        """Return the invalid fields of a request, with reasons.

        Args:
            error: What a model of `tailrace.streaming.a2a.models` raised over the request.

        Returns:
            An error whose detail names the first field and whose violations list the first 20. Values that the
            caller sent are not repeated: they may be secrets, and may be large.
        """
        found = error.errors(include_url=False, include_context=False, include_input=False)
        violations = [
            FieldViolation(
                _path(item["loc"]), _MESSAGES.get(item["type"]) or item["msg"].removeprefix("Value error, ")
            )
            for item in found[:_MAX_VIOLATIONS]
        ]
        first = violations[0]
        detail = f"{first.field}: {first.description}" if first.field else first.description
        if len(found) > 1:
            detail += f" (and {len(found) - 1} more)"
        # A violation without a field is about the parameters as a whole; which are in the detail.
        return cls(detail, violations=[violation for violation in violations if violation.field])


class InternalError(A2AError):
    """The fault is ours."""

    code = -32603
    http_status = 500
    status = "INTERNAL"
    reason = "INTERNAL_ERROR"
    message = "Internal error"


def _path(location: tuple[int | str, ...]) -> str:
    """``("message", "parts", 0, "media_type")`` → ``message.parts[0].mediaType``."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{to_camel(step)}" for step in location)
    return "".join(steps).removeprefix(".")
