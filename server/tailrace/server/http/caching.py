"""Answers that clients may keep for a while: cards, keys and pages (RFC 9110, section 8.8; RFC 9111)."""

from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime
from hashlib import sha256

from fastapi import Request, Response

MAX_AGE = 60
"""Seconds that a client may go without asking again."""

_SINCE = datetime.now(UTC).replace(
    microsecond=0
)  # responses depend on the settings, which are read at startup


def cached_response(
    request: Request,
    body: bytes,
    *,
    vary: str = "",
    private: bool = False,
    headers: dict[str, str] | None = None,
    media_type: str = "application/json",
) -> Response:
    """A response that caches well: ``ETag``, ``Last-Modified``, and 304 for a client that has it already.

    Args:
        request: What is answered.
        body: What it holds.
        vary: Request headers that make a difference.
        private: Only the caller's own cache may keep it; else any.
        headers: More headers.
        media_type: What the body is.
    """
    etag = f'"{sha256(body).hexdigest()[:16]}"'
    given = {
        "ETag": etag,
        "Cache-Control": f"{'private' if private else 'public'}, max-age={MAX_AGE}",
        "Last-Modified": format_datetime(_SINCE, usegmt=True),
        **({"Vary": vary} if vary else {}),
        **(headers or {}),
    }
    if _is_known(request, etag, by_time=not private):
        return Response(status_code=304, headers=given)
    return Response(body, media_type=media_type, headers=given)


def _is_known(request: Request, etag: str, *, by_time: bool) -> bool:
    tags = request.headers.get("if-none-match")
    if tags is not None:
        return tags.strip() == "*" or etag in {tag.strip().removeprefix("W/") for tag in tags.split(",")}
    if not by_time:
        return False  # what one caller gets may change at any time
    try:
        return _SINCE <= parsedate_to_datetime(request.headers.get("if-modified-since", ""))
    except (ValueError, TypeError):
        return False
