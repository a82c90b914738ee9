"""``python -m benchmarks.agent_rounds``: cost of an agent's loop, without the model and the tools.

The model replays decoded chunks, and the tool does nothing, so that only the loop is measured.
"""

import asyncio
import gc
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from tailrace.streaming.agent.agent import Agent
from tailrace.streaming.turn_accumulator import TurnAccumulator
from tailrace.wrappers import ChunkWrapper, ContentPartText, History, HistoryConverter, Message, Role
from tailrace.wrappers.model import ChunkBatches, Model
from tailrace.wrappers.openai import ChatCompletionsDecoder, OpenAIConverter
from tailrace.wrappers.request_options import NO_OPTIONS, RequestOptions

MAX_MILLISECONDS = 1.0
"""Bound on the CPU time of one round of an agent, without model and tools."""

ROUNDS = 20
CHUNKS = 2000
_LONG = 400  # messages of a long conversation
_REPEATS = 15

Chunks = Sequence[ChunkWrapper[Any]]


@dataclass(frozen=True, slots=True)
class Costs:
    """The measured costs: the lowest of all repeats.

    Attributes:
        round: ms of a round with two tool calls, in a new conversation.
        long_round: ms of a round after a history of 400 messages.
        chunk: µs of one more chunk in `Agent.steps`.
        stream_chunk: µs of one more chunk in `Agent.run_stream`.
        folded_chunk: µs of the same chunk in `TurnAccumulator.add` alone.
    """

    round: float
    long_round: float
    chunk: float
    stream_chunk: float
    folded_chunk: float


class ReplayingModel(Model):
    """A model that replays prepared responses, one per request."""

    provider = "replayed"
    name = "replayed"

    def __init__(self, answers: Sequence[Sequence[Chunks]]) -> None:
        self._answers = iter(answers)

    @property
    def converter(self) -> HistoryConverter[Any, Any]:
        """The converter of Chat Completions, which is not called."""
        return OpenAIConverter()

    @asynccontextmanager
    async def stream(
        self, history: History, options: RequestOptions = NO_OPTIONS
    ) -> AsyncGenerator[ChunkBatches]:
        """Return the next response."""
        yield self._batches(next(self._answers))

    async def _batches(self, answer: Sequence[Chunks]) -> AsyncGenerator[Chunks]:
        for chunks in answer:
            yield chunks

    async def aclose(self) -> None:
        """Do nothing: no connection is open."""


def costs(repeats: int = _REPEATS) -> Costs:
    prompt = _message(Role.USER, "What is the weather in NYC and in Rome?")
    earlier = [_message(role, "words " * 40) for _ in range(_LONG // 2) for role in (Role.USER, Role.MODEL)]
    rounds = [list(_calling(number)) for number in range(ROUNDS)]
    text = list(_text_chunks(CHUNKS))
    per_round = 1000 * (ROUNDS + 1)  # the last response is a round, too
    return Costs(
        round=_best(repeats, lambda: _answer([*rounds, text[:1] + text[-1:]], prompt)) / per_round,
        long_round=_best(repeats, lambda: _answer([*rounds, text[:1] + text[-1:]], prompt, earlier))
        / per_round,
        chunk=_best(repeats, lambda: _steps(text, prompt)) / CHUNKS,
        stream_chunk=_best(repeats, lambda: _stream(text, prompt)) / CHUNKS,
        folded_chunk=_best(repeats, lambda: _fold(text, prompt)) / CHUNKS,
    )


async def _lookup(city: str) -> str:
    """The weather of a city."""
    return city


async def _answer(
    answers: Sequence[Sequence[Chunks]], prompt: Message, history: Sequence[Message] = ()
) -> None:
    agent: Agent[str] = Agent(ReplayingModel(answers), tools=[_lookup])
    result = await agent.run(prompt, history=history)
    assert len(result.messages) == 2 * len(answers), "every round has run its tools"
    assert not any(each.is_error for message in result.messages for each in message.tool_results)


async def _steps(text: Sequence[Chunks], prompt: Message) -> None:
    agent: Agent[str] = Agent(ReplayingModel([text]))
    turn = agent.create_accumulator(History(), prompt)
    async with aclosing(agent.steps(turn)) as steps:
        async for _ in steps:
            pass


async def _stream(text: Sequence[Chunks], prompt: Message) -> None:
    agent: Agent[str] = Agent(ReplayingModel([text]))
    async with aclosing(agent.run_stream(prompt)) as results:
        async for _ in results:
            pass


async def _fold(text: Sequence[Chunks], prompt: Message) -> None:
    turn = TurnAccumulator(prompt)
    for chunks in text:
        for chunk in chunks:
            turn.add(chunk)
    turn.end_response()


def _best(repeats: int, work: Callable[[], Awaitable[None]]) -> float:
    """Return the lowest CPU time of all repeats, in µs."""

    async def measure() -> float:
        best = float("inf")
        for _ in range(repeats):
            gc.collect()
            begin = time.process_time_ns()
            await work()
            best = min(best, (time.process_time_ns() - begin) / 1000)
        return best

    return asyncio.run(measure())


def _message(role: Role, words: str) -> Message:
    return Message(role=role, content=(ContentPartText(text=words),))


def _calling(number: int) -> Iterator[Chunks]:
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": "I look."}]
    for index, city in enumerate(("NYC", "Rome")):
        function = {"name": "_lookup", "arguments": json.dumps({"city": city})}
        deltas.append(
            {"tool_calls": [{"index": index, "id": f"call-{number}-{index}", "function": function}]}
        )
    return _decoded(deltas, "tool_calls")


def _text_chunks(count: int) -> Iterator[Chunks]:
    return _decoded([{"content": "word"}] * count, "stop")


def _decoded(deltas: Sequence[dict[str, Any]], finish: str) -> Iterator[Chunks]:
    decoder = ChatCompletionsDecoder()
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    chunks: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas
    ]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}], "usage": usage})
    for chunk in chunks:
        yield decoder.feed(b"data: " + json.dumps({"id": "c", **chunk}).encode() + b"\n\n")


def main(
    repeats: Annotated[
        int, typer.Option(min=1, help="Repeats of each measurement; the lowest figure counts.")
    ] = _REPEATS,
    check: Annotated[
        bool, typer.Option("--check", help="Exit status 1 if a round takes more than 1 ms.")
    ] = False,
) -> None:
    """Measure the CPU time of an agent's loop: ms per round, and µs per chunk, without the model and the tools."""
    found = costs(repeats)
    print(f"a round with two calls         {found.round:7.3f} ms")
    print(f"… behind 400 messages          {found.long_round:7.3f} ms")
    print(f"a chunk, Agent.steps           {found.chunk:7.2f} µs")
    print(f"a chunk, Agent.run_stream      {found.stream_chunk:7.2f} µs")
    print(f"a chunk, TurnAccumulator.add   {found.folded_chunk:7.2f} µs")
    if check and max(found.round, found.long_round) > MAX_MILLISECONDS:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
