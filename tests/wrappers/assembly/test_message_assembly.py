"""Assembly of fragments: each rule on a few deltas."""

import itertools
import json
import sys
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.deltas import Delta, call, end, refuse, say, think, together
from tailrace.wrappers import (
    Change,
    Channel,
    ChunkDetails,
    ContentPartReasoning,
    ContentPartText,
    ContentPartToolCall,
    FinishMessage,
    FinishReason,
    Message,
    MessageAssembly,
    Role,
    ToolCallDelta,
)
from tailrace.wrappers.assembly.message_assembly import _Block  # pyright: ignore[reportPrivateUsage]
from tailrace.wrappers.assembly.tool_calls import ToolCallAssembly, parse_arguments
from tailrace.wrappers.messages import join_surrogates

PARIS, ROME = '{"city": "Paris"}', '{"city": "Rome"}'


def assemble(*deltas: Delta, think_tags: bool = True) -> MessageAssembly:
    assembly = MessageAssembly(think_tags=think_tags)
    for delta in deltas:
        assembly.add(delta)
    assembly.close()
    return assembly


def changes_of(*deltas: Delta, think_tags: bool = True) -> list[Change]:
    assembly = MessageAssembly(think_tags=think_tags)
    return [change for delta in deltas for change in assembly.add(delta)] + assembly.close()


def calls_of(*deltas: Delta) -> list[tuple[str, str, dict[str, Any]]]:
    return [(part.id, part.name, part.arguments) for part in assemble(*deltas).tool_calls]


TWO_CALLS = [("a", "f", json.loads(PARIS)), ("b", "f", json.loads(ROME))]


# --- the call of a fragment -------------------------------------------------------------------------------------


def test_fragments_of_one_index_are_one_call() -> None:
    assert calls_of(call('{"city": ', index=0, id="a", name="f"), call('"Paris"}', index=0)) == TWO_CALLS[:1]


def test_fragments_of_two_indexes_may_be_interleaved() -> None:
    assert (
        calls_of(
            call(PARIS[:5], index=0, id="a", name="f"),
            call(ROME[:7], index=1, id="b", name="f"),
            call(PARIS[5:], index=0),
            call(ROME[7:], index=1),
        )
        == TWO_CALLS
    )


def test_two_fragments_of_one_call_may_come_in_one_delta() -> None:
    assert (
        calls_of(together(call(PARIS[:5], index=0, id="a", name="f"), call(PARIS[5:], index=0)))
        == TWO_CALLS[:1]
    )


@pytest.mark.parametrize(("first", "second"), [(1, 2), (0, 2), (7, 3), (-1, 99)])
def test_indexes_need_not_start_at_zero_nor_be_without_gaps(first: int, second: int) -> None:
    assert (
        calls_of(call(PARIS, index=first, id="a", name="f"), call(ROME, index=second, id="b", name="f"))
        == TWO_CALLS
    )


def test_a_new_id_and_a_name_open_a_call_although_the_index_stays() -> None:
    assert (
        calls_of(call(PARIS, index=0, id="a", name="f"), call(ROME, index=0, id="b", name="f")) == TWO_CALLS
    )


@pytest.mark.parametrize("continued", ["", "b"], ids=["without an id", "with its id"])
def test_continuations_under_a_constant_index_belong_to_the_newest_call(continued: str) -> None:
    assert (
        calls_of(
            call(PARIS[:5], index=0, id="a", name="f"),
            call(PARIS[5:], index=0),
            call(ROME[:5], index=0, id="b", name="f"),
            call(ROME[5:], index=0, id=continued),
        )
        == TWO_CALLS
    )


def test_a_new_id_without_a_name_continues_the_call() -> None:
    assert (
        calls_of(call(PARIS[:5], index=0, id="a", name="f"), call(PARIS[5:], index=0, id="x"))
        == TWO_CALLS[:1]
    )


def test_an_id_that_comes_after_the_name_is_the_calls_id() -> None:
    assert calls_of(call(PARIS[:5], index=0, name="f"), call(PARIS[5:], index=0, id="a")) == TWO_CALLS[:1]


