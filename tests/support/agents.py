"""Agent handlers for tests."""

from collections.abc import AsyncIterator

import anyio

from tailrace.server import Turn
from tailrace.streaming import ArtifactUpdate, StatusUpdate, TaskState, TextDelta, Update
from tailrace.streaming.a2a.models import Artifact, Message, Part
from tailrace.streaming.task.task_record import agent_message
from tailrace.wrappers import TailraceError

Updates = AsyncIterator[Update | Message]


async def nothing(_turn: Turn) -> Updates:
    """End the turn immediately."""
    return
    yield


async def echo(turn: Turn) -> Updates:
    """Return the message in one artifact. For the message ``ask``, wait for the caller."""
    yield StatusUpdate(TaskState.WORKING)
    text = turn.history.conversation[-1].text
    if text == "ask":
        yield StatusUpdate(TaskState.INPUT_REQUIRED)
        return
    yield ArtifactUpdate(Artifact(artifact_id="text", parts=(Part(text=text),)))


async def ask_back(turn: Turn) -> Updates:
    """Return the message in two deltas. If the message begins with a question mark, wait for the caller."""
    yield StatusUpdate(TaskState.WORKING)
    text = turn.history.conversation[-1].text
    if text.startswith("?"):
        yield StatusUpdate(TaskState.INPUT_REQUIRED, agent_message("Which one?"))
        return
    artifact = Artifact(artifact_id="text", name="Answer", parts=(Part(text=text[:2]),))
    yield ArtifactUpdate(artifact, last=False)
    yield TextDelta("text", text[2:])


class Scripted:
    """A handler function controlled by the text of the newest message.

    ``ask`` requires input; ``hold`` yields the text "held" and waits for `go_on`; ``fail`` raises a provider error; ``crash``
    raises an unexpected error; ``deep`` returns data that nests too deeply. Any other text is echoed, one character at a time.

    Attributes:
        go_on: Ends ``hold`` when set.
        stopped: Set when a turn in ``hold`` was cancelled.
        turns: All turns so far.
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
