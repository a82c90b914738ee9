"""The tokens of the pages of lists of tasks and conversations."""

import base64
import binascii
import hashlib
import json
from contextlib import suppress
from datetime import UTC, datetime

from tailrace.server.store.store import ConversationFilter, ListPosition, TaskFilter
from tailrace.streaming.a2a.errors import InvalidParamsError
from tailrace.wrappers.messages import join_surrogates

_MAX_PAGE_TOKEN = 5_000  # characters; the id in a token may consist of escaped characters


def page_token(position: ListPosition, list_filter: TaskFilter | ConversationFilter) -> str:
    """Return a token for the page after a position. It is valid only for the same filter."""
    fields = [position.updated.isoformat(), position.id, _fingerprint(list_filter)]
    return base64.urlsafe_b64encode(json.dumps(fields).encode()).decode().rstrip("=")


def read_page_token(token: str, list_filter: TaskFilter | ConversationFilter) -> ListPosition:
    """Parse the token of a page.

    Raises:
        InvalidParamsError: The token is invalid, or belongs to another filter.
    """
    position, fingerprint = None, ""
    if len(token) <= _MAX_PAGE_TOKEN:
        with suppress(binascii.Error, ValueError, TypeError, RecursionError, OverflowError):
            fields = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
            updated, entry_id, fingerprint = fields
            # The store compares times in UTC. For some times in the years 1 and 9999, the conversion fails (OverflowError).
            when = datetime.fromisoformat(updated)
            if when.tzinfo is not None and isinstance(entry_id, str):
                position = ListPosition(when.astimezone(UTC), join_surrogates(entry_id))
    if position is None:
        raise InvalidParamsError("pageToken was not created by this agent")
    if fingerprint != _fingerprint(list_filter):
        raise InvalidParamsError("pageToken belongs to a request with other filters")
    return position


def _fingerprint(list_filter: TaskFilter | ConversationFilter) -> str:
    return hashlib.sha256(repr(list_filter).encode()).hexdigest()[:12]
