"""The message of a complete response."""

from support.deltas import end, say, think
from tailrace.wrappers import ContentPartReasoning, ContentPartText, Message, Role
from tailrace.wrappers.assembly.complete_message import assemble_message


def test_all_choices_are_one_answer_unless_one_is_selected() -> None:
    wrappers = [think("hm"), say("a"), say("b", 1), end(), end(choice=1)]
    assert assemble_message(wrappers).text == "ab"
    assert assemble_message(wrappers, choice=1) == Message(
        role=Role.MODEL, content=(ContentPartText(text="b"),), metadata={"finish_reason": "stop"}
    )
    assert assemble_message(wrappers, choice=2) == Message(role=Role.MODEL)


def test_tags_separate_reasoning_from_text_unless_disabled() -> None:
    wrappers = [say("<think>hm</think>a")]
    assert assemble_message(wrappers).content == (ContentPartReasoning(text="hm"), ContentPartText(text="a"))
    assert assemble_message(wrappers, think_tags=False).text == "<think>hm</think>a"


def test_nothing_is_an_empty_message() -> None:
    assert assemble_message([]) == Message(role=Role.MODEL)
