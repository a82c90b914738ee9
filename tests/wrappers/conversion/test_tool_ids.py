"""Matching of tool calls and results, and conversations in which they do not match."""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support import strategies
from support.messages import model, tool, user
from tailrace.wrappers import (
    ContentPart,
    ContentPartReasoning,
    ContentPartText,
    ContentPartToolCall,
    ContentPartToolResult,
    History,
    Message,
    Role,
)
from tailrace.wrappers.conversion.result_repair import NO_RESULT, with_repaired_results
from tailrace.wrappers.conversion.tool_ids import with_matched_ids
from tailrace.wrappers.conversion.tool_matching import ToolPart, UnmatchedTools, unmatched_tools
from tailrace.wrappers.openai import OpenAIConverter

NINE = re.compile("[a-zA-Z0-9]{9}")  # Mistral's form
WORD = re.compile("[a-zA-Z0-9_-]+")  # Anthropic's form

say = ContentPartText


def call(id: str = "", name: str = "f", **fields: Any) -> ContentPartToolCall:
    return ContentPartToolCall(id=id, name=name, **fields)


def result(id: str = "", name: str = "f", output: object = "ok", **fields: Any) -> ContentPartToolResult:
    return ContentPartToolResult(id=id, name=name, output=output, **fields)


def no_answer(id: str = "", name: str = "f") -> ContentPartToolResult:
    return result(id, name, NO_RESULT, is_error=True)


def history(*messages: Message) -> History:
    return History(system_message="Be brief.", context="It is noon.", conversation=messages)


def calls_and_results(found: History) -> list[ContentPartToolCall | ContentPartToolResult]:
    return [
        part
        for message in found.conversation
        for part in message.content
        if isinstance(part, ContentPartToolCall | ContentPartToolResult)
    ]


def ids_of(
    *messages: Message, pattern: re.Pattern[str] | None = None, make: Callable[[int], str] | None = None
) -> list[str]:
    """The ids of calls and results in order, after matching."""
    found = with_matched_ids(history(*messages), pattern=pattern, create_id=make)
    return [part.id for part in calls_and_results(found)]


def answered(*messages: Message) -> tuple[Message, ...]:
    found = with_repaired_results(history(*messages))
    assert (found.system_message, found.context) == ("Be brief.", "It is noon.")
    return found.conversation


WHOLE = history(
    user(say(text="What's the weather?")),
    model(ContentPartReasoning(text="hm"), call("a", "weather"), call("b", "time"), finish_reason="tool_calls"),
    tool(result("b", "time"), result("a", "weather")),
    model(say(text="Sunny."), call("w", "search", kind="server"), result("w", "search"), say(text="And warm.")),
    user(say(text="And now?")),
    model(call("c")),
)  # fmt: skip


EMPTY = history(user(), model(), tool(), model(), model())


@pytest.mark.parametrize("given", [History(), history(), history(user(say(text="hi"))), EMPTY, WHOLE])
def test_a_conversation_that_needs_no_repair_is_the_same_object(given: History) -> None:
    assert with_matched_ids(given) is given
    assert with_repaired_results(given) is given


# --- reporting --------------------------------------------------------------------------------------------------


def test_nothing_is_reported_where_everything_matches() -> None:
    assert unmatched_tools(history(model(call("a")), tool(result("a")))) == UnmatchedTools()
    assert unmatched_tools(History()) == UnmatchedTools()


def test_open_calls_and_stray_results_are_reported_with_their_places() -> None:
    given = history(
        user(result("x", "g")),
        model(say(text="a"), call("a"), call("b", "h"), call("s", kind="server")),
        tool(result("a"), result("a")),
        model(call("c")),
    )
    assert unmatched_tools(given) == UnmatchedTools(
        calls=(ToolPart(1, 2, "b", "h"), ToolPart(3, 0, "c", "f")),
        results=(ToolPart(0, 0, "x", "g"), ToolPart(2, 1, "a", "f")),
    )


