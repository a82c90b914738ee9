"""Validation of requests of the AI SDK's ``DefaultChatTransport``, with members that its hooks can add, such as ``system``."""

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

from pydantic import Field

from tailrace.server.protocols.chat_request import (
    ChatRequest,
    Items,
    LenientModel,
    conversation_key,
    split_history,
)
from tailrace.server.protocols.openai_error import OpenAIError, reject_invalid
from tailrace.server.protocols.option_parsers import file_of, parse_ui_options
from tailrace.server.protocols.task_events import is_mapping
from tailrace.server.runtime.identifier_bounds import MAX_ID_LENGTH
from tailrace.streaming.conversion.approval_parts import decisions_data
from tailrace.streaming.tools.approvals import ApprovalDecision
from tailrace.wrappers import (
    ContentPart,
    ContentPartData,
    ContentPartReasoning,
    ContentPartText,
    ContentPartToolCall,
    ContentPartToolResult,
    History,
    Message,
    Role,
)
from tailrace.wrappers.assembly.tool_calls import parse_arguments
from tailrace.wrappers.messages import shortened


class _UIMessage(LenientModel):
    id: str = Field(default="", max_length=MAX_ID_LENGTH)
    role: str
    parts: Items[dict[str, Any]] = Field(default_factory=list[dict[str, Any]])


class _Request(LenientModel):
    id: str
    messages: Items[_UIMessage] | None = None
    message: _UIMessage | None = None
    system: str | None = None


def read_chat_id(chat_id: str) -> str:
    """Check the id of a chat, and return it as the key of the conversation.

    Raises:
        OpenAIError: The id is invalid.
    """
    if not chat_id:
        raise OpenAIError(400, "a chat has an id", param="id", code="invalid_value")
    return conversation_key({"id": chat_id})


def read_ui_request(body: Mapping[str, Any]) -> ChatRequest:
    """Validate and convert a request.

    The request contains a new message, results of tools or decisions about calls, or asks for another response to the last
    message. ``messages`` is the complete conversation. ``message`` is an alternative that contains only the new message.

    Raises:
        OpenAIError: The request is invalid or unsupported.
    """
    with reject_invalid():
        request = _Request.model_validate(body)
    messages = request.messages if request.message is None else [request.message]
    if not messages:
        raise OpenAIError(400, "Invalid value for 'messages': there is none", param="messages")
    instructions = [request.system] if request.system else []
    conversation: list[Message] = []
    for at, message in enumerate(messages):
        param = f"messages[{at}]"
        is_last = at == len(messages) - 1
        if message.role == "system":
            instructions += [text for part in message.parts if isinstance(text := part.get("text"), str)]
        elif message.role in ("user", "assistant"):
            with reject_invalid(param):
                conversation += _read_message(message, param, has_decisions=is_last)
        else:
            raise OpenAIError(
                400, f"Invalid value for '{param}.role': {shortened(message.role)}", param=param
            )
    with reject_invalid("messages"):
        history = History(conversation=tuple(conversation))
    earlier, new = split_history(history, param="messages")
    last = messages[-1]
    unanswered = conversation[len(earlier) :] if request.message is None and last.role == "user" else []
    return ChatRequest(
        earlier=() if request.message is not None else earlier,
        new=new,
        unanswered=tuple(unanswered[:-1]),
        last=unanswered[-1] if len(unanswered) > 1 else None,
        caller_options=parse_ui_options(body, body.get("tools"), "\n\n".join(instructions)),
        key=read_chat_id(request.id),
        continues=request.message is not None,
        message_id=last.id if last.role == "assistant" else "",
    )


