"""Steps of an agent's turn that are taken where they arrive: the same, in the same order, as when they are waited for."""

from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.paced import Gate, PacedModel, paced
from support.rounds import Call, answer
from support.upstream import Cut, Hang, ScriptedUpstream, Step, openai_chunk, sse
from tailrace.streaming import Agent
from tailrace.streaming.observing import RUN_OBSERVER, AnswerWatch, RunObserver
from tailrace.streaming.run import Received, ResponseEnded, RoundEnded, ToolEnded
from tailrace.streaming.run import Step as TurnStep
from tailrace.streaming.turn import TurnAccumulator
from tailrace.wrappers import Change, ContentPartText, History, Message, Role
from tailrace.wrappers.model import Model
from tailrace.wrappers.options import RequestOptions

ASKED = Message(role=Role.USER, content=(ContentPartText(text="?"),))
WEATHER: Call = ("w", "get_weather", {"city": "NYC"})


def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"72°F in {city}"


@dataclass
class Ran:
    """What a turn has come to.

    Attributes:
        steps: In order, and whether each was taken.
        turn: Has folded them.
        error: What the steps raised.
        seen: How many chunks an observer was told of, for each answer.
    """

    turn: TurnAccumulator
    steps: list[tuple[bool, TurnStep]] = field(default_factory=list[tuple[bool, TurnStep]])
    error: BaseException | None = None
    seen: list[int] = field(default_factory=list[int])

    @property
    def changes(self) -> list[Change]:
        return [change for _, step in self.steps if isinstance(step, Received) for change in step.changes]

    @property
    def texts(self) -> list[tuple[bool, str]]:
        """Whether it was taken, and the text, of each step that has some."""
        found: list[tuple[bool, str]] = []
        for taken, step in self.steps:
            if isinstance(step, Received):
                text = "".join(change.text for change in step.changes)
                found += [(taken, text)] if text else []
        return found

    @property
    def kinds(self) -> list[str]:
        """What kinds of steps came, in order, those that arrived but once in a row."""
        kinds: list[str] = []
        for _, step in self.steps:
            kind = type(step).__name__
            if kind != "Received" or kinds[-1:] != [kind]:
                kinds.append(kind)
        return kinds


class Taker:
    """Takes what is not refused.

    Args:
        ran: What it took is put here.
        ready: Asked each time.
        then: Called behind each step.
    """

    def __init__(self, ran: Ran, ready: Callable[[], bool], then: Callable[[], None]) -> None:
        self._ran = ran
        self._ready = ready
        self._then = then

    @property
    def ready(self) -> bool:
        return self._ready()

    def take(self, step: Received) -> None:
        self._ran.steps.append((True, step))
        self._then()


class Counter(RunObserver):
    """Watches how many chunks come."""

    def __init__(self) -> None:
        self.watches: list[AnswerWatch] = []

    def answering(self, model: Model, options: RequestOptions, turn: TurnAccumulator) -> AnswerWatch:
        self.watches.append(AnswerWatch())
        return self.watches[-1]


def always() -> bool:
    return True


def nothing() -> None:
    pass


async def run(
    *scripts: Sequence[Step],
    ready: Callable[[], bool] | None = always,
    then: Callable[[], None] = nothing,
    **options: Any,
) -> Ran:
    """Run a turn of an agent whose answers come as a read a step; with ``ready=None`` nobody takes anything."""
    gate, counter = Gate(), Counter()
    token = RUN_OBSERVER.set(counter)
    async with ScriptedUpstream(*(paced(gate, script) for script in scripts)) as upstream:
        agent: Agent[str] = Agent(PacedModel(upstream, gate), tools=[get_weather], **options)
        async with agent:
            turn = agent.begin(History(conversation=(ASKED,)))
            ran = Ran(turn)
            taker = None if ready is None else Taker(ran, ready, then)
            try:
                async with aclosing(agent.steps(turn, taker=taker)) as steps:
                    async for step in steps:
                        ran.steps.append((False, step))
            except Exception as error:
                ran.error = error
    RUN_OBSERVER.reset(token)
    ran.seen = [watch.chunks for watch in counter.watches]
    return ran


def assert_same(one: Ran, other: Ran) -> None:
    assert one.changes == other.changes
    assert one.kinds == other.kinds
    assert one.seen == other.seen
    assert one.turn.messages == other.turn.messages
    assert one.turn.metadata == other.turn.metadata
    assert str(one.turn.error) == str(other.turn.error)


ROUNDS = (
    answer("I ", "look", ". ", reasoning="hm", calls=[WEATHER]),
    answer("It is ", "warm", ".", finish="length"),
)


async def test_what_is_taken_and_what_is_yielded_are_the_turn() -> None:
    waited, ran = await run(*ROUNDS, ready=None), await run(*ROUNDS)
    assert_same(ran, waited)
    assert not any(taken for taken, _ in waited.steps)
    assert ran.texts[:4] == [(True, "hm"), (True, "I "), (True, "look"), (True, ". ")]
    assert ran.texts[-3:] == [(True, "It is "), (True, "warm"), (True, ".")]


async def test_what_is_more_than_text_comes_from_the_generator() -> None:
    ran = await run(*ROUNDS)
    assert ran.kinds == ["Received", "ResponseEnded", "ToolEnded", "RoundEnded", "Received", "ResponseEnded"]
    channels: dict[bool, set[str]] = {True: set(), False: set()}
    for taken, step in ran.steps:
        if isinstance(step, Received):
            channels[taken] |= {change.channel.value for change in step.changes}
        else:
            assert not taken
    assert channels == {True: {"text", "reasoning"}, False: {"tool_call"}}
    assert ran.turn.finish_reason == "length"


