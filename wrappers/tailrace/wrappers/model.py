"""A model that can be asked, over the network, whoever provides it."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

from tailrace.wrappers.chunks import ChunkWrapper
from tailrace.wrappers.history import HistoryConverter
from tailrace.wrappers.messages import History
from tailrace.wrappers.options import NO_OPTIONS, RequestOptions

ChunkBatches = AsyncIterator[Sequence[ChunkWrapper[Any]]]
"""The chunks of a response as they arrive: those that came with one read of the network stand together."""

TakeChunks = Callable[[Sequence[ChunkWrapper[Any]]], bool]
"""Takes chunks where they arrive, and says whether it has: those that it has not come from the iterator. What it raises, that raises."""


class ArrivingBatches(ABC, AsyncIterator[Sequence[ChunkWrapper[Any]]]):
    """Batches that can be taken where they arrive, while somebody waits for them, without that being woken for each.

    An iterator of another kind gives them all to whoever waits.
    """

    @abstractmethod
    def take_at_once(self, take: TakeChunks) -> None:
        """Offer each batch to this first, while the iterator is waited for."""


REQUEST_HEADERS: ContextVar[Mapping[str, str]] = ContextVar(
    "tailrace_request_headers", default=MappingProxyType({})
)
"""Headers that a request to a provider carries beside its own, where it is sent while they are set: how a trace goes on there."""


class Model(ABC):
    """One model of one provider.

    Attributes:
        provider: The provider's name, as in ``provider:model``.
        name: The model's name, as the provider knows it.
    """

    provider: str
    name: str

    @property
    @abstractmethod
    def converter(self) -> HistoryConverter[Any, Any]:
        """Between the common history and this provider's messages."""

    @abstractmethod
    def stream(
        self, history: History, options: RequestOptions = NO_OPTIONS
    ) -> AbstractAsyncContextManager[ChunkBatches]:
        """Ask the model to go on with a conversation.

        Args:
            history: The conversation.
            options: What else is asked: tools, the form of the answer, sampling.

        Entering sends the request and waits for the answer's headers; leaving closes the connection, so that a
        cancelled caller stops the provider too. What the provider says inside the stream, errors included,
        comes as chunks.

        Raises:
            ProtocolError: On entering: the provider cannot be told something of the conversation or the options.
            UpstreamError: On entering, or while iterating: the provider could not be reached, refused, fell
                silent, or the connection broke.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Close the connections that are kept for further requests."""