def test_a_result_that_comes_when_the_model_has_gone_on_answers_nothing() -> None:
    given = history(model(call("a")), user(say(text="Well?")), model(say(text="Wait.")), tool(result("a")))
    assert unmatched_tools(given) == UnmatchedTools((ToolPart(0, 0, "a", "f"),), (ToolPart(3, 0, "a", "f"),))


def test_a_call_outside_of_a_model_message_matches_no_result() -> None:
    given = history(model(say(text="hi")), user(call("a")), tool(result("a")))
    assert unmatched_tools(given) == UnmatchedTools((ToolPart(1, 0, "a", "f"),), (ToolPart(2, 0, "a", "f"),))


# --- ids: matching ----------------------------------------------------------------------------------------------


def test_missing_ids_are_made_for_call_and_result() -> None:
    found = with_matched_ids(history(model(call()), tool(result()), model(call()), tool(result())))
    assert [part.id for part in calls_and_results(found)] == ["call00000"] * 2 + ["call00001"] * 2
    assert [part.synthetic_id for message in found.conversation for part in message.tool_calls] == [True] * 2


def test_results_without_ids_answer_by_name_and_then_by_order() -> None:
    found = with_matched_ids(
        history(
            model(call("a", "f"), call("b", "g"), call("c", "f"), call("d", "h")),
            tool(result("", "unknown", 3), result("", "f", 1), result("", "g", 2), result("", "f", 4)),
        )
    )
    assert [(part.id, part.name, part.output) for part in found.conversation[1].tool_results] == [
        ("d", "h", 3),
        ("a", "f", 1),
        ("b", "g", 2),
        ("c", "f", 4),
    ]


def test_a_result_with_an_id_comes_before_one_without() -> None:
    assert ids_of(model(call("a"), call("b")), tool(result(""), result("a")))[2:] == ["b", "a"]


def test_a_result_of_a_name_that_no_call_has_answers_by_order() -> None:
    found = with_matched_ids(
        history(model(call("a", "f"), call("b", "g")), tool(result("", "x"), result("", "f")))
    )
    assert [(part.id, part.name) for part in found.conversation[1].tool_results] == [("b", "x"), ("a", "f")]


def test_a_result_that_does_not_know_its_name_gets_that_of_its_call() -> None:
    found = with_matched_ids(
        history(model(call("a", "f"), call("b", "g")), tool(result("b", "unknown"), result("a", "")))
    )
    assert [part.name for part in found.conversation[1].tool_results] == ["g", "f"]


def test_an_id_decides_against_the_name() -> None:
    given = history(model(call("a", "f"), call("b", "g")), tool(result("b", "f"), result("a", "g")))
    assert with_matched_ids(given) is given
    assert unmatched_tools(given) == UnmatchedTools()


@pytest.mark.parametrize("id", ["tool_name0", "0", ""])
def test_calls_with_the_same_id_are_distinguished_by_order(id: str) -> None:
    one, two, *results = ids_of(model(call(id), call(id)), tool(result(id, output=1), result(id, output=2)))
    assert one != two
    assert results == [one, two]
    assert (one == id) == bool(id)


def test_calls_with_the_same_id_are_distinguished_by_name_first() -> None:
    one, two, *results = ids_of(
        model(call("0", "f"), call("0", "g")), tool(result("0", "g"), result("0", "f"))
    )
    assert one != two
    assert results == [two, one]


def test_the_same_id_in_two_rounds_becomes_two() -> None:
    rounds = [model(call("call_0")), tool(result("call_0")), model(call("call_0")), tool(result("call_0"))]
    assert ids_of(*rounds) == ["call_0", "call_0", "call00001", "call00001"]


def test_results_may_stand_in_a_users_message_and_in_the_models_own() -> None:
    assert ids_of(model(call(), result()), user(say(text="a"))) == ["call00000", ""]
    assert ids_of(model(call(kind="server"), result()), user(say(text="a"))) == ["call00000"] * 2
    assert ids_of(model(call()), user(say(text="a"), result())) == ["call00000"] * 2


