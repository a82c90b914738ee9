"""Responses made of blocks: the content of a block, deltas between blocks, and responses that restart."""

from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.deltas import Delta, call, end, refuse, say, think
from tailrace.wrappers import (
    Change,
    Channel,
    ChunkDetails,
    ContentPart,
    ContentPartData,
    ContentPartFile,
    ContentPartReasoning,
    ContentPartText,
    ContentPartToolCall,
    ContentPartToolResult,
    FinishReason,
    Message,
    MessageAssembly,
)
from tailrace.wrappers.chunks import BlockDelta

IMAGE = ContentPartFile(data=b"\x89PNG", media_type="image/png")
FACTS = ContentPartData(data={"a": 1})


def block(
    channel: Literal["text", "reasoning"],
    text: str = "",
    *,
    starts_block: bool = False,
    signature: str = "",
    metadata: dict[str, Any] | None = None,
) -> Delta:
    """A delta of text or reasoning in a block."""
    details = ChunkDetails(block=BlockDelta(channel, starts_block, signature, metadata))
    if channel == "text":
        return Delta(None, 0, details, text=text)
    return Delta(None, 0, details, reasoning=text)


def opens(channel: Literal["text", "reasoning"], text: str = "") -> Delta:
    return block(channel, text, starts_block=True)


def holding(*parts: ContentPart, text: str = "") -> Delta:
    return Delta(None, 0, ChunkDetails(parts=parts), text=text)


def restart(text: str = "") -> Delta:
    return Delta(None, 0, ChunkDetails(restarts=True), text=text)


def assemble(*deltas: Delta) -> MessageAssembly:
    assembly = MessageAssembly()
    for delta in deltas:
        assembly.add(delta)
    assembly.close()
    return assembly


def content_of(*deltas: Delta) -> tuple[ContentPart, ...]:
    return assemble(*deltas).message().content


# --- blocks -----------------------------------------------------------------------------------------------------


def test_a_new_block_is_not_joined_with_the_one_before() -> None:
    assert content_of(opens("text", "a"), say("b"), opens("text", "c"), opens("text"), say("d")) == (
        ContentPartText(text="ab"),
        ContentPartText(text="c"),
        ContentPartText(text="d"),
    )


def test_text_of_several_blocks_is_one_text_to_read() -> None:
    assert assemble(opens("text", "a"), opens("text", "b")).text == "ab"
    assert assemble(opens("reasoning", "a"), say("x"), opens("reasoning", "b")).reasoning == "ab"


def test_a_block_that_holds_nothing_is_none() -> None:
    assert content_of(opens("text"), opens("reasoning"), opens("text"), end()) == ()
    assert content_of(opens("text"), say("a")) == (ContentPartText(text="a"),)


def test_a_seal_belongs_to_the_latest_block_of_its_channel() -> None:
    assert content_of(
        opens("reasoning", "a"),
        block("reasoning", signature="S1"),
        opens("reasoning", "b"),
        say("answer"),
        block("reasoning", signature="S"),
        block("reasoning", signature="2"),
    ) == (
        ContentPartReasoning(text="a", signature="S1"),
        ContentPartReasoning(text="b", signature="S2"),
        ContentPartText(text="answer"),
    )


def test_a_seal_without_reasoning_is_kept() -> None:
    assert content_of(block("reasoning", starts_block=True, signature="S"), say("a")) == (
        ContentPartReasoning(text="", signature="S"),
        ContentPartText(text="a"),
    )
    assert content_of(block("reasoning", signature="S")) == (ContentPartReasoning(text="", signature="S"),)


def test_two_blocks_of_nothing_but_seals_stay_two() -> None:
    assert content_of(
        block("reasoning", starts_block=True, signature="S"),
        block("reasoning", starts_block=True, signature="T"),
    ) == (ContentPartReasoning(text="", signature="S"), ContentPartReasoning(text="", signature="T"))


