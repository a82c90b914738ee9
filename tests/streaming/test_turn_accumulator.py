"""One turn: several responses, the results between them, and the changes since the last read."""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.deltas import Delta, call, count, end, refuse, say, think, together
from support.messages import text_part, tool
from tailrace.streaming.turn_accumulator import TurnAccumulator, TurnDelta
from tailrace.wrappers import (
    Change,
    Channel,
    ChunkDetails,
    ContentPart,
    ContentPartFile,
    ContentPartReasoning,
    ContentPartText,
    ContentPartToolCall,
    ContentPartToolResult,
    FinishReason,
    History,
    Message,
    Role,
    UpstreamError,
    UpstreamFault,
    Usage,
)

HELLO = Message(role=Role.USER, content=(ContentPartText(text="Hello"),))
BROKEN = UpstreamError("reset", fault=UpstreamFault.CONNECTION)
CALL = call("{}", index=0, id="a", name="f")
PNG = ContentPartFile(data=b"png", media_type="image/png")
LINK = ContentPartFile(url="https://example.com/a.png")


def respond(turn: TurnAccumulator, *deltas: Delta, error: UpstreamError | None = None) -> None:
    """One response from its first chunk to its end."""
    for delta in deltas:
        turn.add(delta)
    turn.end_response(error)


def answer_calls(turn: TurnAccumulator, output: object = "ok") -> None:
    """Results for all open calls."""
    turn.add_results(*(result(each.id, output, each.name) for each in turn.calls_without_result))


def result(id: str, output: object = "ok", name: str = "f") -> ContentPartToolResult:
    return ContentPartToolResult(id=id, name=name, output=output)


def model_message(*content: ContentPart, finish: str | None = "stop") -> Message:
    return Message(role=Role.MODEL, content=content, metadata={"finish_reason": finish} if finish else {})


def facts(**metadata: Any) -> Delta:
    return Delta(None, details=ChunkDetails(metadata=metadata))


def whole(*parts: ContentPart) -> Delta:
    return Delta(None, details=ChunkDetails(parts=parts))


def restart() -> Delta:
    return Delta(None, details=ChunkDetails(restarts=True))


# --- output -----------------------------------------------------------------------------------------------------


def test_a_turn_of_one_answer() -> None:
    turn = TurnAccumulator(HELLO)
    respond(turn, think("hm"), say("Hi"), say(" there"), end())
    assert (turn.output, turn.reasoning, turn.finish_reason) == ("Hi there", "hm", FinishReason.STOP)
    assert turn.messages == (HELLO, model_message(ContentPartReasoning(text="hm"), text_part("Hi there")))
    assert turn.calls_without_result == ()
    assert turn.error is None


def test_before_anything_came_there_is_nothing() -> None:
    turn = TurnAccumulator()
    assert (turn.output, turn.reasoning, turn.messages, turn.files, turn.linked_files) == ("", "", (), (), ())
    assert (turn.metadata, turn.id, turn.usage, turn.total_usage) == ({}, "", None, None)
    assert (turn.finish_reason, turn.error, turn.response, turn.calls_without_result) == (
        None,
        None,
        None,
        (),
    )
    assert turn.history == History()
    assert not turn.pop_delta()


def test_what_is_new_is_given_out_once() -> None:
    turn = TurnAccumulator(HELLO)
    assert turn.pop_delta() == TurnDelta(messages=(HELLO,))
    turn.add(say("Hi"))
    turn.add(say(" there"))
    assert turn.pop_delta() == TurnDelta(output="Hi there")
    turn.add(think("hm"))
    assert turn.pop_delta() == TurnDelta(reasoning="hm")
    assert not turn.pop_delta()
    respond(turn, say("!"), end())
    assert turn.pop_delta() == TurnDelta(output="!", messages=turn.messages[1:])
    assert not turn.pop_delta()
    assert turn.output == "Hi there!"


def test_add_returns_the_changes_of_the_response() -> None:
    turn = TurnAccumulator()
    assert turn.add(say("a")) == [Change(Channel.TEXT, 0, "a")]
    assert turn.add(CALL) == [Change(Channel.TOOL_CALL, 0, "{}", 0)]
    assert turn.add(say("\ud83d")) == []
    assert turn.end_response() == [Change(Channel.TEXT, 0, "\ufffd")]
    assert turn.output == "a\ufffd"


