"""What a request of either API asks for, in this project's own terms."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from tailrace.server.facade.errors import OpenAIError
from tailrace.server.facade.markdown import with_files
from tailrace.streaming.request_facts import RequestFacts
from tailrace.wrappers import ContentPart, ContentPartText, History, Message, Role
from tailrace.wrappers.history import HistoryConverter
from tailrace.wrappers.options import OutputFormat, ToolChoice, ToolDefinition

MAX_KEY_LENGTH = 200
"""Characters of a conversation's key: what tells its branches apart is added to it."""


class LenientModel(BaseModel):
    """A part of a request: members that nobody here knows are ignored."""

    model_config = ConfigDict(extra="ignore", populate_by_name=True)


@dataclass(frozen=True)
class Asked:
    """A request.

    Attributes:
        model: Who is to answer; empty for whoever is here.
        earlier: What was said before, as the request tells it.
        new: What the caller says now.
        facts: What is asked for beyond that.
        stream: The answer is wanted piece by piece.
        include_usage: The stream is to end with what was counted.
        key: Names the conversation; empty where the request does not.
        continues: The request tells what is new alone: the conversation of that key goes on.
        previous: The response that the request goes on after; empty for none.
        echo: Members of the request that the answer repeats.
    """

    model: str
    earlier: tuple[Message, ...]
    new: Message
    facts: RequestFacts
    stream: bool = False
    include_usage: bool = False
    key: str = ""
    continues: bool = False
    previous: str = ""
    echo: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def tool_names(self) -> frozenset[str]:
        """The caller's tools."""
        return frozenset(tool.name for tool in self.facts.tools)

    @property
    def call_ids(self) -> frozenset[str]:
        """The ids of all calls that the request tells of."""
        return frozenset(call.id for message in self.earlier for call in message.tool_calls)


def read_history(converter: HistoryConverter[Any, Any], messages: Sequence[Any], *, param: str) -> History:
    """The conversation that a request tells.

    Args:
        converter: Reads it.
        messages: As the API has them.
        param: The member of the request that holds them.

    Raises:
        OpenAIError: One of them cannot be read.
    """
    try:
        return converter.to_history(messages)
    except ValidationError as error:
        raise OpenAIError.of_validation(error, param) from None
    except ValueError as error:
        why = str(error).partition("\n")[0]
        raise OpenAIError(
            400, f"Invalid value for '{param}': {why}", param=param, code="invalid_value"
        ) from None


def split_history(history: History, *, param: str) -> tuple[tuple[Message, ...], Message]:
    """What was said before, and what is new: everything behind the model's last message, as one message.

    Args:
        history: The conversation of a request.
        param: The member of the request that holds it.

    Raises:
        OpenAIError: Nothing is new.
    """
    conversation = tuple(
        with_files(message) if message.role is Role.MODEL else message for message in history.conversation
    )
    if not conversation and history.system_message:
        # Instructions alone: they are all that there is to answer.
        said = ContentPartText(text=history.system_message)
        return (), Message(role=Role.USER, content=(said,))
    begins = 1 + max(
        (at for at, message in enumerate(conversation) if message.role is Role.MODEL), default=-1
    )
    new = conversation[begins:]
    if not new:
        raise OpenAIError(
            400,
            f"'{param}' must end with what the user or a tool says: there is nothing to answer",
            param=param,
            code="invalid_value",
        )
    return without_repeated_calls(conversation[:begins]), joined(new)


def without_repeated_calls(messages: Sequence[Message]) -> tuple[Message, ...]:
    """A conversation without the answers that only ask again for what a round of calls is owed.

    A client that sends some of the results is asked for the others by an answer that repeats their calls, and puts it
    into the conversation, as it does with every answer. Nothing new is said in it: the results behind it belong to the
    round that was there.

    Args:
        messages: As a client tells them.
    """
    kept: list[Message] = []
    owed: Mapping[str, tuple[str, object]] = {}
    answered = False  # some of the round
    for message in messages:
        if message.role is Role.MODEL:
            asks: Mapping[str, tuple[str, object]] = {
                call.id: (call.name, call.arguments) for call in message.tool_calls
            }
            if asks and answered and not message.text.strip() and _all_among(asks, owed):
                continue
            owed, answered = asks, False
        elif message.tool_results and message.role is Role.TOOL:
            results = {result.id for result in message.tool_results}
            answered = answered or not results.isdisjoint(owed)
            owed = {call_id: call for call_id, call in owed.items() if call_id not in results}
        kept.append(message)
    return tuple(kept)


