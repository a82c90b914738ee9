"""Streams of the Interactions API: both names of its events, each kind of step."""

import json
from typing import Any

import pytest
from google.genai.interactions import StepDelta

from tailrace.streaming.accumulator import Accumulator
from tailrace.wrappers import (
    ContentPartData,
    ContentPartFile,
    ContentPartReasoning,
    ContentPartText,
    ContentPartToolCall,
    ContentPartToolResult,
    FinishReason,
    UpstreamFault,
    Usage,
)
from tailrace.wrappers.gemini import GeminiDecoder, wrap_chunk

OWN = "google-interactions"
USAGE = {
    "total_input_tokens": 10,
    "total_tool_use_tokens": 5,
    "total_output_tokens": 2,
    "total_thought_tokens": 3,
    "total_tokens": 20,
}

Fields = dict[str, Any]


def created(**fields: Any) -> Fields:
    interaction = {
        "id": "v1",
        "object": "interaction",
        "model": "gemini-x",
        "status": "in_progress",
        **fields,
    }
    return {"event_type": "interaction.created", "interaction": interaction}


def completed(status: str = "completed", **fields: Any) -> Fields:
    interaction = {"id": "v1", "object": "interaction", "status": status, **fields}
    return {"event_type": "interaction.completed", "interaction": interaction}


def start(index: int, kind: str, **fields: Any) -> Fields:
    return {"event_type": "step.start", "index": index, "step": {"type": kind, **fields}}


def delta(index: int, kind: str, **fields: Any) -> Fields:
    return {"event_type": "step.delta", "index": index, "delta": {"type": kind, **fields}}


def stop(index: int, **fields: Any) -> Fields:
    return {"event_type": "step.stop", "index": index, **fields}


def older(event: Fields) -> Fields:
    """The event with its earlier names."""
    renamed = {
        "interaction.created": "interaction.start",
        "interaction.completed": "interaction.complete",
    }
    name = event["event_type"]
    fields = {("content" if key == "step" else key): value for key, value in event.items()}
    return {**fields, "event_type": renamed.get(name, name.replace("step.", "content."))}


def sse(*events: object) -> bytes:
    return b"".join(b"event: x\ndata: " + json.dumps(event).encode() + b"\n\n" for event in events)


def fold(*events: Fields) -> Accumulator:
    """Accumulate the events as bytes, under both names, and compare the results."""
    accumulators = [Accumulator(), Accumulator()]
    for accumulator, version in zip(
        accumulators, (list(events), [older(each) for each in events]), strict=True
    ):
        decoder = GeminiDecoder()
        for wrapper in decoder.feed(sse(*version)) + decoder.close():
            accumulator.add(wrapper)
        accumulator.close()
    first, second = accumulators
    assert (first.message(), first.usage, first.metadata) == (second.message(), second.usage, second.metadata)
    return first


def content(*events: Fields) -> tuple[object, ...]:
    return fold(created(), *events, completed()).message().content


def test_an_answer_with_a_thought() -> None:
    accumulator = fold(
        created(),
        {"event_type": "interaction.status_update", "interaction_id": "v1", "status": "in_progress"},
        start(0, "thought"),
        delta(0, "thought_summary", content={"type": "text", "text": "h"}),
        delta(0, "thought_summary", content={"type": "text", "text": "m"}),
        delta(0, "thought_signature", signature="sig"),
        stop(0),
        start(1, "model_output"),
        delta(1, "text", text="Hel"),
        delta(1, "text", text="lo"),
        stop(1),
        completed(usage=USAGE, created="2026-01-01T00:00:00Z", service_tier="standard"),
    )
    assert accumulator.message().content == (
        ContentPartReasoning(text="hm", metadata={OWN: {"signature": "sig"}}),
        ContentPartText(text="Hello"),
    )
    assert accumulator.usage == Usage(15, 5, 20, USAGE)
    assert accumulator.metadata == {
        "id": "v1",
        "model": "gemini-x",
        "created": "2026-01-01T00:00:00Z",
        "service_tier": "standard",
    }
    assert accumulator.finished
    assert accumulator.error is None