def test_metadata_of_a_block_is_merged_into_its_part_by_type() -> None:
    assert content_of(
        block("text", "a", starts_block=True, metadata={"p": {"id": "x", "citations": [1]}}),
        block("text", "b", metadata={"p": {"citations": [2]}}),
        block("text", "c", starts_block=True, metadata={"p": {"id": "y"}}),
    ) == (
        ContentPartText(text="ab", metadata={"p": {"id": "x", "citations": [1, 2]}}),
        ContentPartText(text="c", metadata={"p": {"id": "y"}}),
    )


def test_metadata_that_comes_before_the_text_waits_for_it() -> None:
    assert content_of(block("text", starts_block=True, metadata={"p": 1}), say("a")) == (
        ContentPartText(text="a", metadata={"p": 1}),
    )


def test_facts_of_one_channel_do_not_end_the_block_of_the_other() -> None:
    assert content_of(think("a"), say("b"), block("reasoning", signature="S"), say("c")) == (
        ContentPartReasoning(text="a", signature="S"),
        ContentPartText(text="bc"),
    )


def test_what_is_shown_of_blocks_is_their_text_alone() -> None:
    assembly = MessageAssembly()
    assert assembly.add(block("text", starts_block=True, metadata={"p": 1})) == []
    assert assembly.add(opens("text", "a")) == [Change(Channel.TEXT, 0, "a")]
    assert assembly.add(block("reasoning", signature="S")) == []


# --- complete parts ---------------------------------------------------------------------------------------------


def test_parts_stand_behind_the_text_of_their_delta_and_before_what_follows() -> None:
    assert content_of(say("a"), holding(IMAGE, FACTS, text="b"), say("c"), holding(FACTS), end()) == (
        ContentPartText(text="ab"),
        IMAGE,
        FACTS,
        ContentPartText(text="c"),
        FACTS,
    )


def test_each_part_is_a_change() -> None:
    assembly = MessageAssembly(2)
    delta = Delta(None, 2, ChunkDetails(parts=[IMAGE, FACTS]), text="a")
    assert assembly.add(delta) == [
        Change(Channel.TEXT, 2, "a"),
        Change(Channel.PART, 2, "", part=IMAGE),
        Change(Channel.PART, 2, "", part=FACTS),
    ]


def test_a_part_alone_is_an_answer_that_a_snapshot_does_not_repeat() -> None:
    whole = Delta(None, 0, ChunkDetails(snapshot=True, parts=[IMAGE]), text="a")
    assert content_of(whole) == (ContentPartText(text="a"), IMAGE)
    assert content_of(holding(IMAGE), whole) == (IMAGE,)


# --- tools that the provider runs -------------------------------------------------------------------------------


def test_calls_that_the_provider_runs_do_not_finish_with_tool_calls() -> None:
    search = call("{}", index=0, id="s", name="search", type="server")
    result = holding(ContentPartToolResult(id="s", name="search", output=[1]))
    assembly = assemble(search, result, say("found"), end())
    assert assembly.finish_reason is FinishReason.STOP
    assert [type(part) for part in assembly.message().content] == [
        ContentPartToolCall,
        ContentPartToolResult,
        ContentPartText,
    ]
    assert assembly.message().metadata == {"finish_reason": "stop"}
    assert assembly.tool_calls[0].kind == "server"


def test_a_client_call_beside_a_provider_call_finishes_with_tool_calls() -> None:
    search = call("{}", index=0, id="s", name="search", type="server")
    assert (
        assemble(search, call("{}", index=1, id="f", name="f"), end()).finish_reason
        is FinishReason.TOOL_CALLS
    )


# --- responses that restart -------------------------------------------------------------------------------------


def test_a_restarted_response_discards_the_earlier_content() -> None:
    assembly = MessageAssembly(1)
    before = [
        say("old", 1),
        think("old", 1),
        refuse("old", 1),
        call("{}", index=0, id="a", name="f", choice=1),
        Delta(None, 1, ChunkDetails(parts=[IMAGE], extra={"annotations": [1]})),
        end(FinishReason.LENGTH, 1),
        say("\ud83d", 1),
    ]
    for delta in before:
        assembly.add(delta)
    changes = assembly.add(Delta(None, 1, ChunkDetails(restarts=True, extra={"odd": 1}), text="new"))
    assert changes == [Change(Channel.TEXT, 1, "", restarts=True), Change(Channel.TEXT, 1, "new")]
    assert assembly.message() == Message.model_validate(
        {"role": "model", "content": [{"type": "text", "text": "new"}], "metadata": {"extra": {"odd": 1}}}
    )
    assert assembly.finish is None
    assert assembly.close() == []


