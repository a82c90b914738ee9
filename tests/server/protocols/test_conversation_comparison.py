"""Comparison of a client's conversation with the stored one."""

from typing import Any

import pytest

from tailrace.server.protocols.conversation_comparison import is_same_conversation
from tailrace.streaming.a2a.models import Message as A2AMessage
from tailrace.streaming.agent.caller_options import CallerOptions, store_caller_options
from tailrace.streaming.conversion.message_conversion import results_message, to_a2a_message
from tailrace.wrappers import (
    ContentPart,
    ContentPartReasoning,
    ContentPartText,
    ContentPartToolCall,
    ContentPartToolResult,
    Message,
    Role,
)
from tailrace.wrappers.request_options import OutputFormat


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


CONVERSATION = (user("1?"), model("One.", call("c1", a=1)), result("c1", "x"), model("Two."), user("3?"))

SAME = {
    "as it was": CONVERSATION,
    "trimmed": (
        user(" 1?\n"),
        model("One.\n", call("c1", a=1)),
        result("c1", "x"),
        model(" Two. "),
        user("3?"),
    ),
    "reasoning": (
        user("1?"),
        model(ContentPartReasoning(text="hm"), "One.", call("c1", a=1)),
        *CONVERSATION[2:],
    ),
    "parted": (user("1?"), model("One."), model(call("c1", a=1)), *CONVERSATION[2:]),
    "an empty answer": (*CONVERSATION[:3], model(), *CONVERSATION[3:]),
    "numbers as JavaScript has them": (user("1?"), model("One.", call("c1", a=1.0)), *CONVERSATION[2:]),
}

OTHER = {
    "nothing": (),
    "less": CONVERSATION[:3],
    "more": (*CONVERSATION, model("Three.")),
    "another question": (user("one?"), *CONVERSATION[1:]),
    "another answer": (*CONVERSATION[:3], model("Zwei."), user("3?")),
    "other arguments": (user("1?"), model("One.", call("c1", a=2)), *CONVERSATION[2:]),
    "another id": (user("1?"), model("One.", call("c2", a=1)), result("c2", "x"), *CONVERSATION[3:]),
    "another result": (*CONVERSATION[:2], result("c1", "y"), *CONVERSATION[3:]),
    "no call": (user("1?"), model("One."), result("c1", "x"), *CONVERSATION[3:]),
}


@pytest.mark.parametrize("name", SAME)
def test_what_is_the_same(name: str) -> None:
    assert is_same_conversation(SAME[name], stored(*CONVERSATION))
    assert is_same_conversation(CONVERSATION, stored(*SAME[name]))


@pytest.mark.parametrize("name", OTHER)
def test_what_is_another(name: str) -> None:
    assert not is_same_conversation(OTHER[name], stored(*CONVERSATION))


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
    request = (user("1?"), model("Looking.", call("c1")), result("c1", "x"), model("Still.\nDone."))
    assert is_same_conversation(request, rounds)
    assert not is_same_conversation((*request[:3], model("Done.")), rounds)


def test_a_client_may_include_the_tools_of_the_server() -> None:
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
    with_facts = store_caller_options(question, CallerOptions(output=OutputFormat()))
    request = (user("1?"), model('{"a": 1}'))
    assert is_same_conversation(request, [with_facts, *answers])
    assert not is_same_conversation(request, [question, *answers])
    assert not is_same_conversation((user("1?"), model("Looking.")), [with_facts, *answers])
    calls = stored(user("1?"), model("Wait.", call("c1")))[1:]
    assert is_same_conversation((user("1?"), model(call("c1"))), [with_facts, *calls])
    assert not is_same_conversation((user("1?"), model(call("c1"))), [question, *calls])


def test_calls_of_the_providers_tools_are_not_shown() -> None:
    searched = ContentPartToolCall(id="p1", name="search", kind="server")
    assert is_same_conversation((user("1?"), model("One.")), stored(user("1?"), model(searched, "One.")))


def test_a_refusal_is_an_answer() -> None:
    recorded = stored(user("1?"), model(refusal="No."))
    assert is_same_conversation((user("1?"), model(refusal="No.")), recorded)
    assert is_same_conversation((user("1?"), model("No.")), recorded)
    assert not is_same_conversation((user("1?"), model("Yes.")), recorded)


def test_words_of_a_status_may_have_been_shown() -> None:
    recorded = stored(user("1?"), user("this"))
    assert is_same_conversation((user("1?"), model("which?"), user("this")), recorded, {"m0": "which?"})
    assert not is_same_conversation((user("1?"), model("what?"), user("this")), recorded, {"m0": "which?"})
    beside = stored(user("1?"), model("Well."))
    for text in ("Well.", "Well.\n\nwhich?"):
        assert is_same_conversation((user("1?"), model(text)), beside, {"m1": "which?"})


def test_separate_texts_differ_from_a_concatenated_one() -> None:
    one = stored(user("a", "b"))
    assert is_same_conversation((user("a"), user("b")), one)
    assert is_same_conversation((user("a\n\nb"),), one)
    assert not is_same_conversation((user("ab"),), one)