def test_the_usual_text_delta_is_plain() -> None:
    decoder = GeminiDecoder()
    decoder.feed(sse(start(0, "model_output"), delta(0, "text", text="a")))
    event = delta(0, "text", text="b")
    (wrapper,) = decoder.feed(sse(event))
    assert (wrapper.plain, wrapper.get_text(), wrapper.details, wrapper.raw) == (True, "b", None, event)


def test_a_sealed_thought_without_a_summary_is_kept_in_its_place() -> None:
    assert content(
        start(0, "thought"),
        delta(0, "thought_signature", signature="s0"),
        stop(0),
        start(1, "model_output"),
        delta(1, "text", text="a"),
        stop(1),
        start(2, "thought"),
        delta(2, "thought_signature", signature="s2"),
        stop(2),
    ) == (
        ContentPartReasoning(text="", metadata={OWN: {"signature": "s0"}}),
        ContentPartText(text="a"),
        ContentPartReasoning(text="", metadata={OWN: {"signature": "s2"}}),
    )


def test_texts_of_two_steps_are_two_blocks() -> None:
    assert content(
        start(0, "model_output"), delta(0, "text", text="a"), stop(0),
        start(1, "model_output"), delta(1, "text", text="b"), stop(1),
    ) == (ContentPartText(text="a"), ContentPartText(text="b"))  # fmt: skip


def test_a_function_call_whose_arguments_are_streamed() -> None:
    accumulator = fold(
        created(),
        start(0, "function_call", id="c1", name="add", arguments={}),
        delta(0, "arguments_delta", arguments='{"x":2,'),
        delta(0, "arguments_delta", arguments='"y":3}'),
        stop(0),
        start(1, "function_call", id="c2", name="add", arguments={}),
        stop(1),
        completed("requires_action"),
    )
    assert accumulator.message().content == (
        ContentPartToolCall(id="c1", name="add", arguments={"x": 2, "y": 3}),
        ContentPartToolCall(id="c2", name="add"),
    )
    first = accumulator.first
    assert first is not None
    assert first.finish_reason is FinishReason.TOOL_CALLS


def test_a_function_call_that_comes_whole() -> None:
    call = ContentPartToolCall(id="c1", name="add", arguments={"x": 2})
    assert content(start(0, "function_call", id="c1", name="add", arguments={"x": 2}), stop(0)) == (call,)
    assert content(delta(0, "function_call", id="c1", name="add", arguments={"x": 2})) == (call,)


def test_a_call_that_was_cut_off_is_no_whole_one() -> None:
    decoder = GeminiDecoder()
    accumulator = Accumulator()
    events = sse(start(0, "function_call", id="c", name="f"), delta(0, "arguments_delta", arguments='{"x":'))
    for wrapper in decoder.feed(events) + decoder.close():
        accumulator.add(wrapper)
    accumulator.close()
    (call,) = accumulator.message().tool_calls
    assert (call.arguments_text, call.arguments_error is not None) == ('{"x":', True)
    assert accumulator.error is not None
    assert accumulator.error.fault is UpstreamFault.TRUNCATED


def test_tools_that_google_ran_and_their_results() -> None:
    hits = [{"title": "A"}, {"title": "B"}]
    expected = (
        ContentPartToolCall(
            id="g1",
            name="google_search",
            kind="server",
            arguments={"queries": ["q"]},
            metadata={OWN: {"signature": "s"}},
        ),
        ContentPartToolResult(id="g1", name="google_search", output=hits),
    )
    in_deltas = content(
        start(0, "google_search_call", id="g1", signature=""),
        delta(0, "google_search_call", arguments={"queries": ["q"]}, signature="s"),
        stop(0),
        start(1, "google_search_result", call_id="g1"),
        delta(1, "google_search_result", result=hits[:1]),
        delta(1, "google_search_result", result=hits[1:]),
        stop(1),
    )
    at_once = content(
        start(0, "google_search_call", id="g1", arguments={"queries": ["q"]}, signature="s"),
        stop(0),
        start(1, "google_search_result", call_id="g1", result=hits),
    )
    assert in_deltas == at_once == expected


