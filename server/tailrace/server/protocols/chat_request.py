"""A request of any protocol: the conversation so far, the new message, and options."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, TypeVar

import msgspec
from pydantic import BaseModel, ConfigDict, FailFast, Strict

from tailrace.server.protocols.markdown import with_files
from tailrace.server.protocols.openai_error import OpenAIError, reject_invalid
from tailrace.server.runtime.active_task import NewCompletion
from tailrace.streaming.agent.caller_options import CallerOptions
from tailrace.wrappers import ContentPartText, History, Message, Role, UpstreamError
from tailrace.wrappers.conversion.history_converter import HistoryConverter

MAX_KEY_LENGTH = 200
"""Characters of a conversation's key, to which a suffix is added for each branch."""

Number = Annotated[float, Strict()]
"""A JSON number; neither text nor boolean."""

MAX_MESSAGES = 10_000
"""The maximum number of messages in a request."""

T = TypeVar("T")


class _FirstError(FailFast):
    """`FailFast`, hashable for use in a union."""

    def __hash__(self) -> int:
        return hash(_FirstError)


Items = Annotated[list[T], _FirstError()]
"""A list in a request; validation stops at the first invalid item."""


class LenientModel(BaseModel):
    """A part of a request; unknown members are ignored."""

    model_config = ConfigDict(extra="ignore", populate_by_name=True)


@dataclass(frozen=True)
class ChatRequest:
    """A request in terms that the protocols share.

    Attributes:
        earlier: The earlier messages that the request repeats.
        new: The caller's new message: everything after the model's last message.
        unanswered: The messages of ``new`` before the last one, if they may be stored ones without a response; ``last`` is
            that last one.
        facts: Options of the request.
        model: The requested model; empty for the agent.
        stream: Stream the response.
        include_usage: End the stream with the usage.
        key: Names the conversation; may be empty.
        continues: The request has only the new message, and continues the conversation of that key.
        existing: The id of the conversation that the request continues and that must exist; may be empty.
        previous: The id of the response that the request continues; may be empty.
        echo: Members of the request that the response repeats, as JSON.
        message_id: The id of the client's message that the response continues; may be empty.
        warnings: Parts of the request that have no effect, in words.
        background: The response to the request comes before the end of the turn.
        created: The Unix time of the request.
        store: The client can retrieve the response by its id; None for the default of the API.
        record: The API's record of the request, which is stored in the metadata ``apiRequest`` of its message; may be
            empty.
        metadata: The client's metadata of a chat completion.
        completion: The stored chat completion that the request creates; None for other requests.
        choice: The number of the choice that the response is. The first continues the conversation; each of the others is
            a conversation of its own.
        choices: The number of choices of the response.
    """

    earlier: tuple[Message, ...]
    new: Message
    facts: CallerOptions
    model: str = ""
    stream: bool = False
    include_usage: bool = False
    key: str = ""
    continues: bool = False
    existing: str = ""
    previous: str = ""
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
    unanswered: tuple[Message, ...] = ()
    last: Message | None = None

    def each_choice(self) -> "list[ChatRequest]":
        """Return a request for each choice."""
        return [replace(self, choice=choice) for choice in range(self.choices)]

    def with_stored_questions(self) -> "ChatRequest | None":
        """Return the request with its unanswered messages as earlier ones; None if it has none."""
        if self.last is None:
            return None
        return replace(
            self, earlier=(*self.earlier, *self.unanswered), new=self.last, unanswered=(), last=None
        )

    @property
    def tool_names(self) -> frozenset[str]:
        """The names of the client's tools."""
        return self.facts.tool_names

    @property
    def call_ids(self) -> frozenset[str]:
        """The ids of all calls in the earlier messages."""
        return frozenset(call.id for message in self.earlier for call in message.tool_calls)


def read_history(converter: HistoryConverter[Any, Any], messages: Sequence[Any], *, param: str) -> History:
    """Return the conversation of a request.

    Args:
        converter: Converts the messages.
        messages: The messages in the API's form.
        param: The member of the request that holds them.

    Raises:
        OpenAIError: A message is invalid.
    """
    try:
        with reject_invalid(param):
            return converter.to_history(messages)
    except (
        ValueError,
        UpstreamError,
    ) as error:  # the second for more tool calls or parts than a response may have
        reason = str(error).partition("\n")[0]
        raise OpenAIError(
            400, f"Invalid value for '{param}': {reason}", param=param, code="invalid_value"
        ) from None


def split_history(history: History, *, param: str) -> tuple[tuple[Message, ...], Message]:
    """Return the earlier messages, and everything after the model's last message as one new message.

    Args:
        history: The conversation of a request.
        param: The member of the request that holds it.

    Raises:
        OpenAIError: There is no new message.
    """
    if len(history.conversation) > MAX_MESSAGES:
        raise OpenAIError(
            413,
            f"'{param}' has {len(history.conversation)} messages; the maximum is {MAX_MESSAGES}",
            param=param,
            code="too_many_messages",
        )
    conversation = tuple(
        with_files(message) if message.role is Role.MODEL else message for message in history.conversation
    )
    if not conversation and history.system_message:
        # The instructions are the message.
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
    """Return a conversation without responses that only repeat the open calls of a round.

    A client that sends some of the results gets a response that repeats the other calls, and adds it to its
    conversation. The results after it belong to the earlier round.

    Args:
        messages: The client's messages.
    """
    distinct: list[Message] = []
    pending: Mapping[str, tuple[str, object]] = {}
    answered = False  # some of the round's calls
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
    """Return messages of the caller as one, with the parts in order."""
    if len(messages) == 1:
        return messages[0]
    content = tuple(part for message in messages for part in message.content)
    metadata = {name: value for message in messages for name, value in message.metadata.items()}
    role = Role.TOOL if any(message.role is Role.TOOL for message in messages) else Role.USER
    return Message(role=role, content=content, metadata=metadata)


def conversation_key(sources: Mapping[str, object]) -> str:
    """Return the key of a request's conversation: the first one that is present; empty if there is none.

    Args:
        sources: The members or headers of the request that can have the key, by their names in error messages.

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
