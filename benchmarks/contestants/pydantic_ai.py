"""pydantic-ai: `OpenAIChatModel.request_stream` over a client that replays the body."""

import asyncio
from collections.abc import AsyncIterator
from importlib import import_module
from typing import Any

from benchmarks import inputs
from benchmarks.behaviours import Stage
from benchmarks.bodies import Kind
from benchmarks.measure import PulledRun, main

# Installed in its own environment, which the type checker does not see.
httpx2: Any = import_module("httpx2")
openai: Any = import_module("openai")
OpenAIChatModel: Any = import_module("pydantic_ai.models.openai").OpenAIChatModel
OpenAIProvider: Any = import_module("pydantic_ai.providers.openai").OpenAIProvider
ModelRequest: Any = import_module("pydantic_ai.messages").ModelRequest
ModelRequestParameters: Any = import_module("pydantic_ai.models").ModelRequestParameters

_HEADERS = {"content-type": "text/event-stream"}
_PARTS = {Kind.TEXT: "text", Kind.REASONING: "thinking", Kind.CALL: "tool-call"}
_RUNNER = asyncio.Runner()


class AnswerRun(PulledRun):
    """Input: a response of the openai package.

    Output: pydantic-ai's own events, and one response.
    """

    def __init__(self, stream: inputs.Stream) -> None:
        super().__init__(stream)

        def respond(request: object) -> Any:
            return httpx2.Response(200, headers=_HEADERS, content=_reads(stream))

        client = openai.AsyncOpenAI(
            api_key="none",
            base_url="http://replay.invalid/v1",
            http_client=httpx2.AsyncClient(transport=httpx2.MockTransport(respond)),
        )
        model = OpenAIChatModel("gpt-4o", provider=OpenAIProvider(openai_client=client))
        request = [ModelRequest.user_text_prompt("?")]
        self._manager = model.request_stream(request, None, ModelRequestParameters())
        self._streamed = _RUNNER.run(self._manager.__aenter__())

    def pull(self) -> None:
        """Read the events, and keep the resulting response."""
        _RUNNER.run(self._pull())

    async def _pull(self) -> None:
        async for _ in self._streamed:
            pass
        self._response = self._streamed.get()

    def result(self) -> str:
        """Return the contents of the response."""
        wanted = _PARTS[self.stream.shape.kind]
        parts: list[Any] = list(self._response.parts)
        found = [part for part in parts if part.part_kind == wanted]
        return "".join(part.args if wanted == "tool-call" else part.content for part in found)


async def _reads(stream: inputs.Stream) -> AsyncIterator[bytes]:
    for part in stream.parts:
        for data in part.reads:
            yield data


if __name__ == "__main__":
    main("pydantic-ai-slim", {Stage.ANSWER: AnswerRun}, least_chunks=2000)
