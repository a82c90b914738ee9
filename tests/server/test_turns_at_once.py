"""Updates that a handler gives from a callback, while the engine waits for what it yields."""

import asyncio
import gc
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from support.folding import FoldedTask, fold
from support.nodes import RunEngine
from support.paced import Gate, PacedModel, paced
from support.rounds import answer
from support.upstream import Cut, Hang, ScriptedUpstream, Step, sse
from tailrace.server import AgentHandler, Engine, FunctionHandler, Store, Turn
from tailrace.server.handlers import AtOnce, DirectHandler, Handler, Item, closing
from tailrace.server.live import Subscription
from tailrace.server.store import TaskWrite
from tailrace.streaming import Agent, ArtifactUpdate, Event, StatusUpdate, TaskState, TextDelta
from tailrace.streaming.a2a.errors import InvalidAgentResponseError
from tailrace.streaming.a2a.models import Artifact, Message, Part, Role
from tailrace.streaming.a2a.requests import SendMessageRequest
from tailrace.streaming.task import agent_message
from tailrace.streaming.turn import TurnAccumulator
from tailrace.streaming.turn_translator import TurnTranslator

ASKED = Message(message_id="m", role=Role.USER, parts=(Part(text="?"),))
BEGUN = ArtifactUpdate(Artifact(artifact_id="text", parts=(Part(text="It is "),)), last=False)


def more(text: str) -> TextDelta:
    return TextDelta("text", text)


def at_once_of(turn: Turn) -> AtOnce:
    assert turn.at_once is not None
    return turn.at_once