@pytest.mark.parametrize(
    ("responses", "output"),
    [
        ([[say("a"), CALL], [say("b"), CALL], [say("c")]], "a\nb\nc"),
        ([[say("a"), CALL], [CALL], [say("b"), say("c")]], "a\nbc"),
        ([[CALL], [say("a")]], "a"),
        ([[say("a"), CALL], [CALL], []], "a"),
        ([[say("a"), CALL], [say(""), think("hm"), say(" ")]], "a\n "),
        ([[think("a"), CALL], [say("b")]], "b"),
        ([[refuse("a"), CALL], [say("b")]], "b"),
        ([[say("a"), CALL, say("b")], [say("c")]], "ab\nc"),
        ([[say("a\n"), CALL], [say("b")]], "a\n\nb"),
    ],
    ids=[
        "three texts",
        "a message without text between",
        "no text before the tools",
        "no text after the tools",
        "an empty delta first",
        "reasoning alone is no text",
        "a refusal is no text",
        "text behind a call of the same message",
        "text that ends with one",
    ],
)
def test_a_line_break_parts_texts_between_which_tools_ran(responses: list[list[Delta]], output: str) -> None:
    turn = TurnAccumulator()
    shown = ""
    for deltas in responses:
        for delta in deltas:
            turn.add(delta)
            shown += turn.pop_delta().output
        respond(turn, end())
        answer_calls(turn)
    assert (turn.output, shown) == (output, output)


def test_no_line_break_parts_the_texts_of_responses_between_which_no_tool_ran() -> None:
    turn = TurnAccumulator()
    respond(turn, say("one and "), end())
    turn.add_results()
    respond(turn, say("the same"), end())
    assert turn.output == "one and the same"


def test_a_tool_of_the_provider_puts_no_line_break() -> None:
    turn = TurnAccumulator()
    search = call("{}", index=0, id="s", name="search", type="server")
    respond(turn, say("a"), search, whole(result("s")), say("b"), end())
    assert turn.output == "ab"
    assert turn.calls_without_result == ()
    assert turn.finish_reason is FinishReason.STOP


def test_think_tags_are_split_if_enabled() -> None:
    turn = TurnAccumulator(think_tags=True)
    respond(turn, say("<think>a</th"), say("ink>b"), CALL, end())
    answer_calls(turn)
    respond(turn, say("<think>c"), end())
    assert (turn.output, turn.reasoning) == ("b", "ac")


def test_the_turn_is_that_of_the_first_choice_with_content() -> None:
    turn = TurnAccumulator()
    respond(turn, say("b", 1), say("a", 0), say("B", 1), end(FinishReason.LENGTH, 1), end(choice=0))
    assert turn.output == "bB"
    assert turn.finish_reason is FinishReason.LENGTH
    assert turn.messages == (model_message(text_part("bB"), finish="length"),)
    assert turn.response is not None
    assert turn.response.message(0).text == "a"


# --- messages ---------------------------------------------------------------------------------------------------


def test_the_messages_of_a_turn_with_tools_stand_in_order_and_are_given_out_once() -> None:
    before = History(system_message="Be brief.", conversation=(HELLO, model_message(text_part("Hi"))))
    turn = TurnAccumulator(HELLO, history=before)
    respond(turn, say("Let me see."), CALL, call("{}", index=1, id="b", name="g"), end())
    calls = turn.calls_without_result
    assert [(each.id, each.name) for each in calls] == [("a", "f"), ("b", "g")]
    new = turn.pop_delta().messages
    turn.add_results(result("b", 2, "g"), result("a", 1))
    new += turn.pop_delta().messages
    respond(turn, say("Done."), end())
    new += turn.pop_delta().messages
    expected = (
        HELLO,
        model_message(text_part("Let me see."), *calls, finish="tool_calls"),
        tool(result("b", 2, "g"), result("a", 1)),
        model_message(text_part("Done.")),
    )
    assert new == expected
    assert turn.messages == expected
    assert turn.history == before.with_message(*expected)


def test_an_answer_without_content_after_tools_is_a_message() -> None:
    turn = TurnAccumulator()
    respond(turn, CALL, end())
    answer_calls(turn)
    respond(turn, end())
    assert turn.messages[-1] == model_message()
    assert (turn.finish_reason, turn.error) == (FinishReason.STOP, None)


