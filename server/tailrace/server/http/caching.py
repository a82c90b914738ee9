"""Responses that clients and proxies may cache: agent cards, keys and pages (RFC 9110, section 8.8; RFC 9111)."""

from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime
from hashlib import sha256

from fastapi import Request, Response

MAX_AGE = 60
"""Seconds for which a client may use a cached response (``Cache-Control: max-age``)."""

MAX_AGE_OF_VERSION = 365 * 24 * 3600
"""Seconds for which a client may use a cached response whose URL contains its version."""


def this_second() -> datetime:
    """Return the current time, rounded down to one second, the precision of HTTP dates."""
    return datetime.now(UTC).replace(microsecond=0)


_SINCE = this_second()  # most responses depend only on the settings


def cached_response(
    request: Request,
    body: bytes,
    *,
    vary: str = "",
    private: bool = False,
    since: datetime = _SINCE,
    immutable: bool = False,
    headers: dict[str, str] | None = None,
    media_type: str = "application/json",
) -> Response:
    """Return a response with ``ETag`` and ``Last-Modified``. If the client has the current version, return 304.

    Args:
        request: The request.
        body: The body of the response.
        vary: The value of ``Vary``: the request headers on which the body depends; empty for none.
        private: True if only the cache of this client may store the response.
        since: The time of the last change of the body, rounded by `this_second`.
        immutable: True if the URL contains the version of the body, which therefore never changes.
        headers: Additional headers.
        media_type: The media type of the body.
    """
    etag = f'"{version_of(body)}"'
    age = f"max-age={MAX_AGE_OF_VERSION}, immutable" if immutable else f"max-age={MAX_AGE}"
    response_headers = {
        "ETag": etag,
        "Cache-Control": f"{'private' if private else 'public'}, {age}",
        "Last-Modified": format_datetime(since, usegmt=True),
        **({"Vary": vary} if vary else {}),
        **(headers or {}),
    }
    if _is_known(request, etag, None if private else since):
        return Response(status_code=304, headers=response_headers)
    return Response(body, media_type=media_type, headers=response_headers)


def version_of(body: bytes) -> str:
    """Return a hash of a body, for entity tags and URLs."""
    return sha256(body).hexdigest()[:16]


def _is_known(request: Request, etag: str, since: datetime | None) -> bool:
    tags = request.headers.get("if-none-match")
    if tags is not None:
        return tags.strip() == "*" or etag in {tag.strip().removeprefix("W/") for tag in tags.split(",")}
    if since is None:
        return False  # a private response may change at any time
    try:
        return since <= parsedate_to_datetime(request.headers.get("if-modified-since", ""))
    except (ValueError, TypeError):
        return False
