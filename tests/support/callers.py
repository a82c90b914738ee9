"""Two callers of one server, and a remote agent that returns all earlier messages of its conversation."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import anyio.to_thread

from support.live_server import serving
from support.request_recorder import Recorder
from tailrace.server import Settings, Turn, create_app
from tailrace.server.runtime.handlers import Item
from tailrace.streaming import ArtifactUpdate, StatusUpdate, TaskState
from tailrace.streaming.a2a.models import Artifact, Part
from tailrace.streaming.task.task_record import agent_message

KEYS = {"alice": "key-of-alice", "bob": "key-of-bob"}
CALLER_KEYS = ",".join(f"{name}:{key}" for name, key in KEYS.items())
"""The setting ``caller_keys``."""


def headers_of(name: str) -> dict[str, str]:
    """The headers that authenticate a caller; none for the empty name."""
    return {"authorization": f"Bearer {KEYS[name]}", "x-api-key": KEYS[name]} if name else {}


class Recalling:
    """A handler function that responds with all messages of its conversation.

    A message that begins with ``ask`` requires input; ``call ID …`` waits for the result of a tool call; ``hold…`` waits for
    `go_on`.

    Attributes:
        go_on: Ends ``hold`` when set.
        turns: All turns so far.
    """

    def __init__(self) -> None:
        self.go_on = anyio.Event()
        self.turns: list[Turn] = []

    async def __call__(self, turn: Turn) -> AsyncIterator[Item]:
        self.turns.append(turn)
        yield StatusUpdate(TaskState.WORKING)
        text = turn.message.parts[-1].text or ""
        recalled = " | ".join(each.text for each in turn.history.conversation)
        yield ArtifactUpdate(Artifact(artifact_id="text", parts=(Part(text=recalled),)))
        if text.startswith("ask"):
            yield StatusUpdate(TaskState.INPUT_REQUIRED, agent_message("which one?"))
        if text.startswith("call"):
            call: dict[str, Any] = {"call_id": text.split()[1], "name": "look", "arguments": {}}
            question = agent_message("").model_copy(update={"parts": (Part(data={"tool_calls": [call]}),)})
            yield StatusUpdate(TaskState.INPUT_REQUIRED, question)
        if text.startswith("hold"):
            await self.go_on.wait()


@asynccontextmanager
async def recalling_agent() -> AsyncGenerator[tuple[str, Recorder, Recalling]]:
    """Run a server with one caller. Yield the URL, the recorder of the requests, and the handler."""
    recalling = Recalling()
    recorder = Recorder(create_app(Settings(store="sqlite://"), handler=recalling))
    async with serving(recorder) as url:
        yield url, recorder, recalling


@asynccontextmanager
async def serving_callers(**settings: Any) -> AsyncGenerator[str]:
    """Run a server with both callers; yield its URL.

    Args:
        settings: Its settings.
    """
    given = Settings.model_validate({"store": "sqlite://", "caller_keys": CALLER_KEYS, **settings})
    # `create_app` blocks if it fetches the card of a remote agent.
    app = await anyio.to_thread.run_sync(partial(create_app, given))
    async with serving(app) as url:
        yield url
