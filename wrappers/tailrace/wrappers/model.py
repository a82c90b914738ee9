"""The interface of the models of all providers.

`tailrace.wrappers.providers.create_model` creates a model.
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
"""Async iterator over the chunks of a response. Each item contains the chunks of one network read."""

REQUEST_HEADERS: ContextVar[Mapping[str, str]] = ContextVar(
    "tailrace_request_headers", default=MappingProxyType({})
)
"""Additional headers of requests to providers, for example with a trace context."""


async def _may_always_cancel() -> bool:
    return True


MAY_CANCEL: ContextVar[Callable[[], Awaitable[bool]]] = ContextVar(
    "tailrace_may_cancel", default=_may_always_cancel
)
"""Async function that returns True if an incomplete response may be cancelled at the provider.

It returns False while another process may still read the response, for example when the server stops."""


class Model(ABC):
    """One model of one provider.

    Attributes:
        provider: The name of the provider, as in ``provider:model``.
        name: The provider's name of the model.
        accepts_native_tools: True if `RequestOptions.native_tools` are sent to this model. If False, they are omitted.
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
        """Request and stream the model's response to a conversation.

        The request is sent when the context is entered. Exiting the context before the end of the response closes the connection,
        so that the provider stops. An error inside the stream is in ``details.error`` of a chunk. Implementations may also yield
        ``ChatCompletionChunk`` objects of the ``openai`` package.

        Args:
            history: The conversation.
            options: Tools, output format, sampling.

        Raises:
            ProtocolError: The provider does not support an option, or a part of the conversation. Raised when the context is
                entered.
            UpstreamError: The provider could not be reached, rejected the request, or sent no data within the read timeout. Or
                the connection was lost. Raised when the context is entered, and during the iteration.
        """

    async def continuation(
        self, text: str, history: History, options: RequestOptions = NO_OPTIONS
    ) -> AbstractAsyncContextManager[ChunkBatches] | None:
        """Return a request that continues an interrupted text response; None if the provider cannot continue it.

        The chunks contain the text after ``text``. To find out whether the server supports continuations, this method may send a
        request.

        Args:
            text: The text of the interrupted response, which must not contain other content.
            history: The conversation of the interrupted request.
            options: The options of the interrupted request.
        """
        return None

    def stored_id(self, chunks: ChunkBatches) -> str:
        """Return the id of a response that the provider stores, for `attachment`; empty if it is not stored.

        Args:
            chunks: The iterator that `stream` returned, after its first chunks have been read.
        """
        return ""

    def attachment(
        self, interrupted: ChunkBatches | str, options: RequestOptions = NO_OPTIONS
    ) -> AbstractAsyncContextManager[ChunkBatches] | None:
        """Return a request for the rest of an interrupted response; None if the provider does not store the response.

        Args:
            interrupted: The iterator that `stream` or `attachment` returned for the interrupted response, or the id that
                `stored_id` returned in another process. With an iterator, the new chunks begin after the last chunk that it
                yielded. With an id, they begin at the start of the response.
            options: The options of the first request, only used if ``interrupted`` is an id.
        """
        return None

    async def release(self, stored_response: ChunkBatches | str) -> None:  # noqa: B027 — most providers store no responses
        """Cancel a stored response whose rest is not needed. If `MAY_CANCEL` returns False, do nothing.

        Args:
            stored_response: See ``interrupted`` of `attachment`.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Close the pooled connections."""
