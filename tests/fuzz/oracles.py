"""Invariants of the decoders for every body.

- A decoder raises only `UpstreamError`; accumulation raises nothing.
- Every result is strict JSON: no NaN, no lone surrogates.
- The result does not depend on the cuts between reads.
- The fast tier of a decoder gives the same result as the lenient one.
- The text published in pieces is the text of the complete response.
- A model's message can be sent back to it, or `ValueError` names the part that cannot.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fuzz.lenient_decoders import without_shortcuts
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import Task, TaskStatus
from tailrace.streaming.a2a.stream_extension import extension_metadata
from tailrace.streaming.accumulator import Accumulator
from tailrace.streaming.conversion.chat_completion import to_chat_completion
from tailrace.streaming.conversion.recorded_stream import StreamConversion
from tailrace.streaming.task.task_record import TaskRecord
from tailrace.wrappers import (
    Change,
    Channel,
    ChunkWrapper,
    ContentPartToolResult,
    History,
    HistoryConverter,
    Message,
    Role,
    UpstreamError,
)
from tailrace.wrappers.decoding.decoder import ResponseDecoder

MakeDecoder = Callable[[], ResponseDecoder[Any]]


@dataclass(slots=True)
class Outcome:
    """The result of a body.

    Attributes:
        completion: One ``chat.completion`` as JSON.
        messages: The message of each choice as JSON.
        texts: The published text by channel, choice and call.
        raised: The decoder's error; empty without one.
    """

    completion: str = ""
    messages: dict[int, str] = field(default_factory=dict[int, str])
    texts: dict[tuple[str, int, int], str] = field(default_factory=dict[tuple[str, int, int], str])
    raised: str = ""

    def unordered(self) -> tuple[Any, ...]:
        """The same without the order of an object's members."""
        messages = {index: json.loads(message) for index, message in self.messages.items()}
        return json.loads(self.completion), messages, self.texts, self.raised


def check(make_decoder: MakeDecoder, body: bytes, reads: list[bytes], *, think_tags: bool = False) -> None:
    """Check all invariants for a body.

    Args:
        make_decoder: Creates a decoder.
        body: The complete body.
        reads: The body in reads.
        think_tags: Whether reasoning in tags is separated from the text.

    Raises:
        AssertionError: An invariant is violated. Any other exception is a fault, too: a decoder may raise only
            `UpstreamError`, which this function catches.
    """
    whole = outcome(make_decoder(), [body], think_tags=think_tags)
    pieces = outcome(make_decoder(), reads, think_tags=think_tags)
    assert pieces == whole, "the result depends on the cuts between reads"
    long_way = outcome(without_shortcuts(make_decoder()), reads, think_tags=think_tags)
    assert long_way.unordered() == whole.unordered(), "the decoder's fast tier changes the result"
    for arrived in ([body], reads):
        convert(make_decoder(), arrived, think_tags=think_tags)


def outcome(decoder: ResponseDecoder[Any], reads: Iterable[bytes], *, think_tags: bool = False) -> Outcome:
    """Decode and accumulate reads, and check all results."""
    found = Outcome()
    accumulator = Accumulator(think_tags=think_tags)
    error: UpstreamError | None = None

    def take(chunks: list[Any]) -> None:
        for chunk in chunks:
            _show(found, accumulator.add(chunk))

    try:
        for data in reads:
            take(decoder.feed(data))
        take(decoder.close())
    except UpstreamError as raised:
        error = raised
        found.raised = f"{raised.fault}: {raised}"
    _show(found, accumulator.close(error))
    for index, choice in accumulator.choices.items():
        message = accumulator.message(index)
        found.messages[index] = message.model_dump_json()
        strict_json(json.loads(found.messages[index]))
        assert Message.model_validate_json(found.messages[index]) == message
        for channel, text in ((Channel.TEXT, choice.text), (Channel.REASONING, choice.reasoning)):
            shown = found.texts.get((str(channel), index, -1), "")
            assert shown == text, (
                f"{channel} of choice {index}: {shown!r} was published, {text!r} is accumulated"
            )
    found.completion = strict_json(to_chat_completion(accumulator))
    return found


