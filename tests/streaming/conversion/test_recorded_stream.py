"""A recorded body as events, as a task and as a message."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from support.a2a_client import FoldedTask, fold
from support.scenarios import in_reads, load_scenarios
from tailrace.streaming.a2a.event import Event
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import Task, TaskStatus
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI
from tailrace.streaming.conversion.message_conversion import to_common_message
from tailrace.streaming.conversion.recorded_stream import StreamConversion
from tailrace.streaming.task.task_record import TaskRecord
from tailrace.wrappers import UpstreamError, UpstreamFault
from tailrace.wrappers.decoding.decoder import ResponseDecoder
from tailrace.wrappers.openai import ChatCompletionsDecoder

SCENARIOS = load_scenarios()
FIXTURES = sorted((Path(__file__).parents[2] / "fixtures/openai").glob("*.sse"))


def convert(reads: Iterable[bytes], **options: Any) -> tuple[StreamConversion, list[Event]]:
    conversion = StreamConversion(ChatCompletionsDecoder(max_event_bytes=10_000), **options)
    events = [event for data in reads for event in conversion.feed(data)]
    return conversion, events + conversion.close()


def folded(events: Iterable[Event]) -> FoldedTask:
    return fold(event.body for event in events)


def sse(*chunks: object) -> bytes:
    return b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks)


def say(content: str, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": content}, **more}]}


STOP: dict[str, Any] = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
DONE = b"data: [DONE]\n\n"


def test_a_body_becomes_the_events_of_one_task() -> None:
    conversion, events = convert([sse(say("Hel"), say("lo"), STOP) + DONE], task_id="t", context_id="c")
    task = folded(events)
    assert [event.number for event in events] == [1, 2, 3, 4, 5]
    assert (task.state, task.texts, task.complete) == ("TASK_STATE_COMPLETED", {"text": "Hello"}, ["text"])
    assert (conversion.record.id, conversion.record.context_id) == ("t", "c")
    assert [json.loads(event.body).popitem()[0] for event in events] == [
        "task",
        "statusUpdate",
        "artifactUpdate",
        "artifactUpdate",
        "statusUpdate",
    ]


def test_events_come_with_the_read_that_completes_them() -> None:
    conversion = StreamConversion(ChatCompletionsDecoder())
    body = sse(say("a"))
    assert conversion.feed(body[:-1]) == []
    assert [event.number for event in conversion.feed(body[-1:] + sse(say("b")))] == [1, 2, 3]
    assert [event.number for event in conversion.feed(sse(say("c"), say("d")))] == [4]


def test_two_conversions_are_two_tasks() -> None:
    ids = {(record.id, record.context_id) for record in (convert([])[0].record for _ in range(2))}
    assert len(ids) == 2


def test_the_message_has_reasoning_text_and_calls_each_in_one_part() -> None:
    call = {"index": 0, "id": "i", "function": {"name": "f", "arguments": '{"a": 1}'}}
    chunks: list[dict[str, Any]] = [
        {"choices": [{"delta": {"reasoning": "h"}}]},
        say("Hel"),
        {"choices": [{"delta": {"reasoning": "m"}}]},
        say("lo"),
        {"choices": [{"delta": {"tool_calls": [call]}}]},
        {"id": "x", "choices": [{"delta": {}, "finish_reason": "stop"}], "usage": {"total_tokens": 3}},
    ]
    conversion, _ = convert([sse(*chunks) + DONE])
    message = conversion.message()
    assert message == {
        "role": "agent",
        "parts": [
            {"text": "hm", "metadata": {EXTENSION_URI: {"channel": "reasoning"}}},
            {"text": "Hello"},
            {"data": {"tool_calls": [{"call_id": "i", "name": "f", "arguments": {"a": 1}}]}},
        ],
        "metadata": {
            EXTENSION_URI: {
                "finishReason": "tool_calls",
                "usage": {
                    "inputTokens": 0,
                    "outputTokens": 0,
                    "totalTokens": 3,
                    "raw": '{"total_tokens":3}',
                },
                "response": {"id": "x"},
            }
        },
    }
    assert to_common_message(message).text == "Hello"


def test_a_refusal_is_in_the_messages_metadata() -> None:
    conversion, events = convert([sse({"choices": [{"delta": {"refusal": "no"}, "finish_reason": "stop"}]})])
    assert conversion.message() == {
        "role": "agent",
        "parts": [],
        "metadata": {EXTENSION_URI: {"finishReason": "stop", "refusal": "no"}},
    }
    assert folded(events).texts == {"refusal": "no"}


def test_the_message_is_the_first_choices() -> None:
    chunk = {"choices": [{"index": 2, "delta": {"content": "c"}}, {"index": 1, "delta": {"content": "b"}}]}
    assert convert([sse(chunk)])[0].message()["parts"] == [{"text": "b"}]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "the stream ended without a response"),
        (DONE, "the stream ended without a response"),
        (b": ping\n\n", "the stream ended without a response"),
        (sse(say("a")), "the stream ended before the response was complete"),
        (sse(say("a")) + b'data: {"choices":[{"de', "the stream broke off in the middle of an event"),
        (sse(say("a"), {"error": {"message": "died", "code": 502}}), "died (HTTP 502, 502)"),
        (
            sse(say("a", finish_reason="network_error")),
            "the provider ended the response with an error (network_error)",
        ),
    ],
    ids=["empty", "only done", "only comments", "no finish", "cut", "error", "error as a finish"],
)
def test_a_body_that_broke_off_ends_failed_with_the_reason_and_what_it_held(body: bytes, reason: str) -> None:
    conversion, events = convert([body])
    task = folded(events)
    assert (task.state, task.status_text) == ("TASK_STATE_FAILED", reason)
    assert task.texts == ({"text": "a"} if b"content" in body else {})
    assert set(task.complete) == set(task.texts)
    assert conversion.unreadable is None
    assert conversion.message()["metadata"][EXTENSION_URI]["error"]["type"] in (
        "stream_truncated",
        "provider_error",
    )


@pytest.mark.parametrize("body", [b"<html></html>", b"data: hello\n\n", b'{"a": 1}'])
def test_a_body_that_is_no_stream_is_an_error(body: bytes) -> None:
    conversion, events = convert([body])
    assert conversion.unreadable is not None
    assert conversion.unreadable.fault is UpstreamFault.INVALID
    assert folded(events).state == "TASK_STATE_FAILED"


def test_an_odd_event_within_a_stream_does_not_make_it_unreadable() -> None:
    conversion, events = convert([sse(say("a")) + b"data: oops\n\n" + sse(say("b"), STOP) + DONE])
    assert conversion.unreadable is None
    assert folded(events).texts == {"text": "ab"}
    assert folded(events).state == "TASK_STATE_FAILED"


@pytest.mark.parametrize(
    "rest", [[b"x" * 11_000], [b"x" * 11_000, b"y", b"\n\n" + sse(STOP)]], ids=["at the end", "before more"]
)
def test_an_event_beyond_the_bound_ends_the_response_and_keeps_what_came(rest: list[bytes]) -> None:
    _, events = convert([sse(say("a")) + b"data: ", *rest])
    task = folded(events)
    assert (task.state, task.texts) == ("TASK_STATE_FAILED", {"text": "a"})
    assert task.metadata[EXTENSION_URI]["error"] == {"type": "event_too_large"}


def test_an_event_beyond_the_bound_in_the_only_read_is_found_at_the_end() -> None:
    _, events = convert([sse(say("a")) + b"data: " + b"x" * 11_000])
    assert folded(events).metadata[EXTENSION_URI]["error"] == {"type": "event_too_large"}


def test_the_first_error_stays_when_the_decoder_gives_up_later() -> None:
    _, events = convert([sse({"error": "died"}), b"data: " + b"x" * 11_000])
    assert folded(events).status_text == "died"


def test_a_decoder_of_another_provider_may_be_given() -> None:
    class Refuses(ResponseDecoder[Any]):
        def feed(self, data: bytes) -> list[Any]:
            raise UpstreamError("no", fault=UpstreamFault.INVALID)

        def close(self) -> list[Any]:
            return []

    conversion = StreamConversion(Refuses())
    assert conversion.feed(b"x") == []
    assert folded(conversion.close()).status_text == "no"
    assert conversion.unreadable is not None


# --- any body ---------------------------------------------------------------------------------------------------

BODIES = {scenario.name: scenario.body for scenario in SCENARIOS} | {
    path.name: path.read_bytes() for path in FIXTURES
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_the_events_fold_back_to_the_message_and_to_the_task(body: bytes) -> None:
    conversion, events = convert(in_reads(body, 200), task_id="t", context_id="c")
    task = folded(events)
    assert set(task.complete) == set(task.texts)
    assert task.state == str(conversion.record.state)
    first = conversion.accumulator.first
    if first is not None and conversion.accumulator.choices.get(0) is first:
        assert task.texts.get("text", "") == first.text
        assert task.texts.get("reasoning", "") == first.reasoning
        assert task.texts.get("refusal", "") == first.refusal
        named = [f"tool-call-{number}" for number in range(1, 1 + len(first.tool_calls))]
        entries = [entry for name in named for data in task.data[name] for entry in data["tool_calls"]]
        assert [entry["call_id"] for entry in entries] == [call.id for call in first.tool_calls]
        assert [entry["arguments"] for entry in entries] == [call.arguments for call in first.tool_calls]
        message = to_common_message(conversion.message())
        assert (message.text, message.reasoning) == (first.text, first.reasoning)
        assert list(message.tool_calls) == first.tool_calls
    replayed = TaskRecord(Task(id="t", context_id="c", status=TaskStatus(state=TaskState.SUBMITTED)))
    for event in events:
        replayed.replay(event)
    assert replayed.snapshot() == conversion.record.snapshot()