def test_calls_of_one_id_are_two_when_their_indexes_differ() -> None:
    assert [
        each[0]
        for each in calls_of(call(PARIS, index=0, id="a", name="f"), call(ROME, index=1, id="a", name="f"))
    ] == ["a", "a"]


def test_without_an_index_a_known_id_continues_its_call() -> None:
    assert (
        calls_of(
            call(PARIS[:5], id="a", name="f"),
            call(ROME[:5], id="b", name="f"),
            call(PARIS[5:], id="a"),
            call(ROME[5:], id="b"),
        )
        == TWO_CALLS
    )


def test_without_an_index_a_new_id_or_a_name_opens_a_call() -> None:
    assert calls_of(together(call(PARIS, id="a", name="f"), call(ROME, id="b", name="f"))) == TWO_CALLS
    assert [each[1] for each in calls_of(call(PARIS, name="f"), call(ROME, name="g"))] == ["f", "g"]


def test_without_index_id_and_name_a_fragment_continues_the_latest_call() -> None:
    assert calls_of(call(PARIS[:5], id="a", name="f"), call(PARIS[5:])) == TWO_CALLS[:1]


def test_a_fragment_without_id_and_index_opens_the_first_call() -> None:
    assert calls_of(call(PARIS)) == [("call_0", "", json.loads(PARIS))]


def test_calls_stand_in_order_of_appearance() -> None:
    assert [
        each[0]
        for each in calls_of(
            call(index=5, id="a", name="f"), call(index=0, id="b", name="f"), call("{}", index=5)
        )
    ] == ["a", "b"]


# --- the fields of a call ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pieces", "name"),
    [
        (["get_weather", "get_weather"], "get_weather"),
        (["get_weather", ""], "get_weather"),
        (["get_", "weather"], "get_weather"),
        (["get_", "get_weather", "get_weather"], "get_weather"),
        (["", "get_weather"], "get_weather"),
    ],
    ids=["repeated", "then empty", "cut", "growing", "late"],
)
def test_a_name_may_be_repeated_cut_or_growing(pieces: list[str], name: str) -> None:
    (found,) = assemble(*(call(index=0, id="a", name=piece) for piece in pieces)).tool_calls
    assert found.name == name


def test_the_first_id_and_the_first_kind_stay() -> None:
    (found,) = assemble(
        call(index=0, name="f"), call(index=0, id="a", type="function"), call(index=0, id="b", type="other")
    ).tool_calls
    assert (found.id, found.kind, found.synthetic_id) == ("a", "function", False)


def test_a_call_without_a_kind_is_a_function() -> None:
    (found,) = assemble(call("{}", index=0, id="a", name="f")).tool_calls
    assert found.kind == "function"


def test_the_text_of_a_custom_tool_is_no_json_and_no_error() -> None:
    (found,) = assemble(
        call("pri", index=0, id="a", name="run", type="custom"), call("nt(1)", index=0)
    ).tool_calls
    assert (found.arguments_text, found.arguments, found.arguments_error) == ("print(1)", {}, None)


def test_missing_ids_are_made_unique_and_stable_and_marked() -> None:
    assembly = assemble(call("{}", name="f"), call("{}", id="call_0", name="g"), call("{}", name="h"))
    ids = [(part.id, part.synthetic_id) for part in assembly.tool_calls]
    assert ids == [("call_0_", True), ("call_0", False), ("call_2", True)]
    assert [(part.id, part.synthetic_id) for part in assembly.tool_calls] == ids


def test_further_fields_of_a_call_are_kept_and_merged() -> None:
    (found,) = assemble(
        call(
            "{}", index=0, id="a", name="f", extra={"extra_content": {"google": {"thought_signature": "x"}}}
        ),
        call(index=0, extra={"extra_content": {"google": {"more": 1}}}),
    ).tool_calls
    assert found.metadata == {"extra_content": {"google": {"thought_signature": "x", "more": 1}}}


