"""Stress of the running parts: misbehaving handlers, races, failing stores, disconnecting clients.

Every order of events is forced by state; each test names the invariant.
"""

import asyncio
import gc
import json
import signal
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import aiosqlite
import anyio
import pytest
import uvicorn

from support.engines import begin, read, read_until, start
from support.live_server import serving
from support.nodes import RunEngine
from support.processes import served
from support.rpc import Rpc, message, streamed_text
from support.upstream import Hang, ScriptedUpstream, openai_stream
from tailrace.server import DirectHandler, FunctionHandler, Settings, Turn, create_app
from tailrace.server.http.connection_limits import ConnectionLimits
from tailrace.server.runtime.engine import Engine
from tailrace.server.runtime.handlers import HandlerFunction, Item
from tailrace.server.runtime.identifier_bounds import MAX_ID_LENGTH
from tailrace.server.runtime.task_registry import MAX_BATCH_BYTES
from tailrace.server.store.store import Store, TaskWrite
from tailrace.streaming import ArtifactUpdate, MessageAdded, StatusUpdate, TaskState, TextDelta, Update
from tailrace.streaming.a2a.errors import InternalError, InvalidParamsError, UnsupportedOperationError
from tailrace.streaming.a2a.models import Artifact, Message, Part, Role
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI
from tailrace.wrappers import StoreError

Updates = AsyncIterator[Item]


@asynccontextmanager
async def engine_with(handler: HandlerFunction, store: Store | None = None) -> AsyncGenerator[Engine]:
    engine = Engine(store or Store("sqlite://"), FunctionHandler(handler))
    engine.writer._retry_delays = (0,)  # pyright: ignore[reportPrivateUsage]
    with anyio.fail_after(10):
        async with engine.running():
            yield engine


class GatedStore(Store):
    """A real store whose reads of a conversation can be blocked, or fail."""

    def __init__(self, url: str = "sqlite://") -> None:
        super().__init__(url)
        self.requested = anyio.Event()
        self.gate: anyio.Event | None = None
        self.failure: StoreError | None = None

    async def load_conversation(self, context_id: str, owner: str, limit: int) -> list[Message]:
        self.requested.set()
        if self.gate is not None:
            await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        return await super().load_conversation(context_id, owner, limit)

    async def load_history(
        self, context_id: str, owner: str, limit: int
    ) -> tuple[list[Message], frozenset[str]]:
        await self.load_conversation(context_id, owner, 1)
        return await super().load_history(context_id, owner, limit)


# --- handlers that misbehave ------------------------------------------------------------------------------------


async def let_a_cancellation_out(turn: Turn) -> Updates:
    yield StatusUpdate(TaskState.WORKING)
    cancelled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    cancelled.cancel()
    await cancelled


async def end_with_metadata_that_is_not_json(turn: Turn) -> Updates:
    yield StatusUpdate(TaskState.COMPLETED, metadata={"x": object()})


async def end_with_text_for_a_message(turn: Turn) -> Updates:
    yield StatusUpdate(TaskState.COMPLETED, message=cast("Message", "done"))


async def add_text_for_a_message(turn: Turn) -> Updates:
    yield MessageAdded(cast("Message", "done"))


async def add_a_number_to_a_text(turn: Turn) -> Updates:
    for update in begin():
        yield update
    yield TextDelta("text", cast("str", 5))


async def add_bytes_to_a_text(turn: Turn) -> Updates:
    for update in begin():
        yield update
    yield TextDelta("text", cast("str", b"five"))


@pytest.mark.parametrize(
    "bad",
    [
        let_a_cancellation_out,
        end_with_metadata_that_is_not_json,
        end_with_text_for_a_message,
        add_text_for_a_message,
        add_a_number_to_a_text,
        add_bytes_to_a_text,
    ],
)
async def test_a_bad_handler_fails_its_own_task_and_no_other(bad: HandlerFunction) -> None:
    go_on = anyio.Event()

    async def handle(turn: Turn) -> Updates:
        if turn.message.parts[0].text == "bad":
            async for update in bad(turn):
                yield update
            return
        for update in begin("good"):
            yield update
        await go_on.wait()

    async with engine_with(handle) as engine:
        good = await start(engine, "good")
        assert (await read(await start(engine, "bad")))[-1].state is TaskState.FAILED
        go_on.set()
        assert (await read(good))[-1].state is TaskState.COMPLETED