def test_a_result_without_an_id_never_answers_a_call_of_the_other_side() -> None:
    assert ids_of(model(call("s", kind="server"), call("a")), tool(result())) == ["s", "a", "a"]
    assert ids_of(model(call("a"), call("s", kind="server"), result()), tool(result())) == [
        "a",
        "s",
        "s",
        "a",
    ]


def test_messages_of_the_model_that_stand_together_are_one_round() -> None:
    assert ids_of(model(call("a")), model(call("")), tool(result(), result("a"))) == [
        "a",
        "call00001",
        "call00001",
        "a",
    ]


def test_of_calls_with_the_same_id_a_result_answers_that_of_its_own_side() -> None:
    function, search = call("0"), call("0", kind="server")
    inside = [model(function, search, result("0"))]
    assert [each.part for each in unmatched_tools(history(*inside)).calls] == [0]
    assert unmatched_tools(history(model(search, function), tool(result("0")))) == UnmatchedTools()


def test_a_call_that_the_provider_runs_matches_no_result_of_a_tool() -> None:
    given = history(model(call("s", kind="server")), tool(result("s")))
    assert unmatched_tools(given) == UnmatchedTools(results=(ToolPart(1, 0, "s", "f"),))


def test_a_tool_of_the_provider_may_answer_when_the_model_goes_on() -> None:
    given = history(
        model(call("s", "run", kind="server"), call("a")),
        tool(result("a")),
        model(result("s", "run"), say(text="done")),
    )
    assert unmatched_tools(given) == UnmatchedTools()
    assert with_repaired_results(given) is given
    late = history(model(call("", "run", kind="server")), user(say(text="a")), model(result("", "run")))
    assert unmatched_tools(late).results == (ToolPart(2, 0, "", "run"),)


def test_a_second_result_for_one_call_answers_nothing_and_stays_as_it_is() -> None:
    given = history(model(call("a")), tool(result("a", output=1), result("a", output=2)))
    assert with_matched_ids(given) is given
    assert unmatched_tools(given).results == (ToolPart(1, 1, "a", "f"),)


# --- ids: form --------------------------------------------------------------------------------------------------


def test_an_id_that_does_not_fit_is_replaced_for_call_and_result() -> None:
    rounds = [
        model(call("functions.f:0"), call("toolu_01")),
        tool(result("functions.f:0"), result("toolu_01")),
    ]
    assert ids_of(*rounds, pattern=WORD) == ["call00000", "toolu_01", "call00000", "toolu_01"]
    assert ids_of(*rounds, pattern=NINE) == ["call00000", "call00001", "call00000", "call00001"]
    assert ids_of(*rounds) == ["functions.f:0", "toolu_01", "functions.f:0", "toolu_01"]


def test_the_pattern_is_that_of_the_whole_id() -> None:
    assert ids_of(model(call("abcdefghij")), pattern=NINE) == ["call00000"]


def test_a_made_id_is_never_one_that_was_received() -> None:
    rounds = [model(call(), call("call00000"), call("call-1")), tool(result("call00003"))]
    assert ids_of(*rounds, pattern=NINE) == ["call00001", "call00000", "call00002", "call00003"]


def test_ids_are_made_as_the_provider_wants_them() -> None:
    rounds = [model(call(), call("b"), call()), tool(result(), result("b"), result())]
    assert ids_of(*rounds, make=lambda number: f"id-{number}") == ["id-0", "b", "id-2", "id-0", "b", "id-2"]


def test_made_ids_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="the created tool call id 'id-0' does not match"):
        with_matched_ids(history(model(call())), pattern=NINE, create_id=lambda number: f"id-{number}")


@pytest.mark.parametrize("same", ["x", ""])
def test_made_ids_that_are_all_the_same_are_refused(same: str) -> None:
    with pytest.raises(ValueError, match="repeatedly"):
        with_matched_ids(history(model(call(), call())), create_id=lambda _: same)


