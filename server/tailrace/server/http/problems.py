"""Headers of requests, and errors in HTTP responses, for all protocols."""

import json
import logging
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request, Response
from starlette.datastructures import QueryParams

from tailrace.server.auth.authentication import Credentials
from tailrace.server.observability.query_secrets import query_of
from tailrace.server.runtime.errors import AuthError
from tailrace.server.runtime.limits import LimitError, RequestTimeoutError
from tailrace.server.runtime.observer import OBSERVER
from tailrace.streaming.a2a.errors import A2AError, InternalError, InvalidParamsError
from tailrace.wrappers import ProtocolError, StoreError
from tailrace.wrappers.messages import shortened

logger = logging.getLogger("tailrace.server")

_MAX_CURSOR_DIGITS = 15

# Versions whose clients accept another version's form.
_SPOKEN_AS = {"0.2": "0.3"}

# The headers with extensions: of A2A 1.0, and of 0.3.
_EXTENSION_HEADERS = ("A2A-Extensions", "X-A2A-Extensions")
EXTENSIONS_QUERY = "A2A-Extensions"


@dataclass(frozen=True)
class Problem:
    """An error before it is written in the form of a protocol version.

    Attributes:
        code: The HTTP status.
        status: The name of the gRPC status.
        name: The name of the error.
        message: The message.
        details: Typed details.
        headers: Headers of the response.
        rpc_code: The JSON-RPC code of an error of the protocol; None for an error of HTTP only.
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
        """Convert an exception: a refused caller, or an error of the protocol."""
        if isinstance(error, AuthError):
            drop_frames(error)
            status = "PERMISSION_DENIED" if error.forbidden else "UNAUTHENTICATED"
            challenge = {"WWW-Authenticate": error.challenge} if error.challenge else {}
            return cls(error.http_status, status, "AuthenticationError", str(error), headers=challenge)
        found = as_a2a_error(error)
        name = type(found).__name__
        return cls(
            found.http_status,
            found.status,
            name,
            str(found),
            found.details(),
            headers=error_headers(found),
            rpc_code=found.code,
        )

    def body(self) -> bytes:
        """Return the error as ``google.rpc.Status`` in JSON (A2A 1.0, section 11.6)."""
        error = {"code": self.code, "status": self.status, "message": self.message, "details": self.details}
        return encode_ascii({"error": error})

    def response(self) -> Response:
        """Return the response with that body."""
        return Response(self.body(), self.code, headers=self.headers, media_type="application/json")


def encode_ascii(value: object) -> bytes:
    """Encode JSON in one line of ASCII: it may contain a client's text, which every reader must be able to decode."""
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def error_headers(error: A2AError) -> dict[str, str]:
    """Return the headers of an error: the time to wait before a retry, if it is known."""
    return error.headers if isinstance(error, LimitError | RequestTimeoutError) else {}


def credentials_of(request: Request) -> Credentials:
    """Return the credentials of a request; cookies and query are used for reads only."""
    query = QueryParams(query_of(request.scope))
    return Credentials(request.headers, query, reads=request.method in ("GET", "HEAD"))


def requested_version(request: Request) -> str:
    """Return the protocol version that the request names, major and minor only; empty if it names none.

    It is in a header, or in a query parameter for clients that cannot set one (A2A 1.0, section 3.6.1). Clients of 0.2 are
    treated like those of 0.3.
    """
    value = request.headers.get("a2a-version") or request.query_params.get("A2A-Version") or ""
    version = major_minor(value)
    return _SPOKEN_AS.get(version, version)


def major_minor(version: str) -> str:
    """Return a version without its patch number, which is irrelevant (A2A 1.0, section 3.6)."""
    return ".".join(version.strip().split(".")[:2])


def cursor_of(request: Request) -> int | None:
    """Return the event number after which a stream resumes: ``Last-Event-ID``, as browsers send it, or the query ``after``.

    Raises:
        InvalidParamsError: It is not a number.
    """
    header = parse_cursor(request.headers.get("last-event-id", ""), "Last-Event-ID")
    return parse_cursor(request.query_params.get("after", ""), "after") if header is None else header


def parse_cursor(value: str, name: str) -> int | None:
    """Parse the event number of a client; None for none.

    Args:
        value: The client's value.
        name: The name of its header or parameter, for the message.

    Raises:
        InvalidParamsError: It is not a number.
    """
    value = value.strip()
    if not value:
        return None
    if not (value.isascii() and value.isdigit() and len(value) <= _MAX_CURSOR_DIGITS):
        raise InvalidParamsError(f"{name} must be the id of an event of this task, not {shortened(value)}")
    return int(value)


def requested_extensions(request: Request) -> tuple[str, ...]:
    """Return the URIs of the extensions that a request names, in either header."""
    listed = [value for name in _EXTENSION_HEADERS for value in request.headers.getlist(name)]
    listed += request.query_params.getlist(EXTENSIONS_QUERY)
    return tuple(uri for value in listed for uri in parse_extensions(value))


def parse_extensions(listed: str) -> tuple[str, ...]:
    """Split a comma-separated list of URIs."""
    return tuple(uri for each in listed.split(",") if (uri := each.strip()))


def extension_headers(request: Request, activated: tuple[str, ...]) -> dict[str, str]:
    """Return the header with the activated extensions, under the name in the request (A2A 1.0, section 3.2.6).

    Args:
        request: The request.
        activated: The extensions, see `Capabilities.activated`.
    """
    if not activated:
        return {}
    _, old = _EXTENSION_HEADERS
    names = _EXTENSION_HEADERS if old in request.headers else _EXTENSION_HEADERS[:1]
    return dict.fromkeys(names, ", ".join(activated))


def accepts(request: Request, media_type: str) -> bool:
    """Return whether an ``Accept`` header of the request names a media type; clients send several of them."""
    return any(media_type in accepted for accepted in request.headers.getlist("accept"))


def as_a2a_error(error: Exception) -> A2AError:
    """Convert an exception to the protocol's error; count it, and log errors of the server."""
    OBSERVER.get().refused(error)
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
    """Drop the frames of an error that was handled, and of its causes.

    A frame that references its own error is freed by the garbage collector only, and with it the body of the refused
    request: tens of megabytes until the collector runs.
    """
    seen: BaseException | None = error
    while seen is not None and seen.__traceback__ is not None:
        seen.__traceback__ = None
        seen = seen.__cause__ or seen.__context__
