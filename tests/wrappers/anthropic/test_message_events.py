"""Events of the Messages API: messages, usage, stop reasons, errors and invalid events."""

import json
from typing import Any

import pytest

from support.anthropic_events import (
    STOP,
    arguments,
    delta,
    end,
    folded,
    message,
    parts,
    say,
    start,
    stop,
    text,
    thinking,
    thought,
    wrap,
)
from tailrace.wrappers import (
    ContentPartReasoning,
    ContentPartToolCall,
    ContentPartToolResult,
    FinishMessage,
    FinishReason,
    UpstreamFault,
    Usage,
)
from tailrace.wrappers.anthropic import AnthropicEventWrapper, MessageEvents

PING: dict[str, Any] = {"type": "ping"}

# --- messages ---------------------------------------------------------------------------------------------------


def test_the_facts_about_a_message_and_its_usage_come_from_both_ends() -> None:
    usage = {"input_tokens": 10, "cache_read_input_tokens": 3, "output_tokens": 1, "service_tier": "standard"}
    first, last = wrap(
        message(usage=usage, container=None, provider="Vertex"),
        end(
            "stop_sequence",
            {"output_tokens": 7, "input_tokens": None},
            stop_sequence="END",
            container={"id": "c"},
        ),
    )
    assert first.details is not None
    assert first.details.metadata == {
        "id": "msg_1", "model": "claude", "provider": "Vertex", "service_tier": "standard",
    }  # fmt: skip
    assert first.get_usage() == Usage(13, 1, 14, usage)
    assert last.get_usage() == Usage(13, 7, 20, {**usage, "output_tokens": 7})
    assert last.get_finish_message() == FinishMessage(FinishReason.STOP, "stop_sequence")
    assert last.details is not None
    assert last.details.metadata == {
        "stop_sequence": "END", "container": {"id": "c"}, "service_tier": "standard",
    }  # fmt: skip


def test_usage_counts_once_whatever_is_repeated() -> None:
    whole = {
        "input_tokens": 10, "cache_creation_input_tokens": 20, "cache_read_input_tokens": 30, "output_tokens": 4,
    }  # fmt: skip
    usage = folded(message(usage=whole), end(usage={**whole, "output_tokens": 9}), STOP).usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (60, 9, 69)


@pytest.mark.parametrize("usage", [None, {}, [], {"input_tokens": None}, {"output_tokens": True}, {"a": 1}])
def test_an_object_that_counts_nothing_is_no_usage(usage: object) -> None:
    assert folded(message(usage=usage)).usage is None


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ("end_turn", FinishReason.STOP),
        ("stop_sequence", FinishReason.STOP),
        ("max_tokens", FinishReason.LENGTH),
        ("model_context_window_exceeded", FinishReason.LENGTH),
        ("tool_use", FinishReason.TOOL_CALLS),
        ("refusal", FinishReason.CONTENT_FILTER),
        ("pause_turn", FinishReason.UNSPECIFIED),
        ("compaction", FinishReason.UNSPECIFIED),
    ],
)
def test_a_stop_reason_is_a_common_word_beside_the_providers_own(raw: str, reason: FinishReason) -> None:
    assert wrap(message(), end(raw))[-1].get_finish_message() == FinishMessage(reason, raw)


@pytest.mark.parametrize("reason", [None, "", 1, {}])
def test_a_message_without_a_stop_reason_is_not_finished(reason: Any) -> None:
    accumulator = folded(message(), start(0, "text", text="a"), stop(0), end(reason), STOP)
    assert not accumulator.finished
    assert accumulator.error is not None
    assert accumulator.error.fault is UpstreamFault.TRUNCATED


def test_a_refusal_may_be_explained() -> None:
    details = {"type": "refusal", "category": "cyber", "explanation": "Not that."}
    wrapper = wrap(message(), end("refusal", stop_details=details))[-1]
    assert wrapper.get_finish_message() == FinishMessage(FinishReason.CONTENT_FILTER, "refusal", "Not that.")
    assert wrapper.details is not None
    assert wrapper.details.metadata == {"stop_details": details}


def test_further_fields_of_an_end_are_preserved() -> None:
    metrics = {"inputTokenCount": 1}
    accumulator = folded(
        message(),
        {
            **end(),
            "context_management": {"applied_edits": []},
            "provider_metadata": {"gateway": {"cost": "1"}},
        },
        {**STOP, "amazon-bedrock-invocationMetrics": metrics, "message": {"id": "a helper's snapshot"}},
    )
    kept = {"context_management", "provider_metadata", "amazon-bedrock-invocationMetrics"}
    assert {key: accumulator.metadata[key] for key in kept} == {
        "context_management": {"applied_edits": []},
        "provider_metadata": {"gateway": {"cost": "1"}},
        "amazon-bedrock-invocationMetrics": metrics,
    }
    assert accumulator.metadata["id"] == "msg_1"


