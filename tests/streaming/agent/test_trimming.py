"""The part of a long history that a request contains."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support import strategies
from tailrace.streaming import TokenBudget, keep_all
from tailrace.streaming.agent.trimming import estimate_tokens
from tailrace.wrappers import (
    ContentPartData,
    ContentPartFile,
    ContentPartReasoning,
    ContentPartText,
    ContentPartToolCall,
    ContentPartToolResult,
    History,
    Message,
    Role,
)
from tailrace.wrappers.conversion.tool_matching import unmatched_tools


def message_of(role: Role, text: str) -> Message:
    return Message(role=role, content=(ContentPartText(text=text),))


def user(text: str = "u") -> Message:
    return message_of(Role.USER, text)


def model(text: str = "m", *ids: str) -> Message:
    calls = tuple(ContentPartToolCall(id=id, name="f") for id in ids)
    return Message(role=Role.MODEL, content=(ContentPartText(text=text), *calls))


def tool(*ids: str, role: Role = Role.TOOL) -> Message:
    results = tuple(ContentPartToolResult(id=id, name="f", output="r") for id in ids)
    return Message(role=role, content=results)


def each_one(_: Message) -> int:
    return 1


def kept(history: list[Message], budget: int) -> list[Message]:
    sent = TokenBudget(budget, each_one)(History(conversation=tuple(history)))
    return list(sent.conversation)


U1, U2, U3 = (user(f"u{number}") for number in (1, 2, 3))
M1, M2, M3, M4 = (model(f"m{number}") for number in (1, 2, 3, 4))
A, B, C = model("a", "a"), model("b", "b"), model("c", "c")
RA, RB, RC = tool("a"), tool("b"), tool("c")


def test_everything_is_kept_by_default() -> None:
    history = History(conversation=(U1, M1))
    assert keep_all(history) is history


def test_what_fits_is_the_same_object() -> None:
    history = History(conversation=(U1, M1, U2))
    assert TokenBudget(3, each_one)(history) is history


@pytest.mark.parametrize(
    ("history", "budget", "sent"),
    [
        ([U1, M1, U2, M2, U3], 3, [U2, M2, U3]),
        ([U1, M1, U2, M2, U3], 4, [U2, M2, U3]),
        ([U1, M1, U2, M2, U3], 2, [U3]),
        ([U1, M1, U2, M2, U3], 0, [U3]),
        ([U1, A, RA, M1, U2], 4, [U2]),
        ([U1, A, RA, M1, U2, B, RB], 3, [U2, B, RB]),
        ([U1, A, RA, B, RB, C, RC], 5, [U1, B, RB, C, RC]),
        ([U1, A, RA, B, RB, C, RC], 4, [U1, C, RC]),
        ([U1, A, RA, B, RB, C, RC], 0, [U1, C, RC]),
        ([U1, A, RA, M1, M2, B, RB], 4, [U1, M1, M2, B, RB]),
        ([M1, U1, M2, U2], 3, [U1, M2, U2]),
        ([M1, M2], 1, [M1, M2]),
        ([M1, A, RA, B, RB], 3, [M1, B, RB]),
        ([], 0, []),
        ([U1, A, U2, RA, M1, U3], 4, [U3]),
        ([U1, A, U2, RA, M1], 3, [U1, A, U2, RA, M1]),
        ([U1, A, tool("a", role=Role.USER), M1, U2, M2], 4, [U2, M2]),
        ([U1, A, tool("a", role=Role.USER)], 1, [U1, A, tool("a", role=Role.USER)]),
        ([U1, A, RA, U2, A, RA], 3, [U2, A, RA]),
    ],
    ids=[
        "whole turns, the oldest first",
        "no half a turn",
        "the newest turn alone",
        "the newest turn without room",
        "a turn goes with its round",
        "a round of the newest turn",
        "rounds of the newest turn",
        "its last round",
        "its last round without room",
        "messages that stand together",
        "what the model began with",
        "the model alone",
        "rounds without a user",
        "nothing",
        "results behind another turn",
        "the user spoke before the results",
        "results of the user",
        "results of the user, no room",
        "ids that are repeated",
    ],
)
def test_the_oldest_is_left_out(history: list[Message], budget: int, sent: list[Message]) -> None:
    assert kept(history, budget) == sent


def test_instructions_and_context_are_always_sent_and_count() -> None:
    history = History(system_message="s" * 40, context="c" * 40, conversation=(U1, M1, U2))
    sent = TokenBudget(22, each_one)(history)
    assert sent == history.model_copy(update={"conversation": (U2,)})
    assert TokenBudget(23, each_one)(history) is history


@pytest.mark.parametrize(
    ("part", "tokens"),
    [
        (ContentPartText(text="a" * 40), 10),
        (ContentPartReasoning(text="a" * 40), 10),
        (ContentPartData(data={"a": "b" * 31}), 10),
        (ContentPartFile(data=b"png"), 1000),
        (ContentPartToolCall(id="1", name="f" * 10, arguments={"a": "b" * 21}), 10),
        (ContentPartToolCall(id="1", name="f" * 10, arguments_text="b" * 30), 10),
        (ContentPartToolResult(id="1", name="f", output="a" * 40), 10),
        (ContentPartToolResult(id="1", name="f", output=["a" * 36]), 10),
    ],
    ids=lambda each: getattr(each, "type", ""),
)
def test_tokens_are_estimated(part: Any, tokens: int) -> None:
    assert estimate_tokens(Message(role=Role.USER, content=(part,))) == pytest.approx(4 + tokens, abs=1)


# --- any conversation -------------------------------------------------------------------------------------------

texts = st.text("ab ", max_size=30)


@st.composite
def turns(draw: st.DrawFn) -> list[Message]:
    """The messages of a conversation with an agent; some calls are answered later, by the caller, or never."""
    ids = iter(range(1000))
    messages: list[Message] = []
    for _ in range(draw(st.integers(0, 5))):
        messages.append(user(draw(texts)))
        for _ in range(draw(st.integers(0, 3))):
            calls = [f"call{next(ids)}" for _ in range(draw(st.integers(0, 3)))]
            messages.append(model(draw(texts), *calls))
            while calls and draw(st.integers(0, 5)):
                taken = draw(st.integers(1, len(calls)))
                messages.append(tool(*calls[:taken]))
                calls = calls[taken:]
    return messages


@given(turns(), st.integers(0, 120))
def test_calls_and_results_stay_together_and_the_newest_is_kept(
    conversation: list[Message], budget: int
) -> None:
    whole = History(system_message="be brief", conversation=tuple(conversation))
    sent = TokenBudget(budget)(whole)
    assert sent.system_message == whole.system_message
    # Trimming leaves no further call open, and does not change the remaining messages.
    before = {call.id for call in unmatched_tools(whole).calls}
    after = unmatched_tools(sent)
    assert {call.id for call in after.calls} <= before
    assert not after.results
    places = [conversation.index(message) for message in sent.conversation]
    assert len(places) == len(set(places)) or len(set(map(repr, conversation))) < len(conversation)
    if not conversation:
        return
    assert sent.conversation[-1] == conversation[-1]
    begins = [at for at, message in enumerate(conversation) if message.role is Role.USER]
    assert conversation[begins[-1]] in sent.conversation
    # It is within the budget if the smallest valid history is.
    cost = sum(map(estimate_tokens, sent.conversation)) + len("be brief") // 4
    newest = conversation[begins[-1] :]
    rounds = [
        at
        for at in range(1, len(newest))
        if newest[at].role is Role.MODEL and newest[at - 1].role is not Role.MODEL
    ]
    least = [newest[0], *(newest[rounds[-1] :] if rounds else [])]
    assert cost <= max(budget, sum(map(estimate_tokens, least)) + len("be brief") // 4)


@given(strategies.histories, st.integers(0, 200))
def test_any_history_can_be_trimmed(history: History, budget: int) -> None:
    sent = TokenBudget(budget)(history)
    assert set(map(id, sent.conversation)) <= set(map(id, history.conversation))
    assert json.loads(sent.model_dump_json())
    if history.conversation:
        assert sent.conversation[-1] is history.conversation[-1]
