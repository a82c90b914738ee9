"""Our server with OpenAI's own client at its facade."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import openai
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from support.serving import serving
from support.upstream import ScriptedUpstream
from tailrace.server import Settings, create_app
from tailrace.server.agent_handler import AgentHandler
from tailrace.server.handlers import Handler, HandlerFunction
from tailrace.streaming import Agent
from tailrace.wrappers.openai.model import ChatCompletionsModel

MODEL = "scripted"

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
"""A tool that the client runs."""

STRICT_WEATHER: Any = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
"""The same, as the client's stream helper wants it."""


@dataclass
class Facade:
    """A server, and a client of its facade.

    Attributes:
        url: The server's base URL.
        client: Sends nothing again.
        model: The name that it asks for.
    """

    url: str
    client: openai.AsyncOpenAI
    model: str = MODEL

    def as_caller(self, key: str) -> "Facade":
        """The same for another caller."""
        return Facade(self.url, self.client.with_options(api_key=key), self.model)

    async def chat(self, *messages: Any, **options: Any) -> ChatCompletion:
        """A whole answer."""
        completion, *_ = await self.chat_named(*messages, **options)
        return completion

    async def chat_named(self, *messages: Any, **options: Any) -> tuple[ChatCompletion, str, str]:
        """A whole answer, the conversation's id, and the task's."""
        create: Any = self.client.chat.completions.with_raw_response.create
        raw = await create(model=self.model, messages=list(messages), **options)
        return raw.parse(), raw.headers["x-conversation-id"], raw.headers["x-task-id"]

    async def stream(
        self, *messages: Any, **options: Any
    ) -> tuple[openai.AsyncStream[ChatCompletionChunk], str]:
        """A streamed answer, to be read, and the task's id."""
        create: Any = self.client.chat.completions.with_raw_response.create
        raw = await create(model=self.model, messages=list(messages), stream=True, **options)
        return raw.parse(), raw.headers.get("x-task-id", "")

    async def chunks(
        self,
        *messages: Any,
        seen: Callable[[list[ChatCompletionChunk]], object] | None = None,
        **options: Any,
    ) -> list[ChatCompletionChunk]:
        """The chunks of a streamed answer.

        Args:
            messages: The conversation.
            seen: Called after each chunk with all so far.
            options: Further members of the request.
        """
        stream, _ = await self.stream(*messages, **options)
        found: list[ChatCompletionChunk] = []
        async for chunk in stream:
            found.append(chunk)
            if seen is not None:
                seen(found)
        return found


@asynccontextmanager
async def facade_over(
    upstream: ScriptedUpstream | None = None,
    *,
    handler: Handler | HandlerFunction | None = None,
    tools: Sequence[Any] = (),
    key: str = "none",
    **settings: Any,
) -> AsyncGenerator[Facade]:
    """A server over a scripted provider or a handler, and a client.

    Args:
        upstream: The provider.
        handler: What does the work instead.
        tools: What the agent runs by itself.
        key: The client's.
        settings: Of the server.
    """
    given: dict[str, Any] = {"store": "sqlite://", "coalesce": "none", **settings}
    if upstream is not None:
        given |= {"model": f"openai:{MODEL}", "base_url": upstream.base_url, "api_key": "none"}
        given.setdefault("upstream_retries", 0)
    if upstream is not None and tools:
        model = ChatCompletionsModel(MODEL, base_url=upstream.base_url, api_key="none", max_retries=0)
        handler = AgentHandler(Agent(model, tools=tools, merge_reads=False))
    app = create_app(Settings.model_validate(given), handler=handler)
    async with serving(app) as url:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as client:
            yield Facade(url, client, MODEL if upstream is not None else "tailrace")


def user(content: Any) -> dict[str, Any]:
    """What the user says."""
    return {"role": "user", "content": content}


def assistant(completion: ChatCompletion) -> dict[str, Any]:
    """An answer as a client puts it into the conversation."""
    return completion.choices[0].message.model_dump(exclude_none=True)


def tool(call_id: str, content: str) -> dict[str, Any]:
    """What a tool of the client's answered."""
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def content_of(chunks: Sequence[ChatCompletionChunk]) -> list[str]:
    """The pieces of the text."""
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    return [choice.delta.content for choice in choices if choice.delta.content]
