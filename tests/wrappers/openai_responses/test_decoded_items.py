"""Decoded reasoning, function calls and other items of the Responses API."""

import json
from collections.abc import Iterable
from typing import Any

import pytest
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from support.responses_events import (
    COMPLETED,
    CREATED,
    WHOLE_TEXT,
    Fields,
    added,
    decode,
    done,
    event,
    fold,
    function_call,
    message,
    output_text,
    sse,
    text_delta,
    text_message,
)
from tailrace.streaming.accumulator import Accumulator
from tailrace.wrappers import (
    ContentPartReasoning,
    ContentPartText,
    ContentPartToolCall,
    FinishReason,
    Message,
    ToolCallDelta,
)
from tailrace.wrappers.openai_responses import wrap_chunk

package_events: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)

# --- reasoning --------------------------------------------------------------------------------------------------


def thought(*summary: str, content: Iterable[str] = (), **fields: Any) -> Fields:
    item: Fields = {"type": "reasoning", "id": "rs_1"}
    item["summary"] = [{"type": "summary_text", "text": text} for text in summary]
    item["content"] = [{"type": "reasoning_text", "text": text} for text in content]
    return {**item, **fields}


def summary_delta(delta: str, index: int = 0) -> Fields:
    return event("reasoning_summary_text.delta", output_index=0, summary_index=index, delta=delta)


def part_of(text: str, own: Fields) -> ContentPartReasoning:
    return ContentPartReasoning(text=text, metadata={"openai-responses": own})


def test_each_part_of_a_summary_is_a_block_and_the_last_has_the_item() -> None:
    events = [
        added(thought(encrypted_content="half")),
        event("reasoning_summary_part.added", output_index=0, summary_index=0, part={"type": "summary_text"}),
        summary_delta("a"),
        summary_delta("b"),
        event("reasoning_summary_text.done", output_index=0, summary_index=0, text="ab"),
        event(
            "reasoning_summary_part.done",
            output_index=0,
            summary_index=0,
            part={"type": "summary_text", "text": "ab"},
        ),
        summary_delta("c", 1),
        done(thought("ab", "c", encrypted_content="whole")),
    ]
    answer = (
        part_of("ab", {"type": "summary_text"}),
        part_of("c", {"type": "summary_text", "id": "rs_1", "encrypted_content": "whole"}),
    )
    assert message(*events).content == answer
    assert message(events[-1]).content == answer


def test_reasoning_that_is_sealed_altogether_is_a_part_without_text() -> None:
    assert message(done(thought(encrypted_content="seal"))).content == (
        part_of("", {"id": "rs_1", "encrypted_content": "seal"}),
    )


def test_the_seal_stands_with_the_reasoning_though_text_came_before_it() -> None:
    events = [summary_delta("hm"), text_delta("Hi", 1), done(thought("hm", encrypted_content="seal"))]
    reasoning, text = message(*events).content
    assert reasoning == part_of("hm", {"type": "summary_text", "id": "rs_1", "encrypted_content": "seal"})
    assert isinstance(text, ContentPartText)


def test_reasoning_of_which_only_an_id_is_known_is_nothing() -> None:
    assert message(added(thought()), done(thought())).content == ()


@pytest.mark.parametrize(
    "delta",
    [
        event("reasoning_text.delta", output_index=0, content_index=0, delta="hm"),
        event("reasoning.delta", output_index=0, content_index=0, delta="hm"),
    ],
    ids=["reasoning_text", "reasoning"],
)
def test_reasoning_is_distinguished_from_its_summary(delta: Fields) -> None:
    events = [
        event("reasoning_part.added", output_index=0, content_index=0, part={"type": "reasoning_text"}),
        delta,
        event("reasoning_text.done", output_index=0, content_index=0, text="hm, hm"),
        event(
            "reasoning_part.done",
            output_index=0,
            content_index=0,
            part={"type": "reasoning_text", "text": "hm, hm"},
        ),
        done(thought(content=["hm, hm"])),
    ]
    assert message(*events).content == (part_of("hm, hm", {"type": "reasoning_text", "id": "rs_1"}),)


def test_reasoning_of_which_nothing_but_the_text_is_known_is_that_text() -> None:
    item = thought("hm")
    del item["id"]
    assert message(done(item)).content == (part_of("hm", {"type": "summary_text"}),)


def test_reasoning_inside_a_message_is_reasoning() -> None:
    answer = message(done({"type": "message", "content": [{"type": "reasoning_text", "text": "hm"}]}))
    assert (answer.reasoning, answer.text) == ("hm", "")


# --- function calls ---------------------------------------------------------------------------------------------


def argument_delta(delta: object, output: int = 0) -> Fields:
    return event("function_call_arguments.delta", output_index=output, delta=delta)


