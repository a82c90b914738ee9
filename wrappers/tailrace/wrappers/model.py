"""The interface of the models of all providers.

`create_model` (`tailrace.wrappers.providers`) creates a model. `tailrace.streaming.Agent` calls `Model.stream` for
each request.
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
"""Async iterator over the chunks of a response. Each item is a list of the chunks of one network read."""

REQUEST_HEADERS: ContextVar[Mapping[str, str]] = ContextVar(
    "tailrace_request_headers", default=MappingProxyType({})
)
"""Additional headers for requests to providers, for example to propagate a trace context."""


async def _always() -> bool:
    return True


MAY_CANCEL: ContextVar[Callable[[], Awaitable[bool]]] = ContextVar("tailrace_may_cancel", default=_always)
"""Returns whether a response that is not read to its end is cancelled at the provider; False if another process may read it."""


class Model(ABC):
    """One model of one provider.

    Attributes:
        provider: The name of the provider, as in ``provider:model``.
        name: The name that the provider gives the model.
        accepts_native_tools: True if requests to this model contain `RequestOptions.native_tools`.
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

        Entering the context sends the request and waits for the headers of the response. Leaving the context closes
        the connection, so that a cancellation also stops the provider. An error that the provider reports inside the
        stream is a chunk with ``details.error``. An implementation may also return an iterator over
        ``ChatCompletionChunk`` objects of the ``openai`` package, as ``AsyncOpenAI`` does.

        Args:
            history: The conversation.
            options: Tools, output format, sampling.

        Raises:
            ProtocolError: The provider does not support a part of the conversation or an option. Raised on entering
                the context.
            UpstreamError: The provider could not be reached, rejected the request, or sent no data within the read
                timeout; or the connection broke. Raised on entering the context and while iterating.
        """

    async def continuation(
        self, text: str, history: History, options: RequestOptions = NO_OPTIONS
    ) -> AbstractAsyncContextManager[ChunkBatches] | None:
        """Return a request that continues a response that broke off; None if it can only begin again.

        Entering the context sends the request, as with `stream`; its chunks follow the text. May request what the server
        supports. By default None.

        Args:
            text: The text of the response, which consists of text alone.
            history: The conversation before the response.
            options: The options of its request.
        """
        return None

    def stored_id(self, chunks: ChunkBatches) -> str:
        """Return the provider's id of a response that it holds, by which `attachment` reads the response; by default empty.

        Args:
            chunks: The chunks of the response, as `stream` returned them, after the first of them has arrived.
        """
        return ""

    def attachment(
        self, broken: ChunkBatches | str, options: RequestOptions = NO_OPTIONS
    ) -> AbstractAsyncContextManager[ChunkBatches] | None:
        """Return a request for the rest of a response whose connection broke; None if the provider does not hold it.

        Entering the context sends the request, as with `stream`. Its chunks follow those that have arrived. By default None.

        Args:
            broken: The chunks of the response, as `stream` or an earlier attachment returned them. Or its `stored_id`, if another
                process requested it: the chunks then begin with the first one of the response.
            options: The options of the request. Used with a `stored_id` only.
        """
        return None

    @abstractmethod
    async def aclose(self) -> None:
        """Close the pooled connections."""
