"""Requests of AG-UI: ``RunAgentInput``."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field, ValidationError

from tailrace.server.facade.asked import Asked, LenientModel, conversation_key, split_history
from tailrace.server.facade.errors import OpenAIError
from tailrace.server.facade.events import is_mapping
from tailrace.server.ui_streams.requests import facts_of, file_of
from tailrace.wrappers import (
    ContentPart,
    ContentPartText,
    ContentPartToolCall,
    ContentPartToolResult,
    History,
    Message,
    Role,
)
from tailrace.wrappers.tool_calls import parse_arguments

_MEDIA = frozenset({"image", "audio", "video", "document"})


class _Function(LenientModel):
    name: str
    arguments: str = ""


class _ToolCall(LenientModel):
    id: str
    function: _Function


class _Said(LenientModel):
    role: str
    content: str | list[dict[str, Any]] | dict[str, Any] | None = None
    tool_calls: list[_ToolCall] | None = Field(default=None, alias="toolCalls")
    tool_call_id: str = Field(default="", alias="toolCallId")
    error: str | None = None


class _Context(LenientModel):
    description: str = ""
    value: Any = ""


class _RunAgentInput(LenientModel):
    thread_id: str = Field(alias="threadId", min_length=1)
    run_id: str = Field(alias="runId", min_length=1)
    messages: list[_Said]
    tools: list[dict[str, Any]] | None = None
    context: list[_Context] | None = None
    forwarded_props: Any = Field(default=None, alias="forwardedProps")


@dataclass(frozen=True)
class RunRequest:
    """A request for a run.

    Attributes:
        thread_id: The conversation.
        run_id: The run.
        asked: What it asks; None where it tells no message: the client has just come, and wants to know what was said.
    """

    thread_id: str
    run_id: str
    asked: Asked | None


def read_run_request(body: Mapping[str, Any]) -> RunRequest:
    """A request for a run.

    Args:
        body: Its JSON.

    Raises:
        OpenAIError: It cannot be answered as it is.
    """
    try:
        request = _RunAgentInput.model_validate(body)
        conversation = tuple(_conversation(request.messages))
    except ValidationError as error:
        raise OpenAIError.of_validation(error) from None
    key = conversation_key(None, request.thread_id)
    if not conversation:
        return RunRequest(request.thread_id, request.run_id, None)
    told = [text for said in request.messages if (text := _instructions(said))]
    told += [f"{each.description}: {_text(each.value)}" for each in request.context or ()]
    earlier, new = split_history(History(conversation=conversation), param="messages")
    options: Mapping[str, Any] = request.forwarded_props if is_mapping(request.forwarded_props) else {}
    asked = Asked(
        model="",
        earlier=earlier,
        new=new,
        facts=facts_of(options, request.tools, "\n\n".join(told)),
        stream=True,
        key=key,
    )
    return RunRequest(request.thread_id, request.run_id, asked)


def _instructions(said: _Said) -> str:
    if said.role not in ("system", "developer"):
        return ""
    return said.content if isinstance(said.content, str) else ""


def _conversation(messages: Sequence[_Said]) -> Iterator[Message]:
    """What was said; reasoning and activities are the client's to show, and nobody's to be told again."""
    results: list[ContentPartToolResult] = []
    names: dict[str, str] = {}
    for at, said in enumerate(messages):
        where = f"messages[{at}]"
        if said.role == "tool":
            results.append(_result(said, names))
            continue
        if results:
            yield Message(role=Role.TOOL, content=tuple(results))
            results = []
        if said.role == "user":
            yield Message(role=Role.USER, content=tuple(_content(said.content, where)))
        elif said.role == "assistant":
            calls = tuple(map(_call, said.tool_calls or ()))
            names |= {call.id: call.name for call in calls}
            content = (*_content(said.content, where), *calls)
            if content:
                yield Message(role=Role.MODEL, content=content)
    if results:
        yield Message(role=Role.TOOL, content=tuple(results))


def _content(
    content: str | list[dict[str, Any]] | dict[str, Any] | None, where: str
) -> Iterator[ContentPart]:
    if isinstance(content, str):
        if content:
            yield ContentPartText(text=content)
        return
    for at, part in enumerate(content if isinstance(content, list) else ()):
        kind, text = part.get("type"), part.get("text")
        if kind == "text" and isinstance(text, str):
            yield ContentPartText(text=text)
        elif kind in _MEDIA or kind == "binary":
            yield _file(part, f"{where}.content[{at}]")


def _file(part: Mapping[str, Any], where: str) -> ContentPart:
    """A file, which the versions before 1.0 had in members of its own."""
    source: object = part.get("source")
    fields: Mapping[str, Any] = source if is_mapping(source) else part
    value, media_type = fields.get("value"), fields.get("mimeType")
    if fields.get("type") == "data":
        value = f"data:{media_type or ''};base64,{value}"
    elif fields is part:
        data = part.get("data")
        value = f"data:{media_type or ''};base64,{data}" if data else part.get("url")
    return file_of(value, media_type, part.get("filename"), where)


def _call(call: _ToolCall) -> ContentPartToolCall:
    read = parse_arguments(call.function.arguments)
    return ContentPartToolCall.model_validate({"id": call.id, "name": call.function.name, **read})


def _result(said: _Said, names: Mapping[str, str]) -> ContentPartToolResult:
    content = said.content
    output: object = content
    if isinstance(content, list):
        parts = content
        if all(part.get("type") == "text" for part in parts):
            output = "".join(str(part.get("text", "")) for part in parts)
    call_id = said.tool_call_id
    if said.error:
        output = f"{said.error}\n{_text(output)}".strip() if output else said.error
    name = names.get(call_id, "unknown")
    return ContentPartToolResult(id=call_id, name=name, output=output, is_error=bool(said.error))


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
