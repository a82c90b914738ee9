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
from support.tool_conversations import call, calls_and_results, history, result, say
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


def ids_of(
    *messages: Message, pattern: re.Pattern[str] | None = None, make: Callable[[int], str] | None = None
) -> list[str]:
    """The ids of calls and results in order, after matching."""
    found = with_matched_ids(history(*messages), pattern=pattern, create_id=make)
    return [part.id for part in calls_and_results(found)]


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