# --- arguments --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("raw", ["", "  \n"])
def test_no_arguments_are_an_empty_object(raw: str) -> None:
    assert parse_arguments(raw) == {"arguments": {}}


def test_no_arguments_in_an_answer_cut_at_its_length_are_an_error() -> None:
    (found,) = assemble(call(index=0, id="a", name="f"), end(FinishReason.LENGTH)).tool_calls
    assert found.arguments == {}
    assert found.arguments_error == "cut off before any argument arrived"


def test_truncated_arguments_have_their_text_and_an_error() -> None:
    (found,) = assemble(call('{"city": "Par', index=0, id="a", name="f"), end(FinishReason.LENGTH)).tool_calls
    assert (found.arguments, found.arguments_text) == ({}, '{"city": "Par')
    assert found.arguments_error is not None
    assert found.arguments_error.startswith("not valid JSON: ")


def test_arguments_sent_twice_count_once() -> None:
    assert parse_arguments(PARIS + PARIS) == {"arguments": json.loads(PARIS)}
    assert parse_arguments(PARIS + ROME)["arguments_text"] == PARIS + ROME
    assert parse_arguments("abab")["arguments_text"] == "abab"
    assert parse_arguments("{{")["arguments_text"] == "{{"


def test_a_document_sent_twice_counts_once_whatever_stands_between() -> None:
    assert parse_arguments(f"{PARIS}\n{PARIS} ") == {"arguments": json.loads(PARIS)}
    assert parse_arguments(f"{PARIS}\n{ROME}")["arguments_text"] == f"{PARIS}\n{ROME}"


def test_arguments_that_are_no_object_keep_their_text() -> None:
    assert parse_arguments("null") == {"arguments_text": "null"}
    assert parse_arguments("[1]") == {"arguments_text": "[1]"}
    assert parse_arguments('"go"') == {"arguments_text": '"go"'}
    assert parse_arguments('""') == {"arguments_text": '""'}


def test_arguments_encoded_twice_are_decoded_twice() -> None:
    assert parse_arguments(json.dumps(PARIS)) == {"arguments": json.loads(PARIS)}


@pytest.mark.parametrize(
    "raw",
    [
        '{"a": NaN}',
        '{"a": [Infinity]}',
        '{"a": 1e999}',
        '{"a": ' + "[" * 40 + "]" * 40 + "}",
        '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"a": ' + "1" * (sys.get_int_max_str_digits() + 1) + "}",
    ],
    ids=["NaN", "infinity", "a number too large", "deep", "deeper than any reader", "a number too long"],
)
def test_arguments_that_cannot_travel_keep_their_text(raw: str) -> None:
    (found,) = assemble(call(raw, index=0, id="a", name="f")).tool_calls
    assert (found.arguments, found.arguments_text) == ({}, raw)
    assert found.arguments_error


def test_arguments_with_halves_of_characters_are_repaired() -> None:
    (found,) = assemble(
        call('{"a": "\ud83d', index=0, id="a", name="f"), call('\ude00", "b": "\\ud83d"}', index=0)
    ).tool_calls
    assert found.arguments == {"a": "😀", "b": "\ufffd"}


@given(raw=st.text() | st.recursive(st.just("{}"), lambda inner: inner.map(json.dumps), max_leaves=3))
@settings(deadline=None)
def test_any_text_can_be_the_arguments_of_a_call(raw: str) -> None:
    (found,) = assemble(call(raw, index=0, id="a", name="f")).tool_calls
    assert ContentPartToolCall.model_validate_json(found.model_dump_json()) == found
    if not found.arguments_text:
        assert found.arguments == {} or raw.strip()


# --- text, reasoning, refusal -----------------------------------------------------------------------------------


def test_parts_stand_in_order_of_appearance_with_consecutive_text_joined() -> None:
    message = assemble(
        think("a"),
        think("b"),
        say("c"),
        say(" "),
        think("d"),
        call("{}", index=0, id="i", name="f"),
        say("e"),
        end(),
    ).message()
    assert message == Message(
        role=Role.MODEL,
        content=(
            ContentPartReasoning(text="ab"),
            ContentPartText(text="c "),
            ContentPartReasoning(text="d"),
            ContentPartToolCall(id="i", name="f"),
            ContentPartText(text="e"),
        ),
        metadata={"finish_reason": "tool_calls"},
    )