def test_a_conversation_that_grows_keeps_the_ids_of_its_beginning() -> None:
    beginning = [model(call(), call("a b")), tool(result(), result("a b"))]
    later = [model(call("")), tool(result("")), user(say(text="x")), model(call("a b"))]
    assert ids_of(*beginning, *later, pattern=WORD)[:4] == ids_of(*beginning, pattern=WORD)


def test_ten_thousand_calls_are_matched_in_one_go() -> None:
    calls, results = [call("0")] * 10_000, [result("0")] * 10_000
    found = with_matched_ids(history(model(*calls), tool(*results)))
    first, second = found.conversation
    assert [part.id for part in first.tool_calls] == [part.id for part in second.tool_results]
    assert len({part.id for part in first.tool_calls}) == 10_000


# --- results ----------------------------------------------------------------------------------------------------


def test_a_call_that_the_conversation_left_open_is_answered_with_an_error() -> None:
    request, interrupted = model(call("a")), user(say(text="Never mind."))
    assert answered(request, interrupted) == (request, tool(no_answer("a")), interrupted)


def test_an_answer_that_is_missing_joins_those_that_came() -> None:
    request = model(call("a", "f"), call("b", "g"), call("c", "h"))
    came = tool(result("b", "g"), say(text="a note"))
    expected = tool(*came.content, no_answer("a", "f"), no_answer("c", "h"))
    assert answered(request, came) == (request, expected)
    assert answered(request, came, model(say(text="so"))) == (request, expected, model(say(text="so")))


def test_the_message_that_goes_on_keeps_its_metadata() -> None:
    came = Message(role=Role.TOOL, content=(result("a"),), metadata={"k": 1})
    _, found = answered(model(call("a"), call("b")), came)
    assert found == Message(role=Role.TOOL, content=(result("a"), no_answer("b")), metadata={"k": 1})


def test_calls_at_the_very_end_stay_open() -> None:
    given = history(user(say(text="hi")), model(call("a")), model(say(text="…"), call("b")))
    assert with_repaired_results(given) is given


def test_a_call_that_the_provider_runs_needs_no_answer() -> None:
    given = history(model(call("a", kind="server")), user(say(text="hi")))
    assert with_repaired_results(given) is given


def test_results_among_the_models_words_are_put_behind_them() -> None:
    assert answered(model(call("a"), result("a"), k=1)) == (model(call("a"), k=1), tool(result("a")))
    assert answered(model(say(text="0"), call("a"), result("a"), say(text="1"), k=1), user()) == (
        model(say(text="0"), call("a"), k=1),
        tool(result("a")),
        model(say(text="1")),
        user(),
    )
    assert answered(model(call("a"), k=1), model(result("a"), call("b"), j=2), tool(result("b"))) == (
        model(call("a"), k=1),
        tool(result("a")),
        model(call("b"), j=2),
        tool(result("b")),
    )


def test_messages_of_the_model_that_its_own_words_answer_later_become_one() -> None:
    assert answered(model(call("a")), model(say(text="wait"), result("a")), model(say(text="done"))) == (
        model(call("a"), say(text="wait")),
        tool(result("a")),
        model(say(text="done")),
    )


def test_text_of_the_model_before_its_last_result_stays_before_the_results() -> None:
    words = model(call("a"), call("b"), result("a"), say(text="wait"))
    request = model(call("a"), call("b"), say(text="wait"))
    assert answered(words, tool(result("b"))) == (request, tool(result("a"), result("b")))
    assert answered(words, user()) == (request, tool(result("a"), no_answer("b")), user())
    assert answered(words, user(result("b"))) == (request, tool(result("a"), result("b")))
    assert answered(words) == (request, tool(result("a"), no_answer("b")))
    both = model(call("a"), call("b"), result("b"), result("a"), say(text="done"))
    assert answered(both) == (
        model(call("a"), call("b")),
        tool(result("b"), result("a")),
        model(say(text="done")),
    )