async def test_a_handler_that_swallows_its_cancellation_is_not_listened_to_any_more() -> None:
    async def stubborn(turn: Turn) -> Updates:
        for update in begin("x"):
            yield update
        for _ in range(100_000):
            try:
                await anyio.sleep_forever()
            except anyio.get_cancelled_exc_class():
                yield TextDelta("text", "y")

    async with engine_with(stubborn) as engine:
        started = await start(engine)
        await read_until(started, 3)
        task = await engine.cancel_task(started.task_id)
    assert task.status.state is TaskState.CANCELED
    assert task.artifacts[0].parts[0].text == "x"


async def test_a_handler_that_raises_when_it_is_called_fails_the_task_that_it_was_to_go_on_with() -> None:
    def handle(turn: Turn) -> Updates:
        if turn.number > 1:
            raise ValueError("at once")
        return ask(turn)

    async def ask(turn: Turn) -> Updates:
        yield StatusUpdate(TaskState.INPUT_REQUIRED)

    async with engine_with(handle) as engine:
        subscription = await start(engine)
        await read(subscription, until_interrupted=True)
        events = await read(await start(engine, task_id=subscription.task_id))
    assert events[-1].state is TaskState.FAILED


async def test_a_handler_may_be_an_iterator_that_cannot_be_closed() -> None:
    class Once:
        def __init__(self) -> None:
            self.updates = begin("x")

        def __aiter__(self) -> "Once":
            return self

        async def __anext__(self) -> Update | Message:
            if not self.updates:
                raise StopAsyncIteration
            return self.updates.pop(0)

    async with engine_with(lambda turn: Once()) as engine:
        assert (await read(await start(engine)))[-1].state is TaskState.COMPLETED


async def test_a_handler_that_may_answer_directly_may_hold_a_task_group_over_its_first_update() -> None:
    async def handle(turn: Turn) -> Updates:
        async with anyio.create_task_group():
            for update in begin("x"):
                yield update
            await anyio.lowlevel.checkpoint()

    with anyio.fail_after(10):
        async with Engine(Store("sqlite://"), DirectHandler(handle)).running() as engine:
            assert (await read(await start(engine)))[-1].state is TaskState.COMPLETED


async def test_a_burst_without_a_pause_leaves_room_for_others() -> None:
    """A handler that never waits is suspended after a bounded number of events."""
    seen = 0

    async def burst(turn: Turn) -> Updates:
        nonlocal seen
        for update in begin():
            yield update
        for seen in range(20_000):  # noqa: B007
            yield TextDelta("text", "x")

    async with engine_with(burst) as engine:
        started = await start(engine)
        last = steps = 0
        while last < 19_999 and steps < 1_000:
            await anyio.lowlevel.checkpoint()
            assert seen - last <= 2_100
            last, steps = seen, steps + 1
        assert (await read(started))[-1].state is TaskState.COMPLETED


# --- races ------------------------------------------------------------------------------------------------------


async def question(turn: Turn) -> Updates:
    """Ask for input first; then answer and work until cancelled."""
    if turn.number == 1:
        yield StatusUpdate(TaskState.INPUT_REQUIRED)
        return
    for update in begin("x"):
        yield update
    if turn.message.parts[0].text == "work":
        await anyio.sleep_forever()


async def test_who_subscribed_but_reads_later_sees_what_a_follow_up_brings(run_engine: RunEngine) -> None:
    async with run_engine(question) as engine:
        subscription = await start(engine)
        await read(subscription, until_interrupted=True)
        late = await engine.subscribe(subscription.task_id)
        await engine.get_task(subscription.task_id)
        await read(await start(engine, task_id=subscription.task_id))
        assert (await read(late))[-1].state is TaskState.COMPLETED


async def test_a_reader_that_leaves_a_waiting_task_does_not_hide_the_turn_that_came_after(
    run_engine: RunEngine,
) -> None:
    async with run_engine(question) as engine:
        subscription = await start(engine)
        await read(subscription, until_interrupted=True)
        leaving = await engine.subscribe(subscription.task_id)
        await engine.get_task(subscription.task_id)
        answer = await start(engine, "work", task_id=subscription.task_id)
        await read_until(leaving, 0)
        assert (await engine.cancel_task(subscription.task_id)).status.state is TaskState.CANCELED
        assert (await read(answer))[-1].state is TaskState.CANCELED


async def test_a_follow_up_that_is_only_being_prepared_does_not_hold_up_a_cancellation() -> None:
    store = GatedStore()
    async with engine_with(question, store) as engine:
        subscription = await start(engine)
        await read(subscription, until_interrupted=True)
        store.gate, store.requested = anyio.Event(), anyio.Event()
        states: list[TaskState] = []

        async def cancel() -> None:
            states.append((await engine.cancel_task(subscription.task_id)).status.state)

        async def follow_up() -> None:
            with pytest.raises(UnsupportedOperationError, match="the task has ended"):
                await start(engine, "work", task_id=subscription.task_id)

        async with anyio.create_task_group() as group:
            group.start_soon(follow_up)
            await store.requested.wait()
            group.start_soon(cancel)
            await anyio.wait_all_tasks_blocked()
            store.gate.set()
        assert states == [TaskState.CANCELED]
        assert len((await engine.get_task(subscription.task_id)).history) == 1