def test_a_call_is_reported_in_fragments() -> None:
    events = [added(function_call(status="in_progress")), argument_delta('{"x"'), argument_delta(":1}")]
    chunks = decode(sse(*events, done(function_call('{"x":1}', status="completed"))))
    assert [call for chunk in chunks for call in chunk.get_tool_calls()] == [
        ToolCallDelta(0, "call_1", "add", "", "function"),
        ToolCallDelta(0, arguments='{"x"'),
        ToolCallDelta(0, arguments=":1}"),
        ToolCallDelta(0, "call_1", "add", extra={"openai-responses": {"id": "fc_1"}}),
    ]


CALL = ContentPartToolCall(
    id="call_1", name="add", arguments={"x": 1}, metadata={"openai-responses": {"id": "fc_1"}}
)
WHOLE_CALL = function_call('{"x":1}', status="completed")
ARGUMENTS_DONE = event("function_call_arguments.done", output_index=0, arguments='{"x":1}')
CALLS: dict[str, list[Fields]] = {
    "in fragments": [added(function_call()), argument_delta('{"x"'), argument_delta(":1}"), done(WHOLE_CALL)],
    "repeated": [added(function_call()), argument_delta('{"x":1}'), ARGUMENTS_DONE, done(WHOLE_CALL)],
    "complete, after the fragments": [added(function_call()), ARGUMENTS_DONE, done(WHOLE_CALL)],
    "complete at the end": [added(function_call()), done(WHOLE_CALL)],
    "complete at the beginning": [added(WHOLE_CALL), done(WHOLE_CALL)],
    "complete at the beginning, and in fragments": [
        added(WHOLE_CALL),
        argument_delta('{"x"'),
        argument_delta(":1}"),
        done(WHOLE_CALL),
    ],
    "partial at the beginning": [added(function_call('{"x')), argument_delta('":1}'), done(WHOLE_CALL)],
    "without a start": [argument_delta('{"x":1}'), done(WHOLE_CALL)],
    "complete without fragments": [done(WHOLE_CALL)],
    "only in the response": [event("completed", response={"output": [WHOLE_CALL]})],
    "as an object": [done(function_call({"x": 1}))],
    "as an object in a delta": [added(function_call()), argument_delta({"x": 1}), done(function_call())],
    "without the last fragment": [added(function_call()), argument_delta('{"x"'), done(WHOLE_CALL)],
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_the_same_however_its_arguments_come(name: str) -> None:
    assert message(*CALLS[name]).tool_calls == (CALL,)


def test_a_call_is_answered_by_its_call_id_and_keeps_fields_of_its_own() -> None:
    caller = {"type": "program", "caller_id": "call_0"}
    [call] = message(done(function_call("{}", namespace="math", caller=caller))).tool_calls
    assert call.id == "call_1"
    assert call.metadata == {"openai-responses": {"id": "fc_1", "namespace": "math", "caller": caller}}


def test_a_call_without_a_call_id_has_the_items() -> None:
    item = function_call("{}")
    del item["call_id"]
    assert message(added(item), done(item)).tool_calls[0].id == "fc_1"


def test_a_truncated_call_is_marked() -> None:
    cut = function_call('{"x":48', status="incomplete")
    end = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}, "output": [cut]}
    answer = message(added(function_call()), argument_delta('{"x":48'), event("incomplete", response=end))
    [call] = answer.tool_calls
    assert (call.arguments_text, call.metadata["openai-responses"]["status"]) == ('{"x":48', "incomplete")
    assert call.arguments_error is not None
    assert answer.metadata["finish_reason"] == "length"


def test_a_custom_tool_takes_free_text() -> None:
    item = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "call_1", "name": "run", "input": ""}
    events = [
        added(item),
        event("custom_tool_call_input.delta", output_index=0, delta="print"),
        event("custom_tool_call_input.delta", output_index=0, delta="(1)"),
        event("custom_tool_call_input.done", output_index=0, input="print(1)"),
        done({**item, "input": "print(1)"}),
    ]
    call = ContentPartToolCall(
        id="call_1",
        name="run",
        kind="custom",
        arguments_text="print(1)",
        metadata={"openai-responses": {"id": "ctc_1"}},
    )
    assert message(*events).tool_calls == (call,)
    assert message(events[-1]).tool_calls == (call,)


def test_calls_side_by_side_are_joined_by_their_position() -> None:
    events = [
        added(function_call(call_id="a"), 0),
        added(function_call(call_id="b"), 1),
        argument_delta('{"x":', 0),
        argument_delta('{"y":', 1),
        argument_delta("1}", 0),
        argument_delta("2}", 1),
        done(function_call('{"y":2}', call_id="b"), 1),
        done(function_call('{"x":1}', call_id="a"), 0),
        COMPLETED,
    ]
    answer = fold(*events)
    assert [(call.id, call.arguments) for call in answer.message().tool_calls] == [
        ("a", {"x": 1}),
        ("b", {"y": 2}),
    ]
    assert answer.first is not None
    assert answer.first.finish_reason is FinishReason.TOOL_CALLS


