"""JSON-RPC 2.0 envelopes and error codes, with their names from before the official SDK."""

from enum import IntEnum
from typing import Any, Literal

from a2a.server.jsonrpc_models import JSONRPCError
from pydantic import BaseModel

from tailrace.streaming.a2a import errors

RequestId = str | int | None


class JSONRPCRequest(BaseModel):
    """A JSON-RPC request.

    Attributes:
        jsonrpc: The version of JSON-RPC.
        id: The id of the request, which is repeated in the response.
        method: The method, for A2A 1.0 for example ``"SendMessage"``.
        params: The parameters of the method; None for none.
    """

    jsonrpc: Literal["2.0"] = "2.0"
    id: RequestId = None
    method: str
    params: dict[str, Any] | None = None


class JSONRPCResponse(BaseModel):
    """A JSON-RPC response with a result or an error.

    Attributes:
        jsonrpc: The version of JSON-RPC.
        id: The id of the request.
        result: The result; None for an error.
        error: The error; None for a result.
    """

    jsonrpc: Literal["2.0"] = "2.0"
    id: RequestId = None
    result: Any = None
    error: JSONRPCError | None = None


class JSONRPCSuccessResponse(BaseModel):
    """A JSON-RPC response with a result; see `JSONRPCResponse`."""

    jsonrpc: Literal["2.0"] = "2.0"
    id: RequestId = None
    result: Any


class JSONRPCErrorResponse(BaseModel):
    """A JSON-RPC response with an error; see `JSONRPCResponse`."""

    jsonrpc: Literal["2.0"] = "2.0"
    id: RequestId = None
    error: JSONRPCError


class ErrorCode(IntEnum):
    """The codes of A2A's errors in JSON-RPC."""

    PARSE_ERROR = errors.ParseError.code
    INVALID_REQUEST = errors.InvalidRequestError.code
    METHOD_NOT_FOUND = errors.MethodNotFoundError.code
    INVALID_PARAMS = errors.InvalidParamsError.code
    INTERNAL_ERROR = errors.InternalError.code
    TASK_NOT_FOUND = errors.TaskNotFoundError.code
    TASK_NOT_CANCELABLE = errors.TaskNotCancelableError.code
    PUSH_NOTIFICATION_NOT_SUPPORTED = errors.PushNotificationNotSupportedError.code
    UNSUPPORTED_OPERATION = errors.UnsupportedOperationError.code
    CONTENT_TYPE_NOT_SUPPORTED = errors.ContentTypeNotSupportedError.code
    INVALID_AGENT_RESPONSE = errors.InvalidAgentResponseError.code
    EXTENDED_AGENT_CARD_NOT_CONFIGURED = errors.ExtendedAgentCardNotConfiguredError.code
    EXTENSION_SUPPORT_REQUIRED = errors.ExtensionSupportRequiredError.code
    VERSION_NOT_SUPPORTED = errors.VersionNotSupportedError.code
