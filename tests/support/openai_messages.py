"""Conversion of single messages of OpenAI's API."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from openai.types.chat import ChatCompletionMessageParam

from tailrace.wrappers import ContentPartText, ContentPartToolCall, ContentPartToolResult, History, Message
from tailrace.wrappers.openai.converter import OpenAIConverter

converter = OpenAIConverter()


def sent(*messages: Message) -> list[dict[str, Any]]:
    """The messages of the request for a conversation."""
    return cast("list[dict[str, Any]]", converter.from_history(History(conversation=messages)))


def received(*messages: Mapping[str, Any]) -> tuple[Message, ...]:
    return converter.to_history(cast("Sequence[ChatCompletionMessageParam]", messages)).conversation


say = ContentPartText
WEATHER_CALL = ContentPartToolCall(id="call_1", name="get_weather", arguments={"location": "Oakland"})
WEATHER_CALL_PARAM = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"location": "Oakland"}'},
}
WEATHER_RESULT = ContentPartToolResult(id="call_1", name="get_weather", output="Sunny, 72°F")

PNG_PARAM = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}}
