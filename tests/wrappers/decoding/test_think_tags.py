"""Reasoning between ``<think>`` tags is separated from the text, wherever the text is cut."""

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.wrappers.decoding.think_tags import ThinkTagSplitter

Parts = tuple[str, str]


def split(pieces: Iterable[str]) -> Parts:
    """Reasoning and text of a response in these pieces."""
    splitter = ThinkTagSplitter()
    found = [part for piece in pieces for part in splitter.feed(piece)] + splitter.close()
    assert all(text for _, text in found)
    assert not splitter.holding
    return (
        "".join(text for channel, text in found if channel == "reasoning"),
        "".join(text for channel, text in found if channel == "text"),
    )


CASES: dict[str, tuple[str, Parts]] = {
    "a block and a text": ("<think>hm</think>yes", ("hm", "yes")),
    "white space before the tag": (" \n<think>hm</think>yes", ("hm", "yes")),
    "white space next to the tags": ("<think>\nhm hm\n</think>\n\nyes\n", ("hm hm", "yes\n")),
    "an empty block": ("<think>\n\n</think>\n\nyes", ("", "yes")),
    "a block without a text": ("<think>hm</think>\n", ("hm", "")),
    "no tag": ("yes <b>", ("", "yes <b>")),
    "no tag, white space preserved": (" \n yes", ("", " \n yes")),
    "a tag that is not at the start": ("So: <think>hm</think>", ("", "So: <think>hm</think>")),
    "a second block": ("<think>a</think>b<think>c</think>", ("a", "b<think>c</think>")),
    "a tag within the block": ("<think>a<think>b</think>c", ("a<think>b", "c")),
    "similar text before the closing tag": ("<think>a</thin></ think></think>c", ("a</thin></ think>", "c")),
    "the beginning of a closing tag before it": ("<think>a</th</think>c", ("a</th", "c")),
    "an unclosed tag": ("<think>hm </thi", ("hm </thi", "")),
    "half an opening tag": ("<thi", ("", "<thi")),
    "another tag": ("<thinking>hm", ("", "<thinking>hm")),
    "nothing": ("", ("", "")),
    "only white space": (" \n", ("", " \n")),
}


@pytest.mark.parametrize(("answer", "parts"), CASES.values(), ids=CASES.keys())
def test_the_parts_are_the_same_wherever_the_text_is_cut(answer: str, parts: Parts) -> None:
    assert split([answer]) == parts
    assert split(answer) == parts
    for position in range(len(answer) + 1):
        assert split([answer[:position], "", answer[position:]]) == parts


pieces_of_answers = st.lists(
    st.sampled_from(["<think>", "</think>", "<", "</th", "ink>", " ", "\n", "a", "é"])
)


@given(pieces=pieces_of_answers)
@settings(deadline=None)
def test_any_cut_gives_the_same_and_nothing_but_tags_and_white_space_is_lost(pieces: list[str]) -> None:
    answer = "".join(pieces)
    reasoning, text = split(pieces)
    assert (reasoning, text) == split([answer])
    kept = "".join((reasoning + text).split())
    given_text = "".join(answer.split())
    if "".join(pieces).lstrip().startswith("<think>"):
        given_text = given_text.replace("<think>", "", 1)
        given_text = given_text.replace("</think>", "", 1) if "</think>" in answer else given_text
    assert kept == given_text


def test_text_is_given_back_as_soon_as_it_is_certain() -> None:
    splitter = ThinkTagSplitter()
    assert splitter.feed("<thi") == []
    assert splitter.holding
    assert splitter.undecided
    assert splitter.feed("nk>so ") == [("reasoning", "so")]
    assert splitter.feed("it is</") == [("reasoning", " it is")]
    assert (splitter.done, splitter.undecided) == (False, False)
    assert splitter.feed("think>ye") == [("text", "ye")]
    assert splitter.done
    assert splitter.feed("s") == [("text", "s")]
    assert splitter.feed("") == []


def test_an_answer_without_a_tag_is_done_with_its_first_letter() -> None:
    splitter = ThinkTagSplitter()
    assert splitter.feed("H") == [("text", "H")]
    assert splitter.done


def test_white_space_without_end_is_held_in_pieces() -> None:
    splitter = ThinkTagSplitter()
    splitter.feed("<think>a")
    assert [splitter.feed("\n") for _ in range(3)] == [[], [], []]
    assert splitter.feed("b") == [("reasoning", "\n\n\nb")]