def test_a_role_other_than_the_assistants_is_reported() -> None:
    (wrapper,) = wrap(message(role="critic"))
    assert wrapper.details is not None
    assert wrapper.details.role == "critic"


@pytest.mark.parametrize(
    "event",
    [
        PING,
        {"type": "from_the_future", "index": 0},
        {"type": None},
        {"type": "from_the_future", "index": 0, "delta": {"type": "text_delta", "text": "x"}},
        {},
        {"type": "text", "text": "a helper's event", "snapshot": "a"},
        {"type": "content_block_delta", "index": 0, "delta": None},
        {"type": "content_block_delta", "index": 0},
        {"type": "content_block_start", "index": 0, "content_block": None},
        stop(7),
        STOP,
    ],
)
def test_an_event_without_content_is_no_delta(event: dict[str, Any]) -> None:
    assert wrap(event) == []
    assert parts(message(), start(0, "text", text="a"), event, text(0, "b")) == (say("ab"),)


def test_a_message_that_begins_twice_begins_once() -> None:
    accumulator = folded(
        message(), message(usage={"input_tokens": 99}), start(0, "text", text="ok"), stop(0), end(), STOP
    )
    assert accumulator.message().content == (say("ok"),)
    assert accumulator.usage is not None
    assert accumulator.usage.input_tokens == 10


def test_another_message_within_a_message_restarts_the_response() -> None:
    events = (
        message("msg_1", usage={"input_tokens": 1, "cache_read_input_tokens": 50}),
        start(0, "thinking", thinking=""),
        thinking(0, "first"),
        stop(0),
        start(1, "tool_use", id="a", name="f", input={"seed": 1}),
        message("msg_2", usage={"input_tokens": 2}),
        start(0, "text", text=""),
        text(0, "second"),
        stop(0),
        end(usage={"output_tokens": 3}),
        STOP,
    )
    accumulator = folded(*events)
    assert accumulator.message().content == (say("second"),)
    assert accumulator.usage == Usage(2, 3, 5, {"input_tokens": 2, "output_tokens": 3})
    assert accumulator.metadata["restarted"] is True
    assert [wrapper.details.restarts for wrapper in wrap(*events) if wrapper.details is not None].count(
        True
    ) == 1
    assert accumulator.error is None


def test_a_restarted_response_keeps_no_earlier_content() -> None:
    (result,) = parts(
        message("msg_1"),
        start(0, "mcp_tool_use", id="a", name="ask", input={}),
        message("msg_2"),
        start(0, "mcp_tool_result", tool_use_id="a", content=""),
    )
    assert isinstance(result, ContentPartToolResult)
    assert result.name == "mcp"


def test_a_further_message_goes_on_behind_one_that_ended() -> None:
    for ended in ([end("tool_use"), STOP], [end("tool_use")], [STOP]):
        accumulator = folded(
            message("msg_1"),
            start(0, "tool_use", id="a", name="f", input={}),
            arguments(0, '{"n": 1}'),
            *ended,
            message("msg_2", usage={"input_tokens": 20}),
            start(0, "tool_use", id="", name="f", input={"n": 2}),
            stop(0),
            start(1, "text", text="done"),
            end(usage={"output_tokens": 2}),
            STOP,
        )
        assert accumulator.message().content == (
            ContentPartToolCall(id="a", name="f", arguments={"n": 1}),
            ContentPartToolCall(id="call_1", name="f", arguments={"n": 2}, synthetic_id=True),
            say("done"),
        )
        assert accumulator.usage == Usage(20, 2, 22, {"input_tokens": 20, "output_tokens": 2})


def test_done_is_true_between_messages() -> None:
    reader = MessageEvents()
    states: list[bool] = []
    for event in (message("a"), end(), STOP, PING, message("b"), STOP):
        reader.wrap(event)
        states.append(reader.done)
    assert states == [False, False, True, True, False, True]


CONTENT: list[dict[str, Any]] = [
    {"type": "thinking", "thinking": "hm", "signature": "s"},
    {"type": "redacted_thinking", "data": "x"},
    {"type": "text", "text": "Let me see.", "citations": None},
    {"type": "tool_use", "id": "a", "name": "f", "input": {"n": 1}},
]
CONTENT_PARTS = (
    thought("hm", "s"),
    ContentPartReasoning(text="", metadata={"anthropic": {"type": "redacted_thinking", "data": "x"}}),
    say("Let me see."),
    ContentPartToolCall(id="a", name="f", arguments={"n": 1}),
)


