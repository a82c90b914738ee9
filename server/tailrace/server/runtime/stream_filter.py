"""The interface of stream filters, which change or stop the output of a turn before it is numbered and persisted."""

from abc import ABC, abstractmethod

import anyio.lowlevel

_SLICE = 4096  # characters of one call, so that a long text does not block the event loop


class BlockedError(Exception):
    """Ends a turn. The task ends FAILED with the finish reason ``content_filter``."""


class FilterStream(ABC):
    """The filter of one text, for example of the text of one artifact."""

    @abstractmethod
    async def feed(self, text: str) -> str:
        """Return the text that may be published now. The stream holds back the rest until a later call.

        The texts of all calls of `feed` and of `close` together are the filtered text. They must not depend on how the
        input is divided among the calls.

        Args:
            text: The next text, which continues the text of the calls before.

        Raises:
            BlockedError: The turn must end. Text that is held back is dropped.
        """

    @abstractmethod
    async def close(self) -> str:
        """Return the text that is still held back, filtered, at the end of the input.

        Raises:
            BlockedError: The turn must end. Text that is held back is dropped.
        """


class StreamFilter(ABC):
    """Creates a stream for each text of a turn. A server has one object for all turns."""

    @abstractmethod
    def open(self) -> FilterStream:
        """Create the stream for a text."""


class FilterChain:
    """A text that passes through the streams of several filters, one after the other."""

    def __init__(self, filters: tuple[StreamFilter, ...]) -> None:
        self._streams = [each.open() for each in filters]

    async def feed(self, text: str) -> str:
        """Return the text that all filters pass now."""
        if len(text) > _SLICE:
            passed: list[str] = []
            for start in range(0, len(text), _SLICE):
                passed.append(await self.feed(text[start : start + _SLICE]))
                await anyio.lowlevel.checkpoint()
            return "".join(passed)
        for stream in self._streams:
            if not text:
                break
            text = await stream.feed(text)
        return text

    async def close(self) -> str:
        """Return the text that the filters still hold back."""
        text = ""
        for stream in self._streams:
            if text:
                text = await stream.feed(text)
            text += await stream.close()
        return text
