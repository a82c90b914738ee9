"""The interface of converters between the common history and the messages of a provider.

Each provider's package has an implementation in its module ``converter``.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from tailrace.wrappers.chunks import ChunkWrapper
from tailrace.wrappers.conversion.tool_names import NameRule
from tailrace.wrappers.messages import ContentPartText, ContentPartToolResult, History, Message, Role

ProviderMessage = TypeVar("ProviderMessage")
ProviderChunk = TypeVar("ProviderChunk")


_USER_MESSAGE = Message(role=Role.USER, content=(ContentPartText(text="-"),))
"""User message before a single response, because some APIs require it."""


class HistoryConverter(ABC, Generic[ProviderMessage, ProviderChunk]):
    """Converter between the common format and the format of one provider, for conversations and responses.

    Converters are stateless.

    Attributes:
        id_pattern: Regular expression of valid tool call ids; None if the provider accepts all ids. Invalid ids are replaced
            before a conversation is converted (see `tailrace.wrappers.conversion.tool_ids`).
        name_rule: Rule for valid tool names; None if the provider accepts all names. Invalid names are replaced in conversations
            and tool definitions (see `tailrace.wrappers.conversion.tool_names`).
    """

    id_pattern: ClassVar[re.Pattern[str] | None] = None
    name_rule: ClassVar[NameRule | None] = None

    @abstractmethod
    def from_history(self, history: History) -> list[ProviderMessage]:
        """Convert a history to messages of the provider: the context, and then the conversation.

        The system message is the first message, unless the API has a separate member for it.

        Raises:
            ValueError: The provider does not accept a part of the history.
        """

    @abstractmethod
    def to_history(self, messages: Sequence[ProviderMessage]) -> History:
        """Convert messages of the provider to the common history. This is the inverse of `from_history`.

        Adjacent tool results become one message with the role TOOL. A result without a tool name gets the name of its call.

        Raises:
            ValueError: The provider does not define the role or the content of a message.
        """

    @abstractmethod
    def to_message(self, response: Iterable[ChunkWrapper[Any]] | Any) -> Message:
        """Convert the chunk wrappers of a stream, or a complete response, to a message with the role MODEL.

        The message contains the first choice of the response. Invalid content never causes an exception. Invalid arguments are
        stored as text (see `ContentPartToolCall`).
        """

    def to_provider_messages(self, response: Iterable[ChunkWrapper[Any]] | Any) -> list[ProviderMessage]:
        """Convert a response to messages of the provider, which can be appended to the messages of the request.

        The result is one message for most providers, and several items for OpenAI Responses. It is empty if no content of the
        response may be part of a request.

        Args:
            response: See `to_message`.
        """
        history = History(conversation=(_USER_MESSAGE, self.to_message(response)))
        return self.from_history(history)[1:]

    @abstractmethod
    def tool_result_messages(self, results: Sequence[ContentPartToolResult]) -> list[ProviderMessage]:
        """Convert the results of one round of tool calls to messages of the provider."""

    @abstractmethod
    def create_chunk_wrapper(self, chunk: ProviderChunk) -> ChunkWrapper[Any]:
        """Wrap one delta object of the provider's client library in a chunk wrapper."""
