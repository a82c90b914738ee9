"""Events of the Messages API."""

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from support.strategies import json_values
from tailrace.streaming.accumulator import Accumulator
from tailrace.wrappers import ContentPart, ContentPartReasoning, ContentPartText
from tailrace.wrappers.anthropic import AnthropicEventWrapper, MessageEvents

STOP: dict[str, Any] = {"type": "message_stop"}


def message(message_id: str = "msg_1", **fields: Any) -> dict[str, Any]:
    usage = {"input_tokens": 10, "output_tokens": 1}
    return {
        "type": "message_start",
        "message": {
            "id": message_id, "type": "message", "role": "assistant", "model": "claude", "content": [],
            "stop_reason": None, "stop_sequence": None, "usage": usage, **fields,
        },
    }  # fmt: skip


def start(index: int, kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": {"type": kind, **fields}}


def delta(index: int, kind: str | None, **fields: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **fields}}


def text(index: int, value: Any) -> dict[str, Any]:
    return delta(index, "text_delta", text=value)


def thinking(index: int, value: Any) -> dict[str, Any]:
    return delta(index, "thinking_delta", thinking=value)


def arguments(index: int, value: Any) -> dict[str, Any]:
    return delta(index, "input_json_delta", partial_json=value)


def stop(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def end(
    reason: str | None = "end_turn", usage: Mapping[str, Any] | None = None, **fields: Any
) -> dict[str, Any]:
    return {
        "type": "message_delta",
        "delta": {"stop_reason": reason, "stop_sequence": None, **fields},
        "usage": usage or {"output_tokens": 5},
    }


def wrap(*events: dict[str, Any], start_repeated: bool = False) -> list[AnthropicEventWrapper]:
    reader = MessageEvents(provider="anthropic", start_repeated=start_repeated)
    return [wrapper for event in events for wrapper in reader.wrap(event)] + reader.close()


def folded(*events: dict[str, Any], **options: Any) -> Accumulator:
    accumulator = Accumulator(think_tags=False)
    for wrapper in wrap(*events, **options):
        accumulator.add(wrapper)
    accumulator.close()
    return accumulator


def parts(*events: dict[str, Any], **options: Any) -> tuple[ContentPart, ...]:
    return folded(*events, **options).message().content


def say(value: str, **metadata: Any) -> ContentPartText:
    return ContentPartText(text=value, metadata=metadata)


def thought(value: str, signature: str | None = None, **own: Any) -> ContentPartReasoning:
    return ContentPartReasoning(
        text=value, signature=signature, metadata={"anthropic": {"type": "thinking", **own}}
    )


odd: st.SearchStrategy[Any] = json_values | st.just(float("nan")) | st.just("\ud83d") | st.integers(-1, 3)
names = st.sampled_from(
    ["id", "name", "input", "text", "thinking", "signature", "data", "citations", "citation", "partial_json",
     "tool_use_id", "content", "usage", "stop_reason", "stop_details", "to", "model", "role", "is_error"]
)  # fmt: skip
fields: st.SearchStrategy[dict[str, Any]] = st.dictionaries(names, odd, max_size=5)