def test_a_tool_of_a_server_that_failed() -> None:
    assert content(
        start(0, "mcp_server_tool_call", id="m", name="read", server_name="files", arguments={"p": 1}),
        stop(0),
        start(1, "mcp_server_tool_result", call_id="m", name="read", server_name="files"),
        delta(1, "mcp_server_tool_result", result="no ", is_error=True),
        delta(1, "mcp_server_tool_result", result="such file"),
        stop(1),
    ) == (
        ContentPartToolCall(
            id="m", name="read", kind="server", arguments={"p": 1}, metadata={OWN: {"server_name": "files"}}
        ),
        ContentPartToolResult(
            id="m",
            name="read",
            output="no such file",
            is_error=True,
            metadata={OWN: {"server_name": "files"}},
        ),
    )


def test_annotations_stand_with_their_text_and_with_the_message() -> None:
    cited = [{"type": "url_citation", "url": "u", "start_index": 0, "end_index": 1}]
    accumulator = fold(
        created(),
        start(0, "model_output"),
        delta(0, "text", text="a"),
        delta(0, "text_annotation_delta", annotations=cited),
        delta(0, "text", text="b"),
        stop(0),
        completed(),
    )
    assert accumulator.message().content == (
        ContentPartText(text="ab", metadata={OWN: {"annotations": cited}}),
    )
    assert accumulator.message().metadata["extra"] == {"annotations": cited}


def test_files_and_what_has_no_common_form() -> None:
    assert content(
        start(0, "image"),
        delta(0, "image", mime_type="image/png", data="eA==", resolution="low"),
        stop(0),
        start(1, "model_output"),
        delta(1, "audio", mime_type="audio/wav", uri="https://example.com/a"),
        delta(1, "video", mime_type="video/mp4", data="*"),
        delta(1, "hologram", size=3),
        stop(1),
    ) == (
        ContentPartFile(data=b"x", media_type="image/png", metadata={OWN: {"resolution": "low"}}),
        ContentPartFile(url="https://example.com/a", media_type="audio/wav"),
        ContentPartData(
            data={"type": "video", "mime_type": "video/mp4", "data": "*"}, metadata={OWN: {"part": True}}
        ),
        ContentPartData(data={"type": "hologram", "size": 3}, metadata={OWN: {"part": True}}),
    )


def test_a_thought_may_be_summed_up_in_an_image() -> None:
    image = {"type": "image", "mime_type": "image/png", "data": "eA=="}
    assert content(start(0, "thought"), delta(0, "thought_summary", content=image), stop(0)) == (
        ContentPartFile(data=b"x", media_type="image/png"),
    )
    assert content(start(0, "thought"), delta(0, "thought_summary"), stop(0)) == ()


def test_user_input_is_no_part_of_the_answer() -> None:
    assert content(
        start(0, "user_input", content=[{"type": "text", "text": "hi"}]),
        delta(0, "text", text="hi"),
        stop(0),
    ) == ()  # fmt: skip


def test_deltas_of_a_step_that_never_started_are_read() -> None:
    assert content(delta(0, "text", text="a"), delta(0, "text", text="b")) == (ContentPartText(text="ab"),)


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ("completed", FinishReason.STOP),
        ("requires_action", FinishReason.TOOL_CALLS),
        ("incomplete", FinishReason.LENGTH),
        ("budget_exceeded", FinishReason.LENGTH),
        ("cancelled", FinishReason.UNSPECIFIED),
    ],
)
def test_every_status_that_ends_an_answer(status: str, reason: FinishReason) -> None:
    first = fold(created(), delta(0, "text", text="a"), completed(status)).first
    assert first is not None
    assert first.finish is not None
    assert (first.finish.reason, first.finish.raw) == (reason, status)


def test_an_interaction_that_has_completed_needs_no_more_reading() -> None:
    decoder = GeminiDecoder()
    decoder.feed(sse(created()))
    assert not decoder.done
    decoder.feed(sse(completed()))
    assert decoder.done


def test_a_stream_that_breaks_off_has_no_finish() -> None:
    accumulator = fold(created(), start(0, "model_output"), delta(0, "text", text="a"))
    assert not accumulator.finished
    assert accumulator.error is not None
    assert accumulator.error.fault is UpstreamFault.TRUNCATED


