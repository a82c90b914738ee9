"""Interface of stream filters, which change or stop the output of a turn before it becomes events."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal

import anyio.lowlevel

from tailrace.wrappers.messages import join_surrogates
from tailrace.wrappers.request_options import RequestOptions

_SLICE = 4096  # maximum characters of one call, so that a call does not block the event loop


class BlockedError(Exception):
    """Raised by a filter to end the turn. The task fails with the finish reason ``content_filter``.

    Args:
        reason: The message of the status, without filtered text; empty for a general message.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class FilterError(Exception):
    """Raised if a filter cannot work. The task fails.

    The text of the error is published and logged, so it must not contain filtered text or secrets.
    """


class FilterStream(ABC):
    """Filter of one text, for example of one artifact."""

    @abstractmethod
    async def feed(self, text: str) -> str:
        """Return the text that may be published now. The rest is held back until a later call.

        The filtered text must not depend on how the input is divided into calls.

        Raises:
            BlockedError: The turn must end. Text that is held back is discarded.
            FilterError: The filter cannot work.
        """

    @abstractmethod
    async def close(self) -> str:
        """Return the filtered text that is still held back, at the end of the input.

        Raises:
            BlockedError: The turn must end. Text that is held back is discarded.
            FilterError: The filter cannot work.
        """


class BackgroundStream(FilterStream):
    """Filter of one text that also works between calls of `feed`, for example while a service checks the text."""

    @property
    @abstractmethod
    def is_pending(self) -> bool:
        """Return whether ``publish`` will be called even without further calls of `feed` and `flush`."""

    @abstractmethod
    async def run(self, publish: Callable[[], None]) -> None:
        """Work in the background until `close` returns, or until the end of the turn cancels this method.

        For a complete text, only `feed` and `close` are called.

        Args:
            publish: To be called when ``feed("")`` would return text or raise an error.
        """

    @abstractmethod
    def flush(self) -> None:
        """Process the text that is held back without waiting for more text."""


class StreamFilter(ABC):
    """Creates a `FilterStream` for each text of a turn. All turns of a server use the same object.

    Attributes:
        scope: The filtered values. ``all``: texts, and all names, texts and numbers in data and metadata. ``content``: texts, and
            data as JSON text, which the filter may block but not change. ``output``: only the streamed text of responses, without
            reasoning, tool calls and messages. With ``output``, an error of `FilterStream.close` ends the turn only if
            the response is complete and calls no tool.
    """

    scope: Literal["all", "content", "output"] = "all"

    @abstractmethod
    def open(self) -> FilterStream:
        """Create a stream for one text."""

    async def for_request(self, options: RequestOptions) -> "StreamFilter | None":
        """Return the filter for a turn with these options, by default this filter; None to not filter the turn."""
        await anyio.lowlevel.checkpoint()
        return self

    async def aclose(self) -> None:
        """Release resources. By default, do nothing."""
        await anyio.lowlevel.checkpoint()


class BackgroundFilter(StreamFilter):
    """A filter whose streams work in the background."""

    @abstractmethod
    def open(self) -> BackgroundStream:
        """Create a stream for one text."""


class FilterChain:
    """Passes one text through several filters.

    Args:
        filters: The filters, in order.

    Attributes:
        filters: The filters, in order.
        background: The streams that work in the background.
        output_error: The error that a filter of the scope ``output`` raised at the end of the text; otherwise None. It ends the
            turn only if the response is complete, because an incomplete response may have an incomplete text.
    """

    def __init__(self, filters: tuple[StreamFilter, ...]) -> None:
        self.filters = filters
        self.output_error: BlockedError | None = None
        self._streams = [each.open() for each in filters]
        self.background = [each for each in self._streams if isinstance(each, BackgroundStream)]
        self._half = ""  # the first half of a surrogate pair at the end of the text
        self._published = 0  # number of characters that were published before `resume`

    async def resume(self, text: str) -> None:
        """Restore the state of the filters for a text that began in an earlier turn or before a restart.

        Args:
            text: The text that was filtered and published. `feed` and `close` do not return it again.
        """
        self._published = len(text)
        await self.feed(text)

    async def feed(self, text: str) -> str:
        """Return the text that all filters have passed. If ``text`` is empty, return text that passed in the background."""
        if self._half or not text.isascii():
            text, self._half = self._half + text, ""
            if "\ud800" <= text[-1:] <= "\udbff":
                text, self._half = text[:-1], text[-1]
            text = join_surrogates(text)
        if len(text) <= _SLICE:
            return self._unpublished(await self._pass(text))
        passed: list[str] = []
        for start in range(0, len(text), _SLICE):
            passed.append(await self._pass(text[start : start + _SLICE]))
            await anyio.lowlevel.checkpoint()
        return self._unpublished("".join(passed))

    async def _pass(self, text: str) -> str:
        for stream in self._streams:
            if text or isinstance(stream, BackgroundStream):
                text = await stream.feed(text)
        return text

    def _unpublished(self, text: str) -> str:
        if self._published:
            size = min(self._published, len(text))
            self._published -= size
            return text[size:]
        return text

    async def close(self) -> str:
        """Return the text that the filters still hold back.

        A `BlockedError` of a filter with the scope ``output`` is not raised, but stored as `output_error`.
        """
        text = join_surrogates(self._half)
        for stream_filter, stream in zip(self.filters, self._streams, strict=True):
            if text:
                text = await stream.feed(text)
            try:
                text += await stream.close()
            except BlockedError as error:
                if stream_filter.scope != "output":
                    raise
                self.output_error = error
        return self._unpublished(text)