def convert(decoder: ResponseDecoder[Any], reads: Iterable[bytes], *, think_tags: bool = False) -> None:
    """Make A2A events of reads, and read them as a client does."""
    conversion = StreamConversion(decoder, task_id="t", context_id="c", think_tags=think_tags)
    events = [event for data in reads for event in conversion.feed(data)] + conversion.close()
    assert [event.number for event in events] == list(range(1, len(events) + 1))
    assert conversion.record.state.terminal or conversion.record.state.interrupted
    message = json.loads(strict_json(conversion.message()))
    for event in events:
        strict_json(json.loads(event.body))
    texts = read_artifacts([json.loads(event.body) for event in events])
    for channel, name in ((None, "text"), ("reasoning", "reasoning")):
        accumulated = "".join(
            part["text"]
            for part in message["parts"]
            if "text" in part and extension_metadata(part.get("metadata", {})).get("channel") == channel
        )
        first = conversion.accumulator.first
        shown = "" if first is None else _artifact_text(texts, name, min(conversion.accumulator.choices))
        assert shown == accumulated, f"{name}: {shown!r} was published, {accumulated!r} is accumulated"
    replayed = TaskRecord(Task(id="t", context_id="c", status=TaskStatus(state=TaskState.SUBMITTED)))
    for event in events:
        replayed.replay(event)
    assert replayed.snapshot() == conversion.record.snapshot(), "replayed events give a different task"


def read_artifacts(events: list[dict[str, Any]]) -> dict[str, str]:
    """Return the text of each artifact by its id, as a client reads it by the rules of A2A.

    Raises:
        AssertionError: An artifact continues after its end, is appended to before its start, or has no end.
    """
    texts: dict[str, str] = {}
    complete: set[str] = set()
    for event in events:
        update = event.get("artifactUpdate")
        if update is None:
            continue
        artifact_id: str = update["artifact"]["artifactId"]
        text = "".join([part.get("text", "") for part in update["artifact"]["parts"]])
        assert artifact_id not in complete, f"{artifact_id} continues after its end"
        if update.get("append"):
            texts[artifact_id] += text
        else:
            texts[artifact_id] = text  # the first time, or after the response restarted
        if update.get("lastChunk"):
            complete.add(artifact_id)
    assert complete == set(texts), f"{set(texts) - complete} have no end"
    return texts


def send_back(converter: HistoryConverter[Any, Any], chunks: Sequence[ChunkWrapper[Any]]) -> None:
    """Make a message of chunks, and a request that sends the message back to the provider.

    Raises:
        AssertionError: The request cannot be encoded as JSON. `ValueError` is caught: the converter raises this error if
            the provider does not accept a part of the message.
    """
    try:
        request = request_of(converter, chunks)
    except ValueError:
        return
    text = json.dumps(request, ensure_ascii=False, allow_nan=False, default=_bytes_as_text)
    assert text.encode("utf-8")


def request_of(converter: HistoryConverter[Any, Any], chunks: Sequence[ChunkWrapper[Any]]) -> object:
    """Return a request with the message of these chunks, and with a result for each of its tool calls.

    Raises:
        ValueError: The provider does not accept a part of the message.
    """
    message = converter.to_message(chunks)
    results = [
        ContentPartToolResult(id=call.id, name=call.name, output="done")
        for call in message.tool_calls
        if call.kind != "server"
    ]
    conversation = (message, Message(role=Role.TOOL, content=tuple(results))) if results else (message,)
    return converter.from_history(History(conversation=conversation))


def _bytes_as_text(value: object) -> str:
    assert isinstance(value, bytes), f"{type(value)} in a request"  # some are sent unchanged
    return value.hex()


def strict_json(value: Any) -> str:
    """Return a value as strict JSON.

    Raises:
        ValueError: It contains NaN, an infinity, or a lone surrogate.
        TypeError: It contains a value without a JSON form.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    text.encode("utf-8")
    return text


def _artifact_text(texts: dict[str, str], name: str, choice: int) -> str:
    return texts.get(f"{name}-choice-{choice}" if choice else name, "")


def _show(found: Outcome, changes: list[Change]) -> None:
    for change in changes:
        if change.restarts:
            for key in [key for key in found.texts if key[1] == change.choice]:
                del found.texts[key]
        elif change.part is None:
            key = (str(change.channel), change.choice, change.call)
            found.texts[key] = found.texts.get(key, "") + change.text
