"""Observers of an agent are called for responses and tool calls, and for nothing in between."""

from collections.abc import Generator
from contextlib import aclosing, contextmanager
from types import TracebackType

import anyio
import pytest

from support.rounds import answer, model_at
from support.upstream import Hang, ScriptedUpstream, openai_stream
from tailrace.streaming import Agent
from tailrace.streaming.deprecated.observing import AnswerWatch, CallWatch
from tailrace.streaming.deprecated.observing import RunObserver as FormerRunObserver
from tailrace.streaming.instrumentation import (
    RUN_OBSERVER,
    ResponseObservation,
    RunObserver,
    ToolCallObservation,
)
from tailrace.streaming.turn_accumulator import TurnAccumulator
from tailrace.wrappers import ContentPartToolCall
from tailrace.wrappers.model import REQUEST_HEADERS, Model
from tailrace.wrappers.request_options import RequestOptions


class _Answer(ResponseObservation):
    def __init__(self, diary: list[str], turn: TurnAccumulator) -> None:
        self._diary = diary
        self._turn = turn

    def first_chunk(self) -> None:
        self._diary.append("first chunk")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        how = kind.__name__ if kind else str(self._turn.finish_reason)
        self._diary.append(f"{how} after {self.chunks} chunks")


class _Call(ToolCallObservation):
    def __init__(self, diary: list[str]) -> None:
        self._diary = diary

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._diary.append(f"tool: {self.result.output if self.result else kind}")


class Diary(RunObserver):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def observe_response(
        self, model: Model, options: RequestOptions, turn: TurnAccumulator
    ) -> ResponseObservation:
        self.lines.append(f"asking {model.name}")
        return _Answer(self.lines, turn)

    def observe_call(self, call: ContentPartToolCall) -> ToolCallObservation:
        self.lines.append(f"calling {call.name}")
        return _Call(self.lines)


class FormerDiary(FormerRunObserver):
    """A diary with the names of 0.1."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def answering(self, model: Model, options: RequestOptions, turn: TurnAccumulator) -> AnswerWatch:
        self.lines.append(f"asking {model.name}")
        return _Answer(self.lines, turn)

    def calling(self, call: ContentPartToolCall) -> CallWatch:
        self.lines.append(f"calling {call.name}")
        return _Call(self.lines)


@contextmanager
def observed(observer: type[Diary | FormerDiary] = Diary) -> Generator[list[str]]:
    diary = observer()
    token = RUN_OBSERVER.set(diary)
    try:
        yield diary.lines
    finally:
        RUN_OBSERVER.reset(token)


def double(number: int) -> int:
    return 2 * number


@pytest.mark.parametrize("observer", [Diary, FormerDiary])
async def test_an_observer_receives_each_response_and_call(observer: type[Diary | FormerDiary]) -> None:
    rounds = (answer(calls=[("a", "double", {"number": 21})]), answer("4", "2"))
    with observed(observer) as lines:
        async with ScriptedUpstream(*rounds) as upstream, Agent(model_at(upstream), tools=[double]) as agent:
            assert (await agent.run("?")).output == "42"
    request_lines = ["asking scripted", "first chunk"]
    first = [*request_lines, "tool_calls after 6 chunks", "calling double", "tool: 42"]
    assert lines == [*first, *request_lines, "stop after 5 chunks"]


async def test_an_answer_is_over_when_its_stream_is_closed() -> None:
    with observed() as lines:
        script = [*openai_stream(["half"], finish=None), Hang()]
        async with ScriptedUpstream(script) as upstream, Agent(model_at(upstream)) as agent:
            async with aclosing(agent.run_stream("?")) as results:
                async for _ in results:
                    break
            with anyio.move_on_after(0.05):
                await agent.run("?")
    assert lines[2] == "GeneratorExit after 2 chunks"
    assert lines[-1].startswith("CancelledError")


async def test_headers_reach_the_provider_and_there_is_no_observer_by_default() -> None:
    token = REQUEST_HEADERS.set({"X-Trace": "7"})
    try:
        async with ScriptedUpstream(answer("Hi")) as upstream, Agent(model_at(upstream)) as agent:
            assert (await agent.run("?")).output == "Hi"
            assert (await upstream.received()).headers["x-trace"] == "7"
    finally:
        REQUEST_HEADERS.reset(token)