def test_results_of_the_providers_tools_stay_among_the_models_words() -> None:
    search = call("s", kind="server")
    given = history(model(search, result("s"), say(text="done"), call("a")), tool(result("a")))
    assert with_repaired_results(given) is given
    assert answered(model(search, call("a"), result("s"), result("a"), say(text="done"))) == (
        model(search, call("a"), result("s")),
        tool(result("a")),
        model(say(text="done")),
    )


def test_results_that_came_behind_other_words_are_moved_to_the_call() -> None:
    request, note = model(call("a"), call("b")), user(say(text="hurry"))
    assert answered(request, tool(result("a")), note, user(result("b"), say(text="here"))) == (
        request,
        tool(result("a"), result("b")),
        note,
        user(say(text="here")),
    )
    assert answered(request, note, tool(result("a")), tool(result("b"))) == (
        request,
        tool(result("a"), result("b")),
        note,
    )


def test_results_in_several_messages_become_one() -> None:
    request = model(call("a"), call("b"))
    assert answered(request, tool(result("a")), tool(result("b"))) == (
        request,
        tool(result("a"), result("b")),
    )
    assert answered(request, user(result("a")), user(result("b"))) == (
        request,
        tool(result("a"), result("b")),
    )


def test_results_beside_a_users_words_stay_there_when_they_are_all() -> None:
    both = user(say(text="here"), result("a"), result("b"))
    given = history(model(call("a"), call("b")), both)
    assert with_repaired_results(given) is given
    request = model(call("a"), call("b"), call("c"))
    assert answered(request, both) == (
        request,
        tool(result("a"), result("b"), no_answer("c")),
        user(say(text="here")),
    )


def test_messages_of_the_model_become_one_where_an_earlier_one_is_answered_behind_the_last() -> None:
    first = model(say(text="0"), k=0)
    second, third = model(call("a"), k=1), model(say(text="wait"), call("b"), j=2)
    expected = model(call("a"), say(text="wait"), call("b"), k=1, j=2)
    assert answered(first, second, third, tool(result("a"), result("b"))) == (
        first,
        expected,
        tool(result("a"), result("b")),
    )
    assert answered(second, third, user()) == (expected, tool(no_answer("a"), no_answer("b")), user())


def test_messages_of_the_model_whose_calls_are_answered_where_they_stand_stay_apart() -> None:
    given = history(model(call("s", kind="server")), model(result("s"), call("a")), tool(result("a")))
    assert with_repaired_results(given) is given
    given = history(model(call("s", kind="server")), model(call("a")), tool(result("a")))
    assert with_repaired_results(given) is given


@pytest.mark.parametrize(
    ("stray", "text"),
    [
        (result("x", "f", "Sunny"), "The tool f answered: Sunny"),
        (result("x", "f", {"t": [72, "°F"]}), 'The tool f answered: {"t": [72, "°F"]}'),
        (result("x", "unknown", None), "A tool answered: null"),
        (result("", "", "no city", is_error=True), "A tool failed: no city"),
    ],
)
def test_a_result_that_answers_no_call_becomes_text(stray: ContentPartToolResult, text: str) -> None:
    words = say(text=text)
    assert answered(tool(stray)) == (user(words),)
    assert answered(user(say(text="a"), stray, say(text="b"))) == (user(say(text="a"), words, say(text="b")),)
    assert answered(user(), model(say(text="a"), stray)) == (user(), model(say(text="a"), words))


def test_text_of_results_stands_behind_the_results_that_answer() -> None:
    request, words = model(call("a")), say(text="The tool f answered: 2")
    mixed = tool(result("x", output=2), result("a", output=1))
    assert answered(request, mixed) == (request, tool(result("a", output=1)), user(words))
    assert answered(request, tool(result("x", output=2))) == (request, tool(no_answer("a")), user(words))