def _read_message(message: _UIMessage, param: str, *, has_decisions: bool) -> Iterator[Message]:
    """Convert a client's message. Each step of an assistant's message becomes a message.

    Args:
        message: The message.
        param: The path of the message in the request, for errors.
        has_decisions: True for the last message. Earlier decisions were already sent.
    """
    if message.role == "user":
        yield Message(role=Role.USER, content=tuple(_content(message.parts, param)))
        return
    for parts in _steps(message.parts):
        content = tuple(_content(parts, param))
        results = tuple(result for part in parts if (result := _result_of(part)) is not None)
        decisions = [decision for part in parts if (decision := _decision_of(part)) is not None]
        if content:
            yield Message(role=Role.MODEL, content=content)
        if results:
            yield Message(role=Role.TOOL, content=results)
        if decisions and has_decisions:
            yield Message(role=Role.USER, content=(ContentPartData(data=decisions_data(decisions)),))


def _steps(parts: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    steps = groupby(parts, lambda part: part.get("type") == "step-start")
    return (list(step) for is_start, step in steps if not is_start)


def _content(parts: list[dict[str, Any]], param: str) -> Iterator[ContentPart]:
    for at, part in enumerate(parts):
        kind, text = str(part.get("type")), part.get("text")
        if kind == "text" and isinstance(text, str):
            yield ContentPartText(text=text)
        elif kind == "reasoning" and isinstance(text, str):
            yield ContentPartReasoning(text=text)
        elif kind == "file":
            url, media_type = part.get("url"), part.get("mediaType")
            yield file_of(url, media_type, part.get("filename"), f"{param}.parts[{at}]")
        elif _is_complete_call(part):
            yield _call_of(part)


def _is_complete_call(part: Mapping[str, Any]) -> bool:
    kind = str(part.get("type"))
    return (kind.startswith("tool-") or kind == "dynamic-tool") and part.get("state") != "input-streaming"


def _names_of(part: Mapping[str, Any]) -> dict[str, Any]:
    name = part.get("toolName") if part["type"] == "dynamic-tool" else part["type"].removeprefix("tool-")
    return {"id": part.get("toolCallId"), "name": name}


def _call_of(part: Mapping[str, Any]) -> ContentPartToolCall:
    input_value: object = part.get("input")
    if input_value is None:
        input_value = part.get("rawInput")  # older clients: invalid JSON
    if isinstance(input_value, str):
        read = parse_arguments(input_value)
        if "arguments_text" not in read:  # not JSON
            read = {"arguments_text": input_value}
    else:
        read = {"arguments": dict(input_value)} if is_mapping(input_value) else {}
    return ContentPartToolCall.model_validate({**_names_of(part), **read})


def _approval_of(part: Mapping[str, Any]) -> Mapping[str, Any]:
    approval: object = part.get("approval")
    return approval if is_mapping(approval) else {}


def _decision_of(part: Mapping[str, Any]) -> ApprovalDecision | None:
    """Return the decision about a call of an agent's tool; None without a decision or with a result."""
    if part.get("state") != "approval-responded" or part.get("providerExecuted") is not True:
        return None
    approval = _approval_of(part)
    digest, reason = approval.get("id"), approval.get("reason")
    if not isinstance(digest, str):
        return None
    decision = "approve" if approval.get("approved") is True else "reject"
    return ApprovalDecision(digest, decision, reason if isinstance(reason, str) else "")


def _result_of(part: Mapping[str, Any]) -> ContentPartToolResult | None:
    if not _is_complete_call(part):
        return None
    state = part.get("state")
    decision = _approval_of(part)
    is_own = part.get("providerExecuted") is not True
    is_denied = is_own and state == "approval-responded" and decision.get("approved") is False
    output: object
    if state == "output-available" and part.get("preliminary") is not True:
        output = part.get("output")
    elif state == "output-error":
        output = part.get("errorText") or "the tool failed"
    elif state == "output-denied" or is_denied:
        output = str(decision.get("reason") or "the user did not allow it")
    else:
        return None
    fields = {**_names_of(part), "output": output, "is_error": state != "output-available"}
    return ContentPartToolResult.model_validate(fields)
