"""The interface of the models of all providers.

`tailrace.wrappers.providers.create_model` creates a model. `tailrace.streaming.Agent` calls `Model.stream` once for
each response of the model.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

from tailrace.wrappers.chunks import ChunkWrapper
from tailrace.wrappers.conversion.history_converter import HistoryConverter
from tailrace.wrappers.messages import History
from tailrace.wrappers.request_options import NO_OPTIONS, RequestOptions

ChunkBatches = AsyncIterator[Sequence[ChunkWrapper[Any]]]
"""Async iterator over the chunks of a response. Each item has the chunks of one network read."""

REQUEST_HEADERS: ContextVar[Mapping[str, str]] = ContextVar(
    "tailrace_request_headers", default=MappingProxyType({})
)
"""Additional headers for requests to providers, for example to propagate a trace context."""


async def _may_always_cancel() -> bool:
    return True


MAY_CANCEL: ContextVar[Callable[[], Awaitable[bool]]] = ContextVar(
    "tailrace_may_cancel", default=_may_always_cancel
)
"""Returns True if an unfinished response may be cancelled at the provider, and False if another process may read
it."""


class Model(ABC):
    """One model of one provider.

    Attributes:
        provider: The name of the provider, as in ``provider:model``.
        name: The provider's name of the model.
        accepts_native_tools: True if requests to this model may contain `RequestOptions.native_tools`. Otherwise,
            these tools are not sent.
    """

    provider: str
    name: str
    accepts_native_tools: bool = False

    @property
    @abstractmethod
    def converter(self) -> HistoryConverter[Any, Any]:
        """The converter between the common history and this provider's messages."""

    @abstractmethod
    def stream(
        self, history: History, options: RequestOptions = NO_OPTIONS
    ) -> AbstractAsyncContextManager[ChunkBatches]:
        """Request the model's response to a conversation, and stream the response.

        Entering the context sends the request and waits for the headers of the response. Exiting the context before
        the end of the response closes the connection, so that the provider stops. An error that the provider reports
        inside the stream is a chunk with ``details.error``. Instead of chunk wrappers, an implementation may also
        yield ``ChatCompletionChunk`` objects of the ``openai`` package.

        Args:
            history: The conversation.
            options: Tools, output format, sampling.

        Raises:
            ProtocolError: The provider does not support a part of the conversation or an option. Raised on entering
                the context.
            UpstreamError: The provider could not be reached, rejected the request, or sent no data within the read
                timeout, or the connection broke. Raised on entering the context and while iterating.
        """

    async def continuation(
        self, text: str, history: History, options: RequestOptions = NO_OPTIONS
    ) -> AbstractAsyncContextManager[ChunkBatches] | None:
        """Return a request that continues an interrupted text response; None if the provider cannot continue it.

        Entering the context sends the request, as with `stream`. The chunks contain the text after ``text``. The call
        itself may send a request, to find out whether the server supports continuations. The default implementation
        returns None.

        Args:
            text: The text received so far. The response must not have other content.
            history: The conversation of the interrupted request.
            options: The options of the interrupted request.
        """
        return None

    def stored_id(self, chunks: ChunkBatches) -> str:
        """Return the id of a response that the provider stores, for `attachment`; empty (the default) if it stores none.

        Args:
            chunks: The iterator that `stream` returned. Its first chunks must have been read.
        """
        return ""

    def attachment(
        self, broken: ChunkBatches | str, options: RequestOptions = NO_OPTIONS
    ) -> AbstractAsyncContextManager[ChunkBatches] | None:
        """Return a request for the rest of an interrupted response; None if the provider does not store the response.

        Entering the context sends the request, as with `stream`. The default implementation returns None.

        Args:
            broken: The iterator that `stream` or an earlier attachment returned: the new chunks follow the chunks that
                it has yielded. Or a `stored_id`, if another process sent the first request: the new chunks begin at
                the start of the response.
            options: The options of the first request. They are used only with a `stored_id`.
        """
        return None

    async def release(self, held: ChunkBatches | str) -> None:  # noqa: B027 — most providers hold no response
        """Cancel a response that the provider stores and whose rest is not needed, unless `MAY_CANCEL` returns False.

        By default, nothing is sent.

        Args:
            held: As for `attachment`.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Close the pooled connections."""