def test_a_late_result_becomes_text_in_its_place() -> None:
    late = [model(call("a")), user(say(text="Well?")), model(say(text="Wait.")), tool(result("a", output=1))]
    assert answered(*late) == (
        late[0],
        tool(no_answer("a")),
        late[1],
        late[2],
        user(say(text="The tool f answered: 1")),
    )


def test_ids_and_answers_may_be_repaired_in_either_order() -> None:
    given = history(
        model(call(), call("", "g")),
        tool(result("", "g")),
        user(say(text="a")),
        model(call(), call()),
        tool(result()),
    )
    one, other = (
        with_repaired_results(with_matched_ids(given)),
        with_matched_ids(with_repaired_results(given)),
    )
    assert one == other
    assert [part.id for part in calls_and_results(one)] == [f"call0000{n}" for n in (0, 1, 1, 0, 2, 3, 2, 3)]


# --- any conversation -------------------------------------------------------------------------------------------

ids = st.sampled_from(["", "0", "1", "a.b", "a_b", "call00000", "call00001"])
tool_names = st.sampled_from(["f", "g", "unknown", ""])
kinds = st.sampled_from(["function", "function", "function", "custom", "server"])
any_calls = st.builds(ContentPartToolCall, id=ids, name=tool_names, kind=kinds)
any_results = st.builds(
    ContentPartToolResult,
    id=ids,
    name=tool_names,
    output=st.integers() | strategies.texts,
    is_error=st.booleans(),
)
any_words = st.builds(ContentPartText, text=strategies.names)
any_messages = (
    st.builds(Message, role=st.just(Role.MODEL), content=st.lists(any_calls | any_results | any_words, max_size=4))
    | st.builds(Message, role=st.just(Role.TOOL), content=st.lists(any_results | any_results | any_words, max_size=3))
    | st.builds(Message, role=st.just(Role.USER), content=st.lists(any_results | any_words, max_size=3))
)  # fmt: skip
any_histories = st.builds(History, conversation=st.lists(any_messages, max_size=7).map(tuple))
patterns = st.sampled_from([None, NINE, WORD])


def words_of(messages: Iterable[Message]) -> Iterator[str]:
    for message in messages:
        for part in message.content:
            if isinstance(part, ContentPartText):
                yield part.text


@given(any_histories, patterns)
@settings(deadline=None, max_examples=300)
def test_ids_are_unique_fit_and_change_no_more(given: History, pattern: re.Pattern[str] | None) -> None:
    found = with_matched_ids(given, pattern=pattern)
    made = [part.id for part in calls_and_results(found) if isinstance(part, ContentPartToolCall)]
    assert len(set(made)) == len(made)
    assert all(each and (pattern is None or pattern.fullmatch(each)) for each in made)
    assert with_matched_ids(found, pattern=pattern) is found
    assert with_matched_ids(given.model_copy(deep=True), pattern=pattern) == found
    assert unmatched_counts(found) == unmatched_counts(given)


def unmatched_counts(given: History) -> tuple[int, int]:
    found = unmatched_tools(given)
    return len(found.calls), len(found.results)


@given(any_histories, patterns)
@settings(deadline=None)
def test_matching_ids_changes_nothing_but_ids_and_unknown_names(
    given: History, pattern: re.Pattern[str] | None
) -> None:
    found = with_matched_ids(given, pattern=pattern)

    def rest(part: ContentPart) -> object:
        if isinstance(part, ContentPartToolCall):
            return part.model_copy(update={"id": "", "synthetic_id": False})
        if isinstance(part, ContentPartToolResult):
            return part.model_copy(update={"id": "", "name": ""})
        return part

    assert [[rest(part) for part in message.content] for message in found.conversation] == [
        [rest(part) for part in message.content] for message in given.conversation
    ]
    for before, after in zip(calls_and_results(given), calls_and_results(found), strict=True):
        assert before.name in (after.name, "", "unknown")


