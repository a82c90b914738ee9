"""langchain-openai: `ChatOpenAI.stream` over a client that replays the body."""

from importlib import import_module
from itertools import chain
from typing import Any

from benchmarks import inputs
from benchmarks.behaviours import Stage
from benchmarks.bodies import Kind
from benchmarks.measure import PulledRun, main

# Installed in its own environment, which the type checker does not see.
httpx2: Any = import_module("httpx2")
ChatOpenAI: Any = import_module("langchain_openai").ChatOpenAI

_HEADERS = {"content-type": "text/event-stream"}


class AnswerRun(PulledRun):
    """Input: a response of the openai package. Output: one `AIMessageChunk`."""

    def __init__(self, stream: inputs.Stream) -> None:
        super().__init__(stream)
        reads = chain.from_iterable(part.reads for part in stream.parts)

        def respond(request: object) -> Any:
            return httpx2.Response(200, headers=_HEADERS, content=reads)

        self._model = ChatOpenAI(
            model="gpt-4o",
            api_key="none",
            base_url="http://replay.invalid/v1",
            http_client=httpx2.Client(transport=httpx2.MockTransport(respond)),
            stream_usage=True,
        )

    def pull(self) -> None:
        """Read and add the chunks."""
        message: Any = None
        for chunk in self._model.stream("?"):
            message = chunk if message is None else message + chunk
        self._message = message

    def result(self) -> str:
        """Return the contents of the message."""
        if self.stream.shape.kind is Kind.CALL:
            return self._message.tool_call_chunks[0]["args"]
        blocks = self._message.content_blocks
        if self.stream.shape.kind is Kind.REASONING:
            return "".join(block["reasoning"] for block in blocks if block["type"] == "reasoning")
        return "".join(block["text"] for block in blocks if block["type"] == "text")


if __name__ == "__main__":
    main("langchain-openai", {Stage.ANSWER: AnswerRun}, least_chunks=1000)
