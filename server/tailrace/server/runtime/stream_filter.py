"""The interface of stream filters, which change or stop the output of a turn before it is numbered and persisted."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal

import anyio.lowlevel

_SLICE = 4096  # characters of one call, so that a long text does not block the event loop


class BlockedError(Exception):
    """Ends a turn. The task ends FAILED with the finish reason ``content_filter``.

    Args:
        reason: The message of the status; it must not contain filtered text. Empty for a general message.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class FilterError(Exception):
    """A filter cannot work, and the turn must end. The task ends FAILED.

    The text of the error is published and logged. It must not contain filtered text, or secrets.
    """


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


class BackgroundStream(FilterStream):
    """The filter of one text, which also works between the calls of `feed`, for example while a service checks the text."""

    @property
    @abstractmethod
    def is_pending(self) -> bool:
        """Return whether the stream will call ``publish`` without further calls of `feed` or `flush`."""

    @abstractmethod
    async def run(self, publish: Callable[[], None]) -> None:
        """Work until `close` returns, or until the turn ends and cancels the call.

        Complete texts are filtered by `feed` and `close` alone, without this method.

        Args:
            publish: Must be called when a call ``feed("")`` would return text or raise an error.
        """

    @abstractmethod
    def flush(self) -> None:
        """Process the text that is held back without waiting for more text. The text may end, or may continue."""


class StreamFilter(ABC):
    """Creates a stream for each text of a turn. A server has one object for all turns.

    Attributes:
        scope: The texts that are filtered. ``all``: texts, and each name, text and number of data and metadata. ``content``:
            texts, and data as JSON text, which the filter may block and must not change. ``output``: the text of responses while
            it streams, without reasoning, tool calls and messages; an error of `FilterStream.close` ends the turn only if the
            response is complete.
    """

    scope: Literal["all", "content", "output"] = "all"

    @abstractmethod
    def open(self) -> FilterStream:
        """Create the stream for a text."""

    async def aclose(self) -> None:
        """Release resources when the server stops. By default, there are none."""
        await anyio.lowlevel.checkpoint()


class BackgroundFilter(StreamFilter):
    """A filter whose streams work in the background."""

    @abstractmethod
    def open(self) -> BackgroundStream:
        """Create the stream for a text."""


class FilterChain:
    """A text that passes through the streams of several filters, one after the other.

    Args:
        filters: The filters.

    Attributes:
        filters: As given.
        background: The streams that work in the background.
        output_error: The error of a filter of the scope ``output`` at the end of the text. It ends the turn if the response is
            complete; otherwise, the text may be incomplete.
    """

    def __init__(self, filters: tuple[StreamFilter, ...]) -> None:
        self.filters = filters
        self.output_error: BlockedError | None = None
        self._streams = [each.open() for each in filters]
        self.background = [each for each in self._streams if isinstance(each, BackgroundStream)]

    async def feed(self, text: str) -> str:
        """Return the text that all filters pass now. The text may be empty, for what passes in the background."""
        if len(text) > _SLICE:
            passed: list[str] = []
            for start in range(0, len(text), _SLICE):
                passed.append(await self.feed(text[start : start + _SLICE]))
                await anyio.lowlevel.checkpoint()
            return "".join(passed)
        for stream in self._streams:
            if text or isinstance(stream, BackgroundStream):
                text = await stream.feed(text)
        return text

    async def close(self) -> str:
        """Return the text that the filters still hold back."""
        text = ""
        for given, stream in zip(self.filters, self._streams, strict=True):
            if text:
                text = await stream.feed(text)
            try:
                text += await stream.close()
            except BlockedError as error:
                if given.scope != "output":
                    raise
                self.output_error = error
        return text
