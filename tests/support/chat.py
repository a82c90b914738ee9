"""Chat Completions streams for tests: bodies, wrappers, and complete responses."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from tailrace.streaming.accumulator import Accumulator
from tailrace.streaming.conversion.chat_completion import to_chat_completion
from tailrace.wrappers import UpstreamError
from tailrace.wrappers.openai import ChatCompletionsDecoder, ChoiceDeltaWrapper

USAGE = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}


def decode(body: bytes | Iterable[bytes]) -> list[ChoiceDeltaWrapper]:
    """The wrappers of a body, in one read or several."""
    decoder = ChatCompletionsDecoder()
    reads = [body] if isinstance(body, bytes) else body
    return [chunk for data in reads for chunk in decoder.feed(data)] + decoder.close()


def sse(*chunks: object) -> bytes:
    """The events of chunks."""
    return b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks)


def decode_choice(choice: Mapping[str, Any]) -> ChoiceDeltaWrapper:
    """The wrapper of one choice in a chunk of its own."""
    (wrapper,) = decode(sse({"choices": [choice]}))
    return wrapper


def error_of(body: bytes) -> UpstreamError:
    """The single error of a body."""
    errors = [
        chunk.details.error for chunk in decode(body) if chunk.details is not None and chunk.details.error
    ]
    assert len(errors) == 1
    return errors[0]


def fold(wrappers: Iterable[ChoiceDeltaWrapper]) -> dict[str, Any]:
    """The ``chat.completion`` of wrappers, as a program that parses its JSON receives it."""
    accumulator = Accumulator()
    for wrapper in wrappers:
        accumulator.add(wrapper)
    accumulator.close()
    return json.loads(json.dumps(to_chat_completion(accumulator)))
