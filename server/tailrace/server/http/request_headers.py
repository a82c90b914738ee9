"""Reads the request headers that all protocols share."""

from fastapi import Request
from starlette.datastructures import QueryParams

from tailrace.server.auth.authentication import Credentials
from tailrace.server.observability.query_secrets import query_of
from tailrace.streaming.a2a.errors import InvalidParamsError
from tailrace.wrappers.messages import shortened

_MAX_CURSOR_DIGITS = 15
# Protocol versions that are handled like another version.
_EQUIVALENT_VERSIONS = {"0.2": "0.3"}
# The names of the header for extensions in A2A 1.0 and in A2A 0.3.
_EXTENSION_HEADERS = ("A2A-Extensions", "X-A2A-Extensions")
EXTENSIONS_QUERY = "A2A-Extensions"


def credentials_of(request: Request) -> Credentials:
    """Return the credentials of a request. Credentials in cookies and in the query are accepted only for GET and HEAD."""
    sent = query_of(request.scope)
    is_redacted = sent != request.scope.get("query_string", b"")
    query = QueryParams(sent) if is_redacted else request.query_params
    return Credentials(request.headers, query, reads=request.method in ("GET", "HEAD"))


def requested_version(request: Request) -> str:
    """Return the protocol version of a request without the patch number, for example ``1.0``; empty if there is none.

    The version is in the header ``A2A-Version``. Clients that cannot set a header send a query parameter (A2A 1.0, section
    3.6.1). Version 0.2 is returned as 0.3.
    """
    value = request.headers.get("a2a-version") or request.query_params.get("A2A-Version") or ""
    version = major_minor(value)
    return _EQUIVALENT_VERSIONS.get(version, version)


def major_minor(version: str) -> str:
    """Return a version without its patch number. A2A ignores it (A2A 1.0, section 3.6)."""
    return ".".join(version.strip().split(".")[:2])


def cursor_of(request: Request) -> int | None:
    """Return the number of the event after which a stream resumes; None if the request contains no number.

    The number is in the header ``Last-Event-ID`` or in the query parameter ``after``.

    Raises:
        InvalidParamsError: The value is not a number.
    """
    header = parse_cursor(request.headers.get("last-event-id", ""), "Last-Event-ID")
    return parse_cursor(request.query_params.get("after", ""), "after") if header is None else header


def parse_cursor(value: str, name: str) -> int | None:
    """Parse the event number that a client sent.

    Args:
        value: The value of the header or parameter.
        name: The name of the header or parameter, for the error message.

    Returns:
        The number; None if the value is empty.

    Raises:
        InvalidParamsError: The value is not a number.
    """
    value = value.strip()
    if not value:
        return None
    if not (value.isascii() and value.isdigit() and len(value) <= _MAX_CURSOR_DIGITS):
        raise InvalidParamsError(f"{name} must be the id of an event of this task, not {shortened(value)}")
    return int(value)


def requested_extensions(request: Request) -> tuple[str, ...]:
    """Return the URIs of the extensions that the headers and the query of a request list."""
    listed = [value for name in _EXTENSION_HEADERS for value in request.headers.getlist(name)]
    listed += request.query_params.getlist(EXTENSIONS_QUERY)
    return tuple(uri for value in listed for uri in parse_extensions(value))


def parse_extensions(listed: str) -> tuple[str, ...]:
    """Split a comma-separated list of URIs."""
    return tuple(uri for each in listed.split(",") if (uri := each.strip()))


def extension_headers(request: Request, activated: tuple[str, ...]) -> dict[str, str]:
    """Return the response headers with the activated extensions (A2A 1.0, section 3.2.6), in the form of the request.

    Args:
        request: The request.
        activated: The URIs of the activated extensions (see `Capabilities.activated`).
    """
    if not activated:
        return {}
    _, old = _EXTENSION_HEADERS
    names = _EXTENSION_HEADERS if old in request.headers else _EXTENSION_HEADERS[:1]
    return dict.fromkeys(names, ", ".join(activated))


def accepts(request: Request, media_type: str) -> bool:
    """Return whether a request accepts a media type."""
    return any(media_type in accepted for accepted in request.headers.getlist("accept"))
