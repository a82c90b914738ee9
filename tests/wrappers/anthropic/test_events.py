"""Events of the Messages API: blocks, messages, usage and stop reasons in every observed form."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import strategies as st

from support.strategies import json_values
from tailrace.streaming.accumulator import Accumulator
from tailrace.wrappers import (
    ContentPart,
    ContentPartData,
    ContentPartReasoning,
    ContentPartText,
    ContentPartToolCall,
    ContentPartToolResult,
    FinishMessage,
    FinishReason,
    ToolCallDelta,
    UpstreamFault,
    Usage,
)
from tailrace.wrappers.anthropic import AnthropicEventWrapper, MessageEvents

STOP: dict[str, Any] = {"type": "message_stop"}
PING: dict[str, Any] = {"type": "ping"}


def message(message_id: str = "msg_1", **fields: Any) -> dict[str, Any]:
    usage = {"input_tokens": 10, "output_tokens": 1}
    return {
        "type": "message_start",
        "message": {
            "id": message_id, "type": "message", "role": "assistant", "model": "claude", "content": [],
            "stop_reason": None, "stop_sequence": None, "usage": usage, **fields,
        },
    }  # fmt: skip


def start(index: int, kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": {"type": kind, **fields}}


def delta(index: int, kind: str | None, **fields: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **fields}}


def text(index: int, value: Any) -> dict[str, Any]:
    return delta(index, "text_delta", text=value)


def thinking(index: int, value: Any) -> dict[str, Any]:
    return delta(index, "thinking_delta", thinking=value)


def arguments(index: int, value: Any) -> dict[str, Any]:
    return delta(index, "input_json_delta", partial_json=value)


def stop(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def end(
    reason: str | None = "end_turn", usage: Mapping[str, Any] | None = None, **fields: Any
) -> dict[str, Any]:
    return {
        "type": "message_delta",
        "delta": {"stop_reason": reason, "stop_sequence": None, **fields},
        "usage": usage or {"output_tokens": 5},
    }


def wrap(*events: dict[str, Any], start_repeated: bool = False) -> list[AnthropicEventWrapper]:
    reader = MessageEvents(provider="anthropic", start_repeated=start_repeated)
    return [wrapper for event in events for wrapper in reader.wrap(event)] + reader.close()


def folded(*events: dict[str, Any], **options: Any) -> Accumulator:
    accumulator = Accumulator(think_tags=False)
    for wrapper in wrap(*events, **options):
        accumulator.add(wrapper)
    accumulator.close()
    return accumulator


def parts(*events: dict[str, Any], **options: Any) -> tuple[ContentPart, ...]:
    return folded(*events, **options).message().content


def say(value: str, **metadata: Any) -> ContentPartText:
    return ContentPartText(text=value, metadata=metadata)


def thought(value: str, signature: str | None = None, **own: Any) -> ContentPartReasoning:
    return ContentPartReasoning(
        text=value, signature=signature, metadata={"anthropic": {"type": "thinking", **own}}
    )


# --- text and reasoning -----------------------------------------------------------------------------------------


def test_a_delta_inside_a_block_is_plain() -> None:
    event = text(0, " there")
    wrapper = wrap(message(), start(0, "text", text=""), text(0, "Hi"), event)[-1]
    assert wrapper == AnthropicEventWrapper(event, plain=True, text=" there")
    assert (wrapper.get_text(), wrapper.get_reasoning(), wrapper.get_tool_calls()) == (" there", "", [])
    assert (wrapper.get_finish_message(), wrapper.get_usage()) == (None, None)
    thinks = wrap(message(), start(0, "thinking", thinking=""), thinking(0, "h"), thinking(0, "m"))[-1]
    assert (thinks.plain, thinks.get_reasoning(), thinks.get_text()) == (True, "m", "")


@pytest.mark.parametrize("value", [None, 1, ["a"], {}])
def test_a_delta_whose_text_is_none_adds_nothing(value: Any) -> None:
    begun = (message(), start(0, "text", text=""), text(0, "a"))
    odd_deltas = (
        text(0, value),
        thinking(0, value),
        delta(0, None, text="c"),
        {**text(0, "c"), "delta": value},
    )
    assert parts(*begun, *odd_deltas, text(0, "b")) == (say("ab"),)
    assert parts(
        message(),
        start(0, "tool_use", id="c", name="f"),
        arguments(0, "{"),
        arguments(0, None),
        arguments(0, "}"),
    ) == (ContentPartToolCall(id="c", name="f"),)


def test_each_block_is_a_part_of_its_own() -> None:
    assert parts(
        message(),
        start(0, "thinking", thinking="", signature=""),
        thinking(0, "h"),
        thinking(0, "m"),
        delta(0, "signature_delta", signature="s1"),
        stop(0),
        start(1, "text", text=""),
        text(1, "a"),
        text(1, "b"),
        stop(1),
        start(2, "text", text=""),
        text(2, "c"),
        stop(2),
        end(),
        STOP,
    ) == (thought("hm", "s1"), say("ab"), say("c"))


def test_a_block_of_thinking_without_text_keeps_its_own_seal() -> None:
    assert parts(
        message(),
        start(0, "thinking", thinking="a", signature=""),
        delta(0, "signature_delta", signature="s1"),
        stop(0),
        start(1, "thinking", thinking="", signature=""),
        delta(1, "signature_delta", signature="s2"),
        stop(1),
    ) == (thought("a", "s1"), thought("", "s2"))


def test_redacted_thinking_is_reasoning_without_text() -> None:
    assert parts(message(), start(0, "redacted_thinking", data="x"), stop(0), start(1, "redacted_thinking", data="y")) == (
        ContentPartReasoning(text="", metadata={"anthropic": {"type": "redacted_thinking", "data": "x"}}),
        ContentPartReasoning(text="", metadata={"anthropic": {"type": "redacted_thinking", "data": "y"}}),
    )  # fmt: skip


def test_what_a_block_begins_with_counts() -> None:
    assert parts(
        message(),
        start(0, "thinking", thinking="a", signature="s", depth=1),
        thinking(0, "b"),
        stop(0),
        start(1, "text", text="c"),
        text(1, "d"),
        start(2, "text", text=""),
    ) == (thought("ab", "s", depth=1), say("cd"))


def test_a_seal_at_the_blocks_start_gives_way_to_that_of_its_deltas() -> None:
    events = start(0, "thinking", thinking="a", signature="s"), delta(0, "signature_delta", signature="s")
    assert parts(message(), *events, stop(0)) == (thought("a", "s"),)


def test_a_repeated_beginning_counts_once_if_enabled() -> None:
    events = (message(), start(0, "text", text="Hel"), text(0, "Hello"), text(0, "Hel"))
    assert parts(*events) == (say("HelHelloHel"),)
    assert parts(*events, start_repeated=True) == (say("HelloHel"),)
    others = (
        message(),
        start(0, "thinking", thinking="a"),
        thinking(0, "ba"),
        start(1, "text", text=""),
        text(1, "c"),
    )
    assert parts(*others, start_repeated=True) == (thought("aba"), say("c"))


def test_citations_belong_to_their_block() -> None:
    first, second, third = {"cited_text": "a"}, {"cited_text": "b"}, {"cited_text": "c", "index": 1}
    accumulator = folded(
        message(),
        start(0, "text", text="", citations=[]),
        text(0, "A"),
        delta(0, "citations_delta", citation=first),
        delta(0, "citations_delta", citation=second),
        stop(0),
        start(1, "text", text="", citations=None),
        delta(1, "citations_delta", citation=third),
        text(1, "B"),
        stop(1),
        start(2, "text", text="", citations=[first]),
        text(2, "C"),
        delta(2, "citations_delta"),
        end(),
    )
    assert accumulator.message().content == (
        say("A", anthropic={"citations": [first, second]}),
        say("B", anthropic={"citations": [third]}),
        say("C", anthropic={"citations": [first]}),
    )
    assert accumulator.message().metadata["extra"] == {"annotations": [first, second, third, first]}


# --- tools ------------------------------------------------------------------------------------------------------


def test_a_tool_call_comes_in_fragments_under_the_index_of_its_block() -> None:
    calls = [
        call
        for wrapper in wrap(
            message(),
            start(1, "tool_use", id="toolu_1", name="f", input={}),
            arguments(1, ""),
            arguments(1, '{"a"'),
            arguments(1, ": 1}"),
            stop(1),
        )
        for call in wrapper.get_tool_calls()
    ]
    assert calls == [
        ToolCallDelta(1, "toolu_1", "f", type="function"),
        ToolCallDelta(1, arguments='{"a"'),
        ToolCallDelta(1, arguments=": 1}"),
    ]


def test_fragments_of_calls_may_alternate() -> None:
    assert parts(
        message(),
        start(0, "tool_use", id="a", name="f", input={}),
        start(1, "tool_use", id="b", name="g", input={}),
        arguments(0, '{"n": '),
        arguments(1, "{"),
        arguments(0, "1}"),
        arguments(1, "}"),
    ) == (
        ContentPartToolCall(id="a", name="f", arguments={"n": 1}),
        ContentPartToolCall(id="b", name="g"),
    )


@pytest.mark.parametrize(
    ("given", "fragments", "expected"),
    [
        ({}, [], {}),
        ({}, [""], {}),
        (None, [], {}),
        ({"a": 1}, [], {"a": 1}),
        ({"a": 1}, [""], {"a": 1}),
        ({"a": 1}, ["", '{"b": 2}'], {"b": 2}),
        ('{"a": 1}', [], {"a": 1}),
        ({}, [{"b": 2}], {"b": 2}),
        ({}, [None], {}),
    ],
)
def test_arguments_at_a_blocks_start_count_when_none_follow(
    given: object, fragments: list[Any], expected: dict[str, Any]
) -> None:
    events = start(0, "tool_use", id="c", name="f", input=given), *(arguments(0, each) for each in fragments)
    call = ContentPartToolCall(id="c", name="f", arguments=expected)
    assert parts(message(), *events, stop(0), end("tool_use"), STOP) == (call,)
    assert parts(message(), *events, end("tool_use"), STOP) == (call,)  # not stopped
    assert parts(message(), *events, start(1, "text", text="a")) == (call, say("a"))
    assert parts(message(), *events) == (call,)  # incomplete


def test_arguments_that_do_not_parse_are_kept_as_text() -> None:
    (call,) = parts(message(), start(0, "tool_use", id="c", name="f", input={}), arguments(0, '"a": 1}'))
    assert isinstance(call, ContentPartToolCall)
    assert (call.arguments_text, call.arguments_error is not None) == ('"a": 1}', True)


def test_further_fields_of_a_call_are_kept_to_be_sent_back() -> None:
    caller = {"type": "code_execution", "tool_id": "srvtoolu_1"}
    (call,) = parts(message(), start(0, "tool_use", id="c", name="f", input={"a": 1}, caller=caller), stop(0))
    assert call == ContentPartToolCall(
        id="c", name="f", arguments={"a": 1}, metadata={"anthropic": {"caller": caller}}
    )


def test_tools_that_the_provider_runs_are_server_calls_with_results_in_their_place() -> None:
    found = {
        "type": "web_search_tool_result",
        "tool_use_id": "srvtoolu_1",
        "content": [{"encrypted_content": "x"}],
    }
    mcp_result = {"type": "mcp_tool_result", "tool_use_id": "mcptoolu_1", "is_error": True, "content": "no"}
    failed = {
        "type": "code_execution_tool_result",
        "tool_use_id": "?",
        "content": {"type": "code_execution_tool_result_error", "error_code": "unavailable"},
    }
    accumulator = folded(
        message(),
        start(0, "text", text="Look: "),
        stop(0),
        start(1, "server_tool_use", id="srvtoolu_1", name="web_search", input={}),
        arguments(1, '{"query": "a"}'),
        stop(1),
        {"type": "content_block_start", "index": 2, "content_block": found},
        stop(2),
        start(3, "mcp_tool_use", id="mcptoolu_1", name="ask", server_name="s", input={"q": 1}),
        stop(3),
        {"type": "content_block_start", "index": 4, "content_block": mcp_result},
        stop(4),
        {"type": "content_block_start", "index": 5, "content_block": failed},
        stop(5),
        start(6, "text", text="There."),
        end(),
    )
    assert accumulator.message().content == (
        say("Look: "),
        ContentPartToolCall(
            id="srvtoolu_1", name="web_search", arguments={"query": "a"}, kind="server",
            metadata={"anthropic": {"type": "server_tool_use"}},
        ),
        ContentPartToolResult(
            id="srvtoolu_1", name="web_search", output=found["content"], metadata={"anthropic": found}
        ),
        ContentPartToolCall(
            id="mcptoolu_1", name="ask", arguments={"q": 1}, kind="server",
            metadata={"anthropic": {"type": "mcp_tool_use", "server_name": "s"}},
        ),
        ContentPartToolResult(
            id="mcptoolu_1", name="ask", output="no", is_error=True, metadata={"anthropic": mcp_result}
        ),
        ContentPartToolResult(
            id="?", name="code_execution", output=failed["content"], is_error=True, metadata={"anthropic": failed}
        ),
        say("There."),
    )  # fmt: skip
    assert accumulator.first is not None
    assert accumulator.first.finish_reason is FinishReason.STOP


def test_calls_that_are_never_answered_are_not_remembered_without_end() -> None:
    reader = MessageEvents()
    for number in range(1000):
        reader.wrap(start(number, "server_tool_use", id=f"c{number}", name="f", input={}))
        reader.wrap(stop(number))
    assert len(reader._names) == 64  # pyright: ignore[reportPrivateUsage] — the bound is the point


# --- blocks of other kinds --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "block",
    [
        {"type": "container_upload", "file_id": "file_1"},
        {"type": "from_the_future", "content": [{"a": None}]},
        {"type": "mcp_tool_listing", "mcp_server_name": "s", "tools": []},
    ],
)
def test_a_block_that_has_no_common_form_is_data_to_be_sent_back(block: dict[str, Any]) -> None:
    event = {"type": "content_block_start", "index": 0, "content_block": block}
    data = ContentPartData(data=block, metadata={"anthropic": block})
    assert parts(message(), event, stop(0), start(1, "text", text="a")) == (data, say("a"))
    assert parts(message(), event) == (data,)


def test_a_compaction_is_one_part_with_the_text_of_its_deltas() -> None:
    block = {"type": "compaction", "content": "So far: …", "encrypted_content": "x"}
    events = (
        start(0, "compaction", content=None),
        delta(0, "compaction_delta", content="So far: …", encrypted_content="x"),
    )
    assert parts(message(), *events, stop(0), start(1, "text", text="a")) == (
        ContentPartData(data=block, metadata={"anthropic": block}),
        say("a"),
    )


def test_after_a_fallback_the_model_is_another() -> None:
    block = {"type": "fallback", "from": {"model": "claude-a"}, "to": {"model": "claude-b"}, "trigger": None}
    accumulator = folded(
        message(),
        start(0, "text", text="I "),
        stop(0),
        {"type": "content_block_start", "index": 1, "content_block": block},
        stop(1),
        start(2, "text", text="will."),
        end(),
    )
    assert accumulator.message().content == (
        say("I "),
        ContentPartData(data=block, metadata={"anthropic": block}),
        say("will."),
    )
    assert accumulator.metadata["model"] == "claude-b"


def test_a_delta_of_an_unknown_kind_is_kept_and_not_sent_back() -> None:
    accumulator = folded(
        message(), start(0, "text", text="a"), delta(0, "mood_delta", mood="glad"), text(0, "b"), end()
    )
    assert accumulator.message().content == (say("ab"),)
    assert accumulator.message().metadata["extra"] == {"anthropic": {"mood_delta": {"mood": "glad"}}}


def test_deep_blocks_are_flattened_and_no_reason_to_fail() -> None:
    deep: Any = "x"
    for _ in range(100):
        deep = [deep]
    (result,) = parts(message(), start(0, "web_fetch_tool_result", tool_use_id="a", content=deep), stop(0))
    (data,) = parts(message(), start(0, "something", content=deep), stop(0))
    assert isinstance(result, ContentPartToolResult)
    assert isinstance(data, ContentPartData)
    json.dumps([result.output, data.data])


# --- blocks in an unusual order ---------------------------------------------------------------------------------


def test_deltas_of_a_block_that_never_began_open_it() -> None:
    assert parts(
        message(), start(0, "text", text="a"), stop(0), text(1, "b"), text(1, "c"),
        thinking(2, "d"), delta(2, "signature_delta", signature="s"), delta(3, "signature_delta", signature="t"),
        arguments(4, '{"e": 1}'), delta(5, "citations_delta", citation={"f": 1}), text(5, "g"),
    ) == (
        say("a"), say("bc"), thought("d", "s"), thought("", "t"),
        ContentPartToolCall(id="call_0", name="", arguments={"e": 1}, synthetic_id=True),
        say("g", anthropic={"citations": [{"f": 1}]}),
    )  # fmt: skip


def test_a_stream_may_begin_in_the_middle() -> None:
    accumulator = folded(text(3, "a"), text(3, "b"), end(), STOP)
    assert accumulator.message().content == (say("ab"),)
    assert accumulator.error is None


def test_blocks_without_an_index_follow_each_other() -> None:
    first = {"type": "content_block_start", "content_block": {"type": "tool_use", "id": "a", "name": "f"}}
    second = {
        "type": "content_block_start",
        "index": None,
        "content_block": {"type": "tool_use", "id": "b", "name": "g"},
    }
    piece = {"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": '{"n": 1}'}}
    assert parts(message(), first, piece, {"type": "content_block_stop"}, second, piece) == (
        ContentPartToolCall(id="a", name="f", arguments={"n": 1}),
        ContentPartToolCall(id="b", name="g", arguments={"n": 1}),
    )


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


odd: st.SearchStrategy[Any] = json_values | st.just(float("nan")) | st.just("\ud83d") | st.integers(-1, 3)
names = st.sampled_from(
    ["id", "name", "input", "text", "thinking", "signature", "data", "citations", "citation", "partial_json",
     "tool_use_id", "content", "usage", "stop_reason", "stop_details", "to", "model", "role", "is_error"]
)  # fmt: skip
fields: st.SearchStrategy[dict[str, Any]] = st.dictionaries(names, odd, max_size=5)