def test_the_whole_response_is_matched_by_order_not_by_index() -> None:
    other = function_call('{"y":2}', call_id="b")
    events = [
        added(function_call(call_id="a"), 3),
        argument_delta('{"x":1}', 3),
        event(
            "completed",
            response={
                "output": [thought("hm"), function_call('{"x":1}', call_id="a"), other, text_message("Hi")]
            },
        ),
    ]
    answer = message(*events)
    assert [(call.id, call.arguments) for call in answer.tool_calls] == [("a", {"x": 1}), ("b", {"y": 2})]
    assert (answer.reasoning, answer.text) == ("hm", "Hi")


# --- other events -----------------------------------------------------------------------------------------------


def test_an_unknown_event_is_kept_and_has_no_content() -> None:
    odd = event("tea_call.brewing", output_index=0, leaves=3)
    [chunk] = decode(sse(odd))
    assert chunk.raw == odd
    assert (chunk.get_text(), chunk.get_tool_calls(), chunk.details) == ("", [], None)


@pytest.mark.parametrize(
    "ping", [{"type": "keepalive", "sequence_number": 3}, {"type": "ping"}, {}, 1, [], None]
)
def test_what_is_not_of_this_api_is_nothing(ping: object) -> None:
    assert decode(sse(CREATED, ping))[1:] == []


def test_a_response_that_restarts_discards_its_earlier_content() -> None:
    answer = fold(
        CREATED, text_delta("Hel"), CREATED | {"response": {"id": "resp_2"}}, text_delta("Hi"), COMPLETED
    )
    assert answer.message().text == "Hi"


def test_another_response_behind_the_end_goes_on() -> None:
    events = [CREATED, text_delta("one"), done(function_call("{}")), COMPLETED]
    again = [CREATED, text_delta("two"), done(function_call("{}", call_id="call_2")), COMPLETED]
    answer = message(*events, *again)
    assert answer.text == "onetwo"
    assert [call.id for call in answer.tool_calls] == ["call_1", "call_2"]


# --- the openai package's events --------------------------------------------------------------------------------


def alone(*events: Fields) -> Message:
    """The message of events, each converted alone, as the package's objects."""
    accumulator = Accumulator(think_tags=False)
    for number, each in enumerate(events):
        package = package_events.validate_python({"sequence_number": number, "item_id": "i", **each})
        for chunk in wrap_chunk(package):
            accumulator.add(chunk)
    return accumulator.message()


PACKAGE_RESPONSE: Fields = {
    "id": "resp_1",
    "object": "response",
    "created_at": 7,
    "model": "m",
    "output": [],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "status": "completed",
}


def test_the_packages_events_have_the_same_content_one_by_one() -> None:
    events = [
        event("created", response=PACKAGE_RESPONSE),
        added(thought()),
        event(
            "reasoning_summary_part.added",
            output_index=0,
            summary_index=0,
            part={"type": "summary_text", "text": ""},
        ),
        summary_delta("hm"),
        event("reasoning_summary_text.done", output_index=0, summary_index=0, text="hm"),
        done(thought("hm", encrypted_content="seal")),
        added(text_message(status="in_progress"), 1),
        event("content_part.added", output_index=1, content_index=0, part=output_text("")),
        text_delta("Hel", 1),
        text_delta("lo", 1),
        event("output_text.done", output_index=1, content_index=0, text="Hello", logprobs=[]),
        event("content_part.done", output_index=1, content_index=0, part=output_text("Hello")),
        done(text_message("Hello", status="completed", phase="final_answer"), 1),
        added(function_call(status="in_progress"), 2),
        argument_delta('{"x":1}', 2),
        event("function_call_arguments.done", output_index=2, name="add", arguments='{"x":1}'),
        done(WHOLE_CALL, 2),
        event(
            "completed", response={**PACKAGE_RESPONSE, "output": [text_message("Hello", status="completed")]}
        ),
    ]
    assert alone(*events) == message(*events)
    assert alone(*events).text == "Hello"


def test_single_events_open_blocks_but_never_repeat_them() -> None:
    parts = [
        event("content_part.added", output_index=0, content_index=index, part=output_text(""))
        for index in (0, 1)
    ]
    refusal = event(
        "content_part.added", output_index=0, content_index=2, part={"type": "refusal", "refusal": ""}
    )
    answer = alone(parts[0], text_delta("a"), parts[1], text_delta("b", content=1), refusal)
    assert [part.text for part in answer.content if isinstance(part, ContentPartText)] == ["a", "b"]


def test_single_events_give_a_call_that_begins_with_its_arguments() -> None:
    assert alone(added(WHOLE_CALL), done(WHOLE_CALL)).tool_calls == (CALL,)


def test_an_event_given_as_json_is_not_changed() -> None:
    before = json.dumps(WHOLE_TEXT[-1])
    wrap_chunk(WHOLE_TEXT[-1])
    assert json.dumps(WHOLE_TEXT[-1]) == before