@pytest.mark.parametrize("follow_up", [True, False])
async def test_a_message_that_is_being_prepared_when_the_server_stops_begins_nothing(follow_up: bool) -> None:
    store = GatedStore()
    refused: list[Exception] = []
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group, engine_with(question, store) as engine:
            subscription = await start(engine)
            await read(subscription, until_interrupted=True)
            store.gate, store.requested = anyio.Event(), anyio.Event()

            async def prepare() -> None:
                task_id, context_id = (subscription.task_id, "") if follow_up else ("", "c")
                try:
                    await start(engine, "work", task_id, context_id)
                except InternalError as error:
                    refused.append(error)

            group.start_soon(prepare)
            await store.requested.wait()
            engine.stop()
            store.gate.set()
            await anyio.wait_all_tasks_blocked()
            assert (await engine.get_task(subscription.task_id)).status.state is TaskState.INPUT_REQUIRED
    assert len(refused) == 1


async def test_a_follow_up_that_cannot_be_begun_leaves_the_task_as_it_was() -> None:
    store = GatedStore()
    async with engine_with(question, store) as engine:
        subscription = await start(engine)
        await read(subscription, until_interrupted=True)
        before = await engine.get_task(subscription.task_id)
        store.failure = StoreError("gone")
        async with aclosing((await engine.subscribe(subscription.task_id)).batches()) as follower:
            await anext(follower)  # a subscriber keeps the task in memory
            with pytest.raises(StoreError, match="gone"):
                await start(engine, "again", task_id=subscription.task_id)
            assert await engine.get_task(subscription.task_id) == before
        store.failure = None
        await read(await start(engine, "again", task_id=subscription.task_id))
        history = (await engine.get_task(subscription.task_id)).history
    assert [entry.parts[0].text for entry in history if entry.role is Role.USER] == ["hello", "again"]


class HeldStore(Store):
    """A real store whose commits wait while it is blocked."""

    def __init__(self, url: str = "sqlite://") -> None:
        super().__init__(url)
        self.free = anyio.Event()
        self.free.set()

    async def commit(self, writes: Sequence[TaskWrite]) -> None:
        await self.free.wait()
        await super().commit(writes)


async def test_a_last_event_that_is_being_written_when_the_server_stops_is_still_shown() -> None:
    go_on = anyio.Event()

    async def work(turn: Turn) -> Updates:
        for update in begin("x"):
            yield update
        await go_on.wait()

    store = HeldStore()
    states: list[TaskState | None] = []
    async with engine_with(work, store) as engine:
        started = await start(engine)

        async def follow() -> None:
            states.extend(event.state for event in await read(started))

        async with anyio.create_task_group() as group:
            group.start_soon(follow)
            await read_until(await engine.subscribe(started.task_id, after=0), 3)
            store.free = anyio.Event()
            go_on.set()
            await anyio.wait_all_tasks_blocked()
            engine.stop()
            store.free.set()
    assert states[-1] is TaskState.COMPLETED


# --- the conversation -------------------------------------------------------------------------------------------


async def test_a_turn_reports_its_own_output_and_not_that_of_an_earlier_turn() -> None:
    histories: list[list[str]] = []

    async def handle(turn: Turn) -> Updates:
        histories.append([entry.text for entry in turn.history.conversation])
        yield ArtifactUpdate(
            Artifact(artifact_id=f"a{len(histories)}", parts=(Part(text=f"{len(histories)}!"),))
        )
        yield StatusUpdate(TaskState.INPUT_REQUIRED)

    async with engine_with(handle) as engine:
        first = await start(engine, "1?", context_id="c")
        await read(first, until_interrupted=True)
        await read(await start(engine, "2?", task_id=first.task_id), until_interrupted=True)
        await engine.cancel_task(first.task_id)
        await read(await start(engine, "3?", context_id="c"), until_interrupted=True)
    assert histories[-1] == ["1?", "1!", "2?", "2!", "3?"]


