"""litellm: its `completion` over a client that replays the body, and `stream_chunk_builder`.

It makes no network requests.
"""

import os
from importlib import import_module
from itertools import chain
from typing import Any

from benchmarks import inputs
from benchmarks.behaviours import Stage
from benchmarks.bodies import Kind
from benchmarks.measure import PulledRun, main

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # otherwise it downloads a price list

# Installed in its own environment, which the type checker does not see.
httpx: Any = import_module("httpx")
litellm: Any = import_module("litellm")
openai: Any = import_module("openai")

_HEADERS = {"content-type": "text/event-stream"}


class AnswerRun(PulledRun):
    """Input: a response of the openai package. Output: litellm's response."""

    def __init__(self, stream: inputs.Stream) -> None:
        super().__init__(stream)
        reads = chain.from_iterable(part.reads for part in stream.parts)

        def respond(request: object) -> Any:
            return httpx.Response(200, headers=_HEADERS, content=reads)

        client = openai.OpenAI(
            api_key="none",
            base_url="http://replay.invalid/v1",
            http_client=httpx.Client(transport=httpx.MockTransport(respond)),
        )
        self._chunks = litellm.completion(
            model="openai/gpt-4o",
            messages=[{"role": "user", "content": "?"}],
            stream=True,
            stream_options={"include_usage": True},
            client=client,
        )

    def pull(self) -> None:
        """Read the chunks into one response."""
        self._response = litellm.stream_chunk_builder(list(self._chunks))

    def result(self) -> str:
        """Return the contents of the response."""
        message = self._response.choices[0].message
        if self.stream.shape.kind is Kind.REASONING:
            return getattr(message, "reasoning_content", "")  # absent without reasoning
        if self.stream.shape.kind is Kind.CALL:
            return message.tool_calls[0].function.arguments
        return message.content or ""


if __name__ == "__main__":
    main("litellm", {Stage.ANSWER: AnswerRun}, least_chunks=1000)