def test_a_message_may_begin_with_content_and_its_stop_reason() -> None:
    accumulator = folded(message(content=CONTENT, stop_reason="tool_use"), STOP)
    assert accumulator.message().content == CONTENT_PARTS
    assert accumulator.first is not None
    assert accumulator.first.finish == FinishMessage(FinishReason.TOOL_CALLS, "tool_use")


def test_a_stop_reason_at_the_beginning_is_no_end() -> None:
    assert not folded(message(content=CONTENT, stop_reason="tool_use")).finished
    accumulator = folded(message(content=CONTENT, stop_reason="tool_use"), end("end_turn"), STOP)
    assert accumulator.first is not None
    assert accumulator.first.finish == FinishMessage(FinishReason.STOP, "end_turn")


def whole(**fields: Any) -> dict[str, Any]:
    return {**message(content=CONTENT, stop_reason="tool_use", **fields)["message"]}


def test_a_whole_message_is_understood() -> None:
    accumulator = folded(whole(stop_sequence="X"))
    assert accumulator.message().content == CONTENT_PARTS
    assert accumulator.usage == Usage(10, 1, 11, {"input_tokens": 10, "output_tokens": 1})
    assert accumulator.metadata == {"id": "msg_1", "model": "claude", "stop_sequence": "X"}
    assert accumulator.error is None
    assert parts({"type": "message", "content": "Hi", "stop_reason": "end_turn"}) == (say("Hi"),)


def test_a_whole_message_behind_its_own_deltas_adds_only_its_end() -> None:
    streamed = (message(), start(0, "text", text=""), text(0, "Let me see."))
    for events in ((*streamed, whole()), (*streamed, end("tool_use"), STOP, whole())):
        accumulator = folded(*events)
        assert accumulator.message().content == (say("Let me see."),)
        assert accumulator.first is not None
        assert accumulator.first.finish == FinishMessage(FinishReason.TOOL_CALLS, "tool_use")
    assert parts(message(), whole()) == CONTENT_PARTS


def test_the_legacy_text_completions_are_read() -> None:
    def completion(value: str, reason: str | None = None, found: str | None = None) -> dict[str, Any]:
        fields = {"id": "compl_1", "model": "claude-2.1", "log_id": "l", "stop": found}
        return {"type": "completion", "completion": value, "stop_reason": reason, **fields}

    events = completion(" Hi"), completion(" there"), PING, completion(".", "stop_sequence", "\n\nHuman:")
    first, second, last = wrap(*events)
    assert second == AnthropicEventWrapper(events[1], plain=True, text=" there")
    assert first.details is not None
    assert last.get_finish_message() == FinishMessage(FinishReason.STOP, "stop_sequence")
    accumulator = folded(*events)
    assert accumulator.message().text == " Hi there."
    assert accumulator.metadata == {
        "id": "compl_1", "model": "claude-2.1", "log_id": "l", "stop": "\n\nHuman:",
    }  # fmt: skip
    reader = MessageEvents()
    assert [(reader.wrap(event), reader.done)[1] for event in events] == [False, False, False, True]


# --- errors and invalid events ----------------------------------------------------------------------------------


def test_an_error_in_the_middle_keeps_what_came_before() -> None:
    accumulator = folded(
        message(),
        start(0, "text", text="a"),
        stop(0),
        start(1, "tool_use", id="c", name="f", input={"n": 1}),
        {
            "type": "error",
            "error": {"type": "overloaded_error", "message": "Overloaded"},
            "request_id": "req_1",
        },
    )
    assert accumulator.message().content == (
        say("a"),
        ContentPartToolCall(id="c", name="f", arguments={"n": 1}),
    )
    error = accumulator.error
    assert error is not None
    assert (error.fault, error.code, error.message, error.provider) == (
        UpstreamFault.PROVIDER, "overloaded_error", "Overloaded", "anthropic",
    )  # fmt: skip


def test_an_error_may_stand_in_any_event() -> None:
    event = {**end("end_turn"), "error": "late"}
    accumulator = folded(message(), start(0, "text", text="a"), event)
    assert accumulator.finished
    assert accumulator.error is not None
    assert accumulator.error.message == "late"
    delta_too = {**text(0, "b"), "error": {"message": "oh"}}
    accumulator = folded(message(), start(0, "text", text=""), text(0, "a"), delta_too)
    assert accumulator.message().text == "ab"
    assert accumulator.error is not None
    assert accumulator.error.message == "oh"


def test_events_are_not_changed() -> None:
    events: list[dict[str, Any]] = [message(content=CONTENT), start(0, "compaction", content=None), delta(0, "compaction_delta", content="x"), end(), STOP, {"type": "error", "error": {}}, whole()]  # fmt: skip
    before = json.dumps(events)
    wrap(*events)
    assert json.dumps(events) == before
