"""Task streams in a real Valkey: written by one node only, read from any number on."""

from collections.abc import AsyncGenerator

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.valkey import ValkeyServer
from tailrace.server.cluster.broker import Broker
from tailrace.server.cluster.broker_connection import BrokerError
from tailrace.server.cluster.event_streams import Addition, Outcome, TaskStreams, stream_key
from tailrace.server.cluster.message_authentication import Authentication
from tailrace.server.store.secret_keys import SecretKeys
from tailrace.streaming import Event, TaskState
from tailrace.wrappers import ConfigurationError

AUTHENTICATION = Authentication(SecretKeys())


def events(first: int, last: int, by: str = "") -> list[Event]:
    return [Event(number, f"{by}{number}".encode()) for number in range(first, last + 1)]


def addition(task_id: str, first: int, last: int, *, begins: bool = False, by: str = "") -> Addition:
    return Addition(task_id, events(first, last, by), begins, 0)


async def numbers(streams: TaskStreams, task_id: str, after: int = 0) -> list[int]:
    return [event.number for event in (await streams.read(task_id, after, 100)).events]


@pytest.fixture
async def streams(valkey: ValkeyServer) -> AsyncGenerator[TaskStreams]:
    valkey.command("FLUSHALL")
    broker = Broker(valkey.url())
    yield TaskStreams(broker, AUTHENTICATION)
    await broker.close()


ITEMS = st.lists(
    st.tuples(st.binary(max_size=50), st.none() | st.sampled_from(TaskState)), min_size=1, max_size=9
)


@given(first=st.integers(1, 2**40), items=ITEMS)
async def test_events_are_read_as_they_were_written(
    valkey: ValkeyServer, first: int, items: list[tuple[bytes, TaskState | None]]
) -> None:
    broker = Broker(valkey.url())
    streams = TaskStreams(broker, AUTHENTICATION)
    written = [Event(first + at, body, state) for at, (body, state) in enumerate(items)]
    await streams.remove("t")
    await streams.add("node", [Addition("t", written, True, 0)])
    assert (await streams.read("t", first - 1, 10)).events == written
    await broker.close()


async def test_what_is_added_is_published_and_what_is_refused_is_not(streams: TaskStreams) -> None:
    received: list[tuple[bytes, list[Event]]] = []
    began, more = anyio.Event(), anyio.Event()

    def take(key: bytes, message: bytes) -> None:
        received.append((key, streams.read_message(key, message)))
        if key == stream_key("last"):
            more.set()

    subscriber = streams.broker.subscriber(lambda _: began.set(), take)
    async with anyio.create_task_group() as group:
        group.start_soon(subscriber.run, lambda: [stream_key("t"), stream_key("last")])
        with anyio.fail_after(10):
            await began.wait()
            await streams.add("a", [addition("t", 1, 2, begins=True), addition("unheard", 1, 1, begins=True)])
            await streams.add("a", [addition("t", 1, 2, begins=True)])  # a repeated attempt
            await streams.add("b", [addition("t", 3, 3)])
            await streams.add("a", [addition("t", 3, 3)])
            await streams.add("a", [addition("last", 1, 1, begins=True)])
            await more.wait()
        group.cancel_scope.cancel()
    t = stream_key("t")
    assert received == [(t, events(1, 2)), (t, events(3, 3)), (stream_key("last"), events(1, 1))]


async def test_many_tasks_are_added_to_at_once_and_read_from_any_number(streams: TaskStreams) -> None:
    names = [f"task {number}" for number in range(50)]
    first = [addition(name, 1, 3, begins=True) for name in names]
    assert await streams.add("a", first) == [Outcome.ADDED] * 50
    assert await streams.add("a", [addition(name, 4, 4) for name in names]) == [Outcome.ADDED] * 50
    for name in names:
        assert await numbers(streams, name) == [1, 2, 3, 4]
    assert await numbers(streams, "task 7", 3) == [4]
    assert await numbers(streams, "task 7", 4) == []