def test_a_refusal_is_a_message_without_content() -> None:
    turn = TurnAccumulator()
    respond(turn, refuse("No."), end())
    assert turn.messages == (Message(role=Role.MODEL, metadata={"refusal": "No.", "finish_reason": "stop"}),)


@pytest.mark.parametrize("deltas", [[], [facts(id="x")], list(count(Usage(1, 2, 3)))])
def test_a_response_without_an_answer_is_an_error_and_no_message(deltas: list[Delta]) -> None:
    turn = TurnAccumulator(HELLO)
    respond(turn, *deltas)
    assert turn.messages == (HELLO,)
    assert turn.error is not None
    assert turn.error.fault is UpstreamFault.TRUNCATED


def test_an_answer_of_nothing_that_broke_off_is_no_message() -> None:
    turn = TurnAccumulator(HELLO)
    respond(turn, end(), error=BROKEN)
    assert turn.messages == (HELLO,)
    assert turn.error is BROKEN


def test_an_answer_that_broke_off_keeps_its_words_and_its_calls_are_not_run() -> None:
    turn = TurnAccumulator()
    respond(turn, say("Let me"), CALL, error=BROKEN)
    assert turn.error is BROKEN
    assert turn.output == "Let me"
    assert turn.messages == (
        model_message(text_part("Let me"), ContentPartToolCall(id="a", name="f"), finish=None),
    )
    assert turn.calls_without_result == ()


def test_the_next_response_has_an_error_of_its_own() -> None:
    turn = TurnAccumulator()
    respond(turn, say("a"), error=BROKEN)
    turn.add(say("b"))
    assert turn.error is None
    assert turn.finish_reason is None


# --- calls and results ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", FinishReason)
def test_calls_are_to_be_run_whatever_the_finish_reason(reason: FinishReason) -> None:
    turn = TurnAccumulator()
    respond(turn, CALL, end(reason))
    assert [each.id for each in turn.calls_without_result] == ["a"]


def test_calls_with_invalid_arguments_have_an_error() -> None:
    turn = TurnAccumulator()
    respond(turn, call('{"a', index=0, id="a", name="f"), end(FinishReason.LENGTH))
    (broken,) = turn.calls_without_result
    assert broken.arguments_text == '{"a'
    assert broken.arguments_error


def test_calls_are_answered_by_their_results() -> None:
    turn = TurnAccumulator()
    respond(turn, together(CALL, call("{}", index=1, id="b", name="g")), end())
    turn.add_results(result("b"))
    assert [each.id for each in turn.calls_without_result] == ["a"]
    turn.add(say("on"))
    assert turn.calls_without_result == ()


@pytest.mark.parametrize("ids", [["x"], [""], ["a", "a"], ["a", "x"]])
def test_results_that_answer_no_open_call_are_refused_and_change_nothing(ids: list[str]) -> None:
    turn = TurnAccumulator()
    respond(turn, CALL, end())
    messages = turn.messages
    with pytest.raises(ValueError, match="the last response has no open call"):
        turn.add_results(*map(result, ids))
    assert turn.messages == messages
    turn.add_results(result("a"))


def test_results_of_one_round_are_given_at_once() -> None:
    turn = TurnAccumulator()
    respond(turn, together(CALL, call("{}", index=1, id="b", name="g")), end())
    turn.add_results(result("a"))
    with pytest.raises(ValueError, match="no open call 'b'"):
        turn.add_results(result("b"))
    with pytest.raises(ValueError, match="no open call 'a'"):
        TurnAccumulator().add_results(result("a"))


def test_calls_have_ids_that_are_unique_in_the_turn_and_in_the_conversation() -> None:
    earlier = History(conversation=(model_message(ContentPartToolCall(id="a", name="f")), tool(result("a"))))
    turn = TurnAccumulator(HELLO, history=earlier)
    ids: list[str] = []
    for _ in range(3):
        respond(turn, CALL, call("{}", name="g"), end())
        ids += [each.id for each in turn.calls_without_result]
        answer_calls(turn)
    assert len({"a", *ids}) == 7
    assert [each.id for message in turn.messages for each in message.tool_results] == ids
    assert all(each.synthetic_id for message in turn.messages for each in message.tool_calls)


