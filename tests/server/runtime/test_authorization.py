"""A turn that continues in AUTH_REQUIRED, when credentials arrive out of band (A2A 1.0, section 7.6.1)."""

from collections.abc import AsyncIterator
from pathlib import Path
from shutil import copyfile

import anyio
import pytest

from support.live_server import serving
from support.nodes import RunEngine
from support.rpc import Rpc, message, text_of
from tailrace.server import Settings, create_app
from tailrace.server.runtime.active_task import Subscription
from tailrace.server.runtime.caller import Caller
from tailrace.server.runtime.engine import Engine
from tailrace.server.runtime.event_stream import EventStream
from tailrace.server.runtime.handlers import FunctionHandler, Turn
from tailrace.server.runtime.operations import Operations
from tailrace.server.store.store import Store, TaskFilter
from tailrace.streaming import ArtifactUpdate, Event, StatusUpdate, TaskState, Update
from tailrace.streaming.a2a.errors import InvalidAgentResponseError
from tailrace.streaming.a2a.models import Artifact, Message, Part, Role, Task
from tailrace.streaming.a2a.requests import SendMessageRequest, SubscribeToTaskRequest
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI
from tailrace.streaming.a2a.version_codec import Operation
from tailrace.streaming.task.task_record import TaskRecord, agent_message

CALLER = Caller()
QUESTION = "Open https://example.com/authorize"


class Authorized:
    """A handler that waits for credentials."""

    def __init__(self) -> None:
        self.granted = anyio.Event()
        self.turns: list[str] = []
        self.left = anyio.Event()

    async def __call__(self, turn: Turn) -> AsyncIterator[Update]:
        self.turns.append(turn.history.conversation[-1].text)
        yield StatusUpdate(TaskState.WORKING)
        yield StatusUpdate(TaskState.AUTH_REQUIRED, agent_message(QUESTION), continues=True)
        try:
            await self.granted.wait()
        finally:
            self.left.set()
        yield StatusUpdate(TaskState.WORKING)
        yield ArtifactUpdate(Artifact(artifact_id="text", parts=(Part(text="authorized"),)))


def request(text: str = "hello", task_id: str = "") -> SendMessageRequest:
    return SendMessageRequest(
        message=Message(message_id=text, role=Role.USER, parts=(Part(text=text),), task_id=task_id)
    )


async def start(engine: Engine, text: str = "hello", task_id: str = "") -> Subscription:
    started = await engine.start(request(text, task_id))
    assert isinstance(started, Subscription)
    return started


async def read_until(subscription: Subscription, state: TaskState) -> list[Event]:
    events: list[Event] = []
    with anyio.fail_after(20):
        while not events or events[-1].state is not state:
            events += await subscription.read()
            assert events
    return events


def states(events: list[Event]) -> list[str]:
    return [event.state.name for event in events if event.state is not None]


async def test_the_stream_stays_open_and_the_turn_continues(run_engine: RunEngine) -> None:
    handler = Authorized()
    async with run_engine(handler) as engine:
        with anyio.fail_after(30):
            started = await start(engine)
            stream = EventStream(started, until_interrupted=True)
            events: list[Event] = []
            async for batch in stream.batches():
                events += batch
                if events[-1].state is TaskState.AUTH_REQUIRED:
                    waiting = await engine.get_task(started.task_id)
                    assert waiting.status.state is TaskState.AUTH_REQUIRED
                    assert waiting.status.message is not None
                    assert waiting.status.message.parts[0].text == QUESTION
                    assert waiting.metadata[EXTENSION_URI]["continues"] is True
                    handler.granted.set()
        assert states(events) == ["SUBMITTED", "WORKING", "AUTH_REQUIRED", "WORKING", "COMPLETED"]
        ended = await engine.get_task(started.task_id)
        assert ended.artifacts[0].parts[0].text == "authorized"
        assert "continues" not in ended.metadata[EXTENSION_URI]
        assert [entry.parts[0].text for entry in ended.history] == ["hello", QUESTION, "authorized"]
        again = await read_until(await engine.subscribe(ended.id, after=0), TaskState.COMPLETED)
        assert again == events
    assert handler.turns == ["hello"]


