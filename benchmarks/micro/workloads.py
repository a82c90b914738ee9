"""The measured parts."""

import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from benchmarks.inputs import Shape, Stream, make_stream
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

CHUNKS = 200
"""Number of chunks per run."""

Work = Callable[[], object]


@cache
def _stream(shape: Shape) -> Stream:
    return make_stream(shape, CHUNKS)


def _record() -> TaskRecord:
    record = TaskRecord(Task(id="t" * 36, context_id="c" * 36, status=TaskStatus(state=TaskState.SUBMITTED)))
    record.submitted()
    record.apply(StatusUpdate(TaskState.WORKING))
    return record


def sse() -> object:
    """Parse server-sent events, one per read."""
    feed = SSEDecoder().feed
    return [feed(data) for data in _stream(Shape.TEXT).body.reads]


def sse_merged() -> object:
    """Parse the same events in one read."""
    return SSEDecoder().feed(_merged(Shape.TEXT))


def decode() -> object:
    """Decode OpenAI's chunks: framing and JSON."""
    feed = ChatCompletionsDecoder().feed
    return [feed(data) for data in _stream(Shape.TEXT).body.reads]


def decode_anthropic() -> object:
    """Decode Anthropic's chunks."""
    feed = find_provider("anthropic").wire_format.create_decoder().feed
    stream = _stream(Shape.ANTHROPIC)
    return [feed(data) for part in stream.parts for data in part.reads]


def fold() -> object:
    """Accumulate decoded chunks, and build the message."""
    accumulator = Accumulator()
    for chunk in _chunks():
        accumulator.add(chunk)
    return accumulator.message()


def encode() -> object:
    """Encode text deltas into numbered events."""
    record = _record()
    record.apply(ArtifactUpdate(Artifact(artifact_id="text", parts=(A2APart(text=""),)), last=False))
    for piece in _texts():
        record.apply(TextDelta("text", piece))
    return record


def path() -> object:
    """Run all stages, one chunk per read: bytes in, encoded events out."""
    decoder, translator, record = ChatCompletionsDecoder(), ResponseTranslator(), _record()
    for part in _stream(Shape.TEXT).parts:
        for data in part.reads:
            for update in translator.feed(decoder.feed(data)):
                record.apply(update)
    return record


def path_merged() -> object:
    """Run all stages, with all chunks in one read."""
    decoder, translator, record = ChatCompletionsDecoder(), ResponseTranslator(), _record()
    for update in translator.feed(decoder.feed(_merged(Shape.TEXT))):
        record.apply(update)
    return record


def standard() -> object:
    """Parse the chunks with the standard library."""
    return [json.loads(data[6:]) for data in _stream(Shape.TEXT).body.reads]


@cache
def _merged(shape: Shape) -> bytes:
    return b"".join(data for part in _stream(shape).parts for data in part.reads)


@cache
def _chunks() -> tuple[ChunkWrapper[Any], ...]:
    decoder = ChatCompletionsDecoder()
    return tuple(chunk for data in _stream(Shape.TEXT).body.reads for chunk in decoder.feed(data))


@cache
def _texts() -> tuple[str, ...]:
    return tuple(chunk.get_text() for chunk in _chunks())


WORKS: Mapping[str, Work] = {
    "sse": sse,
    "sse-merged": sse_merged,
    "decode": decode,
    "decode-anthropic": decode_anthropic,
    "fold": fold,
    "encode": encode,
    "path": path,
    "path-merged": path_merged,
}
