"""Events of the Messages API: blocks, messages, usage and stop reasons in every observed form."""

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
    ContentPartData,
    ContentPartReasoning,
    ContentPartToolCall,
    ContentPartToolResult,
    FinishReason,
    ToolCallDelta,
)
from tailrace.wrappers.anthropic import AnthropicEventWrapper, MessageEvents

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
