"""The server with OpenAI's own client for its OpenAI-compatible API."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import openai
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from support.live_server import serving
from support.rpc import Rpc, message
from support.upstream import ScriptedUpstream
from tailrace.server import Bounds, Settings, create_app
from tailrace.server.runtime.agent_handler import AgentHandler
from tailrace.server.runtime.handlers import Handler, HandlerFunction
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
"""The same tool in the form that the client's stream helper requires."""


@dataclass
class Facade:
    """A server and a client of its OpenAI-compatible API.

    Attributes:
        url: The server's base URL.
        client: OpenAI's client, without retries.
        model: The requested model name.
    """

    url: str
    client: openai.AsyncOpenAI
    model: str = MODEL

    def as_caller(self, key: str) -> "Facade":
        """Return the same server with the client of another caller."""
        return Facade(self.url, self.client.with_options(api_key=key), self.model)

    async def chat(self, *messages: Any, **options: Any) -> ChatCompletion:
        """Return a complete response."""
        completion, *_ = await self.chat_named(*messages, **options)
        return completion

    async def chat_named(self, *messages: Any, **options: Any) -> tuple[ChatCompletion, str, str]:
        """Return a complete response, the conversation's id, and the task's id."""
        create: Any = self.client.chat.completions.with_raw_response.create
        raw = await create(model=self.model, messages=list(messages), **options)
        return raw.parse(), raw.headers["x-conversation-id"], raw.headers["x-task-id"]

    async def stream(
        self, *messages: Any, **options: Any
    ) -> tuple[openai.AsyncStream[ChatCompletionChunk], str]:
        """Return a streamed response and the task's id."""
        create: Any = self.client.chat.completions.with_raw_response.create
        raw = await create(model=self.model, messages=list(messages), stream=True, **options)
        return raw.parse(), raw.headers.get("x-task-id", "")

    async def chunks(
        self,
        *messages: Any,
        seen: Callable[[list[ChatCompletionChunk]], object] | None = None,
        **options: Any,
    ) -> list[ChatCompletionChunk]:
        """Return the chunks of a streamed response.

        Args:
            messages: The conversation.
            seen: Called after each chunk with all chunks so far.
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
    user_is_key: bool = False,
    **settings: Any,
) -> AsyncGenerator[Facade]:
    """Run a server with a scripted provider or a handler, and a client.

    Args:
        upstream: The provider.
        handler: Replaces the model.
        tools: The tools of the agent.
        key: The client's API key.
        user_is_key: As for `create_app`.
        settings: The server's settings.
    """
    given: dict[str, Any] = {"store": "sqlite://", "coalesce": "none", **settings}
    if upstream is not None:
        given |= {"model": f"openai:{MODEL}", "base_url": upstream.base_url, "api_key": "none"}
        bounds: Bounds = given.get("bounds", Bounds())
        given["bounds"] = {"upstream_retries": 0, **bounds.model_dump(exclude_unset=True)}
    if upstream is not None and tools:
        model = ChatCompletionsModel(MODEL, base_url=upstream.base_url, api_key="none", max_retries=0)
        handler = AgentHandler(Agent(model, tools=tools, merge_reads=False))
    app = create_app(Settings.model_validate(given), handler=handler, openai_user_is_key=user_is_key)
    async with serving(app) as url:
        # Reading the certificates of the system would take a third of the time of a test.
        http = openai.DefaultAsyncHttpxClient(verify=False)
        async with openai.AsyncOpenAI(
            base_url=f"{url}/v1", api_key=key, max_retries=0, http_client=http
        ) as client:
            yield Facade(url, client, MODEL if upstream is not None else "tailrace")


async def send_further_message(facade: Facade, response_id: str) -> None:
    """Send an A2A message to the running task of a response."""
    task_id = response_id.removeprefix("resp_").rpartition("_")[0]
    async with Rpc(facade.url) as rpc:
        params = {**message("More?", taskId=task_id), "configuration": {"returnImmediately": True}}
        sent_to = await rpc.result("SendMessage", params)
    assert sent_to["task"]["status"]["state"] == "TASK_STATE_WORKING"


def user(content: Any) -> dict[str, Any]:
    """A user message."""
    return {"role": "user", "content": content}


def assistant(completion: ChatCompletion) -> dict[str, Any]:
    """A response as a client adds it to the conversation."""
    return completion.choices[0].message.model_dump(exclude_none=True)


def tool(call_id: str, content: str) -> dict[str, Any]:
    """The result of a client tool."""
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def content_of(chunks: Sequence[ChatCompletionChunk]) -> list[str]:
    """The deltas of the text."""
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    return [choice.delta.content for choice in choices if choice.delta.content]
