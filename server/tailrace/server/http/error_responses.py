"""Error responses over HTTP, for all protocols."""

import json
import logging
from dataclasses import dataclass, field
from typing import Any

from fastapi import Response

from tailrace.server.runtime.auth_error import AuthError
from tailrace.server.runtime.limits import LimitError, RequestTimeoutError
from tailrace.server.runtime.observer import OBSERVER
from tailrace.streaming.a2a.errors import A2AError, InternalError, InvalidParamsError
from tailrace.wrappers import ProtocolError, StoreError

logger = logging.getLogger("tailrace.server")


@dataclass(frozen=True)
class Problem:
    """An error of a request, independent of a protocol version.

    Attributes:
        code: The HTTP status.
        status: The name of the gRPC status.
        name: The name of the error.
        message: The message.
        details: Typed details, as in ``google.rpc.Status``.
        headers: Headers of the response.
        rpc_code: The JSON-RPC code for an error that A2A defines; None for other errors.
    """

    code: int
    status: str
    name: str
    message: str
    details: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    headers: dict[str, str] = field(default_factory=dict[str, str])
    rpc_code: int | None = None

    @classmethod
    def of(cls, error: Exception) -> "Problem":
        """Convert an exception to a problem."""
        if isinstance(error, AuthError):
            drop_frames(error)
            status = "PERMISSION_DENIED" if error.forbidden else "UNAUTHENTICATED"
            challenge = {"WWW-Authenticate": error.challenge} if error.challenge else {}
            return cls(error.http_status, status, "AuthenticationError", str(error), headers=challenge)
        a2a_error = as_a2a_error(error)
        name = type(a2a_error).__name__
        return cls(
            a2a_error.http_status,
            a2a_error.status,
            name,
            str(a2a_error),
            a2a_error.details(),
            headers=error_headers(a2a_error),
            rpc_code=a2a_error.code,
        )

    def body(self) -> bytes:
        """Return the error as JSON of a ``google.rpc.Status`` (A2A 1.0, section 11.6)."""
        error = {"code": self.code, "status": self.status, "message": self.message, "details": self.details}
        return encode_ascii({"error": error})

    def response(self) -> Response:
        """Return a response with `body`."""
        return Response(self.body(), self.code, headers=self.headers, media_type="application/json")


def encode_ascii(value: object) -> bytes:
    """Encode JSON as one line of ASCII, because text from a client may contain characters that UTF-8 cannot encode."""
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def error_headers(error: A2AError) -> dict[str, str]:
    """Return the headers for an error, for example ``Retry-After``."""
    return error.headers if isinstance(error, LimitError | RequestTimeoutError) else {}


def as_a2a_error(error: Exception) -> A2AError:
    """Convert an exception to an error of A2A, report it to the observer, and log it if the server caused it."""
    OBSERVER.get().error_occurred(error)
    if not isinstance(error, A2AError | ProtocolError | StoreError):
        logger.exception("a request failed", exc_info=error)
    drop_frames(error)
    if isinstance(error, A2AError):
        return error
    if isinstance(error, ProtocolError):
        return InvalidParamsError(str(error))
    if isinstance(error, StoreError):
        logger.error("%s", error)
        return InternalError("the task store does not work at present; try again later")
    return InternalError()


def drop_frames(error: BaseException) -> None:
    """Remove the tracebacks of a handled error and of its causes.

    A frame in a traceback can reference the error. Until the garbage collector frees such a cycle, the body of the rejected
    request would remain in memory.
    """
    seen: BaseException | None = error
    while seen is not None and seen.__traceback__ is not None:
        seen.__traceback__ = None
        seen = seen.__cause__ or seen.__context__
