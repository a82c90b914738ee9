"""Handlers that tests drive an agent with."""

from collections.abc import AsyncIterator

import anyio

from tailrace.server import Turn
from tailrace.streaming import ArtifactUpdate, StatusUpdate, TaskState, TextDelta, Update
from tailrace.streaming.a2a.models import Artifact, Message, Part
from tailrace.streaming.task import agent_message
from tailrace.wrappers import TailraceError

Updates = AsyncIterator[Update | Message]


class Scripted:
    """A handler function that does what the newest message says.

    ``ask`` waits for the caller; ``hold`` says "held" and then nothing more until `go_on` is set; ``fail`` and
    ``crash`` go wrong, the one as a provider does, the other as a bug does; ``deep`` answers with data that nests
    deeper than is allowed. Anything else is said back, letter by letter.

    Attributes:
        go_on: Lets ``hold`` come to its end.
        stopped: Set when a turn that held was cancelled.
        turns: Every turn so far.
    """

    def __init__(self) -> None:
        self.go_on = anyio.Event()
        self.stopped = anyio.Event()
        self.turns: list[Turn] = []

    async def __call__(self, turn: Turn) -> Updates:
        self.turns.append(turn)
        yield StatusUpdate(TaskState.WORKING)
        text = turn.history.conversation[-1].text
        if text == "ask":
            yield StatusUpdate(TaskState.INPUT_REQUIRED, agent_message("which one?"))
            return
        if text == "fail":
            raise TailraceError("the provider is down")
        if text == "crash":
            raise RuntimeError("a secret of the agent")
        if text == "deep":
            value: object = "deep"
            for _ in range(35):
                value = {"a": value}
            yield ArtifactUpdate(Artifact(artifact_id="data", parts=(Part(data=value),)))
            return
        answer = "held" if text == "hold" else text
        yield ArtifactUpdate(Artifact(artifact_id="text", parts=(Part(text=answer[:1]),)), last=False)
        for letter in answer[1:]:
            yield TextDelta("text", letter)
        if text == "hold":
            try:
                await self.go_on.wait()
            except anyio.get_cancelled_exc_class():
                self.stopped.set()
                raise
        yield TextDelta("text", "", last=True)
