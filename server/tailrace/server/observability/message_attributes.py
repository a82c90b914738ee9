"""Converts messages to attributes of spans, if the operator enables this (``TAILRACE_TRACE_CONTENT``).

The values are JSON in the format of OpenTelemetry's conventions for generative AI. Of a file, only the type is included.
"""

import json
from collections.abc import Iterable
from typing import Any

from tailrace.wrappers import (
    ContentPart,
    ContentPartReasoning,
    ContentPartText,
    ContentPartToolCall,
    ContentPartToolResult,
    FinishReason,
    Message,
    Role,
)

_ROLES = {Role.SYSTEM: "system", Role.USER: "user", Role.MODEL: "assistant", Role.TOOL: "tool"}


def input_messages(messages: Iterable[Message]) -> str:
    """Return the attribute ``gen_ai.input.messages``."""
    return _text([_message(each) for each in messages])


def output_messages(answer: Message, reason: FinishReason | None) -> str:
    """Return the attribute ``gen_ai.output.messages``."""
    return _text([{**_message(answer), "finish_reason": str(reason or "error")}])


def instructions(text: str) -> str:
    """Return the attribute ``gen_ai.system_instructions``."""
    return _text([{"type": "text", "content": text}])


def arguments(call: ContentPartToolCall) -> str:
    """Return the attribute ``gen_ai.tool.call.arguments``."""
    return call.arguments_text or _text(call.arguments)


def result(tool_result: ContentPartToolResult) -> str:
    """Return the attribute ``gen_ai.tool.call.result``."""
    return tool_result.output if isinstance(tool_result.output, str) else _text(tool_result.output)


def _message(message: Message) -> dict[str, Any]:
    return {"role": _ROLES[message.role], "parts": [_part(part) for part in message.content]}


def _part(part: ContentPart) -> dict[str, Any]:
    if isinstance(part, ContentPartText):
        return {"type": "text", "content": part.text}
    if isinstance(part, ContentPartReasoning):
        return {"type": "reasoning", "content": part.text}
    if isinstance(part, ContentPartToolCall):
        return {"type": "tool_call", "id": part.id, "name": part.name, "arguments": dict(part.arguments)}
    if isinstance(part, ContentPartToolResult):
        return {"type": "tool_call_response", "id": part.id, "response": part.output}
    return {"type": part.type}


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