def test_a_fragment_of_an_earlier_call_does_not_end_the_text() -> None:
    assembly = assemble(
        call(PARIS[:5], index=0, id="a", name="f"), say("x"), call(PARIS[5:], index=0), say("y")
    )
    assert [part.type for part in assembly.message().content] == ["tool_call", "text"]
    assert assembly.text == "xy"


def test_reasoning_comes_before_text_in_a_delta_that_holds_both() -> None:
    both = Delta(None, text="b", reasoning="a", calls=(ToolCallDelta(id="i", name="f"),))
    assert changes_of(both) == [
        Change(Channel.REASONING, 0, "a"),
        Change(Channel.TEXT, 0, "b"),
        Change(Channel.TOOL_CALL, 0, "", 0),
    ]


def test_a_refusal_is_a_channel_of_its_own_and_no_content() -> None:
    assembly = assemble(say("Well, "), refuse("I'm "), refuse("sorry"), say("no."), end())
    assert (assembly.refusal, assembly.text) == ("I'm sorry", "Well, no.")
    assert assembly.message() == Message(
        role=Role.MODEL,
        content=(ContentPartText(text="Well, no."),),
        metadata={"refusal": "I'm sorry", "finish_reason": "stop"},
    )


def test_an_empty_delta_changes_nothing() -> None:
    assert changes_of(Delta(None), say(""), think("")) == []
    assert assemble().message() == Message(role=Role.MODEL)


def test_plain_deltas_are_read_for_text_alone() -> None:
    class Plain(Delta, gc=False):
        def get_tool_calls(self) -> list[ToolCallDelta]:
            raise AssertionError("asked for tool calls")

    assert changes_of(Plain(None, plain=True, text="a")) == [Change(Channel.TEXT, 0, "a")]


def test_changes_carry_the_choice_and_the_position_of_a_call() -> None:
    assembly = MessageAssembly(3)
    assert assembly.add(say("a")) == [Change(Channel.TEXT, 3, "a")]
    assembly.add(call(id="a", name="f"))
    assert assembly.add(call("{", id="b", name="f")) == [Change(Channel.TOOL_CALL, 3, "{", 1)]


def test_a_whole_message_counts_only_where_nothing_was_streamed() -> None:
    whole = Delta(None, 0, ChunkDetails(snapshot=True, extra={"annotations": [1]}), text="Hello")
    assert assemble(whole).text == "Hello"
    assert assemble(whole, whole).text == "Hello"
    streamed = assemble(
        say("Hel"), say("lo"), Delta(None, 0, ChunkDetails(extra={"annotations": [1]})), whole, end()
    )
    assert streamed.text == "Hello"
    assert streamed.extra == {"annotations": [1]}
    assert streamed.finish_reason is FinishReason.STOP


def test_a_whole_message_does_not_repeat_fields_that_were_streamed() -> None:
    sound = {"audio": {"data": "AA"}}
    whole = Delta(None, 0, ChunkDetails(snapshot=True, extra={**sound, "annotations": [1]}))
    assert assemble(Delta(None, 0, ChunkDetails(extra=sound)), whole).extra == {**sound, "annotations": [1]}


@pytest.mark.parametrize("waiting", ["\ud83d", "<thi"])
def test_a_whole_message_does_not_repeat_text_that_is_still_held_back(waiting: str) -> None:
    whole = Delta(None, 0, ChunkDetails(snapshot=True), text="Hello")
    assert assemble(say(waiting), whole).text == waiting.replace("\ud83d", "\ufffd")


def test_a_whole_message_brings_its_finish_although_its_text_is_known() -> None:
    finish = FinishMessage(FinishReason.LENGTH, "length")
    whole = Delta(None, 0, ChunkDetails(snapshot=True), text="a", finish=finish)
    assert assemble(say("a"), whole).finish == finish


