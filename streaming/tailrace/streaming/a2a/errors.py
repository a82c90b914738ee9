"""The errors of A2A 1.0, with their codes and names for all bindings.

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

The HTTP and gRPC statuses are those of A2A 1.0.1.

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
_MAX_VIOLATIONS = 20  # keeps the response to an invalid request small


class FieldViolation(NamedTuple):
    """One invalid field of a request.

    Attributes:
        field: The path of the field, with JSON names: ``message.parts[0].url``.
        description: The reason why the field is invalid, without its value.
    """

    field: str
    description: str


class A2AError(ProtocolError):
    """Base class of the errors of the protocol. Only its subclasses are raised.

    Args:
        detail: Details for the caller; empty if the standard message is sufficient.
        metadata: Data for programs, for example ``{"taskId": …}``.
        violations: The invalid fields of the request.

    Attributes:
        code: The JSON-RPC error code.
        http_status: The HTTP status in the HTTP+JSON binding. (JSON-RPC errors are sent with the status 200.)
        status: The name of the gRPC status, also in the body of an HTTP+JSON error.
        reason: The value of ``ErrorInfo.reason``.
        message: The standard message.
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
        """Return the standard message and the detail, for example ``Task not found: no task "t1"``."""
        return f"{self.message}: {self.detail}" if self.detail else self.message

    def to_jsonrpc(self) -> dict[str, Any]:
        """Return the member ``error`` of a JSON-RPC response. Its member ``data`` contains `details`."""
        return {"code": self.code, "message": str(self), "data": self.details()}

    def details(self) -> list[dict[str, Any]]:
        """Return the typed details for all bindings: an ErrorInfo and, if fields are invalid, a BadRequest."""
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
    """The caller has no task with this id. Tasks of other callers have the same error."""

    code = -32001
    http_status = 404
    status = "NOT_FOUND"
    reason = "TASK_NOT_FOUND"
    message = "Task not found"


class TaskNotCancelableError(A2AError):
    """The task cannot be canceled, because it has ended."""

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
    """The agent does not support the operation, or does not support it in the current state of the task."""

    code = -32004
    http_status = 400
    status = "FAILED_PRECONDITION"
    reason = "UNSUPPORTED_OPERATION"
    message = "This operation is not supported"


class ContentTypeNotSupportedError(A2AError):
    """A part has a media type that the agent does not accept."""

    code = -32005
    http_status = 400
    status = "INVALID_ARGUMENT"
    reason = "CONTENT_TYPE_NOT_SUPPORTED"
    message = "Incompatible content types"


class InvalidAgentResponseError(A2AError):
    """The agent produced a result that the protocol does not allow."""

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
    """The agent requires an extension that the client did not request."""

    code = -32008
    http_status = 400
    status = "FAILED_PRECONDITION"
    reason = "EXTENSION_SUPPORT_REQUIRED"
    message = "Extension support required"


class VersionNotSupportedError(A2AError):
    """The request names a protocol version that the server does not support."""

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
    """The body is valid JSON, but not a JSON-RPC request."""

    code = -32600
    http_status = 400
    status = "INVALID_ARGUMENT"
    reason = "INVALID_REQUEST"
    message = "Request payload validation error"


class MethodNotFoundError(A2AError):
    """There is no method with this name."""

    code = -32601
    http_status = 404
    status = "NOT_FOUND"
    reason = "METHOD_NOT_FOUND"
    message = "Method not found"


class InvalidParamsError(A2AError):
    """The parameters are not valid for the method."""

    code = -32602
    http_status = 400
    status = "INVALID_ARGUMENT"
    reason = "INVALID_PARAMS"
    message = "Invalid parameters"

    @classmethod
    def from_validation(cls, error: ValidationError) -> "InvalidParamsError":
        """Create an error that lists the invalid fields of a request.

        The detail names the first invalid field, and the violations list at most 20 fields. The error does not contain the
        caller's values, which may be secret or large.
        """
        problems = error.errors(include_url=False, include_context=False, include_input=False)
        violations = [
            FieldViolation(
                _path(item["loc"]), _MESSAGES.get(item["type"]) or item["msg"].removeprefix("Value error, ")
            )
            for item in problems[:_MAX_VIOLATIONS]
        ]
        first = violations[0]
        detail = f"{first.field}: {first.description}" if first.field else first.description
        if len(problems) > 1:
            detail += f" (and {len(problems) - 1} more)"
        # A violation without a field concerns all parameters, and is only in the detail.
        return cls(detail, violations=[violation for violation in violations if violation.field])


class InternalError(A2AError):
    """The server has an internal error."""

    code = -32603
    http_status = 500
    status = "INTERNAL"
    reason = "INTERNAL_ERROR"
    message = "Internal error"


def _path(location: tuple[int | str, ...]) -> str:
    """Convert ``("message", "parts", 0, "media_type")`` to ``message.parts[0].mediaType``."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{to_camel(step)}" for step in location)
    return "".join(steps).removeprefix(".")
