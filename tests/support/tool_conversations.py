"""Conversations with tool calls and results."""

from typing import Any

from tailrace.wrappers import ContentPartText, ContentPartToolCall, ContentPartToolResult, History, Message

say = ContentPartText


def call(id: str = "", name: str = "f", **fields: Any) -> ContentPartToolCall:
    return ContentPartToolCall(id=id, name=name, **fields)


def result(id: str = "", name: str = "f", output: object = "ok", **fields: Any) -> ContentPartToolResult:
    return ContentPartToolResult(id=id, name=name, output=output, **fields)


def history(*messages: Message) -> History:
    return History(system_message="Be brief.", context="It is noon.", conversation=messages)


def calls_and_results(found: History) -> list[ContentPartToolCall | ContentPartToolResult]:
    return [
        part
        for message in found.conversation
        for part in message.content
        if isinstance(part, ContentPartToolCall | ContentPartToolResult)
    ]