# --- split characters -------------------------------------------------------------------------------------------


def test_halves_of_a_character_in_two_deltas_are_joined() -> None:
    assert changes_of(say("a\ud83d"), say("\ude00b")) == [
        Change(Channel.TEXT, 0, "a"),
        Change(Channel.TEXT, 0, "😀b"),
    ]


def test_a_half_is_held_back_until_its_other_half_comes() -> None:
    assembly = MessageAssembly()
    assert assembly.add(say("\ud83d")) == []
    assert assembly.text == ""
    assert assembly.add(say("\ude00")) == [Change(Channel.TEXT, 0, "😀")]


def test_a_half_that_stays_alone_is_replaced() -> None:
    assert assemble(say("a\ud83d"), say("b")).text == "a\ufffdb"
    assert assemble(say("a\ude00b")).text == "a\ufffdb"
    assert changes_of(say("a\ud83d")) == [Change(Channel.TEXT, 0, "a"), Change(Channel.TEXT, 0, "\ufffd")]


def test_halves_of_two_channels_do_not_meet() -> None:
    assembly = assemble(
        say("\ud83d"), think("\ud83c"), refuse("\ud83e"), say("\ude00"), think("\udf0a"), refuse("\udd26")
    )
    assert (assembly.text, assembly.reasoning, assembly.refusal) == ("😀", "🌊", "🤦")


