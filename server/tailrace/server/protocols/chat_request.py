"""A request of a protocol other than A2A: the conversation so far, the new message, and options."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, TypeVar

import msgspec
from pydantic import BaseModel, ConfigDict, FailFast, Strict

from tailrace.server.protocols.markdown import extract_data_urls
from tailrace.server.protocols.openai_error import OpenAIError, reject_invalid
from tailrace.server.runtime.active_task import NewCompletion
from tailrace.streaming.agent.caller_options import CallerOptions
from tailrace.wrappers import ContentPartText, History, Message, Role, UpstreamError
from tailrace.wrappers.conversion.history_converter import HistoryConverter

MAX_KEY_LENGTH = 200
"""Maximum length of the key of a conversation. The id of a branch may be longer."""

Number = Annotated[float, Strict()]
"""A JSON number. Strings and booleans are rejected."""

MAX_MESSAGES = 10_000
"""Maximum number of messages in a request."""

T = TypeVar("T")


class _FirstError(FailFast):
    """A hashable `FailFast`. Types in a union must be hashable."""

    def __hash__(self) -> int:
        return hash(_FirstError)


Items = Annotated[list[T], _FirstError()]
"""A list in a request. Its validation stops at the first invalid item."""


class LenientModel(BaseModel):
    """Base class of models for parts of a request. Unknown members are ignored."""

    model_config = ConfigDict(extra="ignore", populate_by_name=True)


@dataclass(frozen=True)
class ChatRequest:
    """A request, independent of its protocol.

    Attributes:
        earlier: The earlier messages of the conversation in the request.
        new: The new message, which joins all messages after the last message of the model.
        unanswered: All messages in ``new`` except the last one, if the store may contain them because their responses failed.
        last: The last message in ``new`` if ``unanswered`` is not empty; otherwise None.
        caller_options: Options of the request.
        model: The requested model; may be empty.
        stream: Whether the response is streamed.
        include_usage: Whether the stream ends with the usage.
        key: The key that the client chose for the conversation; may be empty.
        continues: Whether the request contains only the new message, for the conversation with the key ``key``.
        existing: The id of an existing conversation that the request continues; may be empty.
        previous: The id of the response that the request continues; may be empty.
        decided: The id of the response that requested the decisions in ``new``; empty if there are none.
        echo: Members of the request that are repeated in the response, as JSON.
        message_id: The id of a message in the client's conversation that the response extends; may be empty.
        warnings: Descriptions of parts of the request that have no effect.
        background: Whether the server responds before the turn ends.
        created: The Unix time of the request.
        store: Whether the client can retrieve the response by its id; None for the default of the API.
        record: The part of the request that is stored in the metadata ``apiRequest`` of the message; may be empty.
        metadata: The metadata that the client sets for a chat completion.
        completion: The stored chat completion that the request creates; None for other requests.
        choice: The index of this choice. Choice 0 continues the conversation. Each other choice begins a new conversation.
        choices: The number of choices: OpenAI's parameter ``n``, times the number of prompts.
        choice_context_prefix: The prefix of the context ids of choices other than 0. With it, the server finds and deletes these
            contexts when the completion is deleted. May be empty.
    """

    earlier: tuple[Message, ...]
    new: Message
    caller_options: CallerOptions
    model: str = ""
    stream: bool = False
    include_usage: bool = False
    key: str = ""
    continues: bool = False
    existing: str = ""
    previous: str = ""
    decided: str = ""
    echo: Mapping[str, msgspec.Raw] = field(default_factory=dict[str, msgspec.Raw])
    message_id: str = ""
    warnings: tuple[str, ...] = ()
    background: bool = False
    created: int = 0
    store: bool | None = None
    record: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    completion: NewCompletion | None = None
    choice: int = 0
    choices: int = 1
    choice_context_prefix: str = ""
    unanswered: tuple[Message, ...] = ()
    last: Message | None = None

    def each_choice(self) -> "list[ChatRequest]":
        """Return one request for each choice."""
        return [replace(self, choice=choice) for choice in range(self.choices)]

    def with_unanswered_as_earlier(self) -> "ChatRequest | None":
        """Return a copy with the unanswered messages as earlier messages; None if there are none."""
        if self.last is None:
            return None
        return replace(
            self, earlier=(*self.earlier, *self.unanswered), new=self.last, unanswered=(), last=None
        )

    @property
    def tool_names(self) -> frozenset[str]:
        """The names of the tools that the client declared."""
        return self.caller_options.tool_names

    @property
    def call_ids(self) -> frozenset[str]:
        """The ids of all tool calls in the earlier messages."""
        return frozenset(call.id for message in self.earlier for call in message.tool_calls)


def read_history(converter: HistoryConverter[Any, Any], messages: Sequence[Any], *, param: str) -> History:
    """Convert the messages of a request.

    Raises:
        OpenAIError: A message is invalid.
    """
    try:
        with reject_invalid(param):
            return converter.to_history(messages)
    except (ValueError, UpstreamError) as error:
        # An UpstreamError reports too many tool calls or parts.
        reason = str(error).partition("\n")[0]
        raise OpenAIError(
            400, f"Invalid value for '{param}': {reason}", param=param, code="invalid_value"
        ) from None


def split_history(history: History, *, param: str) -> tuple[tuple[Message, ...], Message]:
    """Return the earlier messages, and one new message with everything after the last message of the model.

    Raises:
        OpenAIError: There is no new message, or the conversation has more than `MAX_MESSAGES` messages.
    """
    if len(history.conversation) > MAX_MESSAGES:
        raise OpenAIError(
            413,
            f"'{param}' has {len(history.conversation)} messages; the maximum is {MAX_MESSAGES}",
            param=param,
            code="too_many_messages",
        )
    conversation = tuple(
        extract_data_urls(message) if message.role is Role.MODEL else message
        for message in history.conversation
    )
    if not conversation and history.system_message:
        return (), Message(role=Role.USER, content=(ContentPartText(text=history.system_message),))
    begins = 1 + max(
        (at for at, message in enumerate(conversation) if message.role is Role.MODEL), default=-1
    )
    new = conversation[begins:]
    if not new:
        raise OpenAIError(
            400,
            f"'{param}' must end with a message of the user or a tool",
            param=param,
            code="invalid_value",
        )
    return without_repeated_calls(conversation[:begins]), join_messages(new)


def without_repeated_calls(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Remove responses that only repeat pending calls of a round.

    If a client sends results for only some calls of a round, the server's response repeats the other calls. If that response is
    removed, the remaining results directly follow the round.
    """
    distinct: list[Message] = []
    pending: Mapping[str, tuple[str, object]] = {}
    answered = False  # whether any call of the round has a result
    for message in messages:
        if message.role is Role.MODEL:
            calls: Mapping[str, tuple[str, object]] = {
                call.id: (call.name, call.arguments) for call in message.tool_calls
            }
            if calls and answered and not message.text.strip() and calls.items() <= pending.items():
                continue
            pending, answered = calls, False
        elif message.tool_results and message.role is Role.TOOL:
            results = {result.id for result in message.tool_results}
            answered = answered or not results.isdisjoint(pending)
            pending = {call_id: call for call_id, call in pending.items() if call_id not in results}
        distinct.append(message)
    return tuple(distinct)


def join_messages(messages: tuple[Message, ...]) -> Message:
    """Join messages of the caller into one message."""
    if len(messages) == 1:
        return messages[0]
    content = tuple(part for message in messages for part in message.content)
    metadata = {name: value for message in messages for name, value in message.metadata.items()}
    role = Role.TOOL if any(message.role is Role.TOOL for message in messages) else Role.USER
    return Message(role=role, content=content, metadata=metadata)


def conversation_key(sources: Mapping[str, object]) -> str:
    """Return the first key of a conversation in these sources; empty if there is none.

    Args:
        sources: Values of members and headers that can contain the key, by name.

    Raises:
        OpenAIError: The key is invalid.
    """
    for name, key in sources.items():
        if not key:
            continue
        if not isinstance(key, str) or len(key) > MAX_KEY_LENGTH or not (key.isascii() and key.isprintable()):
            raise OpenAIError(
                400,
                f"a conversation's id is text of at most {MAX_KEY_LENGTH} printable ASCII characters",
                param=name,
                code="invalid_value",
            )
        return key
    return ""
