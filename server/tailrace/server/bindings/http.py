"""What the bindings over HTTP have in common: reading a request, and turning what goes wrong into the protocol's errors."""

import json
import logging
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request, Response

from tailrace.server.auth import AuthError, Credentials
from tailrace.server.limits import LimitError, RequestTooLargeError
from tailrace.server.observability.observer import OBSERVER
from tailrace.streaming.a2a.errors import A2AError, InternalError, InvalidParamsError
from tailrace.wrappers import ProtocolError, StoreError

logger = logging.getLogger("tailrace.server")

_MAX_CURSOR_DIGITS = 15

# Versions whose clients another one's form serves.
_SPOKEN_AS = {"0.2": "0.3"}

# Where a client lists extensions: as A2A 1.0 has it, as 0.3 has it, and for clients that can set no header.
_EXTENSION_HEADERS = ("A2A-Extensions", "X-A2A-Extensions")
EXTENSIONS_QUERY = "A2A-Extensions"


@dataclass(frozen=True)
class Problem:
    """What is said of a request that is not answered, before it is written in a version's form.

    Attributes:
        code: The HTTP status.
        status: The name of the gRPC status.
        name: The name of the error.
        message: What happened.
        details: Typed details.
        headers: Headers of the response.
        rpc_code: The JSON-RPC code of an error of the protocol; None for one that only HTTP has a word for.
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
        """What an exception comes to: that of a caller who is not let in, or an error of the protocol."""
        if isinstance(error, AuthError):
            status = "PERMISSION_DENIED" if error.forbidden else "UNAUTHENTICATED"
            challenge = {"WWW-Authenticate": error.challenge}
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
        """As ``google.rpc.Status`` in JSON (A2A 1.0, section 11.6)."""
        said = {"code": self.code, "status": self.status, "message": self.message, "details": self.details}
        return encode_ascii({"error": said})

    def response(self) -> Response:
        """The response with that body."""
        return Response(self.body(), self.code, headers=self.headers, media_type="application/json")


def encode_ascii(value: object) -> bytes:
    """JSON in one line of ASCII: what a client sent may be in it, and no reader may trip over that."""
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def is_json(request: Request) -> bool:
    """Whether the request's body says that it is JSON."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return media_type in ("application/json", "application/a2a+json")


async def read_body(request: Request, limit: int) -> bytes:
    """The body of a request.

    Args:
        request: Whose body.
        limit: How many bytes it may have; 0 for any number.

    Raises:
        RequestTooLargeError: It has more.
        ClientDisconnect: The client left before it was complete.
    """
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if limit and len(body) > limit:
            raise RequestTooLargeError(limit)
    return bytes(body)


def error_headers(error: A2AError) -> dict[str, str]:
    """What the headers of a response say of an error: when to try again, where that is known."""
    return error.headers if isinstance(error, LimitError) else {}


def credentials_of(request: Request) -> Credentials:
    """What the request carries to say who asks, and whether it may say it in a cookie or in its address."""
    return Credentials(request.headers, request.query_params, reads=request.method in ("GET", "HEAD"))


def asked_version(request: Request) -> str:
    """The protocol's version that the request names, major and minor alone; empty when it names none.

    A header, or a query parameter for clients that cannot set one (A2A 1.0, section 3.6.1). Clients of 0.2 are
    spoken to as in 0.3.
    """
    asked = request.headers.get("a2a-version") or request.query_params.get("A2A-Version") or ""
    version = major_minor(asked)
    return _SPOKEN_AS.get(version, version)


def major_minor(version: str) -> str:
    """A version without its patch number, which makes no difference (A2A 1.0, section 3.6)."""
    return ".".join(version.strip().split(".")[:2])


def cursor_of(request: Request) -> int | None:
    """The number after which a stream goes on: ``Last-Event-ID``, as a browser sends it, or the query ``after``.

    Raises:
        InvalidParamsError: It is no number.
    """
    header = parse_cursor(request.headers.get("last-event-id", ""), "Last-Event-ID")
    return parse_cursor(request.query_params.get("after", ""), "after") if header is None else header


def parse_cursor(value: str, name: str) -> int | None:
    """The number of an event as a client writes it; None when it gives none.

    Args:
        value: What the client wrote.
        name: Where, for the message.

    Raises:
        InvalidParamsError: It is no number.
    """
    value = value.strip()
    if not value:
        return None
    if not (value.isascii() and value.isdigit() and len(value) <= _MAX_CURSOR_DIGITS):
        raise InvalidParamsError(f"{name} must be the id of an event of this task, not {value!r}")
    return int(value)


def asked_extensions(request: Request) -> tuple[str, ...]:
    """The URIs of the extensions that a request asks for, in every place where it may."""
    listed = [value for name in _EXTENSION_HEADERS for value in request.headers.getlist(name)]
    listed += request.query_params.getlist(EXTENSIONS_QUERY)
    return tuple(uri for value in listed for uri in parse_extensions(value))


def parse_extensions(listed: str) -> tuple[str, ...]:
    """The URIs that a client lists, separated by commas."""
    return tuple(uri for each in listed.split(",") if (uri := each.strip()))


def extension_headers(request: Request, activated: tuple[str, ...]) -> dict[str, str]:
    """Tell the client which extensions are used, under the name by which it asked (A2A 1.0, section 3.2.6).

    Args:
        request: What is answered.
        activated: The extensions, as `Offer.activated` gives them.
    """
    if not activated:
        return {}
    _, old = _EXTENSION_HEADERS
    names = _EXTENSION_HEADERS if old in request.headers else _EXTENSION_HEADERS[:1]
    return dict.fromkeys(names, ", ".join(activated))


def as_a2a_error(error: Exception) -> A2AError:
    """The protocol's error for whatever a request has come to; it is counted, and what is our fault is logged."""
    OBSERVER.get().refused(error)
    if isinstance(error, A2AError):
        return error
    if isinstance(error, ProtocolError):
        return InvalidParamsError(str(error))
    if isinstance(error, StoreError):
        logger.error("%s", error)
        return InternalError("the task store does not work at present; try again later")
    logger.exception("a request failed", exc_info=error)
    return InternalError()