async def test_a_try_whose_answer_was_lost_is_not_added_twice(streams: TaskStreams) -> None:
    await streams.add("a", [addition("t", 1, 3, begins=True)])
    assert await streams.add("a", [addition("t", 1, 3, begins=True)]) == [Outcome.ALREADY_PRESENT]
    assert await numbers(streams, "t") == [1, 2, 3]


async def test_a_node_whose_task_was_taken_over_can_add_nothing(streams: TaskStreams) -> None:
    await streams.add("a", [addition("t", 1, 3, begins=True)])
    await streams.fence("b", "t")
    await streams.fence("c", "t")  # once more, because the second node failed, too
    for stale in ("a", "b"):
        assert await streams.add(stale, [addition("t", 4, 4)]) == [Outcome.REFUSED]
        assert await streams.add(stale, [addition("t", 4, 9)]) == [Outcome.REFUSED]
    assert await streams.add("c", [addition("t", 4, 4, by="c")]) == [Outcome.ADDED]
    assert (await streams.read("t", 3, 10)).events == events(4, 4, "c")
    assert await streams.add("a", [addition("t", 5, 5)]) == [Outcome.REFUSED]


async def test_a_stream_that_was_never_there_can_be_taken_over(streams: TaskStreams) -> None:
    await streams.fence("b", "t")
    assert await streams.add("a", [addition("t", 7, 7)]) == [Outcome.REFUSED]
    assert await streams.add("b", [addition("t", 7, 7)]) == [Outcome.ADDED]


async def test_a_stream_that_is_gone_is_not_gone_on_with_unasked(
    streams: TaskStreams, valkey: ValkeyServer
) -> None:
    await streams.add("a", [addition("t", 1, 3, begins=True)])
    valkey.command("FLUSHALL")
    valkey.command("SCRIPT", "FLUSH")  # as after a restart without persistence
    assert await streams.add("a", [addition("t", 4, 4)]) == [Outcome.MISSING]
    assert await streams.add("a", [addition("t", 4, 4, begins=True)]) == [Outcome.ADDED]
    assert await numbers(streams, "t") == [4]


async def test_event_numbers_may_have_gaps(streams: TaskStreams) -> None:
    await streams.add("a", [addition("t", 1, 3, begins=True)])
    assert await streams.add("a", [addition("t", 9, 10)]) == [Outcome.ADDED]
    assert await numbers(streams, "t") == [1, 2, 3, 9, 10]


async def test_a_stream_is_kept_for_a_time(streams: TaskStreams, valkey: ValkeyServer) -> None:
    await streams.add("a", [Addition("t", events(1, 1), True, 1000)])
    assert b":1000" in valkey.command("TTL", stream_key("t").decode())
    await streams.remove("t")
    assert await numbers(streams, "t") == []


async def test_a_broker_that_is_not_there_is_an_error_in_bounded_time() -> None:
    broker = Broker("redis://127.0.0.1:1/0")
    with pytest.raises(BrokerError, match="TAILRACE_EVENTS"):
        await TaskStreams(broker, AUTHENTICATION).read("t", 0, 1)
    assert not await broker.is_available()


async def test_an_error_of_the_broker_keeps_its_message(streams: TaskStreams, valkey: ValkeyServer) -> None:
    valkey.command("CONFIG", "SET", "maxmemory", "1")
    try:
        with pytest.raises(BrokerError, match="OOM"):
            await streams.add("a", [addition("t", 1, 1, begins=True)])
    finally:
        valkey.command("CONFIG", "SET", "maxmemory", "0")


@pytest.mark.parametrize("url", ["http://x", "redis://host:no", "valkey", ""])
def test_an_address_that_is_none_is_the_operators_mistake(url: str) -> None:
    with pytest.raises(ConfigurationError, match="TAILRACE_EVENTS"):
        Broker(url)
