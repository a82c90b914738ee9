"""Replaceable texts, serialised as append-only text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.server.protocols.parallel_texts import DivergedError, GrowingText
from tailrace.server.protocols.serial_texts import SerialChannel


def test_a_text_that_is_replaced_is_gone_on_with() -> None:
    text = GrowingText()
    text.feed("Hello")
    assert text.pop_new() == "Hello"
    text.feed("", append=False)
    assert text.pop_new() == ""
    text.feed("Hel")
    assert text.pop_new() == ""
    text.feed("He", append=False)
    text.feed("llo you")
    assert text.pop_new() == " you"
    text.check_complete()
    assert text.sent == "Hello you"


@pytest.mark.parametrize("other", ["Jello", "Hallo you"])
def test_a_text_that_is_replaced_by_another_is_an_error(other: str) -> None:
    text = GrowingText()
    text.feed("Hello")
    text.pop_new()
    text.feed(other, append=False)
    with pytest.raises(DivergedError):
        text.pop_new()


def test_a_text_that_is_replaced_by_a_shorter_one_is_an_error_once_it_is_complete() -> None:
    channel = SerialChannel("text", live=True)
    assert channel.feed("a", "Hello", append=False, last=False) == "Hello"
    with pytest.raises(DivergedError):
        channel.feed("a", "Hell", append=False, last=True)


def test_a_text_that_was_not_sent_may_be_replaced() -> None:
    channel = SerialChannel("text", live=True)
    channel.feed("a", "one", append=False, last=False)
    assert channel.feed("b", "two", append=False, last=False) == ""
    assert channel.feed("b", "deux", append=False, last=True) == ""
    assert channel.feed("a", ".", append=True, last=True) == ".\ndeux"


def test_an_artifact_that_was_complete_may_grow_if_nothing_came_behind_it() -> None:
    channel = SerialChannel("text", live=True)
    channel.feed("a", "one", append=False, last=True)
    assert channel.feed("a", " more", append=True, last=True) == " more"
    channel.feed("b", "two", append=False, last=True)
    with pytest.raises(DivergedError):
        channel.feed("a", " again", append=True, last=True)


def test_something_whole_stands_where_the_text_has_come_to() -> None:
    channel = SerialChannel("text", live=True)
    assert channel.add_block("f", "[f]") == "[f]"
    assert channel.feed("a", "one", append=False, last=False) == "\none"
    assert channel.add_block("g", "[g]") == "\n\n[g]\n\n"
    assert channel.feed("a", "two", append=True, last=True) == "two"


STEPS = st.lists(
    st.tuples(st.sampled_from("abc"), st.text("xyz", max_size=3), st.booleans(), st.booleans()), max_size=30
)


@given(STEPS)
def test_what_is_sent_live_is_what_is_there_in_the_end(steps: list[tuple[str, str, bool, bool]]) -> None:
    live, whole = SerialChannel("text", live=True), SerialChannel("text", live=False)
    sent: list[str] = []
    try:
        for artifact_id, text, append, last in steps:
            sent.append(live.feed(artifact_id, text, append=append, last=last))
            assert whole.feed(artifact_id, text, append=append, last=last) == ""
        sent.append(live.close())
    except DivergedError:
        return
    assert "".join(sent) == whole.close()
