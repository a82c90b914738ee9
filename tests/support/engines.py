"""Functions that run an `Engine` with a handler, send messages to it, and read its streams."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

import anyio

from tailrace.server.runtime.active_task import CallContext, Subscription
from tailrace.server.runtime.engine import Engine
from tailrace.server.runtime.handlers import FunctionHandler, HandlerFunction, Turn
from tailrace.server.runtime.served_agents import ServedAgent, ServedAgents
from tailrace.server.runtime.stream_filter import StreamFilter
from tailrace.server.store.store import Store
from tailrace.streaming import ArtifactUpdate, Event, StatusUpdate, TaskState, TextDelta, Update
from tailrace.streaming.a2a.models import Artifact, Message, Part, Role, StreamResponse, Task
from tailrace.streaming.a2a.requests import SendMessageRequest

Updates = AsyncIterator[Update | Message]


def request(text: str = "hello", task_id: str = "", context_id: str = "") -> SendMessageRequest:
    """A request with a message of the user, whose id is its text."""
    parts = (Part(text=text),)
    message = Message(message_id=text, role=Role.USER, parts=parts, task_id=task_id, context_id=context_id)
    return SendMessageRequest(message=message)


def begin(text: str = "") -> list[Update]:
    """The updates with which a handler begins a response in the artifact ``text``."""
    artifact = Artifact(artifact_id="text", parts=(Part(text=text),))
    return [StatusUpdate(TaskState.WORKING), ArtifactUpdate(artifact, last=False)]


@asynccontextmanager
async def engine_with(
    handler: HandlerFunction,
    store: Store | str = "sqlite://",
    *,
    filters: Sequence[StreamFilter] = (),
    **options: Any,
) -> AsyncGenerator[Engine]:
    """Run an engine with a handler; ``options`` as for `Engine`."""
    store = Store(store) if isinstance(store, str) else store
    agents = ServedAgents([ServedAgent(FunctionHandler(handler), filters=tuple(filters))])
    async with Engine(store, agents, **options).running() as engine:
        yield engine


async def start(
    engine: Engine, text: str = "hello", task_id: str = "", context_id: str = "", owner: str = "", **call: Any
) -> Subscription:
    """Send a message that begins or continues a task; ``call`` as for `CallContext`."""
    started = await engine.start(request(text, task_id, context_id), owner, call=CallContext(**call))
    assert isinstance(started, Subscription)
    return started


async def read(subscription: Subscription, *, until_interrupted: bool = False) -> list[Event]:
    batches = subscription.batches(until_interrupted=until_interrupted)
    return [event async for batch in batches for event in batch]


async def read_until(subscription: Subscription, number: int) -> None:
    """Read a stream up to an event, then stop reading."""
    async with aclosing(subscription.batches()) as batches:
        async for batch in batches:
            if batch[-1].number >= number:
                return


async def state_of(engine: Engine, task: Subscription, owner: str = "") -> tuple[TaskState, str]:
    """The final state of a task and the text of its status message."""
    async for _ in task.batches(until_interrupted=True):
        pass
    status = (await engine.get_task(task.task_id, owner)).status
    return status.state, str(status.message.parts[0].text) if status.message else ""


def text_of(task: Task) -> str:
    """The text of a task's artifacts."""
    return "".join(part.text or "" for artifact in task.artifacts for part in artifact.parts)


def shown(events: Sequence[Event]) -> str:
    """The text of a client after these events."""
    text = ""
    for event in events:
        update = StreamResponse.model_validate_json(event.body)
        if update.task is not None:
            text = text_of(update.task)
        elif update.artifact_update is not None:
            added = "".join(part.text or "" for part in update.artifact_update.artifact.parts)
            text = text + added if update.artifact_update.append else added
    return text


class Typist:
    """A handler that yields the deltas that the test passes to it.

    At the delta ``?``, it requires input. At an empty delta, it ends.

    Attributes:
        turns: The texts of the messages of all turns.
        left: Set when a turn has ended.
        again: Set when the second turn begins.
    """

    def __init__(self) -> None:
        self.turns: list[str] = []
        self.left = anyio.Event()
        self.again = anyio.Event()
        self._pieces = asyncio.Queue[str]()

    def type(self, *pieces: str) -> None:
        for piece in pieces:
            self._pieces.put_nowait(piece)

    async def handle(self, turn: Turn) -> Updates:
        self.turns.append(turn.message.parts[0].text or "")
        if len(self.turns) == 2:
            self.again.set()
        try:
            for update in begin():
                yield update
            while piece := await self._pieces.get():
                if piece == "?":
                    yield StatusUpdate(TaskState.INPUT_REQUIRED)
                    return
                yield TextDelta("text", piece)
        finally:
            self.left.set()


class Turns:
    """A handler that records the histories of its turns, which the test ends."""

    def __init__(self) -> None:
        self.histories: dict[str, list[str]] = {}
        self._begun: dict[str, anyio.Event] = {}
        self._ends: dict[str, anyio.Event] = {}

    async def __call__(self, turn: Turn) -> Updates:
        text = turn.history.conversation[-1].text
        self.histories[text] = [entry.text for entry in turn.history.conversation]
        yield StatusUpdate(TaskState.WORKING)
        artifact = Artifact(artifact_id=f"text-{turn.number}", parts=(Part(text=f"re {text}"),))
        yield ArtifactUpdate(artifact)
        self._begun.setdefault(text, anyio.Event()).set()
        await self._ends.setdefault(text, anyio.Event()).wait()
        if text.endswith("?"):
            yield StatusUpdate(TaskState.INPUT_REQUIRED)

    async def begun(self, text: str) -> None:
        with anyio.fail_after(30):
            await self._begun.setdefault(text, anyio.Event()).wait()

    def end(self, *texts: str) -> None:
        for text in texts:
            self._ends.setdefault(text, anyio.Event()).set()
