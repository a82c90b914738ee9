"""Checks the messages of callers with filters before they are stored."""

import logging
from collections.abc import Sequence
from typing import Any

import msgspec

from tailrace.server.runtime.stream_filter import BlockedError, FilterError, StreamFilter
from tailrace.server.runtime.value_filter import ValueFilter
from tailrace.streaming.a2a.errors import InternalError, InvalidParamsError
from tailrace.streaming.a2a.models import Message

logger = logging.getLogger("tailrace.server")


class BlockedMessageError(InvalidParamsError):
    """A filter would change or block a part of a message."""

    reason = "CONTENT_FILTERED"
    message = "The message was blocked"


class InputFilter:
    """Checks the messages of callers."""

    def __init__(self, filters: tuple[StreamFilter, ...]) -> None:
        self._filters = filters

    async def check(self, messages: Sequence[Message], metadata: dict[str, Any], record: str = "") -> None:
        """Check all parts of a request that are stored or sent to a model.

        Args:
            messages: The messages.
            metadata: The metadata of the request.
            record: Data about the request as JSON (see `CallContext.record`); may be empty.

        Raises:
            BlockedMessageError: A filter would change or block a part of the request.
            InternalError: A filter failed.
        """
        if not self._filters:
            return
        try:
            if await self._passes(messages, metadata, record):
                return
        except BlockedError:
            pass
        except FilterError as error:
            logger.error("a filter failed: %s", error)
            raise InternalError(str(error)) from None
        except Exception as error:  # the error's text may contain a part of the message
            logger.error("a filter failed with %s", type(error).__name__)
            raise InternalError("a filter of the server failed; see the log of the server") from None
        raise BlockedMessageError("a filter of the server blocks the message; change its text") from None

    async def _passes(self, messages: Sequence[Message], metadata: dict[str, Any], record: str) -> bool:
        values = ValueFilter(self._filters)
        for message in messages:
            if await values.message(message) != message:
                return False
        if await values.metadata(metadata) != metadata:
            return False
        value: Any = msgspec.json.decode(record) if record else None
        return await values.value(value) == value
