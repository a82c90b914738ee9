"""Requests of the AI SDK's chats: what ``DefaultChatTransport`` sends, and what its hooks may make of it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import Field, ValidationError

from tailrace.server.facade.asked import Asked, LenientModel, conversation_key, split_history
from tailrace.server.facade.errors import OpenAIError
from tailrace.server.facade.events import is_mapping
from tailrace.server.ui_streams.requests import facts_of, file_of
from tailrace.wrappers import (
    ContentPart,
    ContentPartReasoning,
    ContentPartText,
    ContentPartToolCall,
    ContentPartToolResult,
    History,
    Message,
    Role,
)
from tailrace.wrappers.tool_calls import parse_arguments

_ROLES = {"user": Role.USER, "assistant": Role.MODEL}


class _UIMessage(LenientModel):
    id: str = ""
    role: str
    parts: list[dict[str, Any]] = Field(default_factory=list[dict[str, Any]])


class _Request(LenientModel):
    id: str
    messages: list[_UIMessage] | None = None
    message: _UIMessage | None = None
    system: str | None = None


@dataclass(frozen=True)
class ChatRequest:
    """A request of a chat.

    Attributes:
        asked: What it asks.
        message_id: Of the assistant's message that goes on with the answer; empty where a new one begins.
    """

    asked: Asked
    message_id: str = ""


def read_chat_id(chat_id: str) -> str:
    """The id of a chat, which is that of its conversation.

    Raises:
        OpenAIError: It cannot be one.
    """
    if not chat_id:
        raise OpenAIError(400, "a chat has an id", param="id", code="invalid_value")
    return conversation_key(None, chat_id)


def read_ui_request(body: Mapping[str, Any]) -> ChatRequest:
    """A request for the answer to a message, for another answer, or to the results of tools.

    With ``messages`` the whole conversation is told; with ``message`` what is new alone.

    Args:
        body: Its JSON.

    Raises:
        OpenAIError: It cannot be answered as it is.
    """
    try:
        request = _Request.model_validate(body)
    except ValidationError as error:
        raise OpenAIError.of_validation(error) from None
    told = request.messages if request.message is None else [request.message]
    if not told:
        raise OpenAIError(400, "Invalid value for 'messages': there is none", param="messages")
    systems = [request.system] if request.system else []
    conversation: list[Message] = []
    for at, said in enumerate(told):
        where = f"messages[{at}]"
        if said.role == "system":
            systems += [text for part in said.parts if isinstance(text := part.get("text"), str)]
        elif said.role in _ROLES:
            conversation += _read_message(said, where)
        else:
            raise OpenAIError(400, f"Invalid value for '{where}.role': {said.role!r}", param=where)
    try:
        history = History(conversation=tuple(conversation))
    except ValidationError as error:
        raise OpenAIError.of_validation(error, "messages") from None
    earlier, new = split_history(history, param="messages")
    asked = Asked(
        model="",
        earlier=() if request.message is not None else earlier,
        new=new,
        facts=facts_of(body, body.get("tools"), "\n\n".join(systems)),
        stream=True,
        key=read_chat_id(request.id),
        continues=request.message is not None,
    )
    last = told[-1]
    return ChatRequest(asked, last.id if last.role == "assistant" else "")


def _read_message(said: _UIMessage, where: str) -> Iterator[Message]:
    """A message of the client's as those of a conversation: an assistant's is several, one for each step."""
    try:
        if said.role == "user":
            yield Message(role=Role.USER, content=tuple(_content(said.parts, where)))
            return
        for parts in _steps(said.parts):
            yield from _read_step(parts, where)
    except ValidationError as error:
        raise OpenAIError.of_validation(error, where) from None


def _steps(parts: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    step: list[dict[str, Any]] = []
    for part in parts:
        if part.get("type") == "step-start":
            if step:
                yield step
            step = []
        else:
            step.append(part)
    if step:
        yield step


def _read_step(parts: list[dict[str, Any]], where: str) -> Iterator[Message]:
    """What the model said in a step, and the results of what it called."""
    content = tuple(_content(parts, where))
    results = tuple(result for part in parts if (result := _result_of(part)) is not None)
    if content:
        yield Message(role=Role.MODEL, content=content)
    if results:
        yield Message(role=Role.TOOL, content=results)


def _content(parts: list[dict[str, Any]], where: str) -> Iterator[ContentPart]:
    for at, part in enumerate(parts):
        kind, text = str(part.get("type")), part.get("text")
        if kind == "text" and isinstance(text, str):
            yield ContentPartText(text=text)
        elif kind == "reasoning" and isinstance(text, str):
            yield ContentPartReasoning(text=text)
        elif kind == "file":
            url, media_type = part.get("url"), part.get("mediaType")
            yield file_of(url, media_type, part.get("filename"), f"{where}.parts[{at}]")
        elif _is_whole_call(part):
            yield _call_of(part)


def _is_whole_call(part: Mapping[str, Any]) -> bool:
    """Whether a part is a call, and not one that broke off."""
    kind = str(part.get("type"))
    return (kind.startswith("tool-") or kind == "dynamic-tool") and part.get("state") != "input-streaming"


def _names_of(part: Mapping[str, Any]) -> dict[str, Any]:
    name = part.get("toolName") if part["type"] == "dynamic-tool" else part["type"].removeprefix("tool-")
    return {"id": part.get("toolCallId"), "name": name}


def _call_of(part: Mapping[str, Any]) -> ContentPartToolCall:
    given: object = part.get("input")
    if given is None:
        given = part.get("rawInput")  # of one that could not be read, as older clients have it
    if isinstance(given, str):
        read = parse_arguments(given)
        if "arguments_text" not in read:  # text of a tool that takes text, though it reads like an object
            read = {"arguments_text": given}
    else:
        read = {"arguments": dict(given)} if is_mapping(given) else {}
    return ContentPartToolCall.model_validate({**_names_of(part), **read})


def _result_of(part: Mapping[str, Any]) -> ContentPartToolResult | None:
    """What came of a call; None where nothing did yet."""
    if not _is_whole_call(part):
        return None
    state = part.get("state")
    if state == "output-available" and part.get("preliminary") is not True:
        given: dict[str, Any] = {"output": part.get("output")}
    elif state == "output-error":
        given = {"output": part.get("errorText") or "the tool failed", "is_error": True}
    elif state == "output-denied":
        given = {"output": _denial(part), "is_error": True}
    elif state == "approval-responded" and _is_denied(part):
        given = {"output": _denial(part), "is_error": True}
    else:
        return None
    return ContentPartToolResult.model_validate({**_names_of(part), **given})


def _is_denied(part: Mapping[str, Any]) -> bool:
    approval = part.get("approval")
    return is_mapping(approval) and approval.get("approved") is False


def _denial(part: Mapping[str, Any]) -> str:
    approval = part.get("approval")
    reason = approval.get("reason") if is_mapping(approval) else None
    return str(reason) if reason else "the user did not allow it"
