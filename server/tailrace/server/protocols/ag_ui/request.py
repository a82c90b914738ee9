"""Validation of AG-UI requests (``RunAgentInput``)."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

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
    ContentPartText,
    ContentPartToolCall,
    ContentPartToolResult,
    History,
    Message,
    Role,
)
from tailrace.wrappers.assembly.tool_calls import parse_arguments
from tailrace.wrappers.conversion.text_joining import join_texts

# A tuple instead of a set, because ``type`` in a request may be unhashable.
_MEDIA = ("image", "audio", "video", "document", "binary")


class _Function(LenientModel):
    name: str
    arguments: str = ""


class _ToolCall(LenientModel):
    id: str
    function: _Function


class _Message(LenientModel):
    role: str
    content: str | Items[dict[str, Any]] | dict[str, Any] | None = None
    tool_calls: Items[_ToolCall] | None = Field(default=None, alias="toolCalls")
    tool_call_id: str = Field(default="", alias="toolCallId")
    error: str | None = None


class _Context(LenientModel):
    description: str = ""
    value: Any = ""


class _ResumeEntry(LenientModel):
    interrupt_id: str = Field(alias="interruptId")
    status: Literal["resolved", "cancelled"]
    payload: Any = None


class _RunAgentInput(LenientModel):
    thread_id: str = Field(alias="threadId", min_length=1)
    run_id: str = Field(alias="runId", min_length=1, max_length=MAX_ID_LENGTH)
    protocol_version: str | None = Field(default=None, alias="protocolVersion")
    messages: Items[_Message]
    tools: Items[dict[str, Any]] | None = None
    context: Items[_Context] | None = None
    forwarded_props: Any = Field(default=None, alias="forwardedProps")
    resume: Items[_ResumeEntry] | None = None


@dataclass(frozen=True)
class RunRequest:
    """A request for a run.

    Attributes:
        thread_id: The id of the thread. AG-UI calls a conversation a thread.
        has_outcome: Whether the client supports the outcomes of AG-UI 1.0.
        request: The parsed request. None if it has neither messages nor decisions, because the client joins the thread.
    """

    thread_id: str
    run_id: str
    has_outcome: bool
    request: ChatRequest | None


def read_run_request(body: Mapping[str, Any]) -> RunRequest:
    """Validate and convert a request for a run.

    Raises:
        OpenAIError: The request is invalid or unsupported.
    """
    with reject_invalid():
        run = _RunAgentInput.model_validate(body)
        conversation = tuple(_conversation(run.messages))
    decisions = [_decision(entry, f"resume[{at}]") for at, entry in enumerate(run.resume or ())]
    if decisions:
        part = ContentPartData(data=decisions_data(decisions))
        conversation = (*conversation, Message(role=Role.USER, content=(part,)))
    key = conversation_key({"threadId": run.thread_id})
    if not conversation:
        return RunRequest(run.thread_id, run.run_id, run.protocol_version is not None, None)
    instructions = [text for message in run.messages if (text := _instructions(message))]
    instructions += [f"{each.description}: {_text(each.value)}" for each in run.context or ()]
    earlier, new = split_history(History(conversation=conversation), param="messages")
    options: Mapping[str, Any] = run.forwarded_props if is_mapping(run.forwarded_props) else {}
    caller_options = parse_ui_options(options, run.tools, "\n\n".join(instructions))
    request = ChatRequest(earlier, new, caller_options, key=key)
    return RunRequest(run.thread_id, run.run_id, run.protocol_version is not None, request)


def _decision(entry: _ResumeEntry, param: str) -> ApprovalDecision:
    """Return the decision in the response to an interrupt (see `RESPONSE_SCHEMA`). A cancelled interrupt rejects the call."""
    payload: Mapping[str, Any] = entry.payload if is_mapping(entry.payload) else {}
    reason, arguments = payload.get("reason"), payload.get("editedArgs")
    text = reason if isinstance(reason, str) else ""
    if entry.status == "cancelled":
        return ApprovalDecision(entry.interrupt_id, "reject", text)
    approved = payload.get("approved")
    if not isinstance(approved, bool):
        raise OpenAIError(400, f"'{param}.payload.approved' must be a boolean", param=param)
    if not approved:
        return ApprovalDecision(entry.interrupt_id, "reject", text)
    if arguments is None:
        return ApprovalDecision(entry.interrupt_id, "approve")
    if not is_mapping(arguments):
        raise OpenAIError(400, f"'{param}.payload.editedArgs' must be an object", param=param)
    return ApprovalDecision(entry.interrupt_id, "edit", arguments=dict(arguments))


def _instructions(message: _Message) -> str:
    if message.role not in ("system", "developer"):
        return ""
    if isinstance(message.content, str):
        return message.content
    return _joined_text(message.content) if isinstance(message.content, list) else ""


def _conversation(messages: Sequence[_Message]) -> Iterator[Message]:
    results: list[ContentPartToolResult] = []
    names: dict[str, str] = {}
    for at, message in enumerate(messages):
        param = f"messages[{at}]"
        if message.role == "tool":
            results.append(_result(message, names))
            continue
        if results:
            yield Message(role=Role.TOOL, content=tuple(results))
            results = []
        if message.role == "user":
            yield Message(role=Role.USER, content=tuple(_content(message.content, param)))
        elif message.role == "assistant":
            calls = tuple(map(_call, message.tool_calls or ()))
            names |= {call.id: call.name for call in calls}
            content = (*_content(message.content, param), *calls)
            if content:
                yield Message(role=Role.MODEL, content=content)
    if results:
        yield Message(role=Role.TOOL, content=tuple(results))


def _content(
    content: str | list[dict[str, Any]] | dict[str, Any] | None, param: str
) -> Iterator[ContentPart]:
    if isinstance(content, str):
        if content:
            yield ContentPartText(text=content)
        return
    for at, part in enumerate(content if isinstance(content, list) else ()):
        kind, text = part.get("type"), part.get("text")
        if kind == "text" and isinstance(text, str):
            yield ContentPartText(text=text)
        elif kind in _MEDIA:
            yield _file(part, f"{param}.content[{at}]")


def _file(part: Mapping[str, Any], param: str) -> ContentPart:
    """Convert a file. Before 1.0, its members are in ``part`` instead of in ``source``."""
    source: object = part.get("source")
    fields: Mapping[str, Any] = source if is_mapping(source) else part
    value, media_type = fields.get("value"), fields.get("mimeType")
    if fields.get("type") == "data":
        value = f"data:{media_type or ''};base64,{value}"
    elif fields is part:
        data = part.get("data")
        value = f"data:{media_type or ''};base64,{data}" if data else part.get("url")
    return file_of(value, media_type, part.get("filename"), param)


def _call(call: _ToolCall) -> ContentPartToolCall:
    read = parse_arguments(call.function.arguments)
    return ContentPartToolCall.model_validate({"id": call.id, "name": call.function.name, **read})


def _result(message: _Message, names: Mapping[str, str]) -> ContentPartToolResult:
    output: object = message.content
    if isinstance(message.content, list) and all(part.get("type") == "text" for part in message.content):
        output = _joined_text(message.content)
    call_id = message.tool_call_id
    if message.error:
        output = f"{message.error}\n{_text(output)}".strip() if output else message.error
    name = names.get(call_id, "unknown")
    return ContentPartToolResult(id=call_id, name=name, output=output, is_error=bool(message.error))


def _joined_text(parts: Sequence[Mapping[str, Any]]) -> str:
    texts = (part.get("text") for part in parts if part.get("type") == "text")
    return join_texts(text for text in texts if isinstance(text, str))


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