@given(text=st.text(alphabet="aé😀🌊", max_size=12), data=st.data())
@settings(deadline=None)
def test_text_cut_between_its_utf16_units_comes_out_whole(text: str, data: st.DataObject) -> None:
    units = text.encode("utf-16-le")
    cuts = sorted({0, len(units), *(2 * cut for cut in data.draw(st.lists(st.integers(0, len(units) // 2))))})
    deltas = [
        say(units[start:stop].decode("utf-16-le", "surrogatepass"))
        for start, stop in itertools.pairwise(cuts)
    ]
    for think_tags in (False, True):
        assert assemble(*deltas, think_tags=think_tags).text == text
        assert "".join(change.text for change in changes_of(*deltas, think_tags=think_tags)) == text


# --- finish reasons ---------------------------------------------------------------------------------------------


def test_the_last_finish_reason_counts() -> None:
    assert assemble(end(FinishReason.TOOL_CALLS), end()).finish_reason is FinishReason.STOP
    assert assemble(end(), say("!")).finish_reason is FinishReason.STOP
    assert assemble(say("a")).finish_reason is None


@pytest.mark.parametrize(
    "decisive", [FinishReason.LENGTH, FinishReason.CONTENT_FILTER, FinishReason.RECITATION], ids=str
)
def test_a_finish_reason_for_an_incomplete_response_is_not_replaced(decisive: FinishReason) -> None:
    assert assemble(end(decisive), end()).finish_reason is decisive
    assert assemble(end(decisive), end(FinishReason.TOOL_CALLS)).finish_reason is decisive
    assert assemble(end(), end(decisive)).finish_reason is decisive


def test_stop_counts_as_tool_calls_when_there_are_calls_and_the_raw_word_is_kept() -> None:
    assembly = assemble(call("{}", index=0, id="a", name="f"), end())
    assert assembly.finish_reason is FinishReason.TOOL_CALLS
    assert assembly.finish == FinishMessage(FinishReason.STOP, "stop")


# --- cost -------------------------------------------------------------------------------------------------------


def test_folding_joins_nothing_before_it_is_read() -> None:
    assembly = MessageAssembly()
    for _ in range(20_000):
        assembly.add(say("ab"))
    for _ in range(20_000):
        assembly.add(call("12", index=0, id="a", name="f"))
    text, tool_call = assembly._segments  # pyright: ignore[reportPrivateUsage] — the structure is the point
    assert isinstance(text, _Block)
    assert isinstance(tool_call, ToolCallAssembly)
    assert (len(text.encoded), len(tool_call.fragments)) == (40_000, 20_000)
    assert assembly.text == "ab" * 20_000
    assert assembly.tool_calls[0].arguments_text == "12" * 20_000


# --- any deltas -------------------------------------------------------------------------------------------------

words = st.text(alphabet="ab <>/think😀\ud83d\ude00", max_size=6)
fragments = st.builds(
    ToolCallDelta,
    index=st.none() | st.integers(-1, 2),
    id=st.sampled_from(["", "a", "b"]),
    name=st.sampled_from(["", "f", "fg"]),
    arguments=st.sampled_from(["", "{", "}", '"a":', "1", "\ud83d"]),
    type=st.sampled_from(["", "function", "custom"]),
)
details = st.builds(
    ChunkDetails,
    refusal=words,
    snapshot=st.booleans(),
    extra=st.none() | st.dictionaries(words, words, max_size=2),
)
finishes = st.builds(FinishMessage, reason=st.sampled_from(FinishReason), raw=words)
deltas = st.builds(
    Delta,
    raw=st.none(),
    details=st.none() | details,
    text=words,
    reasoning=words,
    calls=st.lists(fragments, max_size=2).map(tuple),
    finish=st.none() | finishes,
)


def texts_by_channel(changes: Iterable[Change]) -> dict[tuple[Channel, int], str]:
    texts: dict[tuple[Channel, int], str] = {}
    for change in changes:
        key = (change.channel, change.call)
        texts[key] = texts.get(key, "") + change.text
    return texts


@given(stream=st.lists(deltas, max_size=8), think_tags=st.booleans())
@settings(deadline=None)
def test_the_changes_add_up_to_the_message_for_any_stream(stream: list[Delta], think_tags: bool) -> None:
    assembly = MessageAssembly(think_tags=think_tags)
    changes = [change for delta in stream for change in assembly.add(delta)] + assembly.close()
    texts = texts_by_channel(changes)
    assert texts.get((Channel.TEXT, -1), "") == assembly.text
    assert texts.get((Channel.REASONING, -1), "") == assembly.reasoning
    assert texts.get((Channel.REFUSAL, -1), "") == assembly.refusal
    for position, part in enumerate(assembly.tool_calls):
        if part.arguments_text is not None:
            assert join_surrogates(texts[Channel.TOOL_CALL, position]) == part.arguments_text
        elif part.arguments_error is None:
            assert parse_arguments(texts[Channel.TOOL_CALL, position])["arguments"] == part.arguments
    message = assembly.message()
    assert (message.text, message.reasoning) == (assembly.text, assembly.reasoning)
    assert Message.model_validate_json(message.model_dump_json()) == message


# --- ids without indexes ----------------------------------------------------------------------------------------


def test_of_calls_with_one_id_the_last_goes_on() -> None:
    deltas = [
        call("1", index=0, id="a", name="f"),
        call("2", index=1, id="a", name="g"),
        call("3", id="a"),
        call("4", index=2, name="h"),
        call("", index=0, id="b"),
        call("5", index=2, id="a"),
        call("6", id="a"),
    ]
    assembly = assemble(*deltas)
    assert ["".join(each.arguments_text or "") for each in assembly.tool_calls] == ["1", "23", "456"]


def test_an_id_that_an_earlier_call_gets_later_is_still_the_later_ones() -> None:
    deltas = [
        call("1", index=0, name="f"),
        call("2", index=1, id="a", name="g"),
        call("", index=0, id="a"),
        call("3", id="a"),
    ]
    assert [each.arguments_text for each in assemble(*deltas).tool_calls] == ["1", "23"]


class _Counted(str):
    """An id that counts its comparisons with other ids."""

    __slots__ = ()
    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        _Counted.compared += 1
        return str.__eq__(self, other)


def test_finding_a_call_by_its_id_does_not_look_at_the_others() -> None:
    assembly = MessageAssembly()
    for number in range(1000):
        assembly.add(call("{}", id=_Counted(f"call-{number}"), name="f"))
    assert len(assembly.tool_calls) == 1000
    assert _Counted.compared < 10_000
