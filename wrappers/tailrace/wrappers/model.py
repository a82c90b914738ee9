"""The interface of models of all providers."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

from tailrace.wrappers.chunks import ChunkWrapper
from tailrace.wrappers.conversion.converter import HistoryConverter
from tailrace.wrappers.conversion.options import NO_OPTIONS, RequestOptions
from tailrace.wrappers.messages import History

ChunkBatches = AsyncIterator[Sequence[ChunkWrapper[Any]]]
"""Batches of a response's chunks: those of one network read form a batch."""

REQUEST_HEADERS: ContextVar[Mapping[str, str]] = ContextVar(
    "tailrace_request_headers", default=MappingProxyType({})
)
"""Additional headers of requests to providers, for example for the propagation of traces."""


class Model(ABC):
    """One model of one provider.

    Attributes:
        provider: The provider's name, as in ``provider:model``.
        name: The provider's name of the model.
        accepts_native_tools: Requests contain `RequestOptions.native_tools`.
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
        """Generate the model's response to a conversation.

        Entering the context sends the request and waits for the response's headers; leaving it closes the connection,
        so that cancellation also stops the provider. Errors that the provider reports inside the stream are chunks.
        Implementations may return an iterator of the openai package's ``ChatCompletionChunk`` objects instead of
        batches, as ``AsyncOpenAI`` does.

        Args:
            history: The conversation.
            options: Tools, output format, sampling.

        Raises:
            ProtocolError: On entering: the provider does not support a part of the conversation or an option.
            UpstreamError: On entering, or while iterating: the provider could not be reached, rejected the request, sent
                no data within the limit, or the connection broke.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Close the pooled connections."""
