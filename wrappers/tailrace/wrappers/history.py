"""Between the common history and a provider's messages: the interface that each provider's converter keeps."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from tailrace.wrappers.chunks import ChunkWrapper
from tailrace.wrappers.messages import ContentPartToolResult, History, Message
from tailrace.wrappers.tool_names import NameRule

ProviderMessage = TypeVar("ProviderMessage")
ProviderChunk = TypeVar("ProviderChunk")


class HistoryConverter(ABC, Generic[ProviderMessage, ProviderChunk]):
    """Converts conversations both ways and builds messages out of what a provider streamed.

    Converters hold no state: one instance may serve any number of conversations at once.

    Attributes:
        id_pattern: What the id of a tool call must be made of for the provider to take it; None for anything. Ids
            are mended before a conversation is converted, see `tailrace.wrappers.tool_ids`.
        name_rule: What the name of a tool may be made of; None for anything. Names are mended before a conversation is
            converted, and in the tools that are offered, see `tailrace.wrappers.tool_names`.
    """

    id_pattern: ClassVar[re.Pattern[str] | None] = None
    name_rule: ClassVar[NameRule | None] = None

    @abstractmethod
    def from_history(self, history: History) -> list[ProviderMessage]:
        """The provider's messages for a history: system, then context, then the conversation.

        Raises:
            ValueError: A part cannot be sent to this provider; the message names the part and the reason.
        """

    @abstractmethod
    def to_history(self, messages: Sequence[ProviderMessage]) -> History:
        """The common history of a provider's messages; the inverse of `from_history`.

        Results of tools that stand next to each other become one message of role TOOL; a tool's name is
        recovered from the call with the same id.

        Raises:
            ValueError: A message has a role or content that this provider does not define.
        """

    @abstractmethod
    def to_message(self, response: Iterable[ChunkWrapper[Any]] | Any) -> Message:
        """The complete message (role MODEL) of a stream's wrappers, or of the provider's whole response.

        The first choice counts where several were asked for, unless a converter is told otherwise. Never raises for what a provider sent:
        arguments that do not parse are kept as text, see `ContentPartToolCall`.
        """

    @abstractmethod
    def tool_result_messages(self, results: Sequence[ContentPartToolResult]) -> list[ProviderMessage]:
        """The provider's message or messages for the results of one round of tools."""

    @abstractmethod
    def create_chunk_wrapper(self, chunk: ProviderChunk) -> ChunkWrapper[Any]:
        """A wrapper over one delta object of the provider's own client library."""
