"""Repair of conversations with missing or misplaced tool results."""

import pytest

from support.messages import model, tool, user
from support.tool_conversations import call, calls_and_results, history, result, say
from tailrace.wrappers import ContentPartToolResult, Message, Role
from tailrace.wrappers.conversion.result_repair import NO_RESULT, with_repaired_results
from tailrace.wrappers.conversion.tool_ids import with_matched_ids


def no_answer(id: str = "", name: str = "f") -> ContentPartToolResult:
    return result(id, name, NO_RESULT, is_error=True)


def answered(*messages: Message) -> tuple[Message, ...]:
    found = with_repaired_results(history(*messages))
    assert (found.system_message, found.context) == ("Be brief.", "It is noon.")
    return found.conversation


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
