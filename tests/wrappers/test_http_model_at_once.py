"""Answers whose chunks are taken where they arrive, from a real server: the same as when they are waited for."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.paced import Gate, PacedModel, paced
from support.rounds import answer, model_at
from support.upstream import Cut, Hang, Reset, ScriptedUpstream, Step, openai_chunk, sse
from tailrace.wrappers import (
    ChunkWrapper,
    ContentPartText,
    History,
    Message,
    Role,
    UpstreamError,
    UpstreamFault,
)
from tailrace.wrappers.model import ArrivingBatches
from tailrace.wrappers.openai import OpenAIConverter
from tailrace.wrappers.options import NO_OPTIONS, RequestOptions, ToolDefinition
from tailrace.wrappers.tool_names import ToolNames

HISTORY = History(conversation=(Message(role=Role.USER, content=(ContentPartText(text="Hi"),)),))
WEATHER = ToolDefinition(name="the weather", description="Of a city.")
LARGE = 400  # bytes of an event: more than those of an answer have

Chunks = Sequence[ChunkWrapper[Any]]
Shape = tuple[Any, ...]
Take = Callable[[int], bool]
"""Whether the batch of that number among those offered is taken."""


def every(_: int) -> bool:
    return True


def none(_: int) -> bool:
    return False


def every_other(number: int) -> bool:
    return number % 2 == 0


either = pytest.mark.parametrize("take", [every, none], ids=["taken", "refused"])


@dataclass
class Heard:
    """What came of an answer, in order.

    Attributes:
        batches: All of them: whether each was taken, and its chunks.
        offered: How many were offered to be taken.
        error: What it ended with.
    """

    batches: list[tuple[bool, list[Shape]]] = field(default_factory=list[tuple[bool, list[Shape]]])
    offered: int = 0
    error: BaseException | None = None

    @property
    def chunks(self) -> list[Shape]:
        return [chunk for _, chunks in self.batches for chunk in chunks]

    @property
    def taken(self) -> list[list[Shape]]:
        return [chunks for taken, chunks in self.batches if taken]

    @property
    def texts(self) -> list[str]:
        return ["".join(chunk[0] for chunk in chunks) for _, chunks in self.batches]

    @property
    def ending(self) -> tuple[object, ...]:
        """The error as far as two of them can be compared."""
        error = self.error
        return (type(error), str(error), error.fault if isinstance(error, UpstreamError) else None)


def shape(chunk: ChunkWrapper[Any]) -> Shape:
    error = chunk.details.error if chunk.details is not None else None
    return (
        chunk.get_text(),
        chunk.get_reasoning(),
        chunk.get_tool_calls(),
        chunk.get_finish_message(),
        chunk.get_usage(),
        chunk.raw,
        str(error),
    )


async def hear(
    steps: Sequence[Step],
    take: Take | None = None,
    options: RequestOptions = NO_OPTIONS,
    **settings: Any,
) -> Heard:
    """Ask for an answer that comes as a read a step.

    Args:
        steps: Of the script.
        take: None where nothing is offered to be taken.
        options: Of the request.
        settings: Of the model.
    """
    heard, gate = Heard(), Gate()

    def at_once(chunks: Chunks) -> bool:
        assert take is not None
        assert chunks
        heard.offered += 1
        takes = take(heard.offered - 1)
        if takes:
            heard.batches.append((True, [shape(chunk) for chunk in chunks]))
        return takes

    async with ScriptedUpstream(paced(gate, steps)) as upstream:
        model = PacedModel(upstream, gate, **settings)
        try:
            async with model.stream(HISTORY, options) as batches:
                assert isinstance(batches, ArrivingBatches)
                if take is not None:
                    batches.take_at_once(at_once)
                async for chunks in batches:
                    heard.batches.append((False, [shape(chunk) for chunk in chunks]))
        except Exception as error:
            heard.error = error
        finally:
            await model.aclose()
    return heard


ANSWER = answer("It is ", "wa", "rm.", reasoning="hm", calls=[("w", "the_weather", {"city": "NYC"})])


async def test_an_answer_that_is_taken_is_the_one_that_is_waited_for() -> None:
    waited = await hear(ANSWER)
    taken = await hear(ANSWER, every)
    assert (waited.error, taken.error) == (None, None)
    assert taken.chunks == waited.chunks
    assert len(taken.taken) == len(waited.batches) > 8
    assert taken.texts == waited.texts


async def test_batches_that_are_refused_are_given_to_whoever_waits() -> None:
    waited = await hear(ANSWER)
    for refused in range(len(waited.batches)):
        heard = await hear(ANSWER, lambda number, refused=refused: number != refused)
        assert heard.chunks == waited.chunks
        assert [number for number, (taken, _) in enumerate(heard.batches) if not taken] == [refused]
    heard = await hear(ANSWER, none)
    assert heard.chunks == waited.chunks
    assert heard.offered == len(heard.batches)
    assert not heard.taken


def naming(name: str, call_id: str = "") -> bytes:
    call = {"index": 0, "id": call_id, "type": "function", "function": {"name": name, "arguments": ""}}
    return sse(openai_chunk({"tool_calls": [call]}))


@pytest.mark.parametrize("take", [every, every_other])
async def test_tools_have_their_own_names_in_what_is_taken(take: Take) -> None:
    options = RequestOptions(tools=(WEATHER,))
    sent = ToolNames(OpenAIConverter.name_rule).sent(WEATHER.name)
    calls = [naming(sent[:5], "w"), naming(sent[5:]), naming("")]
    for steps in ([*ANSWER[:2], *calls, *ANSWER[-3:]], [*ANSWER[:2], calls[0], Cut()]):
        waited, heard = await hear(steps, options=options), await hear(steps, take, options)
        assert heard.chunks == waited.chunks
        assert heard.ending == waited.ending
        names = "".join(call.name for chunk in heard.chunks for call in chunk[2])
        assert names == (sent[:5] if heard.error else WEATHER.name)
        assert heard.taken


@pytest.mark.parametrize("number", [0, 1, 3])
@pytest.mark.parametrize(
    "error",
    [ValueError("no"), OSError("no"), TimeoutError(), UpstreamError("no", fault=UpstreamFault.STATUS)],
    ids=repr,
)
async def test_what_is_raised_by_whoever_takes_is_raised_as_it_is(number: int, error: Exception) -> None:
    def fail(offered: int) -> bool:
        if offered == number:
            raise error
        return True

    heard = await hear([*ANSWER[:4], Hang()], fail)
    assert heard.error is error
    assert heard.offered == number + 1
    assert heard.chunks == (await hear(ANSWER)).chunks[:number]


async def test_what_is_raised_by_whoever_takes_wins_over_what_the_rest_of_the_read_would_have_been() -> None:
    error = ValueError("no")

    def fail(offered: int) -> bool:
        if offered == 2:
            raise error
        return True

    large = sse(openai_chunk({"content": "x" * LARGE}))
    heard = await hear([*ANSWER[:2], ANSWER[2] + large, Hang()], fail, max_event_bytes=LARGE)
    assert heard.error is error


@pytest.mark.parametrize("with_others", [True, False])
@either
async def test_an_event_that_is_too_large_ends_it_as_it_does_without(with_others: bool, take: Take) -> None:
    large = sse(openai_chunk({"content": "x" * LARGE}))
    steps = [*ANSWER[:2], ANSWER[2] + large if with_others else large, *ANSWER[3:5]]
    waited = await hear(steps, max_event_bytes=LARGE)
    heard = await hear(steps, take, max_event_bytes=LARGE)
    assert heard.ending == waited.ending
    assert isinstance(heard.error, UpstreamError)
    assert "larger than the allowed" in str(heard.error)
    assert heard.chunks == waited.chunks
    assert len(heard.chunks) == (3 if with_others else 2)


@either
@pytest.mark.parametrize("together", [True, False])
async def test_what_says_that_the_answer_is_over_ends_it_where_it_is_taken(
    together: bool, take: Take
) -> None:
    *before, last, done = answer("Hello")
    heard = await hear([*before, *([last + done] if together else [last, done]), Hang()], take)
    assert heard.error is None
    assert "".join(heard.texts) == "Hello"
    assert heard.chunks == (await hear([*before, last, done])).chunks


@pytest.mark.parametrize("ending", [Cut(), Reset(), Hang()], ids=lambda each: type(each).__name__)
@either
async def test_an_answer_that_breaks_gives_what_was_held_and_then_the_error(ending: Step, take: Take) -> None:
    unfinished = sse(openai_chunk({"content": "held"})).rstrip(b"\n")
    steps = [*answer("It", " is ", finish=None), unfinished, ending]
    waited = await hear(steps, read_timeout=0.2)
    heard = await hear(steps, take, read_timeout=0.2)
    assert heard.ending == waited.ending
    assert isinstance(heard.error, UpstreamError)
    assert heard.chunks == waited.chunks
    assert heard.texts == ["", "It", " is ", "held"]
    assert [taken for taken, _ in heard.batches] == [take(0)] * 3 + [False]


async def test_an_error_that_the_provider_reports_can_be_taken() -> None:
    steps = [*ANSWER[:3], sse({"error": {"message": "overloaded"}}), Cut()]
    waited, heard = await hear(steps), await hear(steps, every)
    assert heard.chunks == waited.chunks
    assert heard.ending == waited.ending
    assert "overloaded" in str(heard.taken[-1])


async def test_chunks_that_were_there_before_anybody_waited_are_given_to_whoever_does() -> None:
    async with ScriptedUpstream([b"".join(ANSWER)]) as upstream:
        model = model_at(upstream)
        taken: list[Chunks] = []
        async with model.stream(HISTORY) as batches:
            assert isinstance(batches, ArrivingBatches)
            first = await anext(batches)
            batches.take_at_once(lambda chunks: not taken.append(chunks))
            rest = [chunk async for chunks in batches for chunk in chunks]
        await model.aclose()
    came = [*first, *(chunk for chunks in taken for chunk in chunks), *rest]
    assert [shape(chunk) for chunk in came] == (await hear(ANSWER)).chunks


RECORDED = b"".join(
    [
        b": keep-alive\n\n",
        *answer(
            "It is ", "wä", "rm.", "\u2028", reasoning="hm", calls=[("w", "the_weather", {"city": "NYC"})]
        ),
    ]
)


@settings(max_examples=40)
@given(
    cuts=st.lists(st.integers(1, len(RECORDED) - 1), max_size=14),
    takes=st.lists(st.booleans(), min_size=1, max_size=5),
    broken=st.booleans(),
    line_end=st.sampled_from([b"\n", b"\r\n"]),
)
async def test_what_is_taken_and_what_is_given_are_the_answer_in_order(
    cuts: list[int], takes: list[bool], broken: bool, line_end: bytes
) -> None:
    body = RECORDED.replace(b"\n", line_end)
    ends = sorted({0, *cuts} | (set() if broken else {len(body)}))
    steps: list[Step] = [body[begin:end] for begin, end in itertools.pairwise(ends)]
    if broken:
        steps.append(Cut())
    waited = await hear(steps)
    heard = await hear(steps, lambda number: takes[number % len(takes)])
    assert heard.chunks == waited.chunks
    assert heard.ending == waited.ending