def test_a_restart_keeps_the_splitting_of_think_tags() -> None:
    for think_tags, text in ((True, ""), (False, "<think>a")):
        assembly = MessageAssembly(think_tags=think_tags)
        assembly.add(say("b"))
        assembly.add(restart("<think>a"))
        assert assembly.text == text


def test_a_restart_is_reported_even_without_content() -> None:
    assert MessageAssembly().add(restart()) == [Change(Channel.TEXT, 0, "", restarts=True)]


# --- any deltas -------------------------------------------------------------------------------------------------

words = st.sampled_from(["", "a", " ", "<think>", "</think>", "<", "\ud83d", "\ude00"])
deltas = st.one_of(
    st.builds(say, words),
    st.builds(think, words),
    st.builds(
        block,
        st.sampled_from(["text", "reasoning"]),
        words,
        starts_block=st.booleans(),
        signature=st.sampled_from(["", "S"]),
        metadata=st.sampled_from([None, {"p": 1}]),
    ),
    st.builds(holding, st.sampled_from([IMAGE, FACTS]), text=words),
    st.builds(call, st.sampled_from(["", "{}"]), index=st.integers(0, 1)),
    st.builds(restart, words),
)


@given(stream=st.lists(deltas, max_size=10), think_tags=st.booleans())
def test_the_changes_fold_to_the_parts_in_order_for_any_stream(stream: list[Delta], think_tags: bool) -> None:
    assembly = MessageAssembly(think_tags=think_tags)
    changes = [change for delta in stream for change in assembly.add(delta)] + assembly.close()
    shown: list[tuple[str, object]] = []
    for change in changes:
        if change.restarts:
            shown.clear()
        elif change.part is not None:
            shown.append(("part", change.part))
        elif change.channel in (Channel.TEXT, Channel.REASONING):
            if shown and shown[-1][0] == change.channel:
                shown[-1] = (change.channel, str(shown[-1][1]) + change.text)
            else:
                shown.append((change.channel, change.text))
        elif (change.channel, change.call) not in shown:
            shown.append((change.channel, change.call))
    kept: list[tuple[str, object]] = []
    calls = 0
    for part in assembly.message().content:
        if isinstance(part, ContentPartToolCall):
            kept.append((Channel.TOOL_CALL, calls))
            calls += 1
        elif not isinstance(part, ContentPartText | ContentPartReasoning):
            kept.append(("part", part))
        elif part.text:
            channel = Channel.TEXT if isinstance(part, ContentPartText) else Channel.REASONING
            if kept and kept[-1][0] == channel:
                kept[-1] = (channel, str(kept[-1][1]) + part.text)
            else:
                kept.append((channel, part.text))
    assert shown == kept


@given(stream=st.lists(deltas, max_size=10))
def test_blocks_are_the_same_whether_think_tags_are_split_or_not(stream: list[Delta]) -> None:
    if any("<" in delta.text for delta in stream):
        return
    on, off = MessageAssembly(), MessageAssembly(think_tags=False)
    for assembly in (on, off):
        for delta in stream:
            assembly.add(delta)
        assembly.close()
    assert on.message() == off.message()


@pytest.mark.parametrize("think_tags", [True, False])
def test_facts_about_a_block_of_white_space_are_not_lost(think_tags: bool) -> None:
    assembly = MessageAssembly(think_tags=think_tags)
    for delta in (block("text", "\n", starts_block=True, metadata={"p": 1}), say("a")):
        assembly.add(delta)
    assert assembly.message().content == (ContentPartText(text="\na", metadata={"p": 1}),)