async def test_what_comes_when_the_taker_is_not_ready_is_yielded() -> None:
    readiness = iter([True, False, True, False, False])
    script = answer("a", "b", "c", "d", "e")
    ran = await run(script, ready=lambda: next(readiness, True))
    assert_same(ran, await run(script, ready=None))
    assert ran.texts == [(True, "a"), (False, "b"), (True, "c"), (False, "d"), (False, "e")]


async def test_a_taker_that_is_never_ready_takes_nothing() -> None:
    ran = await run(*ROUNDS, ready=lambda: False)
    assert_same(ran, await run(*ROUNDS, ready=None))
    assert not any(taken for taken, _ in ran.steps)


@pytest.mark.parametrize("merge", [True, False])
async def test_a_step_that_is_taken_is_a_read_or_a_chunk(merge: bool) -> None:
    first, a, b, c, *last = answer("a", "b", "c")
    script = [first, a + b + c, *last]
    ran = await run(script, merge_reads=merge)
    assert ran.texts == ([(True, "abc")] if merge else [(True, "a"), (True, "b"), (True, "c")])
    assert_same(ran, await run(script, ready=None, merge_reads=merge))


async def test_a_read_of_more_than_text_is_yielded_whole() -> None:
    first, a, b, *last = answer("a", "b")
    ran = await run([first, a, b + b"".join(last)])
    assert ran.texts == [(True, "a"), (False, "b")]
    assert ran.turn.finish_reason == "stop"


async def test_the_first_read_is_yielded_whatever_it_is() -> None:
    first, a, b, *last = answer("a", "b")
    ran = await run([first + a, b, *last])
    assert ran.texts == [(False, "a"), (True, "b")]


async def test_reasoning_in_tags_is_parted_from_text_that_is_taken() -> None:
    script = answer("<thi", "nk>hm</thi", "nk>H", "i")
    ran = await run(script, think_tags=True)
    assert (ran.turn.output, ran.turn.reasoning) == ("Hi", "hm")
    assert_same(ran, await run(script, think_tags=True, ready=None))
    assert all(taken for taken, _ in ran.texts)


@pytest.mark.parametrize("merge", [True, False])
@pytest.mark.parametrize("number", [1, 2, 3])
async def test_what_the_taker_raises_the_steps_raise(merge: bool, number: int) -> None:
    error, taken = ValueError("the taker's"), list[int]()

    def fail() -> None:
        taken.append(len(taken) + 1)
        if taken[-1] == number:
            raise error

    ran = await run([*answer("a", "b", "c")[:4], Hang()], then=fail, merge_reads=merge)
    assert ran.error is error
    assert taken == list(range(1, number + 1))
    assert ran.texts == [(True, each) for each in "abc"[:number]]


@pytest.mark.parametrize(
    "ending",
    [[Cut()], [sse({"error": {"message": "overloaded"}}), Hang()], [b"data: {\n\n", Cut()]],
    ids=["cut", "reported", "no JSON"],
)
async def test_an_answer_that_fails_ends_the_turn_behind_what_was_taken(ending: list[Step]) -> None:
    script = [*answer("a", "b", finish=None), *ending]
    ran = await run(script)
    assert_same(ran, await run(script, ready=None))
    assert ran.turn.error is not None
    assert ran.error is None
    assert ran.texts == [(True, "a"), (True, "b")]
    assert isinstance(ran.steps[-1][1], ResponseEnded)


async def test_nothing_is_taken_behind_an_error_that_the_provider_reports() -> None:
    script = [
        *answer("a", finish=None),
        sse({"error": {"message": "overloaded"}}),
        sse(openai_chunk({"content": "b"})),
    ]
    ran = await run(script)
    assert_same(ran, await run(script, ready=None))
    assert ran.texts == [(True, "a")]


async def test_tools_run_between_rounds_whose_text_is_taken() -> None:
    ran = await run(*ROUNDS)
    steps = [step for _, step in ran.steps]
    [ended] = [step for step in steps if isinstance(step, ToolEnded)]
    assert ended.result.output == "72°F in NYC"
    assert steps.index(ended) < steps.index(RoundEnded())
    assert not any(taken for taken, step in ran.steps if not isinstance(step, Received))


@settings(max_examples=30)
@given(
    pieces=st.lists(st.text("ab\n", min_size=1, max_size=3), max_size=5),
    calls=st.lists(st.sampled_from([WEATHER, ("x", "nothing", {}), ("y", "get_weather", "{")]), max_size=2),
    together=st.integers(1, 4),
    readiness=st.lists(st.booleans(), min_size=1, max_size=4),
    merge=st.booleans(),
    breaks=st.booleans(),
)
async def test_a_turn_is_the_same_whatever_is_taken(
    pieces: list[str],
    calls: list[Call],
    together: int,
    readiness: list[bool],
    merge: bool,
    breaks: bool,
) -> None:
    events = answer(*pieces, calls=calls, reasoning="hm", finish=None if breaks else "stop")
    reads = [b"".join(events[at : at + together]) for at in range(0, len(events), together)]
    scripts: list[Sequence[Step]] = [[*reads, Cut()] if breaks else reads, answer("Done", ".")]
    asked = 0

    def ready() -> bool:
        nonlocal asked
        asked += 1
        return readiness[asked % len(readiness)]

    ran = await run(*scripts, ready=ready, merge_reads=merge)
    assert_same(ran, await run(*scripts, ready=None, merge_reads=merge))