async def test_a_response_without_a_stream_names_the_authorization() -> None:
    handler = Authorized()
    async with Engine(Store("sqlite://"), FunctionHandler(handler)).running() as engine:
        operations = Operations(engine)
        with anyio.fail_after(30):
            task = await operations.execute(Operation.SEND_MESSAGE, request(), CALLER)
            assert isinstance(task, Task)
            assert task.status.state is TaskState.AUTH_REQUIRED
            subscribed = SubscribeToTaskRequest(id=task.id)
            stream = await operations.stream(Operation.SUBSCRIBE_TO_TASK, subscribed, CALLER)
            handler.granted.set()
            events = [event async for batch in stream.batches() for event in batch]
        assert states(events) == ["AUTH_REQUIRED", "WORKING", "COMPLETED"]


async def test_a_message_meanwhile_waits_for_its_turn(run_engine: RunEngine) -> None:
    handler = Authorized()
    async with run_engine(handler) as engine:
        first = await start(engine)
        await read_until(first, TaskState.AUTH_REQUIRED)
        second = await start(engine, "more", first.task_id)
        assert (await engine.get_task(first.task_id)).status.state is TaskState.AUTH_REQUIRED
        handler.granted.set()
        await read_until(second, TaskState.COMPLETED)
        task = await engine.get_task(first.task_id)
    assert handler.turns == ["hello", "more"]
    assert [entry.message_id for entry in task.history if entry.role is Role.USER] == ["hello", "more"]


async def test_a_waiting_turn_is_canceled(run_engine: RunEngine) -> None:
    handler = Authorized()
    async with run_engine(handler) as engine:
        first = await start(engine)
        await read_until(first, TaskState.AUTH_REQUIRED)
        canceled = await engine.cancel_task(first.task_id)
        assert canceled.status.state is TaskState.CANCELED
        with anyio.fail_after(20):
            await handler.left.wait()


async def test_the_wait_counts_as_the_duration_of_the_turn() -> None:
    async with Engine(
        Store("sqlite://"), FunctionHandler(Authorized()), max_turn_seconds=1
    ).running() as engine:
        events = await read_until(await start(engine), TaskState.FAILED)
    assert states(events)[-2:] == ["AUTH_REQUIRED", "FAILED"]
    assert b"longer than the maximum of 1 seconds" in events[-1].body


async def test_a_turn_that_returns_is_completed() -> None:
    async def handle(turn: Turn) -> AsyncIterator[Update]:
        yield StatusUpdate(TaskState.AUTH_REQUIRED, continues=True)

    async with Engine(Store("sqlite://"), FunctionHandler(handle)).running() as engine:
        events = await read_until(await start(engine), TaskState.COMPLETED)
    assert states(events) == ["SUBMITTED", "AUTH_REQUIRED", "COMPLETED"]


async def test_a_turn_that_ends_in_the_state_closes_its_stream() -> None:
    async def handle(turn: Turn) -> AsyncIterator[Update]:
        # As a handler that relays the status of a remote agent, with its metadata.
        metadata = {EXTENSION_URI: {"continues": True}}
        yield StatusUpdate(TaskState.AUTH_REQUIRED, agent_message(QUESTION), metadata)

    async with Engine(Store("sqlite://"), FunctionHandler(handle)).running() as engine:
        stream = await Operations(engine).stream(Operation.SEND_STREAMING_MESSAGE, request(), CALLER)
        with anyio.fail_after(20):
            events = [event async for batch in stream.batches() for event in batch]
    assert states(events) == ["SUBMITTED", "AUTH_REQUIRED"]
    assert b"continues" not in events[-1].body


async def test_only_this_state_continues() -> None:
    record = TaskRecord.create(request().message)
    record.submitted()
    with pytest.raises(InvalidAgentResponseError, match="AUTH_REQUIRED only"):
        record.apply(StatusUpdate(TaskState.INPUT_REQUIRED, continues=True))


