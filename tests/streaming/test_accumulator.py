"""Accumulation of a complete response: choices, usage, facts, and completeness."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.deltas import Delta, call, count, end, refuse, say, think
from tailrace.streaming.accumulator import Accumulator
from tailrace.wrappers import (
    Change,
    Channel,
    ChunkDetails,
    FinishReason,
    Message,
    Role,
    UpstreamError,
    UpstreamFault,
    Usage,
)
from tailrace.wrappers.anthropic import AnthropicDecoder
from tailrace.wrappers.assembly.message_assembly import _Block  # pyright: ignore[reportPrivateUsage]
from tailrace.wrappers.openai import ChatCompletionsDecoder


def fold(*deltas: Delta, error: UpstreamError | None = None) -> Accumulator:
    accumulator = Accumulator()
    for delta in deltas:
        accumulator.add(delta)
    accumulator.close(error)
    return accumulator


def facts(metadata: dict[str, Any]) -> Delta:
    return Delta(None, details=ChunkDetails(metadata=metadata))


def fails(message: str) -> Delta:
    return Delta(None, details=ChunkDetails(error=UpstreamError(message, fault=UpstreamFault.PROVIDER)))


# --- choices ----------------------------------------------------------------------------------------------------


def test_choices_are_folded_each_by_itself() -> None:
    accumulator = fold(say("a", 0), say("b", 1), say("A", 0), say("B", 1), end(choice=1), end(choice=0))
    assert {index: choice.text for index, choice in accumulator.choices.items()} == {0: "aA", 1: "bB"}
    assert accumulator.error is None


def test_choices_stand_in_order_of_appearance_and_the_first_is_the_lowest() -> None:
    accumulator = fold(say("b", 1), say("a", 0), end(choice=0), end(choice=1))
    assert list(accumulator.choices) == [1, 0]
    assert accumulator.first is accumulator.choices[0]


def test_an_index_may_be_any_number() -> None:
    accumulator = fold(say("a", 7), end(choice=7))
    assert accumulator.first is accumulator.choices[7]
    assert accumulator.message().text == "a"
    assert accumulator.message(7).text == "a"


def test_before_anything_came_the_message_is_empty() -> None:
    accumulator = Accumulator()
    assert accumulator.first is None
    assert accumulator.message() == Message(role=Role.MODEL)
    assert accumulator.message(3) == Message(role=Role.MODEL)
    assert not accumulator.finished


@pytest.mark.parametrize(
    "delta",
    [Delta(None), facts({"id": "x"}), *count(Usage(1, 2, 3)), fails("no")],
    ids=["empty", "facts", "usage", "error"],
)
def test_what_is_not_part_of_an_answer_begins_none(delta: Delta) -> None:
    accumulator = Accumulator()
    assert accumulator.add(delta) == []
    assert accumulator.choices == {}


@pytest.mark.parametrize(
    "delta",
    [
        say("a"),
        think("a"),
        refuse("a"),
        call(name="f"),
        end(),
        Delta(None, 0, ChunkDetails(extra={"images": [1]})),
    ],
    ids=["text", "reasoning", "refusal", "tool call", "finish", "extra"],
)
def test_the_first_delta_with_content_begins_a_choice(delta: Delta) -> None:
    assert list(fold(delta).choices) == [0]


def test_add_returns_the_changes() -> None:
    accumulator = Accumulator()
    assert accumulator.add(think("hm")) == [Change(Channel.REASONING, 0, "hm")]
    assert accumulator.add(say("a", 1)) == [Change(Channel.TEXT, 1, "a")]
    assert accumulator.add(call("{", index=0, id="i", name="f")) == [Change(Channel.TOOL_CALL, 0, "{", 0)]
    assert accumulator.add(end()) == []
    assert accumulator.add(say("\ud83d")) == []
    assert accumulator.close() == [Change(Channel.TEXT, 0, "\ufffd")]


def test_folding_changes_no_delta_and_no_message_taken_before() -> None:
    first = {"a": {"x": [1]}}
    delta = Delta(None, text="a", details=ChunkDetails(extra=first, metadata={"id": "1"}))
    accumulator = Accumulator()
    accumulator.add(delta)
    before = accumulator.message()
    taken = before.model_copy(deep=True)
    accumulator.add(
        Delta(None, text="b", details=ChunkDetails(extra={"a": {"x": [2]}}, metadata={"id": "2"}))
    )
    assert before == taken
    assert first == {"a": {"x": [1]}}
    assert delta == Delta(None, text="a", details=ChunkDetails(extra=first, metadata={"id": "1"}))


# --- usage ------------------------------------------------------------------------------------------------------


def test_usage_is_replaced_never_added() -> None:
    assert fold(*count(Usage(10, 1, 11), Usage(10, 2, 12), Usage(10, 2, 12))).usage == Usage(10, 2, 12)


def test_zeros_do_not_replace_what_was_counted_but_count_until_then() -> None:
    assert fold(*count(Usage(10, 1, 11), Usage(0, 0, 0))).usage == Usage(10, 1, 11)
    assert fold(*count(Usage(0, 0, 0), Usage(10, 1, 11))).usage == Usage(10, 1, 11)
    assert fold(*count(Usage(0, 0, 0))).usage == Usage(0, 0, 0)


def test_usage_that_was_not_reported_is_not_made_up() -> None:
    assert fold(say("a"), end()).usage is None


# --- facts ------------------------------------------------------------------------------------------------------


def test_the_first_id_and_time_stay_and_of_all_else_the_last_counts() -> None:
    accumulator = fold(
        facts({"id": "a", "created": 1, "model": "m", "service_tier": "default"}),
        facts({"id": "b", "created": 2, "model": "n"}),
    )
    assert accumulator.metadata == {"id": "a", "created": 1, "model": "n", "service_tier": "default"}


def test_facts_that_come_late_are_taken() -> None:
    assert fold(facts({"model": "m"}), facts({"id": "a"}), facts({"id": "b"})).metadata == {
        "model": "m",
        "id": "a",
    }


def restarted(**metadata: Any) -> Delta:
    return Delta(None, details=ChunkDetails(metadata=metadata or None, restarts=True))


def test_an_empty_id_does_not_stay() -> None:
    assert fold(facts({"id": "", "created": 0}), facts({"id": "a", "created": 1})).metadata == {
        "id": "a",
        "created": 1,
    }
    assert fold(facts({"id": "a"}), facts({"id": ""}), facts({"id": "b"})).metadata["id"] == "a"
    assert fold(facts({"id": ""})).metadata == {"id": ""}


def test_the_id_is_that_of_the_response_whose_answer_is_kept() -> None:
    begun = (facts({"id": "a", "created": 1}), say("Hel"))
    for anew in ((restarted(id="b", created=2),), (restarted(), facts({"id": "b", "created": 2}))):
        accumulator = fold(*begun, *anew, say("Hello"), facts({"id": "c", "created": 3}))
        assert (accumulator.message().text, accumulator.metadata) == ("Hello", {"id": "b", "created": 2})
    assert fold(*begun, restarted(), say("Hello")).metadata["id"] == "a"


def test_the_id_of_a_recorded_response_that_restarted() -> None:
    def event(**fields: Any) -> bytes:
        return f"data: {json.dumps(fields)}\n\n".encode()

    def begin(identity: str) -> bytes:
        return event(type="message_start", message={"id": identity, "role": "assistant", "content": []})

    text = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi"}}
    accumulator = Accumulator()
    for chunk in AnthropicDecoder().feed(begin("msg_1") + event(**text) + begin("msg_2") + event(**text)):
        accumulator.add(chunk)
    assert (accumulator.message().text, accumulator.metadata["id"]) == ("Hi", "msg_2")


def test_the_id_stays_if_only_one_of_several_choices_restarts() -> None:
    accumulator = fold(facts({"id": "a"}), say("x"), say("y", 1), restarted(id="b"), say("z"))
    assert accumulator.metadata["id"] == "a"


# --- one response in several choices ----------------------------------------------------------------------------


def merged(*deltas: Delta) -> Accumulator:
    accumulator = Accumulator(merge_choices=True)
    for delta in deltas:
        changes = accumulator.add(delta)
        assert {change.choice for change in changes} <= {0}
    accumulator.close()
    return accumulator


def test_an_answer_that_is_spread_over_choices_can_be_merged() -> None:
    accumulator = merged(
        say("Let me see."), call("{}", index=0, id="a", name="f", choice=1), end(FinishReason.STOP, 1)
    )
    assert list(accumulator.choices) == [0]
    message = accumulator.message()
    assert (message.text, [each.id for each in message.tool_calls]) == ("Let me see.", ["a"])
    assert accumulator.choices[0].finish_reason is FinishReason.TOOL_CALLS
    assert accumulator.error is None


@given(st.lists(st.tuples(st.text(min_size=1, max_size=4), st.integers(0, 9))))
def test_where_an_index_counts_tokens_the_text_is_whole(pieces: list[tuple[str, int]]) -> None:
    accumulator = merged(*(say(text, index) for text, index in pieces), end())
    assert accumulator.message() == merged(*(say(text) for text, _ in pieces), end()).message()


# --- completeness -----------------------------------------------------------------------------------------------


def test_a_response_whose_choices_are_all_finished_is_whole() -> None:
    accumulator = fold(say("a"), end())
    assert accumulator.finished
    assert accumulator.error is None


def test_a_finish_after_the_text_and_text_after_the_finish_are_both_whole() -> None:
    assert fold(say("a"), end(), say("!")).message().text == "a!"
    assert fold(say("a"), end(), say("!")).error is None


@pytest.mark.parametrize(
    ("deltas", "message"),
    [
        ([], "the stream ended without a response"),
        ([facts({"id": "x"})], "the stream ended without a response"),
        ([say("a")], "the stream ended before the response was complete"),
        ([say("a", 0), say("b", 1), end(choice=0)], "the stream ended before the response was complete"),
    ],
    ids=["nothing", "no answer", "no finish", "one of two not finished"],
)
def test_a_response_that_breaks_off_is_an_error_and_keeps_what_came(
    deltas: list[Delta], message: str
) -> None:
    accumulator = fold(*deltas)
    assert accumulator.error is not None
    assert (accumulator.error.message, accumulator.error.fault) == (message, UpstreamFault.TRUNCATED)
    assert "".join(choice.text for choice in accumulator.choices.values()) == "".join(
        delta.text for delta in deltas
    )


def test_the_first_error_that_the_provider_reports_stays() -> None:
    accumulator = fold(say("a"), fails("first"), fails("second"), end())
    assert accumulator.error is not None
    assert accumulator.error.message == "first"
    assert accumulator.message().text == "a"


def test_the_transports_error_counts_where_the_provider_reported_none() -> None:
    timeout = UpstreamError("silent", fault=UpstreamFault.TIMEOUT)
    assert fold(say("a"), error=timeout).error is timeout
    reported = fold(fails("first"), error=timeout).error
    assert reported is not None
    assert reported.message == "first"


def test_a_finished_response_is_incomplete_after_an_error_of_the_transport() -> None:
    error = UpstreamError("reset", fault=UpstreamFault.CONNECTION)
    assert fold(say("a"), end(), error=error).error is error


# --- think tags -------------------------------------------------------------------------------------------------


def test_think_tags_are_split_in_every_choice() -> None:
    accumulator = Accumulator()
    for delta in (say("<think>a</th", 0), say("<think>b", 1), say("ink>A", 0), say("</think>B", 1)):
        accumulator.add(delta)
    accumulator.close()
    assert [(choice.reasoning, choice.text) for choice in accumulator.choices.values()] == [
        ("a", "A"),
        ("b", "B"),
    ]


# --- cost -------------------------------------------------------------------------------------------------------


def test_folding_twenty_thousand_chunks_joins_nothing_before_it_is_read() -> None:
    decoder = ChatCompletionsDecoder()
    accumulator = Accumulator()
    event = b'data: {"id":"x","model":"m","choices":[{"index":0,"delta":{"content":"ab"}}]}\n\n'
    for _ in range(200):
        for chunk in decoder.feed(event * 100):
            accumulator.add(chunk)
    segments = accumulator.choices[0]._segments  # pyright: ignore[reportPrivateUsage] — the structure is the point
    (segment,) = segments
    assert isinstance(segment, _Block)
    assert len(segment.encoded) == 40_000
    assert accumulator.message().text == "ab" * 20_000
