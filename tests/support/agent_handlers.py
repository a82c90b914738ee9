"""Agents behind the protocol."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from support.live_server import serving
from support.rounds import model_at
from support.rpc import Rpc, message
from support.upstream import ScriptedUpstream
from tailrace.server import AgentHandler, Settings, Store, create_app
from tailrace.streaming import Agent
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI
from tailrace.streaming.conversion.message_conversion import to_common_message
from tailrace.wrappers import Message, Role


async def weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


@asynccontextmanager
async def agent_at(
    upstream: ScriptedUpstream,
    store: str = "sqlite://",
    *,
    tools: Any = (weather,),
    merge_reads: bool = True,
    **settings: Any,
) -> AsyncGenerator[Rpc]:
    agent: Agent[str] = Agent(
        model_at(upstream), tools=tools, instructions="Be brief.", merge_reads=merge_reads
    )
    app = create_app(Settings(store=store, **settings), handler=AgentHandler(agent))
    async with serving(app) as url, Rpc(url) as rpc:
        yield rpc


def asking(text: str, context_id: str = "c", **facts: Any) -> dict[str, Any]:
    """Return the params of a send with options beyond its message."""
    return {**message(text, contextId=context_id), "metadata": {EXTENSION_URI: facts}}


def artifacts_of(task: dict[str, Any]) -> dict[str, list[Any]]:
    """Return the text or data of a task's artifacts, by id."""
    return {
        each["artifactId"]: [part.get("text", part.get("data")) for part in each["parts"]]
        for each in task.get("artifacts", [])
    }


def state_of(task: dict[str, Any]) -> str:
    return task["status"]["state"].removeprefix("TASK_STATE_")


async def conversation(file: Path, context_id: str = "c") -> list[Message]:
    store = Store(f"sqlite:///{file}")
    await store.open()
    try:
        return [to_common_message(entry) for entry in await store.load_conversation(context_id, "", 100)]
    finally:
        await store.close()


def outline(messages: list[Message]) -> list[tuple[Role, Any]]:
    """Return roles, texts, and ids of calls and results of a conversation."""
    return [
        (each.role, each.text or [part.id for part in (*each.tool_calls, *each.tool_results)])
        for each in messages
    ]