@given(any_histories, patterns)
@settings(deadline=None)
def test_ids_that_fit_and_are_unique_are_never_changed(
    given: History, pattern: re.Pattern[str] | None
) -> None:
    found = with_matched_ids(given, pattern=pattern)
    pairs = list(zip(calls_and_results(given), calls_and_results(found), strict=True))
    calls = [(one, other) for one, other in pairs if isinstance(one, ContentPartToolCall)]
    received = [one.id for one, _ in calls]
    new = {other.id for one, other in calls if one.id != other.id}
    for one, other in calls:
        fits = one.id and (pattern is None or pattern.fullmatch(one.id))
        assert one.id == other.id or not fits or received.count(one.id) > 1
    assert new.isdisjoint(received)


@given(any_histories)
@settings(deadline=None, max_examples=300)
def test_every_call_is_answered_right_behind_it_and_every_result_has_a_call(given: History) -> None:
    found = with_repaired_results(with_matched_ids(given))
    assert with_repaired_results(found) is found
    assert with_matched_ids(found) is found
    assert with_repaired_results(with_matched_ids(given)) == found
    unmatched = unmatched_tools(found)
    end = len(found.conversation)
    while end and found.conversation[end - 1].role is Role.MODEL:
        end -= 1
    assert all(each.message >= end for each in unmatched.calls)
    assert unmatched.results == ()
    assert_accepted(found)


def assert_accepted(found: History) -> None:
    """Assert OpenAI's rule: a message with calls is followed by the tool messages of these calls, and no others exist."""
    functions = tuple(
        message.model_copy(
            update={"content": tuple(each for each in message.content if not runs_at_provider(each, found))}
        )
        for message in found.conversation
    )
    sent = cast(
        "list[dict[str, Any]]",
        OpenAIConverter().from_history(found.model_copy(update={"conversation": functions})),
    )
    waiting: set[str] = set()
    for position, message in enumerate(sent):
        if message["role"] == "tool":
            waiting.remove(message["tool_call_id"])
        else:
            assert not waiting or all(each["role"] == "assistant" for each in sent[position:])
            waiting |= {each["id"] for each in message.get("tool_calls", ())}


def runs_at_provider(part: ContentPart, found: History) -> bool:
    """Return whether the provider runs a call itself: Chat Completions sends neither the call nor its result."""
    servers = {
        each.id for message in found.conversation for each in message.tool_calls if each.kind == "server"
    }
    return isinstance(part, ContentPartToolCall | ContentPartToolResult) and part.id in servers


@given(any_histories)
@settings(deadline=None)
def test_answering_keeps_everything_else_in_its_order(given: History) -> None:
    found = with_repaired_results(given)
    assert with_repaired_results(found) is found
    unmatched = unmatched_tools(given)
    strays = {(each.message, each.part) for each in unmatched.results}
    results = [
        (at, part)
        for position, message in enumerate(given.conversation)
        for index, part in enumerate(message.content)
        if isinstance(part, ContentPartToolResult)
        for at in [(position, index)]
    ]
    kept = [part for at, part in results if at not in strays]
    after = [part for part in calls_and_results(found) if isinstance(part, ContentPartToolResult)]
    added = [part for part in after if part.output == NO_RESULT]
    assert sorted(map(repr, after)) == sorted(map(repr, kept + added))
    assert len(added) + len(unmatched_tools(found).calls) == len(unmatched.calls)
    new_texts = [
        text for text in words_of(found.conversation) if text not in set(words_of(given.conversation))
    ]
    assert len(new_texts) <= len(strays)
    before = list(words_of(given.conversation))
    assert [text for text in words_of(found.conversation) if text in set(before)] == before
    assert [part for part in calls_and_results(found) if isinstance(part, ContentPartToolCall)] == [
        part for part in calls_and_results(given) if isinstance(part, ContentPartToolCall)
    ]
    json.loads(found.model_dump_json())


@given(strategies.histories)
@settings(deadline=None)
def test_any_conversation_can_be_repaired(given: History) -> None:
    found = with_repaired_results(with_matched_ids(given))
    assert with_repaired_results(with_matched_ids(found)) == found
    assert unmatched_tools(found).results == ()
