"""The server under test for all clients: one ``tailrace serve`` process in front of a scripted model."""

import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from support.processes import served
from support.upstream import (
    Received,
    ScriptedUpstream,
    SetEvent,
    Step,
    Wait,
    json_answer,
    openai_chunk,
    openai_stream,
    sse,
)
from support.webhook_receiver import Receiver, receiving

PIECES = (
    "Grüße, ",
    "世界! ",
    "one\u2028two\u2029three\u0085four ",  # separators at which a client's line splitter would cut an unescaped event
    '"quoted" \\ {"a": 1}\n\ndata: no event\r\n',
    "e\u0301 👩\u200d🚀 ",
    "same ",
    "same ",
    "the end",
)
"""The chunks of the model's answer: text that is easily lost, duplicated or cut."""

ANSWER = "".join(PIECES)

FIRST_HALF = "".join(PIECES[:4])

REASONING = "Let me see: 1\u20282"

BUY = {"name": "buy", "arguments": '{"amount": 500}'}
"""The call of a tool of the server (`support.approval_tools`)."""

USAGE = {"prompt_tokens": 7, "completion_tokens": 8, "total_tokens": 15}


class Pause:
    """An answer that pauses in the middle.

    Args:
        number: Its number.
        pieces: Its deltas.
        first: How many of them are sent before the pause.

    Attributes:
        prompt: The prompt that requests it.
        reached: Set when the first half is sent.
        go_on: Set by the test to continue.
        request: The request to the model; available after ``reached``.
    """

    def __init__(self, number: int, pieces: Sequence[str] = PIECES, first: int = 4) -> None:
        self.prompt = f"pause {number}"
        self.reached = anyio.Event()
        self.go_on = anyio.Event()
        self.request: Received | None = None
        self._pieces = pieces
        self._first = first

    def answer(self, request: Received) -> Sequence[Step]:
        """Return the script."""
        self.request = request
        role, *pieces, finish, usage, done = openai_stream(self._pieces, usage=USAGE)
        half = [role, *pieces[: self._first], SetEvent(self.reached), Wait(self.go_on)]
        return [*half, *pieces[self._first :], finish, usage, done]


class ScriptedModel:
    """Answers according to the last message.

    ``weather`` calls a tool, ``buy`` calls a tool of the server, ``think`` reasons first, ``fail`` is refused, the prompt of a `Pause` gets that answer; a
    tool's output gets a sentence about it, and any other message gets `ANSWER`.
    """

    def __init__(self) -> None:
        self._pauses: dict[str, Pause] = {}

    def pause(self, pieces: Sequence[str] = PIECES, first: int = 4) -> Pause:
        """Add another answer that pauses in the middle."""
        pause = Pause(len(self._pauses) + 1, pieces, first)
        self._pauses[pause.prompt] = pause
        return pause

    def answer(self, request: Received) -> Sequence[Step]:
        """Return the script for a request."""
        last = request.json["messages"][-1]
        prompt = _text(last["content"])
        if last["role"] == "tool":
            return openai_stream([f"The tool says: {prompt}."])
        if prompt in self._pauses:
            return self._pauses[prompt].answer(request)
        if prompt in ("weather", "buy"):
            function = _weather(request) if prompt == "weather" else BUY
            calls = [{"index": 0, "id": "call-1", "type": "function", "function": function}]
            chunks = [openai_chunk({"tool_calls": calls}), openai_chunk({}, finish="tool_calls")]
            return [sse(*chunks, "[DONE]")]
        if prompt == "think":
            return [sse(openai_chunk({"reasoning_content": REASONING})), *openai_stream(PIECES)]
        if prompt == "fail":
            return json_answer({"error": {"message": "the model is not there", "type": "x"}}, 404)
        return openai_stream(PIECES, usage=USAGE)


def _weather(request: Received) -> dict[str, str]:
    """Return a call of the tool for the weather, or of the shell that coding agents have."""
    names = {tool["function"]["name"] for tool in request.json.get("tools", ())}
    if "exec_command" in names:
        return {"name": "exec_command", "arguments": '{"cmd": "echo sunny"}'}
    if "bash" in names:
        return {"name": "bash", "arguments": '{"command": "echo sunny", "description": "Weather"}'}
    return {"name": "get_weather", "arguments": '{"city": "Zürich"}'}


def _text(content: Any) -> str:
    """Return the text of a message; after instructions of a coding agent, the last part is the user's."""
    return content if isinstance(content, str) else content[-1]["text"]


class Agent:
    """The server under test.

    Attributes:
        url: Its URL.
        model: The scripted model.
        upstream: All requests to the model.
        webhook: Receives push notifications.
    """

    def __init__(self, url: str, model: ScriptedModel, upstream: ScriptedUpstream, webhook: Receiver) -> None:
        self.url = url
        self.model = model
        self.upstream = upstream
        self.webhook = webhook


@asynccontextmanager
async def serving_agent(
    folder: Path, *, extra_options: Sequence[str] = ("--grpc-port", "0"), **environment: str
) -> AsyncGenerator[Agent]:
    """Run the model, a webhook and the server while the block runs.

    Args:
        folder: The folder of its store and its log.
        extra_options: Further options of the command line.
        environment: Settings, in addition to those of every run.
    """
    model = ScriptedModel()
    async with ScriptedUpstream(model.answer) as upstream, receiving() as webhook:
        options = ["--model", "openai:scripted", "--base-url", upstream.base_url, *extra_options]
        options += ["--store", f"sqlite:///{folder / 'tasks.db'}"]
        # One event per delta, so that each delta can be identified.
        environment = {"TAILRACE_PUSH_NOTIFICATIONS": "private", "TAILRACE_COALESCE": "none", **environment}
        with served(folder / "log", *options, **environment) as server:
            await server.ready()
            yield Agent(server.url, model, upstream, webhook)
        # An internal error is a failure even if no client received it.
        assert not re.search(r"Traceback|ERROR", server.log.read_text()), server.log.read_text()
