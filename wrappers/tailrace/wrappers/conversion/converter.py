"""The interface of converters between the common history and a provider's messages."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from tailrace.wrappers.chunks import ChunkWrapper
from tailrace.wrappers.conversion.tool_names import NameRule
from tailrace.wrappers.messages import ContentPartText, ContentPartToolResult, History, Message, Role

ProviderMessage = TypeVar("ProviderMessage")
ProviderChunk = TypeVar("ProviderChunk")


_QUESTION = Message(role=Role.USER, content=(ContentPartText(text="-"),))
"""Precedes a single converted response, since some APIs require a user message first."""


class HistoryConverter(ABC, Generic[ProviderMessage, ProviderChunk]):
    """Converter of conversations and responses between the common format and a provider's.

    Converters are stateless: one instance may be used for any number of conversations concurrently.

    Attributes:
        id_pattern: Pattern of the provider's valid tool call ids; None for any. Invalid ids are replaced before
            a conversation is converted, see `tailrace.wrappers.conversion.tool_ids`.
        name_rule: Rule for the provider's valid tool names; None for any. Invalid names are replaced in conversations
            and tool definitions, see `tailrace.wrappers.conversion.tool_names`.
    """

    id_pattern: ClassVar[re.Pattern[str] | None] = None
    name_rule: ClassVar[NameRule | None] = None

    @abstractmethod
    def from_history(self, history: History) -> list[ProviderMessage]:
        """Convert a history to the provider's messages: system, context, then the conversation.

        Raises:
            ValueError: A part cannot be sent to this provider; the message names the part and the reason.
        """

    @abstractmethod
    def to_history(self, messages: Sequence[ProviderMessage]) -> History:
        """Convert a provider's messages to the common history; the inverse of `from_history`.

        Adjacent tool results become one message of role TOOL; a tool's name is recovered from the call with the same
        id.

        Raises:
            ValueError: A message has a role or content that this provider does not define.
        """

    @abstractmethod
    def to_message(self, response: Iterable[ChunkWrapper[Any]] | Any) -> Message:
        """Return the complete message (role MODEL) of a stream's wrappers or of the provider's complete response.

        Of several choices the first is used, unless the converter has an argument for it. Never raises for a provider's
        content: arguments that do not parse are kept as text, see `ContentPartToolCall`.
        """

    def to_provider_messages(self, response: Iterable[ChunkWrapper[Any]] | Any) -> list[ProviderMessage]:
        """Return the provider's messages of a response, to append to the messages of its request.

        Combines `to_message` and `from_history`: one message for most providers, several items for OpenAI Responses,
        and an empty list if no content may be sent back. Arguments of tool calls keep the model's text if the provider
        accepts text.

        Args:
            response: See `to_message`.
        """
        history = History(conversation=(_QUESTION, self.to_message(response)))
        return self.from_history(history)[1:]

    @abstractmethod
    def tool_result_messages(self, results: Sequence[ContentPartToolResult]) -> list[ProviderMessage]:
        """Return the provider's messages for the results of one round of tool calls."""

    @abstractmethod
    def create_chunk_wrapper(self, chunk: ProviderChunk) -> ChunkWrapper[Any]:
        """Wrap one delta object of the provider's client library."""