async def crash(path: Path, handler: Authorized) -> str:
    """Start a task, and copy the database while its turn runs, as after kill -9; return the id of the task."""
    async with Engine(Store(f"sqlite:///{path}"), FunctionHandler(handler)).running() as engine:
        first = await start(engine)
        await read_until(first, TaskState.AUTH_REQUIRED)
        for suffix in ("", "-wal"):
            copyfile(f"{path}{suffix}", f"{path}.crashed{suffix}")
    return first.task_id


@pytest.mark.parametrize("restart", [False, True])
async def test_a_crash_ends_or_restarts_the_turn(tmp_path: Path, restart: bool) -> None:
    path = tmp_path / "tasks.db"
    task_id = await crash(path, Authorized())
    handler = Authorized()
    engine = Engine(Store(f"sqlite:///{path}.crashed"), FunctionHandler(handler), restart_interrupted=restart)
    async with engine.running():
        follower = await engine.subscribe(task_id, after=0)
        handler.granted.set()
        events = await read_until(follower, TaskState.COMPLETED if restart else TaskState.FAILED)
    assert handler.turns == (["hello"] if restart else [])
    assert states(events)[:3] == ["SUBMITTED", "WORKING", "AUTH_REQUIRED"]


async def test_a_task_whose_turn_ended_in_the_state_survives_a_restart(tmp_path: Path) -> None:
    async def handle(turn: Turn) -> AsyncIterator[Update]:
        if turn.number == 1:
            yield StatusUpdate(TaskState.AUTH_REQUIRED, agent_message(QUESTION))

    url = f"sqlite:///{tmp_path}/tasks.db"
    async with Engine(Store(url), FunctionHandler(handle)).running() as engine:
        first = await start(engine)
        await read_until(first, TaskState.AUTH_REQUIRED)
    async with Engine(Store(url), FunctionHandler(handle)).running() as engine:
        page = await engine.list_tasks(TaskFilter("", TaskState.AUTH_REQUIRED, None), limit=10)
        assert [task.id for task in page.tasks] == [first.task_id]
        await read_until(await start(engine, "granted", first.task_id), TaskState.COMPLETED)


@pytest.mark.parametrize("method", ["message/stream", "SendStreamingMessage"])
async def test_every_version_streams_the_rest(method: str) -> None:
    handler = Authorized()

    def grant(events: list[tuple[int, dict[str, object]]]) -> None:
        if any("auth" in str(event).lower() and QUESTION in str(event) for _, event in events):
            handler.granted.set()

    part = {"kind": "text", "text": "hello"}
    old = {"message": {"kind": "message", "messageId": "m", "role": "user", "parts": [part]}}
    async with (
        serving(create_app(Settings(store="sqlite://"), handler=handler)) as url,
        Rpc(url) as rpc,
    ):
        with anyio.fail_after(30):
            events = await rpc.stream(method, old if method == "message/stream" else message(), seen=grant)
        last = events[-1][1]
        if method == "message/stream":
            finals = [event.get("final") for _, event in events if event["kind"] == "status-update"]
            assert finals == [False, False, False, True]
            assert last["status"]["state"] == "completed"
        else:
            assert last["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
            task = await rpc.result("GetTask", {"id": events[0][1]["task"]["id"]})
            assert text_of(task) == "authorized"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_of_the_openai_api_ends_with_the_authorization(stream: bool) -> None:
    handler = Authorized()
    settings = Settings(store="sqlite://")
    async with serving(create_app(settings, handler=handler)) as url, Rpc(url) as rpc:
        body = {"model": "tailrace", "stream": stream, "messages": [{"role": "user", "content": "hello"}]}
        with anyio.fail_after(30):
            async with rpc.http.post(f"{url}/v1/chat/completions", json=body) as response:
                assert response.status == 200
                assert QUESTION in await response.text()
                task_id = response.headers["x-task-id"]
            handler.granted.set()
            await rpc.stream("SubscribeToTask", {"id": task_id}, {"last-event-id": "0"})
        assert text_of(await rpc.result("GetTask", {"id": task_id})) == "authorized"