def test_an_id_that_is_unique_stays() -> None:
    turn = TurnAccumulator()
    for id in ("a", "tool_name0"):
        respond(turn, call("{}", index=0, id=id, name="f"), end())
        assert [each.id for each in turn.calls_without_result] == [id]
        answer_calls(turn)


# --- facts, usage -----------------------------------------------------------------------------------------------


def test_metadata_is_merged_over_responses_and_never_repeated() -> None:
    turn = TurnAccumulator()
    turn.add(facts(id="1", model="m", tier="x"))
    assert turn.pop_delta() == TurnDelta(metadata={"id": "1", "model": "m", "tier": "x"})
    turn.add(facts(id="1", model="m"))
    assert not turn.pop_delta()
    turn.add(facts(id="2", model="n"))
    assert turn.pop_delta() == TurnDelta(metadata={"model": "n"})
    respond(turn, CALL, end())
    answer_calls(turn)
    turn.pop_delta()
    respond(turn, facts(id="3", model="n", timings=[1]), say("a"), facts(timings=[1, 2]), end())
    assert turn.pop_delta().metadata == {"id": "3", "timings": [1, 2]}
    assert turn.metadata == {"id": "3", "model": "n", "tier": "x", "timings": [1, 2]}


def test_metadata_that_comes_alone_first_is_kept() -> None:
    turn = TurnAccumulator()
    respond(turn, facts(id="x"), say("a"), end())
    assert (turn.metadata, turn.output) == ({"id": "x"}, "a")


def test_the_last_id_that_is_not_empty_counts() -> None:
    turn = TurnAccumulator()
    respond(turn, facts(id="1"), say("a"), end())
    assert turn.id == "1"
    respond(turn, facts(model="m"), say("b"), end())
    assert turn.id == "1"
    respond(turn, facts(id="2"), facts(id="3"), say("c"), end())
    assert turn.id == "2"


def test_usage_is_that_of_the_last_response_and_the_sum_of_all() -> None:
    turn = TurnAccumulator()
    respond(turn, CALL, end(), *count(Usage(10, 1, 11), Usage(10, 2, 12)))
    assert (turn.usage, turn.total_usage) == (Usage(10, 2, 12), Usage(10, 2, 12))
    answer_calls(turn)
    turn.add(say("a"))
    assert (turn.usage, turn.total_usage) == (None, Usage(10, 2, 12))
    respond(turn, *count(Usage(20, 3, 23, {"cost": 1})))
    assert (turn.usage, turn.total_usage) == (Usage(20, 3, 23, {"cost": 1}), Usage(30, 5, 35))
    respond(turn, say("b"), end(), *count(Usage(1, 1, 2)))
    assert turn.total_usage == Usage(31, 6, 37)


def test_usage_that_came_with_nothing_else_is_kept() -> None:
    turn = TurnAccumulator()
    turn.add(*count(Usage(1, 2, 3)))
    assert (turn.usage, turn.output, turn.pop_delta()) == (Usage(1, 2, 3), "", TurnDelta())


def test_usage_that_was_not_reported_is_none() -> None:
    turn = TurnAccumulator()
    respond(turn, say("a"), end())
    assert (turn.usage, turn.total_usage) == (None, None)


# --- files ------------------------------------------------------------------------------------------------------


def test_files_and_links_are_collected_over_responses_and_given_out_once() -> None:
    turn = TurnAccumulator()
    respond(turn, whole(PNG), say("a"), CALL, end())
    assert turn.pop_delta().files == (PNG,)
    answer_calls(turn)
    respond(turn, whole(LINK, result("s"), PNG), end())
    new = turn.pop_delta()
    assert (new.files, new.linked_files) == ((PNG,), (LINK,))
    assert (turn.files, turn.linked_files) == ((PNG, PNG), (LINK,))
    assert [part for message in turn.messages for part in message.content if part in (PNG, LINK)] == [
        PNG,
        LINK,
        PNG,
    ]


# --- restarts ---------------------------------------------------------------------------------------------------


def test_a_response_that_restarts_before_it_is_read_has_only_its_new_content() -> None:
    turn = TurnAccumulator()
    respond(turn, say("no"), whole(PNG), restart(), say("yes"), end())
    new = turn.pop_delta()
    assert (new.output, new.files, new.replaces) == ("yes", (), False)
    assert turn.messages == (model_message(text_part("yes")),)