async def called_back(function: Callable[[], None]) -> None:
    """Have a function called by the event loop, and wait for it; raises what it raises."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()

    def call() -> None:
        try:
            function()
        except Exception as error:
            over.set_exception(error)
        else:
            over.set_result(None)

    loop.call_soon(call)
    await over


@asynccontextmanager
async def engine_with(handler: Handler, store: Store | None = None, **options: Any) -> AsyncGenerator[Engine]:
    async with Engine(store or Store("sqlite://"), handler, **options).running() as engine:
        yield engine


async def send(engine: Engine) -> Subscription:
    started = await engine.start(SendMessageRequest(message=ASKED))
    assert isinstance(started, Subscription)
    return started


async def read(subscription: Subscription) -> list[Event]:
    return [event async for batch in subscription.batches() for event in batch]


async def events_of(handler: Handler, **options: Any) -> list[Event]:
    """All events of a task."""
    async with engine_with(handler, **options) as engine:
        return await read(await send(engine))


def folded(events: Sequence[Event]) -> FoldedTask:
    assert [event.number for event in events] == list(range(1, len(events) + 1))
    return fold(event.body for event in events)


# --- a handler of one's own -------------------------------------------------------------------------------------


async def test_updates_from_callbacks_and_those_that_are_yielded_are_numbered_in_order(
    run_engine: RunEngine,
) -> None:
    async def handle(turn: Turn) -> AsyncIterator[Item]:
        at_once = at_once_of(turn)
        yield StatusUpdate(TaskState.WORKING)
        await called_back(lambda: at_once.show(BEGUN))
        yield more("a")
        for letter in "bcd":
            await called_back(lambda letter=letter: at_once.show(more(letter)))
        yield more("e")

        def both() -> None:
            assert at_once.ready
            at_once.show(more("f"))
            at_once.show(more("g"))

        await called_back(both)
        yield TextDelta("text", "h", last=True)

    async with run_engine(FunctionHandler(handle)) as engine:
        task = folded(await read(await send(engine)))
    assert task.state == "TASK_STATE_COMPLETED"
    assert task.texts == {"text": "It is abcdefgh"}
    assert task.complete == ["text"]


async def test_what_is_shown_is_read_while_the_handler_waits() -> None:
    go_on = anyio.Event()

    async def handle(turn: Turn) -> AsyncIterator[Item]:
        yield BEGUN
        asyncio.get_running_loop().call_soon(at_once_of(turn).show, more("warm"))
        await go_on.wait()
        yield more(".")

    async with engine_with(FunctionHandler(handle)) as engine:
        seen: list[Event] = []
        async for batch in (await send(engine)).batches():
            seen += batch
            if b"warm" in seen[-1].body:
                go_on.set()
    assert folded(seen).texts == {"text": "It is warm."}


async def test_it_is_not_ready_before_there_is_a_task() -> None:
    ready: list[bool] = []

    async def handle(turn: Turn) -> AsyncIterator[Item]:
        ready.append(at_once_of(turn).ready)
        yield BEGUN
        ready.append(at_once_of(turn).ready)

    async def direct(turn: Turn) -> AsyncIterator[Item]:
        ready.append(at_once_of(turn).ready)
        yield agent_message("no task")

    await events_of(DirectHandler(handle))
    assert ready == [False, True]
    async with engine_with(DirectHandler(direct)) as engine:
        assert isinstance(await engine.start(SendMessageRequest(message=ASKED)), Message)
    assert ready == [False, True, False]


async def test_it_is_not_ready_while_too_much_waits_to_be_written() -> None:
    shown = 0
    again: list[bool] = []

    async def handle(turn: Turn) -> AsyncIterator[Item]:
        nonlocal shown
        at_once = at_once_of(turn)
        yield BEGUN
        while at_once.ready:  # nothing can be written meanwhile
            at_once.show(more("x"))
            shown += 1
        yield more("x")
        again.append(at_once.ready)

    task = folded(await events_of(FunctionHandler(handle)))
    assert again == [True]
    assert task.texts == {"text": "It is " + "x" * (shown + 1)}


async def test_it_is_not_ready_when_the_turn_is_cancelled() -> None:
    waits, ready = anyio.Event(), list[bool]()

    async def handle(turn: Turn) -> AsyncIterator[Item]:
        yield BEGUN
        ready.append(at_once_of(turn).ready)
        waits.set()
        try:
            await anyio.sleep_forever()
        finally:
            ready.append(at_once_of(turn).ready)

    async with engine_with(FunctionHandler(handle)) as engine:
        subscription = await send(engine)
        await waits.wait()
        await engine.cancel_task(subscription.task_id)
        task = folded(await read(subscription))
    assert ready == [True, False]
    assert (task.state, task.texts) == ("TASK_STATE_CANCELED", {"text": "It is "})


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (StatusUpdate(TaskState.COMPLETED), "the end of a turn has to be yielded"),
        (StatusUpdate(TaskState.INPUT_REQUIRED, agent_message("?")), "the end of a turn has to be yielded"),
        (StatusUpdate(TaskState.FAILED), "the end of a turn has to be yielded"),
        (agent_message("direct"), "only as the first thing"),
        (more("x" * 101), "an event may have 100"),
        (more("é" * 51), "an event may have 100"),
        (ArtifactUpdate(Artifact(artifact_id="b", parts=(Part(data="y" * 101),))), "an event may have 100"),
        (StatusUpdate(TaskState.WORKING, agent_message("y" * 101)), "an event may have 100"),
    ],
    ids=["completed", "asks", "failed", "direct", "text", "bytes", "artifact", "status"],
)
async def test_what_cannot_be_shown_fails_the_task_with_what_came_before(item: Item, words: str) -> None:
    raised: list[Exception] = []

    async def handle(turn: Turn) -> AsyncIterator[Item]:
        at_once = at_once_of(turn)
        yield BEGUN
        await called_back(lambda: at_once.show(more("warm")))
        try:
            await called_back(lambda: at_once.show(item))
        except InvalidAgentResponseError as error:
            raised.append(error)
            raise
        yield more(" and never said")

    task = folded(await events_of(FunctionHandler(handle), max_event_bytes=100))
    assert words in str(raised)
    assert task.state == "TASK_STATE_FAILED"
    assert words in task.status_text
    assert task.texts == {"text": "It is warm"}
    assert task.complete == ["text"]


# --- an agent ---------------------------------------------------------------------------------------------------


class Waiting(AgentHandler):
    """An agent all of whose updates are yielded."""

    def run(self, turn: Turn) -> AsyncIterator[Item]:
        return super().run(replace(turn, at_once=None))


class Noted:
    """Notes what is shown at once."""

    def __init__(self, at_once: AtOnce, shown: list[Item]) -> None:
        self._at_once = at_once
        self._shown = shown

    @property
    def ready(self) -> bool:
        return self._at_once.ready

    def show(self, item: Item) -> None:
        self._shown.append(item)
        self._at_once.show(item)


class Noting(AgentHandler):
    """An agent.

    Attributes:
        shown: What it gave at once.
        yielded: What it yielded.
    """

    def __init__(self, agent: Agent[Any]) -> None:
        super().__init__(agent)
        self.shown: list[Item] = []
        self.yielded: list[Item] = []

    async def run(self, turn: Turn) -> AsyncIterator[Item]:
        noted = replace(turn, at_once=Noted(at_once_of(turn), self.shown))
        async with closing(super().run(noted)) as items:
            async for item in items:
                self.yielded.append(item)
                yield item

    @property
    def texts(self) -> str:
        return "".join(item.text for item in self.shown if isinstance(item, TextDelta))


async def weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


ROUNDS = (
    answer("I ", "look", ".", reasoning="hm", calls=[("a", "weather", {"city": "Rome"})]),
    answer("It is ", "sun", "ny", "."),
)


@asynccontextmanager
async def answering(*scripts: Sequence[Step]) -> AsyncGenerator[tuple[Agent[str], ScriptedUpstream]]:
    """An agent whose answers come as a read a step."""
    gate = Gate()
    async with ScriptedUpstream(*(paced(gate, script) for script in scripts)) as upstream:
        yield Agent(PacedModel(upstream, gate), tools=[weather]), upstream


async def both_ways(*scripts: Sequence[Step], **options: Any) -> tuple[FoldedTask, list[Event], Noting]:
    """The task that scripts amount to, which is the same whether updates are given at once or yielded."""
    async with answering(*scripts) as (agent, _):
        handler = Noting(agent)
        events = await events_of(handler, **options)
    async with answering(*scripts) as (agent, _):
        waited = await events_of(Waiting(agent), **options)
    assert len(events) == len(waited)
    assert folded(events) == folded(waited)
    return folded(events), events, handler


async def test_the_task_of_an_agent_is_the_same_where_its_text_is_carried_out_at_once() -> None:
    task, _, handler = await both_ways(*ROUNDS)
    assert task.state == "TASK_STATE_COMPLETED"
    assert (task.texts["text"], task.texts["text-round-2"]) == ("I look.", "It is sunny.")
    assert sorted(task.complete) == sorted({*task.texts, *task.data})
    assert handler.texts.endswith("sunny.")


async def test_an_answer_that_breaks_off_keeps_what_was_carried_out() -> None:
    task, _, handler = await both_ways([*answer("It is ", "sun", "ny", finish=None), Cut()])
    assert (task.state, task.texts) == ("TASK_STATE_FAILED", {"text": "It is sunny"})
    assert handler.texts == "sunny"


async def test_a_piece_of_an_answer_that_is_too_large_fails_the_task_with_what_came_before() -> None:
    script = [*answer("It is ", "sun", "x" * 101, "never", finish=None), Hang()]
    async with answering(script) as (agent, upstream):
        handler = Noting(agent)
        task = folded(await events_of(handler, max_event_bytes=100))
        await upstream.requests[0].client_left.wait()
    assert (task.state, task.texts) == ("TASK_STATE_FAILED", {"text": "It is sun"})
    assert "an event may have 100" in task.status_text
    assert len(handler.shown) == 3


async def test_cancelling_keeps_what_was_carried_out_and_leaves_the_provider() -> None:
    script = [*answer("It is ", "sun", finish=None), Hang()]
    async with answering(script) as (agent, upstream), engine_with(AgentHandler(agent)) as engine:
        subscription = await send(engine)
        seen: list[Event] = []
        async for batch in subscription.batches():
            seen += batch
            if b'"sun"' in seen[-1].body:
                await engine.cancel_task(subscription.task_id)
        await upstream.requests[0].client_left.wait()
    task = folded(seen)
    assert (task.state, task.texts) == ("TASK_STATE_CANCELED", {"text": "It is sun"})


@pytest.mark.parametrize(
    "script",
    [
        answer("It is ", "sun", "ny"),
        [*answer("It is ", "sun", finish=None), Cut()],
        [*answer("It is ", "sun", finish=None), sse({"error": {"message": "no"}})],
    ],
    ids=["whole", "broken off", "failed"],
)
async def test_nothing_of_a_turn_that_is_over_waits_for_the_garbage_collector(script: list[Step]) -> None:
    gc.collect()
    gc.disable()
    try:
        async with answering(script) as (agent, _), engine_with(AgentHandler(agent)) as engine:
            await read(await send(engine))
            left = [each for each in gc.get_objects() if type(each) in (TurnAccumulator, TurnTranslator)]
            assert left == []
    finally:
        gc.enable()


class Stalling(Store):
    """A real store that keeps nothing until it is told to."""

    def __init__(self) -> None:
        super().__init__("sqlite://")
        self.go_on = anyio.Event()

    async def commit(self, writes: Sequence[TaskWrite]) -> None:
        await self.go_on.wait()
        await super().commit(writes)


async def test_a_store_that_is_slow_holds_an_agent_up_and_nothing_is_lost_or_told_twice() -> None:
    words = [f"{number} " for number in range(1_200)]
    store, read_by = Stalling(), list[list[Event]]()

    async def follow(engine: Engine) -> None:
        read_by.append(await read(await send(engine)))

    async with answering(answer(*words)) as (agent, _):
        handler = Noting(agent)
        async with engine_with(handler, store) as engine, anyio.create_task_group() as tasks:
            tasks.start_soon(follow, engine)
            while not any(isinstance(item, TextDelta) for item in handler.yielded):
                await anyio.lowlevel.checkpoint()
            assert engine.events_waiting > 1_000
            assert len(handler.shown) < len(words)
            store.go_on.set()
    [task] = map(folded, read_by)
    assert (task.state, task.texts) == ("TASK_STATE_COMPLETED", {"text": "".join(words)})
    assert handler.texts.endswith("".join(words[-100:]))  # at once again, when there is room
