"""The message of a complete response."""

from support.deltas import end, say, think
from tailrace.wrappers import ContentPartReasoning, ContentPartText, Message, Role
from tailrace.wrappers.assembly.folding import fold_message


def test_all_choices_are_one_answer_unless_one_is_selected() -> None:
    wrappers = [think("hm"), say("a"), say("b", 1), end(), end(choice=1)]
    assert fold_message(wrappers).text == "ab"
    assert fold_message(wrappers, choice=1) == Message(
        role=Role.MODEL, content=(ContentPartText(text="b"),), metadata={"finish_reason": "stop"}
    )
    assert fold_message(wrappers, choice=2) == Message(role=Role.MODEL)


def test_tags_separate_reasoning_from_text_unless_disabled() -> None:
    wrappers = [say("<think>hm</think>a")]
    assert fold_message(wrappers).content == (ContentPartReasoning(text="hm"), ContentPartText(text="a"))
    assert fold_message(wrappers, think_tags=False).text == "<think>hm</think>a"


def test_nothing_is_an_empty_message() -> None:
    assert fold_message([]) == Message(role=Role.MODEL)
