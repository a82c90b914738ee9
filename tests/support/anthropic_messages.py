"""Messages of the Messages API, and their conversion."""

from collections.abc import Mapping
from typing import Any, cast

from hypothesis import strategies as st

from support import strategies
from support.messages import text_entries, user
from tailrace.wrappers import (
    ContentPartFile,
    ContentPartReasoning,
    ContentPartText,
    ContentPartToolCall,
    ContentPartToolResult,
    History,
    Message,
)
from tailrace.wrappers.anthropic import AnthropicConverter

converter = AnthropicConverter()

say = ContentPartText
Call = ContentPartToolCall
Result = ContentPartToolResult
File = ContentPartFile


def sent(*messages: Message) -> list[dict[str, Any]]:
    """The messages of the request for a conversation."""
    return cast("list[dict[str, Any]]", converter.from_history(History(conversation=messages)))


def received(*messages: Mapping[str, Any], **options: Any) -> tuple[Message, ...]:
    return converter.to_history(cast("Any", messages), **options).conversation


def own(part: Any, **fields: Any) -> Any:
    """The part with fields that only Anthropic uses."""
    return part.model_copy(update={"metadata": {"anthropic": fields}})


def asks(*content: object) -> dict[str, Any]:
    return {"role": "user", "content": list(content)}


def answers(*content: object) -> dict[str, Any]:
    return {"role": "assistant", "content": list(content)}


HI, HI_PARAM = user(say(text="hi")), asks(*text_entries("hi"))
WEATHER = Call(id="toolu_1", name="get_weather", arguments={"location": "Oakland"})
WEATHER_PARAM = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"location": "Oakland"}}
SUNNY = Result(id="toolu_1", name="get_weather", output="Sunny, 72°F")
SUNNY_PARAM = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "Sunny, 72°F"}
THOUGHT = own(ContentPartReasoning(text="hm", signature="s"), type="thinking")
THOUGHT_PARAM = {"type": "thinking", "thinking": "hm", "signature": "s"}
REDACTED = own(ContentPartReasoning(text=""), type="redacted_thinking", data="x")

SEARCH = own(
    Call(id="srvtoolu_1", name="web_search", arguments={"query": "a"}, kind="server"), type="server_tool_use"
)

FOUND_PARAM: dict[str, Any] = {
    "type": "web_search_tool_result",
    "tool_use_id": "srvtoolu_1",
    "content": [
        {
            "type": "web_search_result",
            "title": "A",
            "url": "https://a",
            "encrypted_content": "x",
            "page_age": None,
        }
    ],
}
FOUND = own(Result(id="srvtoolu_1", name="web_search", output=FOUND_PARAM["content"]), **FOUND_PARAM)
PNG = File(data=b"\x89PNG", media_type="image/png")
PNG_PARAM = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw=="}}

ids = st.sampled_from(["a", "b", "c"])
outputs = ["Sunny.", None, {"t": 72}, [*text_entries("Look:"), PNG_PARAM]]
files = [
    PNG,
    File(data=b"", media_type="image/jpg", filename="a"),
    File(data=b"a", media_type="text/markdown; charset=utf-8"),
    File(data=b"RIFF", media_type="audio/wav", filename="a.wav"),
    File(url="https://a/b.mp3", filename="b"),
]

calls = st.builds(
    Call,
    id=ids,
    name=strategies.names,
    arguments=strategies.json_objects,
    arguments_text=st.none() | strategies.texts,
    kind=st.sampled_from(["function", "custom"]),
    synthetic_id=st.booleans(),
    metadata=strategies.metadata,
)

results = st.builds(
    Result,
    id=ids,
    name=strategies.names,
    output=st.sampled_from(outputs),
    is_error=st.booleans(),
    metadata=strategies.metadata,
)
