"""What the clients speak to: one ``tailrace serve`` process before a model whose answers a test directs."""

import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from support.processes import served
from support.receiver import Receiver, receiving
from support.upstream import (
    Received,
    ScriptedUpstream,
    Step,
    Tell,
    Wait,
    json_answer,
    openai_chunk,
    openai_stream,
    sse,
)

PIECES = (
    "Grüße, ",
    "世界! ",
    "one\u2028two\u2029three\u0085four ",  # what a client's line splitter would cut an event at, were it sent raw
    '"quoted" \\ {"a": 1}\n\ndata: no event\r\n',
    "e\u0301 👩\u200d🚀 ",
    "same ",
    "same ",
    "the end",
)
"""What the model says, a chunk each: text that is easily lost, doubled or cut."""

ANSWER = "".join(PIECES)

FIRST_HALF = "".join(PIECES[:4])

REASONING = "Let me see: 1\u20282"

USAGE = {"prompt_tokens": 7, "completion_tokens": 8, "total_tokens": 15}


class Pause:
    """An answer that stops half-way.

    Args:
        number: Which one it is.
        pieces: What it says.
        first: How many of them come before the stop.

    Attributes:
        prompt: What to say to get it.
        reached: Set when the first half is on its way.
        go_on: Set it, and the rest comes.
        request: What the model was asked; once ``reached`` is set.
    """

    def __init__(self, number: int, pieces: Sequence[str] = PIECES, first: int = 4) -> None:
        self.prompt = f"pause {number}"
        self.reached = anyio.Event()
        self.go_on = anyio.Event()
        self.request: Received | None = None
        self._pieces = pieces
        self._first = first

    def answer(self, request: Received) -> Sequence[Step]:
        """The script."""
        self.request = request
        role, *pieces, finish, usage, done = openai_stream(self._pieces, usage=USAGE)
        half = [role, *pieces[: self._first], Tell(self.reached), Wait(self.go_on)]
        return [*half, *pieces[self._first :], finish, usage, done]


class ScriptedModel:
    """Answers by the newest thing that was said to it.

    ``weather`` calls a tool, ``think`` reasons first, ``fail`` is refused, the prompt of a `Pause` does as that says;
    whatever else is answered with `ANSWER`, and a tool's output with a sentence about it.
    """

    def __init__(self) -> None:
        self._pauses: dict[str, Pause] = {}

    def pause(self, pieces: Sequence[str] = PIECES, first: int = 4) -> Pause:
        """Another answer that stops half-way."""
        pause = Pause(len(self._pauses) + 1, pieces, first)
        self._pauses[pause.prompt] = pause
        return pause

    def answer(self, request: Received) -> Sequence[Step]:
        """The script for a request."""
        last = request.json["messages"][-1]
        said = _text(last["content"])
        if last["role"] == "tool":
            return openai_stream([f"The tool says: {said}."])
        if said in self._pauses:
            return self._pauses[said].answer(request)
        if said == "weather":
            call = {"name": "get_weather", "arguments": '{"city": "Zürich"}'}
            calls = [{"index": 0, "id": "call-1", "type": "function", "function": call}]
            chunks = [openai_chunk({"tool_calls": calls}), openai_chunk({}, finish="tool_calls")]
            return [sse(*chunks, "[DONE]")]
        if said == "think":
            return [sse(openai_chunk({"reasoning_content": REASONING})), *openai_stream(PIECES)]
        if said == "fail":
            return json_answer({"error": {"message": "the model is not there", "type": "x"}}, 404)
        return openai_stream(PIECES, usage=USAGE)


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


class Agent:
    """The server under test.

    Attributes:
        url: Where it is.
        model: What it answers with.
        upstream: Everything that the model was asked.
        webhook: What it tells of its tasks to those who ask for that.
    """

    def __init__(self, url: str, model: ScriptedModel, upstream: ScriptedUpstream, webhook: Receiver) -> None:
        self.url = url
        self.model = model
        self.upstream = upstream
        self.webhook = webhook


@asynccontextmanager
async def serving_agent(folder: Path, **environment: str) -> AsyncGenerator[Agent]:
    """Run the model, a webhook and the server while the block runs.

    Args:
        folder: Where its store and its log go.
        environment: Settings, beside those that every run has.
    """
    model = ScriptedModel()
    async with ScriptedUpstream(model.answer) as upstream, receiving() as webhook:
        options = ["--model", "openai:scripted", "--base-url", upstream.base_url, "--grpc-port", "0"]
        options += ["--store", f"sqlite:///{folder / 'tasks.db'}"]
        # One event a delta, so that each delta can be looked for.
        environment = {"TAILRACE_PUSH_ALLOW_PRIVATE": "true", "TAILRACE_COALESCE": "none", **environment}
        with served(folder / "log", *options, **environment) as server:
            await server.ready()
            yield Agent(server.url, model, upstream, webhook)
        # What went wrong inside is a fault even where no client saw it.
        assert not re.search(r"Traceback|ERROR", server.log.read_text()), server.log.read_text()
