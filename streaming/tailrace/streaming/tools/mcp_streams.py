"""The message streams between the MCP SDK's client and a server, with the limits of `tailrace.streaming.tools.mcp_bounds`."""

from types import TracebackType
from typing import Any, Self

import anyio
from mcp.shared.message import SessionMessage

from tailrace.streaming.tools.mcp_bounds import MessageFilter


class _MessageStream:
    """Base class of the streams in both directions.

    Args:
        stream: The stream of a transport.
        message_filter: The filter for messages.
        end_event: An `anyio.Event` that is set when the stream ends.
    """

    def __init__(self, stream: Any, message_filter: MessageFilter, end_event: anyio.Event) -> None:
        self._stream = stream
        self._message_filter = message_filter
        self._end_event = end_event

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class ReceivingStream(_MessageStream):
    """The stream of messages from a server. It sets an event at its end, which the SDK reports only to pending calls."""

    @property
    def last_context(self) -> Any:
        """The context of the last message, for the SDK."""
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        """Return the next message."""
        while True:
            try:
                message = await self._stream.receive()
            except (anyio.EndOfStream, anyio.ClosedResourceError):
                self._end_event.set()
                raise
            if not isinstance(message, SessionMessage):
                return message
            accepted = self._message_filter.accept(message)
            if accepted is not None:
                return accepted

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None


class SendingStream(_MessageStream):
    """The stream of messages to a server. It sets an event when a message cannot be sent."""

    async def send(self, item: SessionMessage, /) -> None:
        """Send a message."""
        try:
            await self._stream.send(item)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            self._end_event.set()
            raise
        finally:
            self._message_filter.end(item)


Streams = tuple[ReceivingStream, SendingStream]


def limited_streams(
    received: Any, sent: Any, message_filter: MessageFilter, end_event: anyio.Event
) -> Streams:
    """Wrap the two streams of a transport, so that they enforce the limits."""
    return ReceivingStream(received, message_filter, end_event), SendingStream(
        sent, message_filter, end_event
    )
