"""Agents with a scripted server, and a tool."""

from collections.abc import Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Any

from support.messages import text_part
from support.rounds import Call, model_at
from support.upstream import ScriptedUpstream
from tailrace.streaming import Agent, ChatResult
from tailrace.wrappers import ContentPartToolResult, Message, Role


def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"72°F in {city}"


WEATHER: Call = ("w", "get_weather", {"city": "NYC"})


def user(value: str) -> Message:
    return Message(role=Role.USER, content=(text_part(value),))


def result(id: str, name: str, output: object, *, is_error: bool = False) -> ContentPartToolResult:
    return ContentPartToolResult(id=id, name=name, output=output, is_error=is_error)


def shape(messages: Sequence[Message]) -> list[tuple[str, str, list[str]]]:
    """Role, text, and the ids of calls or results of each message."""
    return [
        (
            message.role.value,
            message.text,
            [part.id for part in (*message.tool_calls, *message.tool_results)],
        )
        for message in messages
    ]


class Upstream(ScriptedUpstream):
    """A scripted upstream, and agents that use it and close before it does."""

    def __init__(self, *scripts: Any) -> None:
        super().__init__(*scripts)
        self._agents: list[Agent[Any]] = []

    def agent(self, *tools: Any, **arguments: Any) -> Agent[Any]:
        made: Agent[Any] = Agent(model_at(self), tools=tools, **arguments)
        self._agents.append(made)
        return made

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in self._agents:
            await each.model.aclose()
        await super().__aexit__(kind, error, trace)


async def streamed(agent: Agent[Any], prompt: Any, **arguments: Any) -> list[ChatResult[str]]:
    async with aclosing(agent.run_stream(prompt, **arguments)) as results:
        return [each async for each in results]


def joined(results: Sequence[ChatResult[str]]) -> tuple[str, str, tuple[Message, ...]]:
    """Output, reasoning and messages of a stream."""
    output = reasoning = ""
    for each in results:
        output = each.output if each.replaces else output + each.output
        reasoning = each.reasoning if each.replaces else reasoning + each.reasoning
    return output, reasoning, tuple(message for each in results for message in each.messages)
