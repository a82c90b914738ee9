"""Filter that sends text to a moderation endpoint, and ends the turn if the text is flagged."""

import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Literal

import anyio
from anyio.abc import TaskGroup

from tailrace.server.runtime.stream_filter import (
    BackgroundFilter,
    BackgroundStream,
    BlockedError,
    FilterError,
)
from tailrace.wrappers import ConfigurationError, UpstreamError
from tailrace.wrappers.openai.model import ChatCompletionsModel

logger = logging.getLogger("tailrace.server")

MAX_BUFFERED = 4096
"""Number of characters without a verdict above which the stream waits for verdicts."""


class ModerationFilter(BackgroundFilter):
    """Sends texts to OpenAI's Moderations API or a compatible endpoint, and ends the turn if a text is flagged.

    A text is divided into windows, which are checked concurrently. A request contains a window and the text before it, up to
    the size of a window. A window is published when the verdicts for it and for all earlier windows have arrived.

    Args:
        model: The name of the moderation model.
        base_url: The root URL of the API, as for the provider ``openai``; None for the default of that provider.
        api_key: The API key; None to use ``OPENAI_API_KEY``.
        window: Maximum number of characters of a window.
        delay: Maximum time in seconds that an incomplete window waits for more text before it is checked.
        timeout: Maximum time in seconds for a verdict, including retries.
        thresholds: The scores (from 0 to 1) from which a text is flagged, by category, for example ``{"violence": 0.5}``. In
            categories without a threshold, the endpoint decides.
        on_error: Action if there is no verdict: ``block`` ends the turn, ``pass`` publishes the window unchecked.

    Raises:
        ConfigurationError: An argument is invalid, or there is no API key.
    """

    scope = "content"

    def __init__(
        self,
        model: str = "omni-moderation-latest",
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        window: int = 400,
        delay: float = 1.0,
        timeout: float = 5.0,
        thresholds: Mapping[str, float] | None = None,
        on_error: Literal["block", "pass"] = "block",
    ) -> None:
        if not 1 <= window <= MAX_BUFFERED // 4:
            raise ConfigurationError(
                f"window of a moderation filter must be 1 to {MAX_BUFFERED // 4} characters"
            )
        if delay < 0 or timeout <= 0:
            raise ConfigurationError("delay and timeout of a moderation filter must be positive")
        if on_error not in ("block", "pass"):
            raise ConfigurationError("on_error of a moderation filter must be 'block' or 'pass'")
        self._thresholds = dict(thresholds or {})
        for name, threshold in self._thresholds.items():
            if not _is_threshold(threshold):
                raise ConfigurationError(
                    f"the threshold of the category {name!r} of a moderation filter must be a number greater than 0 and at "
                    "most 1"
                )
        self.window = window
        self.delay = delay
        self.on_error = on_error
        self._timeout = timeout
        self._model = ChatCompletionsModel(model, base_url=base_url, api_key=api_key)

    def open(self) -> BackgroundStream:
        """Create a stream for one text."""
        return _ModerationStream(self)

    async def aclose(self) -> None:
        """Close the connections to the endpoint."""
        await self._model.aclose()

    async def is_flagged(self, text: str) -> bool:
        """Return whether the endpoint flags a text.

        Raises:
            FilterError: There is no verdict.
        """
        # The endpoint's error message may repeat the text, so only the type of the failure is reported.
        try:
            with anyio.fail_after(self._timeout):
                return await self._model.moderate(text, self._thresholds)
        except ConfigurationError as error:
            raise FilterError(str(error)) from None
        except TimeoutError:
            problem = f"no verdict within {self._timeout:g} seconds"
        except UpstreamError as error:
            problem = f"HTTP {error.status}" if error.status is not None else str(error.fault)
        raise FilterError(f"the moderation endpoint failed: {problem}")


def _is_threshold(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1


class _Window:
    """A window of a text.

    Attributes:
        checked: The text to send: the text before this window, and this window.
        verdict: True if the window is flagged; an error if there is no verdict.
        ended: Set when the verdict or the error has arrived.
    """

    def __init__(self, before: str, text: str) -> None:
        self.text = text
        self.checked = before + text
        self.is_checking = False
        self.verdict: bool | Exception = False
        self.ended = anyio.Event()


class _ModerationStream(BackgroundStream):
    def __init__(self, moderation: ModerationFilter) -> None:
        self._filter = moderation
        self._before = ""
        self._text = ""  # the incomplete window
        self._windows: deque[_Window] = deque()  # complete windows that are not published yet
        self._buffered_size = 0  # number of their characters
        self._group: TaskGroup | None = None
        self._publish: Callable[[], None] = lambda: None
        self._begun = anyio.Event()
        self._deadline = 0.0  # time at which the incomplete window is checked
        self._has_warned = False

    @property
    def is_pending(self) -> bool:
        """Return whether a window is being checked."""
        return any(not window.ended.is_set() for window in self._windows)

    async def feed(self, text: str) -> str:
        if text:
            if not self._text:
                self._begin()
            self._text += text
            while len(self._text) >= self._filter.window:
                self._complete(self._filter.window)
        passed = self._passed()
        while self._buffered_size > MAX_BUFFERED:
            passed += await self._next()
        return passed

    async def close(self) -> str:
        self.flush()
        passed = ""
        while self._windows:
            passed += await self._next()
        if self._group is not None:
            self._group.cancel_scope.cancel()
        return passed

    async def run(self, publish: Callable[[], None]) -> None:
        self._publish = publish
        async with anyio.create_task_group() as self._group:
            self._check(self._group)
            while True:
                await self._begun.wait()
                self._begun = anyio.Event()
                while self._text:
                    if anyio.current_time() >= self._deadline:
                        self.flush()
                    else:
                        await anyio.sleep_until(self._deadline)

    def flush(self) -> None:
        if self._text:
            self._complete(len(self._text))

    def _begin(self) -> None:
        self._deadline = anyio.current_time() + self._filter.delay
        self._begun.set()

    def _complete(self, size: int) -> None:
        window = _Window(self._before, self._text[:size])
        self._before = (self._before + window.text)[-self._filter.window :]
        self._text = self._text[size:]
        if self._text:
            self._begin()
        self._windows.append(window)
        self._buffered_size += len(window.text)
        if self._group is not None:
            self._check(self._group)

    def _check(self, group: TaskGroup) -> None:
        for window in self._windows:
            if not window.is_checking:
                window.is_checking = True
                group.start_soon(self._request, window)

    async def _request(self, window: _Window) -> None:
        try:
            window.verdict = await self._filter.is_flagged(window.checked)
        except Exception as error:
            window.verdict = error
        window.ended.set()
        self._publish()

    async def _next(self) -> str:
        """Wait for the verdict of the oldest window, and return the text that may be published."""
        window = self._windows[0]
        if self._group is None:  # `run` is not called for complete texts
            async with anyio.create_task_group() as group:
                self._check(group)
        await window.ended.wait()
        return self._passed()

    def _passed(self) -> str:
        passed = ""
        while self._windows and self._windows[0].ended.is_set():
            window = self._windows.popleft()
            self._buffered_size -= len(window.text)
            if window.verdict is True:
                raise BlockedError
            if isinstance(window.verdict, Exception):
                self._failed(window.verdict)
            passed += window.text
        return passed

    def _failed(self, error: Exception) -> None:
        if self._filter.on_error == "block" or not isinstance(error, FilterError):
            raise error
        if not self._has_warned:
            self._has_warned = True
            logger.warning("%s; text is published unchecked (on_error='pass')", error)
