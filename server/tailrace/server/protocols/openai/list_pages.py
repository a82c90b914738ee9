"""Pagination of lists as in OpenAI's APIs."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tailrace.server.protocols.encoder import Fields
from tailrace.server.protocols.openai_error import OpenAIError

MAX_PAGE = 100
"""Maximum number of objects on a page."""

_DEFAULT_PAGE = 20


class PageQuery(NamedTuple):
    """The query parameters of a request for a page.

    Attributes:
        limit: Maximum number of objects on the page.
        is_descending: True if the newest object is first.
        after: Id of the last object of the previous page; empty for the first page.
    """

    limit: int
    is_descending: bool
    after: str


def read_page_query(query: Mapping[str, str], *, order: str = "desc") -> PageQuery:
    """Read the query parameters of a request for a page.

    Raises:
        OpenAIError: A value is invalid.
    """
    limit, order = query.get("limit", str(_DEFAULT_PAGE)), query.get("order", order)
    if not (limit.isascii() and limit.isdigit() and len(limit) < 6 and 0 < int(limit) <= MAX_PAGE):
        raise OpenAIError(
            400, f"'limit' must be a number from 1 to {MAX_PAGE}", param="limit", code="invalid_value"
        )
    if order not in ("asc", "desc"):
        raise OpenAIError(400, "'order' must be 'asc' or 'desc'", param="order", code="invalid_value")
    return PageQuery(int(limit), order == "desc", query.get("after", ""))


def page_of(objects: Sequence[Fields], query: PageQuery) -> Fields:
    """Return a page of a list. ``objects`` are all objects in chronological order, each with an ``id``.

    Raises:
        OpenAIError: No object has the id ``after``.
    """
    ordered = list(reversed(objects)) if query.is_descending else list(objects)
    start = 0
    if query.after:
        start = 1 + next((at for at, each in enumerate(ordered) if each["id"] == query.after), -1)
        if not start:
            raise unknown_after(query.after)
    page = ordered[start : start + query.limit]
    return list_of(page, has_more=start + len(page) < len(ordered))


def unknown_after(after: str) -> OpenAIError:
    """Return the error for an unknown value of ``after``."""
    return OpenAIError(
        400, f"No object of this list has the id '{after}'", param="after", code="invalid_value"
    )


def list_of(page: Sequence[Fields], *, has_more: bool) -> Fields:
    """Return the JSON object of a page. The objects on the page have an ``id``."""
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": has_more,
    }
