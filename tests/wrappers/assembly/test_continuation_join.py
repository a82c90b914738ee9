"""The join of a text with its continuation: repeated characters are removed, and no others."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.wrappers.assembly.continuation_join import MIN_REPEATED, TextJoin


def joined(text: str, *pieces: str, **kinds: bool) -> str:
    join = TextJoin(text, **kinds)
    return text + "".join([*map(join.feed, pieces), join.close()])


@pytest.mark.parametrize(
    ("text", "continuation", "whole"),
    [
        # A partial word, white space at the cut, and Markdown.
        ("The sky is bl", "ue.", "The sky is blue."),
        ("The sky ", " is blue.", "The sky  is blue."[:8] + "is blue."),
        ("The sky ", "is blue.", "The sky is blue."),
        ("Rivers:\n\n", "\n\n- Rhine", "Rivers:\n\n- Rhine"),
        ("Rivers:\n", "\n\n- Rhine", "Rivers:\n\n- Rhine"),
        ("**bo", "ld**", "**bold**"),
        ("```python\nprint(", "1)\n```", "```python\nprint(1)\n```"),
        ("水の流", "れ", "水の流れ"),
        # The complete text, the last line and the last sentence are repeated.
        ("A long answer about rivers", "A long answer about rivers and seas", "A long answer about rivers and seas"),
        ("# Rivers\n\nThe longest of them is", "The longest of them is the Nile", "# Rivers\n\nThe longest of them is the Nile"),
        ("They flow. The longest of them is", "The longest of them is the Nile", "They flow. The longest of them is the Nile"),
        ("They flow. The longest of them is ", "The longest of them is the Nile", "They flow. The longest of them is the Nile"),
        # Short repetitions may be meant.
        ("ha ", "ha ha", "ha ha ha"),
        ("1", "1 apples", "11 apples"),
        ("one two three four one two ", "three four", "one two three four one two three four"),
        # What only begins like a repetition is kept.
        ("They flow. The longest of them is", "The longest of all", "They flow. The longest of them isThe longest of all"),
        ("The sky", "", "The sky"),
        ("The sky  ", " ", "The sky  "),
    ],
)  # fmt: skip
def test_a_continuation_is_joined(text: str, continuation: str, whole: str) -> None:
    assert joined(text, continuation) == whole
    assert joined(text, *continuation) == whole


def test_a_server_that_returns_the_prefix_may_return_a_short_one() -> None:
    assert joined("ha", "ha", " ha", has_prefix=True) == "ha ha"
    assert joined("ha", "ha ha") == "haha ha"


def test_a_server_that_continues_exactly_repeats_lines_on_purpose() -> None:
    line = "print('hello, world and rivers')"
    assert joined(line, line, is_exact=True) == line * 2
    assert joined(f"{line} ", f" {line}", is_exact=True) == f"{line} {line}"


@given(st.text(max_size=60), st.text(max_size=60), st.data())
def test_pieces_do_not_matter(text: str, continuation: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(continuation)), max_size=5)))
    bounds = [0, *cuts, len(continuation)]
    pieces = [continuation[a:b] for a, b in pairwise(bounds)]
    assert joined(text, *pieces) == joined(text, continuation)


@given(st.text(max_size=200))
def test_a_returned_prefix_of_any_text_is_removed(text: str) -> None:
    sent = text.rstrip()
    if len(sent) >= MIN_REPEATED:
        assert joined(text, sent, "!") == f"{text}!"
