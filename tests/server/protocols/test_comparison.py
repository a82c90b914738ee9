"""Comparison of a client's conversation with the stored one."""

from typing import Any

import pytest

from tailrace.server.protocols.comparison import is_same_conversation
from tailrace.streaming.a2a.models import Message as A2AMessage
from tailrace.streaming.agent.request_facts import RequestFacts, keep_request_facts
from tailrace.streaming.conversion.conversation import results_message, to_a2a_message
from tailrace.wrappers import (
    ContentPart,
    ContentPartReasoning,
    ContentPartText,
    ContentPartToolCall,
    ContentPartToolResult,
    Message,
    Role,
)
from tailrace.wrappers.conversion.options import OutputFormat


def says(role: Role, *content: str | ContentPart, **metadata: Any) -> Message:
    parts = tuple(ContentPartText(text=part) if isinstance(part, str) else part for part in content)
    return Message(role=role, content=parts, metadata=metadata)


def user(*content: str | ContentPart) -> Message:
    return says(Role.USER, *content)


def model(*content: str | ContentPart, **metadata: Any) -> Message:
    return says(Role.MODEL, *content, **metadata)


def call(call_id: str, **arguments: Any) -> ContentPartToolCall:
    return ContentPartToolCall(id=call_id, name="look", arguments=arguments)


def result(call_id: str, output: str) -> Message:
    return says(Role.TOOL, ContentPartToolResult(id=call_id, name="look", output=output))


def stored(*messages: Message | A2AMessage) -> list[A2AMessage]:
    return [
        each if isinstance(each, A2AMessage) else to_a2a_message(each, message_id=f"m{at}")
        for at, each in enumerate(messages)
    ]


SAID = (user("1?"), model("One.", call("c1", a=1)), result("c1", "x"), model("Two."), user("3?"))

SAME = {
    "as it was": SAID,
    "trimmed": (
        user(" 1?\n"),
        model("One.\n", call("c1", a=1)),
        result("c1", "x"),
        model(" Two. "),
        user("3?"),
    ),
    "reasoning": (user("1?"), model(ContentPartReasoning(text="hm"), "One.", call("c1", a=1)), *SAID[2:]),
    "parted": (user("1?"), model("One."), model(call("c1", a=1)), *SAID[2:]),
    "an empty answer": (*SAID[:3], model(), *SAID[3:]),
    "numbers as JavaScript has them": (user("1?"), model("One.", call("c1", a=1.0)), *SAID[2:]),
}

OTHER = {
    "nothing": (),
    "less": SAID[:3],
    "more": (*SAID, model("Three.")),
    "another question": (user("one?"), *SAID[1:]),
    "another answer": (*SAID[:3], model("Zwei."), user("3?")),
    "other arguments": (user("1?"), model("One.", call("c1", a=2)), *SAID[2:]),
    "another id": (user("1?"), model("One.", call("c2", a=1)), result("c2", "x"), *SAID[3:]),
    "another result": (*SAID[:2], result("c1", "y"), *SAID[3:]),
    "no call": (user("1?"), model("One."), result("c1", "x"), *SAID[3:]),
}


@pytest.mark.parametrize("name", SAME)
def test_what_is_the_same(name: str) -> None:
    assert is_same_conversation(SAME[name], stored(*SAID))
    assert is_same_conversation(SAID, stored(*SAME[name]))


@pytest.mark.parametrize("name", OTHER)
def test_what_is_another(name: str) -> None:
    assert not is_same_conversation(OTHER[name], stored(*SAID))


def test_rounds_with_tools_of_the_server_are_one_answer() -> None:
    rounds = stored(
        user("1?"),
        model("Looking.", call("s1"), call("c1")),
        results_message(result("s1", "secret")),
        result("c1", "x"),
        model("Still.", call("s2")),
        results_message(result("s2", "secret")),
        model("Done."),
    )
    told = (user("1?"), model("Looking.", call("c1")), result("c1", "x"), model("Still.\nDone."))
    assert is_same_conversation(told, rounds)
    assert not is_same_conversation((*told[:3], model("Done.")), rounds)


def test_a_client_that_is_shown_the_servers_tools_may_tell_of_them() -> None:
    here = stored(
        user("1?"), model("One.", call("c1", a=1)), results_message(result("c1", "x")), model("Two.")
    )
    shown = (user("1?"), model("One.", call("c1", a=1)), result("c1", "x"), model("Two."))
    assert is_same_conversation(shown, here)
    assert is_same_conversation((user("1?"), model("One."), model("Two.")), here)
    assert not is_same_conversation((*shown[:2], result("c1", "x"), model("Zwei.")), here)


def test_of_an_answer_that_is_json_the_last_round_was_shown_alone() -> None:
    question, *answers = stored(
        user("1?"), model("Looking.", call("s1")), results_message(result("s1", "secret")), model('{"a": 1}')
    )
    asked = keep_request_facts(question, RequestFacts(output=OutputFormat()))
    told = (user("1?"), model('{"a": 1}'))
    assert is_same_conversation(told, [asked, *answers])
    assert not is_same_conversation(told, [question, *answers])
    assert not is_same_conversation((user("1?"), model("Looking.")), [asked, *answers])
    calls = stored(user("1?"), model("Wait.", call("c1")))[1:]
    assert is_same_conversation((user("1?"), model(call("c1"))), [asked, *calls])
    assert not is_same_conversation((user("1?"), model(call("c1"))), [question, *calls])


def test_calls_of_the_providers_tools_are_not_shown() -> None:
    searched = ContentPartToolCall(id="p1", name="search", kind="server")
    assert is_same_conversation((user("1?"), model("One.")), stored(user("1?"), model(searched, "One.")))


def test_a_refusal_is_an_answer() -> None:
    said = stored(user("1?"), model(refusal="No."))
    assert is_same_conversation((user("1?"), model(refusal="No.")), said)
    assert is_same_conversation((user("1?"), model("No.")), said)
    assert not is_same_conversation((user("1?"), model("Yes.")), said)


def test_words_of_a_status_may_have_been_shown() -> None:
    said = stored(user("1?"), user("this"))
    assert is_same_conversation((user("1?"), model("which?"), user("this")), said, {"m0": "which?"})
    assert not is_same_conversation((user("1?"), model("what?"), user("this")), said, {"m0": "which?"})
    beside = stored(user("1?"), model("Well."))
    for text in ("Well.", "Well.\n\nwhich?"):
        assert is_same_conversation((user("1?"), model(text)), beside, {"m1": "which?"})


def test_texts_of_several_messages_are_told_apart() -> None:
    one = stored(user("a", "b"))
    assert is_same_conversation((user("a"), user("b")), one)
    assert is_same_conversation((user("a\n\nb"),), one)
    assert not is_same_conversation((user("ab"),), one)