def test_a_restarted_response_replaces_the_published_content() -> None:
    turn = TurnAccumulator()
    respond(turn, think("a"), say("one"), CALL, end())
    answer_calls(turn)
    assert turn.pop_delta().output == "one"
    for delta in (say("no"), think("b"), whole(LINK)):
        turn.add(delta)
    assert turn.pop_delta().output == "\nno"
    respond(turn, restart(), say("yes"), end())
    assert turn.pop_delta() == TurnDelta(
        output="one\nyes", reasoning="a", messages=turn.messages[-1:], replaces=True
    )
    assert not turn.pop_delta()
    assert (turn.output, turn.reasoning, turn.linked_files) == ("one\nyes", "a", ())


# --- cost -------------------------------------------------------------------------------------------------------


def test_folding_and_reading_new_text_do_not_join_earlier_text() -> None:
    turn = TurnAccumulator()
    for _ in range(20_000):
        turn.add(say("ab"))
        assert turn.pop_delta().output == "ab"
    assert len(turn._output._text) == 40_000  # pyright: ignore[reportPrivateUsage] — the structure is the point
    assert turn.output == "ab" * 20_000


# --- any turn ---------------------------------------------------------------------------------------------------

words = st.text(alphabet="ab \n😀\ud83d\ude00", max_size=4)
any_deltas = st.one_of(
    words.map(say),
    words.map(think),
    st.builds(
        call, st.just("{}"), index=st.integers(0, 2), id=st.sampled_from(["", "a", "b"]), name=st.just("f")
    ),
    st.sampled_from([end(), end(FinishReason.LENGTH), restart(), whole(PNG), whole(LINK), refuse("no")]),
    st.builds(facts, id=st.sampled_from(["", "x", "y"]), model=st.sampled_from(["m", "n"])),
    st.builds(Usage, st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)).map(
        lambda usage: count(usage)[0]
    ),
)
steps = any_deltas | st.sampled_from(["take", "take", "end", "break", "answer", "answer some"])


@given(st.lists(steps, max_size=30))
@settings(deadline=None, max_examples=300)
def test_what_is_new_adds_up_to_the_whole_for_any_turn(taken_steps: list[Delta | str]) -> None:
    turn = TurnAccumulator(HELLO)
    news: list[TurnDelta] = []
    for step in taken_steps:
        if isinstance(step, Delta):
            turn.add(step)
        elif step == "take":
            news.append(turn.pop_delta())
        elif step in ("end", "break"):
            turn.end_response(BROKEN if step == "break" else None)
        elif turn.messages[-1].role is Role.MODEL:
            calls = turn.calls_without_result if step == "answer" else turn.calls_without_result[1:]
            turn.add_results(*(result(each.id) for each in calls))
    turn.end_response()
    news.append(turn.pop_delta())
    assert_adds_up(turn, news)
    assert turn.output == expected_output(turn.messages[1:])
    assert turn.reasoning == "".join(message.reasoning for message in turn.messages)
    parts = [
        part for message in turn.messages for part in message.content if isinstance(part, ContentPartFile)
    ]
    assert sorted(map(repr, (*turn.files, *turn.linked_files))) == sorted(map(repr, parts))
    ids = [each.id for message in turn.messages for each in message.tool_calls]
    assert len(set(ids)) == len(ids)


def assert_adds_up(turn: TurnAccumulator, news: Iterable[TurnDelta]) -> None:
    output, reasoning, messages, metadata = "", "", list[Message](), dict[str, Any]()
    files, links = list[ContentPartFile](), list[ContentPartFile]()
    for new in news:
        if new.replaces:
            output = reasoning = ""
            files, links = [], []
        output += new.output
        reasoning += new.reasoning
        messages += new.messages
        files += new.files
        links += new.linked_files
        metadata |= new.metadata
    assert (output, reasoning, tuple(messages)) == (turn.output, turn.reasoning, turn.messages)
    assert (metadata, tuple(files), tuple(links)) == (turn.metadata, turn.files, turn.linked_files)


def expected_output(messages: Iterable[Message]) -> str:
    output, tools_ran = "", False
    for message in messages:
        if message.role is Role.TOOL:
            tools_ran = True
        elif message.text:
            output += ("\n" if tools_ran and output else "") + message.text
            tools_ran = False
    return output
