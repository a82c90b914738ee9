"""Events of the Responses API, and their decoding."""

import json
from collections.abc import Iterable
from typing import Any, cast

from support.messages import accumulate
from tailrace.streaming.accumulator import Accumulator
from tailrace.wrappers import Message
from tailrace.wrappers.openai_responses import ResponsesDecoder, ResponsesEventWrapper

Fields = dict[str, Any]


def event(kind: str, **fields: Any) -> Fields:
    return {"type": f"response.{kind}", **fields}


def sse(*events: object) -> bytes:
    """Frame events with their names, as most servers do; text is sent unchanged."""
    body = b""
    for each in events:
        if isinstance(each, dict):
            body += f"event: {cast('Fields', each).get('type')}\n".encode()
        body += b"data: " + (each if isinstance(each, str) else json.dumps(each)).encode() + b"\n\n"
    return body


def decode(body: bytes | Iterable[bytes]) -> list[ResponsesEventWrapper]:
    decoder = ResponsesDecoder(provider="openai")
    reads = [body] if isinstance(body, bytes) else body
    return [chunk for data in reads for chunk in decoder.feed(data)] + decoder.close()


def fold(*events: object) -> Accumulator:
    return accumulate(decode(sse(*events)), think_tags=False)


def message(*events: object) -> Message:
    return fold(*events).message()


CREATED = event("created", response={"id": "resp_1", "object": "response", "model": "m", "created_at": 7})
COMPLETED = event(
    "completed",
    response={"id": "resp_1", "status": "completed", "usage": {"input_tokens": 3, "output_tokens": 4}},
)


def text_delta(delta: str, output: int | None = 0, content: int | None = 0, **fields: Any) -> Fields:
    place = {"output_index": output, "content_index": content}
    place = {name: value for name, value in place.items() if value is not None}
    return event("output_text.delta", item_id="msg_1", delta=delta, logprobs=[], **place, **fields)


def output_text(text: str, **fields: Any) -> Fields:
    return {"type": "output_text", "text": text, "annotations": [], **fields}


def added(item: Fields, output: int = 0) -> Fields:
    return event("output_item.added", output_index=output, item=item)


def done(item: Fields, output: int = 0) -> Fields:
    return event("output_item.done", output_index=output, item=item)


def text_message(*texts: str, **fields: Any) -> Fields:
    content = [output_text(text) for text in texts]
    return {"type": "message", "id": "msg_1", "role": "assistant", "content": content, **fields}


def function_call(arguments: object = "", **fields: Any) -> Fields:
    call = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "add", "arguments": arguments}
    return {**call, **fields}


WHOLE_TEXT: list[Fields] = [
    CREATED,
    event("in_progress", response={"id": "resp_1"}),
    added(text_message(status="in_progress")),
    event("content_part.added", output_index=0, content_index=0, part=output_text("")),
    text_delta("Hel"),
    text_delta("lo"),
    event("output_text.done", output_index=0, content_index=0, text="Hello", logprobs=[]),
    event("content_part.done", output_index=0, content_index=0, part=output_text("Hello")),
    done(text_message("Hello", status="completed")),
    {
        **COMPLETED,
        "response": {**COMPLETED["response"], "output": [text_message("Hello", status="completed")]},
    },
]