def _all_among(some: Mapping[str, object], others: Mapping[str, object]) -> bool:
    return all(name in others and others[name] == value for name, value in some.items())


def joined(messages: tuple[Message, ...]) -> Message:
    """Messages of the caller as one, the parts in order; an empty line parts what were texts of their own."""
    if len(messages) == 1:
        return messages[0]
    content: tuple[ContentPart, ...] = ()
    for message in messages:
        content = joined_content(content, message.content)
    metadata = {name: value for message in messages for name, value in message.metadata.items()}
    role = Role.TOOL if any(message.role is Role.TOOL for message in messages) else Role.USER
    return Message(role=role, content=content, metadata=metadata)


def joined_content(first: Sequence[ContentPart], second: Sequence[ContentPart]) -> tuple[ContentPart, ...]:
    """What two messages of one side say, as one."""
    parted = (
        first and second and isinstance(first[-1], ContentPartText) and isinstance(second[0], ContentPartText)
    )
    return (*first, *((ContentPartText(text="\n\n"),) if parted else ()), *second)


def request_facts(
    *,
    tools: tuple[ToolDefinition, ...],
    tool_choice: ToolChoice | None,
    output: OutputFormat | None,
    **others: object,
) -> RequestFacts:
    """What is asked for; members that are None are not.

    Raises:
        OpenAIError: A value is not what it has to be.
    """
    given: dict[str, object] = {"tool_choice": tool_choice, "output": output, **others}
    given = {name: value for name, value in given.items() if value is not None}
    if tools:
        given["tools"] = tools
    try:
        return RequestFacts.model_validate(given)
    except ValidationError as error:
        raise OpenAIError.of_validation(error) from None


def conversation_key(metadata: Mapping[str, Any] | None, header: str, *others: str | None) -> str:
    """The key that a request names its conversation by; the first place that has one counts.

    Args:
        metadata: The request's, with ``conversation_id`` or ``context_id``.
        header: ``X-Conversation-Id``.
        others: Further places, in order.

    Raises:
        OpenAIError: It cannot be one.
    """
    given = metadata or {}
    for key in (header, given.get("conversation_id"), given.get("context_id"), *others):
        if not key:
            continue
        if not isinstance(key, str) or len(key) > MAX_KEY_LENGTH or not (key.isascii() and key.isprintable()):
            raise OpenAIError(
                400,
                f"a conversation's id is text of at most {MAX_KEY_LENGTH} printable ASCII characters",
                param="metadata.conversation_id",
                code="invalid_value",
            )
        return key
    return ""


def function_definition(fields: Mapping[str, Any], where: str) -> ToolDefinition:
    """A function that the caller runs, as both APIs describe it.

    Args:
        fields: ``name``, ``description``, ``parameters`` and ``strict``.
        where: Where in the request they stand.

    Raises:
        OpenAIError: One of them is not what it has to be.
    """
    names = ("name", "description", "parameters", "strict")
    given = {name: fields[name] for name in names if fields.get(name) is not None}
    try:
        return ToolDefinition.model_validate(given)
    except ValidationError as error:
        raise OpenAIError.of_validation(error, where) from None


def output_format(fields: Mapping[str, Any], where: str) -> OutputFormat:
    """The JSON that is to be answered with, as both APIs describe it.

    Raises:
        OpenAIError: A member is not what it has to be.
    """
    names = ("schema", "name", "description", "strict")
    given = {name: fields[name] for name in names if fields.get(name) is not None}
    try:
        return OutputFormat.model_validate(given)
    except ValidationError as error:
        raise OpenAIError.of_validation(error, where) from None


def choice_by_word(word: str) -> ToolChoice:
    """A choice among tools that is one word in both APIs.

    Raises:
        OpenAIError: It is none of theirs.
    """
    if word not in ("auto", "none", "required"):
        raise unsupported("tool_choice", f"The tool_choice {word!r}")
    return ToolChoice.model_validate({"mode": word})


def unsupported(param: str, what: str) -> OpenAIError:
    """A request for something that is not to be had here."""
    return OpenAIError(400, f"{what} is not supported here", param=param, code="unsupported_value")