@pytest.mark.parametrize(
    "event",
    [
        {"event_type": "error", "error": {"code": "quota", "message": "no more"}},
        completed("failed", errors=[{"code": "quota", "message": "no more"}]),
        start(1, "model_output", error={"code": "quota", "message": "no more"}),
    ],
)
def test_an_error_of_either_kind_keeps_what_came_before(event: Fields) -> None:
    accumulator = fold(created(), delta(0, "text", text="a"), event)
    assert accumulator.message().text == "a"
    assert accumulator.error is not None
    assert (accumulator.error.message, accumulator.error.code) == ("no more", "quota")
    assert accumulator.error.fault is UpstreamFault.PROVIDER


def test_a_failure_without_a_reason_is_an_error_too() -> None:
    error = fold(created(), completed("failed")).error
    assert error is not None
    assert error.message == "the interaction failed"


def test_token_counts_replace_those_before_wherever_they_stand() -> None:
    accumulator = fold(
        created(),
        {**delta(0, "text", text="a"), "metadata": {"total_usage": {"total_input_tokens": 10}}},
        stop(0, usage={"total_input_tokens": 10, "total_output_tokens": 1}),
        completed(usage={"total_output_tokens": 2, "total_thought_tokens": None}),
    )
    raw = {"total_input_tokens": 10, "total_output_tokens": 2}
    assert accumulator.usage == Usage(10, 2, 12, raw)


WHOLE = {
    "id": "v1",
    "object": "interaction",
    "model": "gemini-x",
    "status": "requires_action",
    "steps": [
        {"type": "user_input", "content": [{"type": "text", "text": "hi"}]},
        {"type": "thought", "summary": [{"type": "text", "text": "hm"}], "signature": "s"},
        {
            "type": "model_output",
            "content": [
                {"type": "text", "text": "a", "annotations": [{"url": "u"}]},
                {"type": "image", "mime_type": "image/png", "data": "eA=="},
            ],
        },
        {"type": "function_call", "id": "c", "name": "f", "arguments": {"x": 1}},
    ],
    "usage": USAGE,
}
WHOLE_CONTENT = (
    ContentPartReasoning(text="hm", metadata={OWN: {"signature": "s"}}),
    ContentPartText(text="a", metadata={OWN: {"annotations": [{"url": "u"}]}}),
    ContentPartFile(data=b"x", media_type="image/png"),
    ContentPartToolCall(id="c", name="f", arguments={"x": 1}),
)


def test_a_whole_interaction_that_was_not_streamed() -> None:
    accumulator = Accumulator()
    decoder = GeminiDecoder()
    for wrapper in decoder.feed(json.dumps(WHOLE).encode()) + decoder.close():
        accumulator.add(wrapper)
    accumulator.close()
    assert accumulator.message().content == WHOLE_CONTENT
    assert accumulator.usage == Usage(15, 5, 20, USAGE)
    assert accumulator.error is None


def test_the_outputs_of_a_completed_interaction_count_only_where_nothing_was_streamed() -> None:
    steps = WHOLE["steps"]
    assert fold(created(), completed(steps=steps)).message().content == WHOLE_CONTENT
    streamed = fold(created(), delta(0, "text", text="a"), completed(steps=steps))
    assert streamed.message().content == (ContentPartText(text="a"),)


def test_the_packages_own_events_have_the_same_content() -> None:
    event = {**delta(0, "text", text="a"), "event_id": "e1"}
    (ours,) = wrap_chunk(event)
    (theirs,) = wrap_chunk(StepDelta.model_validate(event))
    assert ours == theirs
    assert ours.get_text() == "a"


def test_fields_of_a_call_that_come_in_pieces_are_the_same_however_they_are_read() -> None:
    events = [created(), start(0, "function_call", note="a")]
    events += [
        {**delta(0, "function_call"), "delta": {"type": "function_call", "note": note}} for note in "bbc"
    ]
    events += [stop(0), completed("requires_action")]
    whole = fold(*events)
    one_by_one = Accumulator()
    decoder = GeminiDecoder()
    for event in events:
        for chunk in decoder.feed(sse(event)):
            one_by_one.add(chunk)
    for chunk in decoder.close():
        one_by_one.add(chunk)
    one_by_one.close()
    assert whole.message() == one_by_one.message()
