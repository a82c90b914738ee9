"""Events of a Converse stream, alone and together."""

from collections.abc import Mapping
from typing import Any

import pytest

from tailrace.streaming.accumulator import Accumulator
from tailrace.wrappers import (
    ContentPart,
    ContentPartData,
    ContentPartFile,
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
from tailrace.wrappers.bedrock import BedrockWrapper, ConverseEvents

Event = Mapping[str, Any]


def start(index: int, **start: Any) -> Event:
    return {"contentBlockStart": {"contentBlockIndex": index, "start": start}}


def delta(index: int, **delta: Any) -> Event:
    return {"contentBlockDelta": {"contentBlockIndex": index, "delta": delta, "p": "abcd"}}


def stop(index: int) -> Event:
    return {"contentBlockStop": {"contentBlockIndex": index}}


def wrap(*events: Event, **arguments: Any) -> list[BedrockWrapper]:
    converse = ConverseEvents(provider="bedrock", **arguments)
    return [wrapper for event in events for wrapper in converse.wrap(event)] + converse.close()


def fold(*events: Event, **arguments: Any) -> Accumulator:
    accumulator = Accumulator()
    for wrapper in wrap(*events, **arguments):
        accumulator.add(wrapper)
    return accumulator


def parts(*events: Event, **arguments: Any) -> tuple[ContentPart, ...]:
    return fold(*events, **arguments).message().content


SIGNED = {"bedrock": {"type": "reasoningContent"}}


def test_more_text_of_a_block_is_a_plain_delta_with_the_event_as_it_was() -> None:
    _, second = wrap(delta(0, text="Hel"), delta(0, text="lo"))
    assert (second.get_text(), second.plain, second.details) == ("lo", True, None)
    assert second.raw == delta(0, text="lo")


def test_more_reasoning_of_a_block_is_a_plain_delta() -> None:
    _, second = wrap(delta(0, reasoningContent={"text": "a"}), delta(0, reasoningContent={"text": "b"}))
    assert (second.get_reasoning(), second.get_text(), second.plain) == ("b", "", True)


def test_a_whole_answer_of_text() -> None:
    answer = fold(
        {"messageStart": {"role": "assistant", "p": "ab"}},
        delta(0, text="Hel"),
        delta(0, text="lo"),
        stop(0),
        {"messageStop": {"stopReason": "end_turn", "p": "ab"}},
        {"metadata": {"usage": {"inputTokens": 1, "outputTokens": 2, "totalTokens": 3}, "metrics": {"latencyMs": 9}}},
    )  # fmt: skip
    assert answer.message().content == (ContentPartText(text="Hello"),)
    assert answer.finished
    assert answer.usage == Usage(1, 2, 3, raw={"inputTokens": 1, "outputTokens": 2, "totalTokens": 3})
    assert answer.metadata == {"metrics": {"latencyMs": 9}}


def test_reasoning_is_sealed_by_its_signature() -> None:
    assert parts(
        delta(0, reasoningContent={"text": "2+"}),
        delta(0, reasoningContent={"text": "2"}),
        delta(0, reasoningContent={"signature": "ab"}),
        delta(0, reasoningContent={"signature": "cd"}),
        stop(0),
        delta(1, text="4"),
    ) == (ContentPartReasoning(text="2+2", signature="abcd", metadata=SIGNED), ContentPartText(text="4"))


def test_a_signature_without_text_is_kept() -> None:
    assert parts(delta(0, reasoningContent={"signature": "s"}), stop(0), delta(1, text="4")) == (
        ContentPartReasoning(text="", signature="s", metadata=SIGNED),
        ContentPartText(text="4"),
    )


def test_blocks_of_reasoning_stay_apart() -> None:
    first, second = parts(
        delta(0, reasoningContent={"text": "a"}),
        delta(0, reasoningContent={"signature": "s"}),
        stop(0),
        delta(1, reasoningContent={"text": "b"}),
    )
    assert first == ContentPartReasoning(text="a", signature="s", metadata=SIGNED)
    assert second == ContentPartReasoning(text="b")


@pytest.mark.parametrize("redacted", ["c2VjcmV0", b"secret"])
def test_redacted_reasoning_is_kept_as_base64(redacted: object) -> None:
    metadata = {"bedrock": {"redactedContent": "c2VjcmV0"}}
    assert parts(
        delta(0, reasoningContent={"redactedContent": redacted}),
        stop(0),
        delta(1, reasoningContent={"redactedContent": redacted}),
    ) == (ContentPartReasoning(text="", metadata=metadata), ContentPartReasoning(text="", metadata=metadata))


def test_arguments_come_in_fragments_under_the_blocks_index() -> None:
    wrappers = wrap(
        start(1, toolUse={"toolUseId": "t1", "name": "get_weather"}),
        delta(1, toolUse={"input": '{"city": '}),
        delta(1, toolUse={"input": '"Oakland"}'}),
        stop(1),
    )
    assert [call for wrapper in wrappers for call in wrapper.get_tool_calls()] == [
        ToolCallDelta(1, "t1", "get_weather", "", "function"),
        ToolCallDelta(1, arguments='{"city": '),
        ToolCallDelta(1, arguments='"Oakland"}'),
    ]
    assert not any(wrapper.plain for wrapper in wrappers)


def test_calls_of_several_blocks_stay_apart() -> None:
    first, second = parts(
        start(0, toolUse={"toolUseId": "a", "name": "f"}),
        start(1, toolUse={"toolUseId": "b", "name": "f"}),
        delta(1, toolUse={"input": '{"n": 2}'}),
        delta(0, toolUse={"input": {"n": 1}}),
    )
    assert first == ContentPartToolCall(id="a", name="f", arguments={"n": 1})
    assert second == ContentPartToolCall(id="b", name="f", arguments={"n": 2})


def test_a_tool_that_the_provider_runs_has_its_result_in_place() -> None:
    metadata = {"bedrock": {"type": "server_tool_use"}}
    call, result, text = parts(
        start(0, toolUse={"toolUseId": "s", "name": "nova_grounding", "type": "server_tool_use"}),
        delta(0, toolUse={"input": '{"q": "x"}'}),
        stop(0),
        start(1, toolResult={"toolUseId": "s", "type": "nova_grounding_result", "status": "success"}),
        delta(1, toolResult=[{"text": "found "}]),
        delta(1, toolResult=[{"text": "it"}]),
        stop(1),
        delta(2, text="Here."),
    )
    assert call == ContentPartToolCall(
        id="s", name="nova_grounding", arguments={"q": "x"}, kind="server", metadata=metadata
    )
    assert result == ContentPartToolResult(
        id="s",
        name="nova_grounding",
        output="found it",
        metadata={"bedrock": {"type": "nova_grounding_result"}},
    )
    assert text == ContentPartText(text="Here.")


def test_a_result_that_the_provider_made_may_be_json_and_may_be_a_failure() -> None:
    (result,) = parts(
        start(0, toolResult={"toolUseId": "s", "status": "error"}), delta(0, toolResult=[{"json": {"e": 1}}])
    )
    assert result == ContentPartToolResult(id="s", name="unknown", output={"e": 1}, is_error=True)


def test_names_of_the_providers_tools_are_kept_for_the_latest_calls_only() -> None:
    events = [
        start(n, toolUse={"toolUseId": f"s{n}", "name": f"f{n}", "type": "server_tool_use"})
        for n in range(300)
    ]
    converse = ConverseEvents()
    for event in events:
        converse.wrap(event)
    names: dict[str, str] = {}
    for call in ("s0", "s299"):
        converse.wrap(start(900, toolResult={"toolUseId": call}))
        (wrapper,) = converse.wrap(stop(900))
        assert wrapper.details is not None
        (part,) = wrapper.details.parts
        assert isinstance(part, ContentPartToolResult)
        names[call] = part.name
    assert names == {"s0": "unknown", "s299": "f299"}


CITED = {"title": "a.pdf", "location": {"documentPage": {"documentIndex": 0, "start": 1, "end": 2}}}


def test_citations_belong_to_the_block_that_they_stand_in() -> None:
    answer = fold(
        delta(0, text="It says "),
        stop(0),
        delta(1, citation=CITED),
        delta(1, text="that "),
        delta(1, text="much"),
        delta(1, citation={"title": "b.pdf"}),
        stop(1),
        delta(2, text="."),
    )
    assert answer.message().content == (
        ContentPartText(text="It says "),
        ContentPartText(text="that much", metadata={"bedrock": {"citations": [CITED, {"title": "b.pdf"}]}}),
        ContentPartText(text="."),
    )
    assert answer.first is not None
    assert answer.first.extra == {"annotations": [CITED, {"title": "b.pdf"}]}


@pytest.mark.parametrize("pieces", [(b"\x89P", b"NG"), ("iVA=", "Tkc=")])
def test_an_image_that_comes_in_pieces_is_one_file(pieces: tuple[object, object]) -> None:
    assert parts(
        start(0, image={"format": "png"}),
        *(delta(0, image={"source": {"bytes": piece}}) for piece in pieces),
        stop(0),
        delta(1, text="There."),
    ) == (ContentPartFile(data=b"\x89PNG", media_type="image/png"), ContentPartText(text="There."))


def test_an_image_may_lie_somewhere_else() -> None:
    assert parts(
        start(0, image={"format": "png"}), delta(0, image={"source": {"s3Location": {"uri": "s3://b/k"}}})
    ) == (ContentPartFile(url="s3://b/k", media_type="image/png"),)


def test_an_image_that_could_not_be_made_is_an_error() -> None:
    answer = fold(
        start(0, image={"format": "png"}), delta(0, image={"error": {"message": "filtered"}}), stop(0)
    )
    assert answer.error is not None
    assert answer.error.message == "filtered"
    assert answer.message().content == ()


def test_a_block_that_was_not_ended_is_handed_over_when_another_begins_or_the_stream_ends() -> None:
    image = ContentPartFile(data=b"P", media_type="image/*")
    assert parts(
        delta(0, image={"source": {"bytes": "UA=="}}), delta(1, image={"source": {"bytes": "UA=="}})
    ) == (image, image)
    assert parts(
        delta(0, image={"source": {"bytes": "UA=="}}), start(1, toolResult={"toolUseId": "s"}), stop(1)
    ) == (image, ContentPartToolResult(id="s", name="unknown", output=""))


@pytest.mark.parametrize(
    "piece", [{"image": {"source": {"bytes": "A" * 80}}}, {"toolResult": [{"text": "A" * 60}]}]
)
def test_a_block_that_grows_too_large_is_dropped_with_an_error(piece: dict[str, Any]) -> None:
    wrappers = wrap(*[delta(0, **piece)] * 9, stop(0), delta(1, text="on"), max_block_bytes=200)
    errors = [wrapper.details.error for wrapper in wrappers if wrapper.details and wrapper.details.error]
    assert [error.fault for error in errors] == [UpstreamFault.TOO_LARGE]
    assert parts(*[delta(0, **piece)] * 9, stop(0), delta(1, text="on"), max_block_bytes=200) == (
        ContentPartText(text="on"),
    )


def test_blocks_that_are_tokens_are_one_text() -> None:
    answer = parts(
        *(event for n in range(5) for event in (delta(n, text="a"), stop(n))),
        start(5, toolUse={"toolUseId": "t", "name": "f"}),
        stop(5),
        delta(6, text="b"),
        delta(7, citation=CITED),
        delta(8, text="c"),
        blocks_are_tokens=True,
    )
    assert answer == (
        ContentPartText(text="aaaaa"),
        ContentPartToolCall(id="t", name="f"),
        ContentPartText(text="b"),
        ContentPartText(text="", metadata={"bedrock": {"citations": [CITED]}}),
        ContentPartText(text="c"),
    )


def test_a_seal_ends_a_block_even_where_blocks_are_tokens() -> None:
    first, second = parts(
        delta(0, reasoningContent={"text": "a"}),
        delta(1, reasoningContent={"text": "b"}),
        delta(1, reasoningContent={"signature": "s"}),
        delta(2, reasoningContent={"text": "c"}),
        blocks_are_tokens=True,
    )
    assert first == ContentPartReasoning(text="ab", signature="s", metadata=SIGNED)
    assert second == ContentPartReasoning(text="c")


def test_the_end_has_the_finish_reason_and_further_fields() -> None:
    (wrapper,) = wrap(
        {
            "messageStop": {
                "stopReason": "stop_sequence",
                "additionalModelResponseFields": {"stop_sequence": "x"},
            }
        }
    )
    assert wrapper.get_finish_message() == FinishMessage(FinishReason.STOP, "stop_sequence")
    assert wrapper.details is not None
    assert wrapper.details.metadata == {"additionalModelResponseFields": {"stop_sequence": "x"}}


def test_the_metadata_are_facts_about_the_response() -> None:
    answer = fold(
        {
            "metadata": {
                "usage": {"inputTokens": 1, "outputTokens": 2},
                "trace": {"guardrail": {"actionReason": "x"}, "blob": b"\0"},
                "performanceConfig": {"latency": "standard"},
                "serviceTier": {"type": "priority"},
                "p": "abc",
            }
        }
    )
    assert answer.metadata == {
        "trace": {"guardrail": {"actionReason": "x"}, "blob": "AA=="},
        "performanceConfig": {"latency": "standard"},
        "service_tier": "priority",
    }


def test_the_stream_has_ended_when_both_reason_and_usage_were_seen() -> None:
    converse = ConverseEvents()
    converse.wrap({"metadata": {"usage": {"inputTokens": 1}}})
    assert not converse.ended
    converse.wrap({"messageStop": {"stopReason": "end_turn"}})
    assert not converse.ended
    converse.wrap({"metadata": {"usage": {"inputTokens": 1}}})
    assert converse.ended


@pytest.mark.parametrize("payload", [{"message": "slow down"}, "slow down"])
def test_an_exception_ends_the_stream_and_keeps_what_there_was(payload: object) -> None:
    converse = ConverseEvents(provider="bedrock")
    answer = Accumulator()
    for event in (delta(0, text="Hel"), {"throttlingException": payload}):
        for wrapper in converse.wrap(event):
            answer.add(wrapper)
    answer.close()
    assert converse.ended
    assert answer.message().text == "Hel"
    assert answer.error is not None
    assert (answer.error.code, answer.error.message) == ("throttlingException", "slow down")


def test_a_role_other_than_the_assistants_is_reported() -> None:
    (wrapper,) = wrap({"messageStart": {"role": "user"}})
    assert wrapper.details is not None
    assert wrapper.details.role == "user"


@pytest.mark.parametrize(
    "event",
    [
        {"messageStart": {"role": "assistant"}},
        {"contentBlockStop": {"contentBlockIndex": 0}},
        {"contentBlockStart": {"contentBlockIndex": 0, "start": {}}},
        {"somethingNew": {"a": 1}},
        {"contentBlockDelta": None},
        {"messageStart": {}},
        {},
    ],
)
def test_an_event_without_content_has_no_delta(event: Event) -> None:
    assert wrap(event) == []


def test_a_kind_of_delta_that_is_not_known_survives() -> None:
    answer = fold(delta(0, audio={"source": {"bytes": b"\0"}}))
    assert answer.first is not None
    assert answer.first.extra == {"audio": {"source": {"bytes": "AA=="}}}


def test_members_that_are_null_have_no_content() -> None:
    assert (
        parts(delta(0, text=None, reasoningContent=None), delta(0, reasoningContent={"signature": ""})) == ()
    )


def test_events_without_an_index_belong_together() -> None:
    assert parts(
        {"contentBlockDelta": {"delta": {"text": "a"}}}, {"contentBlockDelta": {"delta": {"text": "b"}}}
    ) == (ContentPartText(text="ab"),)


RESPONSE: dict[str, Any] = {
    "output": {
        "message": {
            "role": "assistant",
            "content": [
                {"reasoningContent": {"reasoningText": {"text": "hm", "signature": "s"}}},
                {"reasoningContent": {"redactedContent": b"secret"}},
                {"text": "Let me see."},
                {
                    "citationsContent": {
                        "content": [{"text": "It "}, {"text": "rains."}],
                        "citations": [CITED],
                    }
                },
                {"image": {"format": "png", "source": {"bytes": b"P"}}},
                {"toolUse": {"toolUseId": "t", "name": "f", "input": {"a": 1}}},
                {"toolUse": {"toolUseId": "s", "name": "g", "input": {}, "type": "server_tool_use"}},
                {"toolResult": {"toolUseId": "s", "content": [{"text": "ok"}]}},
                {"somethingNew": {"a": b"\0"}},
            ],
        }
    },
    "stopReason": "tool_use",
    "usage": {"inputTokens": 1, "outputTokens": 2, "totalTokens": 3},
    "metrics": {"latencyMs": 5},
}


def test_a_response_that_was_not_streamed_has_the_same_content() -> None:
    answer = Accumulator()
    for wrapper in ConverseEvents().wrap_response(RESPONSE):
        answer.add(wrapper)
    assert answer.message().content == (
        ContentPartReasoning(text="hm", signature="s", metadata=SIGNED),
        ContentPartReasoning(text="", metadata={"bedrock": {"redactedContent": "c2VjcmV0"}}),
        ContentPartText(text="Let me see."),
        ContentPartText(text="It rains.", metadata={"bedrock": {"citations": [CITED]}}),
        ContentPartFile(data=b"P", media_type="image/png"),
        ContentPartToolCall(id="t", name="f", arguments={"a": 1}),
        ContentPartToolCall(
            id="s", name="g", kind="server", metadata={"bedrock": {"type": "server_tool_use"}}
        ),
        ContentPartToolResult(id="s", name="g", output="ok"),
        ContentPartData(data={"a": "AA=="}, metadata={"bedrock": {"type": "somethingNew"}}),
    )
    assert answer.first is not None
    assert answer.first.finish == FinishMessage(FinishReason.TOOL_CALLS, "tool_use")
    assert answer.usage is not None
    assert answer.usage.total_tokens == 3
    assert answer.metadata == {"metrics": {"latencyMs": 5}}
