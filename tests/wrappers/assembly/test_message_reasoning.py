"""Reasoning in tags at the start of a response is separated during assembly, and nothing else changes."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.deltas import Delta, call, end, refuse, say, think
from tailrace.wrappers import (
    Change,
    Channel,
    ChunkDetails,
    ContentPartFile,
    ContentPartReasoning,
    ContentPartText,
    MessageAssembly,
)
from tailrace.wrappers.chunks import BlockDelta


def assemble(*deltas: Delta, think_tags: bool = True) -> MessageAssembly:
    assembly = MessageAssembly(think_tags=think_tags)
    for delta in deltas:
        assembly.add(delta)
    assembly.close()
    return assembly


def changes_of(*deltas: Delta, think_tags: bool = True) -> list[Change]:
    assembly = MessageAssembly(think_tags=think_tags)
    return [change for delta in deltas for change in assembly.add(delta)] + assembly.close()


def test_an_answer_that_begins_with_a_think_tag_is_split() -> None:
    deltas = [say("<th"), say("ink>hm"), say("m</think>"), say("\nyes"), end()]
    assembly = assemble(*deltas)
    assert (assembly.reasoning, assembly.text) == ("hmm", "yes")
    assert [part.type for part in assembly.message().content] == ["reasoning", "text"]
    assert changes_of(*deltas) == [
        Change(Channel.REASONING, 0, "hm"),
        Change(Channel.REASONING, 0, "m"),
        Change(Channel.TEXT, 0, "yes"),
    ]


def test_think_tags_are_text_if_the_operator_configures_it() -> None:
    deltas = [say("<th"), say("ink>hm"), say("m</think>"), say("\nyes"), end()]
    assert assemble(*deltas, think_tags=False).text == "<think>hmm</think>\nyes"
    assert changes_of(*deltas, think_tags=False)[0] == Change(Channel.TEXT, 0, "<th")


def test_an_answer_that_ends_within_a_tag_loses_nothing() -> None:
    assert assemble(say("<thi")).text == "<thi"
    assert assemble(say("<think>a</th")).reasoning == "a</th"


def test_think_tags_split_text_with_halves_of_characters() -> None:
    assembly = assemble(say("<think>\ud83d"), say("\ude00</think>\ud83d"), say("\ude00"))
    assert (assembly.reasoning, assembly.text) == ("😀", "😀")


SOMETHING_ELSE: dict[str, Delta] = {
    "reasoning": think("hm"),
    "a refusal": refuse("no"),
    "a tool call": call("{}", index=0, id="a", name="f"),
    "a file": Delta(None, 0, ChunkDetails(parts=[ContentPartFile(data=b"a")])),
    "an encrypted block": Delta(None, 0, ChunkDetails(block=BlockDelta("reasoning", signature="S"))),
}


@pytest.mark.parametrize("other", SOMETHING_ELSE.values(), ids=SOMETHING_ELSE.keys())
def test_a_tag_behind_anything_else_is_text(other: Delta) -> None:
    assembly = assemble(other, say("<think>a</think>b"))
    assert assembly.text == "<think>a</think>b"


@pytest.mark.parametrize("held", ["\n", "<thi"])
@pytest.mark.parametrize("other", SOMETHING_ELSE.values(), ids=SOMETHING_ELSE.keys())
def test_what_begins_no_tag_is_shown_as_soon_as_that_is_known(other: Delta, held: str) -> None:
    assembly = MessageAssembly()
    assert assembly.add(say(held)) == []
    assert assembly.add(other)[0] == Change(Channel.TEXT, 0, held)
    assert assembly.message().content[0] == ContentPartText(text=held)
    assert MessageAssembly().add(say(" \nyes")) == [Change(Channel.TEXT, 0, " \nyes")]


def test_reasoning_in_tags_may_be_interrupted() -> None:
    assembly = assemble(say("<think>a "), call("{}", index=0, id="i", name="f"), say("b</think>c"))
    assert (assembly.reasoning, assembly.text) == ("a b", "c")


def test_facts_about_the_text_stay_with_it_when_reasoning_is_taken_out_of_it() -> None:
    facts = ChunkDetails(block=BlockDelta("text", starts_block=True, metadata={"p": {"id": "x"}}))
    for deltas in (
        [Delta(None, 0, facts), say("<think>a</think>"), say("b")],
        [Delta(None, 0, facts, text="<think>a</think>b")],
    ):
        assert assemble(*deltas).message().content == (
            ContentPartReasoning(text="a"),
            ContentPartText(text="b", metadata={"p": {"id": "x"}}),
        )
    silent = ContentPartText(text="", metadata={"p": {"id": "x"}})
    assert assemble(Delta(None, 0, facts)).message().content == (silent,)
    assert assemble(Delta(None, 0, facts), think("a")).message().content == (
        silent,
        ContentPartReasoning(text="a"),
    )


words = st.text(alphabet="ab <>/think😀\ud83d\ude00", max_size=6)
deltas = st.one_of(
    st.builds(say, words),
    st.builds(think, words),
    st.builds(refuse, words),
    st.builds(call, st.sampled_from(["", "{}"]), index=st.integers(0, 1)),
    st.just(Delta(None, 0, ChunkDetails(parts=[ContentPartFile(data=b"a")]))),
)


@given(stream=st.lists(deltas, max_size=8))
def test_an_answer_that_does_not_begin_with_a_tag_is_the_same_either_way(stream: list[Delta]) -> None:
    changes = changes_of(*stream, think_tags=False)
    begin = itertools.takewhile(lambda change: change.channel is Channel.TEXT, changes)
    if "".join(change.text for change in begin).lstrip().startswith("<think>"):
        return
    assert assemble(*stream).message() == assemble(*stream, think_tags=False).message()
    assert joined(changes_of(*stream)) == joined(changes)


def joined(changes: list[Change]) -> list[tuple[Channel, int, str]]:
    """Changes, with consecutive ones of one channel joined."""
    runs = itertools.groupby(changes, lambda change: (change.channel, change.call))
    return [(channel, at, "".join(change.text for change in run)) for (channel, at), run in runs]
