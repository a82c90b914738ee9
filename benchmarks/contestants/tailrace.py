"""tailrace: decoder, accumulator, translator and task record, connected as in the server's engine."""

import json
from typing import Any

from benchmarks.behaviours import Stage
from benchmarks.bodies import Kind
from benchmarks.inputs import Part, Stream
from benchmarks.measure import main
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import Artifact, Task, TaskStatus
from tailrace.streaming.a2a.models import Part as A2APart
from tailrace.streaming.accumulator import Accumulator
from tailrace.streaming.conversion.response_translator import ResponseTranslator
from tailrace.streaming.task.task_record import TaskRecord
from tailrace.streaming.task.updates import ArtifactUpdate, StatusUpdate, TextDelta
from tailrace.wrappers import ChunkWrapper, SSEDecoder
from tailrace.wrappers.openai import ChatCompletionsDecoder
from tailrace.wrappers.providers import find_provider


def begun_task() -> TaskRecord:
    task = Task(
        id="0f9be7b4-6a3c-4d0c-8f0b-0a3b5a2f1c77",
        context_id="7c0d4a0e-1f4e-4c39-9a53-5a1e4b0a8d21",
        status=TaskStatus(state=TaskState.SUBMITTED),
    )
    record = TaskRecord(task)
    record.submitted()
    record.apply(StatusUpdate(TaskState.WORKING))
    return record


def answer(accumulator: Accumulator, kind: Kind) -> str:
    assembly = accumulator.choices[0]
    if kind is Kind.REASONING:
        return assembly.reasoning
    if kind is Kind.CALL:
        return json.dumps(assembly.tool_calls[0].arguments, ensure_ascii=False, separators=(",", ":"))
    return assembly.text


def decoded(part: Part, decoder: ChatCompletionsDecoder) -> list[ChunkWrapper[Any]]:
    return [chunk for data in part.reads for chunk in decoder.feed(data)]


class AnswerRun:
    """Input: bytes. Output: the message."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._decoder = find_provider(stream.shape.provider).wire_format.create_decoder()
        self._accumulator = Accumulator()

    def take(self, part: Part) -> None:
        """Decode and accumulate. At the end, build the message."""
        feed, add = self._decoder.feed, self._accumulator.add
        for data in part.reads:
            for chunk in feed(data):
                add(chunk)
        if part is self._stream.closing:
            for chunk in self._decoder.close():
                add(chunk)
            self._accumulator.close()
            self._accumulator.message()

    def result(self) -> str:
        """Return the accumulated result."""
        if self._accumulator.error is not None:
            raise self._accumulator.error
        return answer(self._accumulator, self._stream.shape.kind)


class PathRun:
    """Input: bytes. Output: the accumulated response, and numbered, encoded events."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._decoder = ChatCompletionsDecoder()
        self._translator = ResponseTranslator()
        self._record = begun_task()

    def take(self, part: Part) -> None:
        """Decode, accumulate, number and encode."""
        decode, translate, apply = self._decoder.feed, self._translator.feed, self._record.apply
        for data in part.reads:
            for update in translate(decode(data)):
                apply(update)
        if part is self._stream.closing:
            for update in translate(self._decoder.close()) + self._translator.close():
                apply(update)

    def result(self) -> str:
        """Return the accumulated result."""
        return answer(self._translator.accumulator, self._stream.shape.kind)


class SSERun:
    """Input: bytes. Output: payloads."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._decoder = SSEDecoder()
        self._payloads: list[bytes] = []

    def take(self, part: Part) -> None:
        """Split and collect."""
        feed, keep = self._decoder.feed, self._payloads.append
        for data in part.reads:
            for event in feed(data):
                keep(event.data)

    def result(self) -> str:
        """Return the text in the payloads."""
        decoder, accumulator = ChatCompletionsDecoder(), Accumulator()
        for payload in self._payloads:
            for chunk in decoder.feed(b"data: " + payload + b"\n\n"):
                accumulator.add(chunk)
        return answer(accumulator, self._stream.shape.kind)


class DecodeRun:
    """Input: bytes. Output: chunk wrappers."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._decoder = ChatCompletionsDecoder()
        self._chunks: list[ChunkWrapper[Any]] = []

    def take(self, part: Part) -> None:
        """Decode and collect."""
        feed, chunks = self._decoder.feed, self._chunks
        for data in part.reads:
            chunks += feed(data)

    def result(self) -> str:
        """Return the text in the chunks."""
        accumulator = Accumulator()
        for chunk in self._chunks:
            accumulator.add(chunk)
        return answer(accumulator, self._stream.shape.kind)


class FoldRun:
    """Input: chunk wrappers. Output: the response so far."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._accumulator = Accumulator()
        decoder = ChatCompletionsDecoder()
        self._chunks = {part: decoded(part, decoder) for part in stream.parts}

    def take(self, part: Part) -> None:
        """Accumulate."""
        add = self._accumulator.add
        for chunk in self._chunks[part]:
            add(chunk)

    def result(self) -> str:
        """Return the accumulated result."""
        return answer(self._accumulator, self._stream.shape.kind)


class EncodeRun:
    """Input: text deltas. Output: numbered and encoded events."""

    def __init__(self, stream: Stream) -> None:
        decoder = ChatCompletionsDecoder()
        self._updates = {
            part: [TextDelta("text", chunk.get_text()) for chunk in decoded(part, decoder)]
            for part in stream.parts
        }
        self._record = begun_task()
        artifact = Artifact(artifact_id="text", parts=(A2APart(text=""),))
        self._record.apply(ArtifactUpdate(artifact, last=False))

    def take(self, part: Part) -> None:
        """Number and encode."""
        apply = self._record.apply
        for update in self._updates[part]:
            apply(update)

    def result(self) -> str:
        """Return the text of the artifact."""
        return self._record.snapshot().artifacts[0].parts[0].text or ""


if __name__ == "__main__":
    main(
        "tailrace",
        {
            Stage.ANSWER: AnswerRun,
            Stage.CHUNK: AnswerRun,
            Stage.PATH: PathRun,
            Stage.SSE: SSERun,
            Stage.DECODE: DecodeRun,
            Stage.FOLD: FoldRun,
            Stage.ENCODE: EncodeRun,
        },
    )
