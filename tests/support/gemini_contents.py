"""Contents of Gemini's API, and their conversion."""

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from tailrace.wrappers import ContentPartText, ContentPartToolCall, ContentPartToolResult, History, Message
from tailrace.wrappers.gemini import GeminiConverter

converter = GeminiConverter()

Fields = dict[str, Any]
say = ContentPartText


def sent(*messages: Message) -> list[Fields]:
    """The contents of the request for a conversation."""
    return converter.from_history(History(conversation=messages))


def received(*contents: Mapping[str, Any]) -> tuple[Message, ...]:
    return converter.to_history(contents).conversation


def signed(signature: str, **more: Any) -> Fields:
    return {"gemini": {"thoughtSignature": signature, **more}}


CALL = ContentPartToolCall(
    id="c1", name="get_weather", arguments={"city": "Oakland"}, metadata=signed("c2lnY2Fs")
)

RESULT = ContentPartToolResult(id="c1", name="get_weather", output={"sky": "clear"})

signatures = st.sampled_from(["", "sig"]).map(lambda text: signed(text) if text else {})

CALL_PART = {
    "thoughtSignature": "c2lnY2Fs",
    "functionCall": {"id": "c1", "name": "get_weather", "args": {"city": "Oakland"}},
}

RESULT_PART = {"functionResponse": {"id": "c1", "name": "get_weather", "response": {"sky": "clear"}}}
HI = {"role": "user", "parts": [{"text": "hi"}]}
