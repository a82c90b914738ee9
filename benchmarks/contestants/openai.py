"""The openai package: its own `Stream` over the same bytes, and its `ChatCompletionStreamState`.

The cost of the HTTP client is not measured. The synchronous `Stream` is cheaper than the asynchronous one.
"""

import itertools
from collections.abc import Iterator
from typing import Any, cast

from openai import OpenAI, Stream
from openai._streaming import SSEDecoder  # pyright: ignore[reportPrivateUsage]
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk

from benchmarks import inputs
from benchmarks.behaviours import Stage
from benchmarks.bodies import Kind
from benchmarks.inputs import Part
from benchmarks.measure import main

_CLIENT = OpenAI(api_key="none", base_url="http://127.0.0.1:9/")

State = ChatCompletionStreamState[Any]


class _Body:
    """The parts of a response that `Stream` uses."""

    def __init__(self, reads: Iterator[bytes]) -> None:
        self._reads = reads

    def iter_bytes(self) -> Iterator[bytes]:
        return self._reads

    def close(self) -> None:
        """Do nothing: no connection is open."""


def all_reads(stream: inputs.Stream) -> Iterator[bytes]:
    """Return the bytes, as they arrive."""
    return itertools.chain.from_iterable(part.reads for part in stream.parts)


def open_stream(stream: inputs.Stream) -> Iterator[ChatCompletionChunk]:
    """Return the package's stream of chunks over the bytes."""
    body = cast("Any", _Body(all_reads(stream)))
    return iter(Stream(cast_to=ChatCompletionChunk, response=body, client=_CLIENT))


def answer(state: State, kind: Kind) -> str:
    message: dict[str, Any] = state.current_completion_snapshot.choices[0].message.to_dict()
    if kind is Kind.REASONING:
        return message["reasoning_content"]
    if kind is Kind.CALL:
        return message["tool_calls"][0]["function"]["arguments"]
    return message["content"]


class PathRun:
    """Input: bytes. Output: the response so far, and the package's own events."""

    def __init__(self, stream: inputs.Stream) -> None:
        self._stream = stream
        self._chunks = open_stream(stream)
        self._state = State()

    def take(self, part: Part) -> None:
        """Decode and accumulate."""
        handle = self._state.handle_chunk
        for chunk in itertools.islice(self._chunks, part.chunks):
            handle(chunk)

    def result(self) -> str:
        """Return the accumulated result."""
        return answer(self._state, self._stream.shape.kind)


class AnswerRun(PathRun):
    """Input: bytes. Output: the final completion."""

    def take(self, part: Part) -> None:
        """Decode and accumulate. At the end, build the completion."""
        super().take(part)
        if part is self._stream.closing:
            self._state.get_final_completion()


class SSERun:
    """Input: bytes. Output: payloads."""

    def __init__(self, stream: inputs.Stream) -> None:
        self._stream = stream
        self._events = SSEDecoder().iter_bytes(all_reads(stream))
        self._payloads: list[str] = []

    def take(self, part: Part) -> None:
        """Split and collect."""
        keep = self._payloads.append
        for event in itertools.islice(self._events, part.chunks):
            keep(event.data)

    def result(self) -> str:
        """Return the text in the payloads."""
        state = State()
        for payload in self._payloads:
            state.handle_chunk(ChatCompletionChunk.model_validate_json(payload))
        return answer(state, self._stream.shape.kind)


class DecodeRun:
    """Input: bytes. Output: chunk objects."""

    def __init__(self, stream: inputs.Stream) -> None:
        self._stream = stream
        self._source = open_stream(stream)
        self._chunks: list[ChatCompletionChunk] = []

    def take(self, part: Part) -> None:
        """Decode and collect."""
        self._chunks.extend(itertools.islice(self._source, part.chunks))

    def result(self) -> str:
        """Return the text in the chunks."""
        state = State()
        for chunk in self._chunks:
            state.handle_chunk(chunk)
        return answer(state, self._stream.shape.kind)


class FoldRun:
    """Input: chunk objects. Output: the response so far, and the package's own events."""

    def __init__(self, stream: inputs.Stream) -> None:
        self._stream = stream
        chunks = open_stream(stream)
        self._chunks = {part: list(itertools.islice(chunks, part.chunks)) for part in stream.parts}
        self._state = State()

    def take(self, part: Part) -> None:
        """Accumulate."""
        handle = self._state.handle_chunk
        for chunk in self._chunks[part]:
            handle(chunk)

    def result(self) -> str:
        """Return the accumulated result."""
        return answer(self._state, self._stream.shape.kind)


if __name__ == "__main__":
    main(
        "openai",
        {
            Stage.ANSWER: AnswerRun,
            Stage.CHUNK: AnswerRun,
            Stage.PATH: PathRun,
            Stage.SSE: SSERun,
            Stage.DECODE: DecodeRun,
            Stage.FOLD: FoldRun,
        },
        least_chunks=2000,
    )
