"""Texts that can be replaced, as one text that can only be added to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.server.facade.lanes import DivergedError, GrowingText, Lane


def test_a_text_that_is_replaced_is_gone_on_with() -> None:
    text = GrowingText()
    text.add("Hello")
    assert text.take() == "Hello"
    text.replace("")
    assert text.take() == ""
    text.add("Hel")
    assert text.take() == ""
    text.replace("He")
    text.add("llo you")
    assert text.take() == " you"
    text.check_repeated()
    assert text.sent == "Hello you"


@pytest.mark.parametrize("other", ["Jello", "Hallo you"])
def test_a_text_that_is_replaced_by_another_is_an_error(other: str) -> None:
    text = GrowingText()
    text.add("Hello")
    text.take()
    text.replace(other)
    with pytest.raises(DivergedError):
        text.take()


def test_a_text_that_is_replaced_by_a_shorter_one_is_an_error_once_it_is_complete() -> None:
    lane = Lane(live=True)
    assert lane.take("a", "Hello", append=False, last=False) == "Hello"
    with pytest.raises(DivergedError):
        lane.take("a", "Hell", append=False, last=True)


def test_a_text_that_nobody_was_sent_may_become_another() -> None:
    lane = Lane(live=True)
    lane.take("a", "one", append=False, last=False)
    assert lane.take("b", "two", append=False, last=False) == ""
    assert lane.take("b", "deux", append=False, last=True) == ""
    assert lane.take("a", ".", append=True, last=True) == ".\ndeux"


def test_an_artifact_that_was_complete_may_grow_if_nothing_came_behind_it() -> None:
    lane = Lane(live=True)
    lane.take("a", "one", append=False, last=True)
    assert lane.take("a", " more", append=True, last=True) == " more"
    lane.take("b", "two", append=False, last=True)
    with pytest.raises(DivergedError):
        lane.take("a", " again", append=True, last=True)


def test_something_whole_stands_where_the_text_has_come_to() -> None:
    lane = Lane(live=True)
    assert lane.block("f", "[f]") == "[f]"
    assert lane.take("a", "one", append=False, last=False) == "\none"
    assert lane.block("g", "[g]") == "\n\n[g]\n\n"
    assert lane.take("a", "two", append=True, last=True) == "two"


STEPS = st.lists(
    st.tuples(st.sampled_from("abc"), st.text("xyz", max_size=3), st.booleans(), st.booleans()), max_size=30
)


@given(STEPS)
def test_what_is_sent_live_is_what_is_there_in_the_end(steps: list[tuple[str, str, bool, bool]]) -> None:
    live, whole = Lane(live=True), Lane(live=False)
    sent: list[str] = []
    try:
        for artifact_id, text, append, last in steps:
            sent.append(live.take(artifact_id, text, append=append, last=last))
            assert whole.take(artifact_id, text, append=append, last=last) == ""
        sent.append(live.close())
    except DivergedError:
        return
    assert "".join(sent) == whole.close()