async def test_the_reasoning_of_an_answer_that_was_cut_off_does_not_become_the_answer() -> None:
    histories: list[list[tuple[str, str]]] = []

    async def handle(turn: Turn) -> Updates:
        histories.append(
            [(str(part.type), entry.text) for entry in turn.history.conversation for part in entry.content]
        )
        facts = {EXTENSION_URI: {"channel": "reasoning"}}
        thought = Artifact(artifact_id="reasoning", parts=(Part(text="hm"),), metadata=facts)
        yield ArtifactUpdate(thought, last=False)
        yield begin("so")[1]
        if len(histories) == 1:
            await anyio.sleep_forever()

    async with engine_with(handle) as engine:
        first = await start(engine, "1?", context_id="c")
        await read_until(first, 3)
        await engine.cancel_task(first.task_id)
        await read(await start(engine, "2?", context_id="c"))
    assert histories[-1] == [("text", "1?"), ("reasoning", "so"), ("text", "so"), ("text", "2?")]


async def test_a_context_id_is_bounded() -> None:
    async with engine_with(question) as engine:
        with pytest.raises(InvalidParamsError, match="contextId"):
            await start(engine, context_id="c" * (MAX_ID_LENGTH + 1))


# --- stores that fail -------------------------------------------------------------------------------------------


class BrokenStore(Store):
    """A real store whose commits fail while it is broken."""

    def __init__(self, url: str = "sqlite://") -> None:
        super().__init__(url)
        self.failure: Exception | None = None

    async def commit(self, writes: Sequence[TaskWrite]) -> None:
        if self.failure is not None:
            raise self.failure
        await super().commit(writes)


async def test_a_task_that_was_given_up_is_over_once_the_store_works_again() -> None:
    go_on = anyio.Event()

    async def work(turn: Turn) -> Updates:
        for update in begin("kept"):
            yield update
        await go_on.wait()
        yield TextDelta("text", "lost")
        await anyio.sleep_forever()

    store = BrokenStore()
    async with engine_with(work, store) as engine:
        started = await start(engine)
        await read_until(await engine.subscribe(started.task_id, after=0), 3)
        store.failure = StoreError("the disk is full")
        go_on.set()
        with pytest.raises(StoreError, match="full"):
            await read(started)
        store.failure = None
        task = await engine.get_task(started.task_id)
        assert task.status.state is TaskState.FAILED
        assert task.artifacts[0].parts[0].text == "kept"
        events = await read(await engine.subscribe(started.task_id, after=0))
    assert events[-1].state is TaskState.FAILED


async def test_what_the_store_does_not_take_of_one_task_hurts_no_other(tmp_path: Path) -> None:
    go_on = anyio.Event()

    async def work(turn: Turn) -> Updates:
        for update in begin("x"):
            yield update
        await go_on.wait()

    async with engine_with(work, Store(f"sqlite:///{tmp_path}/t.db")) as engine:
        first, second = await start(engine), await start(engine)
        for started in (first, second):
            await read_until(await engine.subscribe(started.task_id, after=0), 3)
        # Another server on the same file has written the first task's next event.
        async with aiosqlite.connect(tmp_path / "t.db") as other:
            await other.execute("insert into events values (?, 4, x'7b7d', null)", (first.task_id,))
            await other.commit()
        go_on.set()
        with pytest.raises(StoreError, match="UNIQUE"):
            await read(first)
        assert (await read(second))[-1].state is TaskState.COMPLETED


async def test_a_store_that_fails_in_a_new_way_does_not_end_the_writer() -> None:
    store = BrokenStore()
    async with engine_with(question, store) as engine:
        store.failure = RuntimeError("never seen before")
        with pytest.raises(StoreError, match="never seen before"):
            await read(await start(engine))
        store.failure = None
        assert await read(await start(engine), until_interrupted=True)


async def test_an_engine_runs_again_after_it_was_stopped() -> None:
    engine = Engine(Store("sqlite://"), FunctionHandler(question))
    for _ in range(2):
        with anyio.fail_after(10):
            async with engine.running():
                assert await read(await start(engine), until_interrupted=True)


async def test_a_reader_far_behind_is_given_bounded_batches() -> None:
    size = MAX_BATCH_BYTES // 4

    async def large(turn: Turn) -> Updates:
        for update in begin():
            yield update
        for _ in range(20):
            yield TextDelta("text", "x" * size)

    async with engine_with(large) as engine:
        started = await start(engine)
        await read(await engine.subscribe(started.task_id, after=0))
        batches = [batch async for batch in (await engine.subscribe(started.task_id, after=0)).batches()]
    assert [event.number for batch in batches for event in batch] == list(range(1, 26))
    # The log holds at most twice as many, the store returns fewer.
    assert max(sum(len(event.body) for event in batch) for batch in batches) <= 2 * MAX_BATCH_BYTES


