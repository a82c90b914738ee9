"""Stress of the running parts: failing stores, many turns, and disconnecting clients."""

import asyncio
import gc
import json
import signal
import socket
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import aiosqlite
import anyio
import pytest
import uvicorn

from support.engines import begin, read, read_until, start
from support.handler_engine import Updates, engine_with, question
from support.live_server import serving
from support.processes import served
from support.rpc import Rpc, message, streamed_text
from support.upstream import Hang, ScriptedUpstream, openai_stream
from tailrace.server import FunctionHandler, Settings, Turn, create_app
from tailrace.server.http.connection_limits import ConnectionLimits
from tailrace.server.runtime.engine import Engine
from tailrace.server.runtime.task_registry import MAX_BATCH_BYTES
from tailrace.server.store.store import Store, TaskWrite
from tailrace.streaming import TaskState, TextDelta
from tailrace.wrappers import StoreError

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