async def test_after_many_turns_nothing_is_left() -> None:
    async def work(turn: Turn) -> Updates:
        for update in begin("x"):
            yield update

    async with engine_with(work) as engine:
        await read(await start(engine))
        await anyio.wait_all_tasks_blocked()
        before = len(asyncio.all_tasks())
        for _ in range(20):
            async with anyio.create_task_group() as group:
                for _ in range(20):
                    group.start_soon(_follow_to_the_end, engine)
        await anyio.wait_all_tasks_blocked()
        gc.collect()
        assert len(engine._tasks.all_in_memory()) == 0  # pyright: ignore[reportPrivateUsage]
        assert len(asyncio.all_tasks()) == before


async def _follow_to_the_end(engine: Engine) -> None:
    await read(await start(engine))


# --- clients and processes --------------------------------------------------------------------------------------

MEMORY = Settings(store="sqlite://")


@pytest.mark.parametrize(
    ("number", "code"), [(b"NaN", -32700), (b"Infinity", -32700), (b"1e999", -32700), (b"-1e999", -32700)]
)
async def test_an_id_that_is_no_number_of_json_is_never_sent_back(number: bytes, code: int) -> None:
    async with serving(create_app(MEMORY, handler=question)) as url, Rpc(url) as rpc:
        body = b'{"jsonrpc":"2.0","id":%b,"method":"GetTask","params":{"id":"x"}}' % number
        status, answer = await rpc.raw(body)
    assert status == 200
    assert answer["id"] is None
    assert answer["error"]["code"] == code


async def test_a_client_that_leaves_in_the_middle_of_its_request_is_no_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with serving(create_app(MEMORY, handler=question)) as url:
        host, port = url.removeprefix("http://").split(":")
        async with await anyio.connect_tcp(host, int(port)) as client:
            head = (
                b"POST / HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
            )
            await client.send(head)
        async with Rpc(url) as rpc:  # after all effects of the first request
            await rpc.error("GetTask", {"id": "x"})
    assert not capsys.readouterr().err


async def test_a_connection_whose_client_takes_nothing_any_more_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    serve = import_module("tailrace.server.cli.serve")  # the package has a function of that name
    monkeypatch.setattr(serve, "CLOSE_TIMEOUT", 0)
    answered = anyio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close")]})
        with anyio.move_on_after(0.1):
            await send({"type": "http.response.body", "body": bytes(64 << 20), "more_body": True})
            # Blocks for ever: the first write is never read.
            await send({"type": "http.response.body", "body": b"x"})
        answered.set()

    config = uvicorn.Config(app, lifespan="off", log_level="critical")
    server = serve._Server(config, ConnectionLimits(0, 60))
    config.load()
    server.lifespan = config.lifespan_class(config)
    with socket.create_server(("127.0.0.1", 0)) as listener, anyio.fail_after(10):
        await server.startup([listener])
        async with await anyio.connect_tcp("127.0.0.1", listener.getsockname()[1]) as client:
            await client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            await answered.wait()
            while server.server_state.connections:
                await server.on_tick(0)
                await anyio.lowlevel.checkpoint()
        for each in server.servers:
            each.close()


async def test_streams_end_with_the_end_of_their_task_when_the_process_is_terminated(
    tmp_path: Path,
) -> None:
    streams: dict[int, list[tuple[int, dict[str, Any]]]] = {}
    waiting = {name: anyio.Event() for name in range(8)}
    async with ScriptedUpstream([*openai_stream(["Hel", "lo"], finish=None), Hang()]) as upstream:
        arguments = ("--model", "openai:x", "--base-url", upstream.base_url, "--store", "sqlite://")
        with served(tmp_path / "log", *arguments, TAILRACE_SHUTDOWN_GRACE="0") as server:
            await server.ready()
            async with Rpc(server.url) as rpc, anyio.create_task_group() as group:

                async def follow(name: int) -> None:
                    def seen(events: list[tuple[int, dict[str, Any]]]) -> None:
                        if streamed_text(events) == "Hello":
                            waiting[name].set()

                    streams[name] = await rpc.stream("SendStreamingMessage", message(), seen=seen)

                for name in waiting:
                    group.start_soon(follow, name)
                for each in waiting.values():
                    await each.wait()
                server.process.send_signal(signal.SIGTERM)
            assert await anyio.to_thread.run_sync(server.process.wait) == 0
    for events in streams.values():
        assert events[-1][1]["statusUpdate"]["status"]["state"] == "TASK_STATE_FAILED", json.dumps(events[-1])
    log = (tmp_path / "log").read_text()
    assert "Traceback" not in log
    assert "ERROR" not in log
