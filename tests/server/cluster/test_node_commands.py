"""Commands between nodes over a real Valkey: executed once, or reported as not executed."""

from collections.abc import AsyncGenerator, Awaitable, Callable

import anyio
import pytest

from support.valkey import ValkeyServer
from tailrace.server.cluster import node_commands
from tailrace.server.cluster.broker import Broker
from tailrace.server.cluster.message_authentication import Authentication
from tailrace.server.cluster.node_commands import Cancel, Command, Commands, NoReply, WrongNodeError
from tailrace.server.store.secret_keys import SecretKeys

CANCEL = Cancel("t", "ann")


class Office:
    """Records commands, and answers them on a signal."""

    def __init__(self) -> None:
        self.received: list[Command] = []
        self.may_answer = anyio.Event()

    async def carry_out(self, command: Command) -> bytes:
        self.received.append(command)
        await self.may_answer.wait()
        return b"done"


@pytest.fixture
async def node(
    valkey: ValkeyServer,
) -> AsyncGenerator[Callable[[Callable[[Command], Awaitable[bytes]]], Commands]]:
    """Return a factory for the command endpoint of a node."""
    brokers: list[Broker] = []
    authentication = Authentication(SecretKeys())

    def make(carry_out: Callable[[Command], Awaitable[bytes]]) -> Commands:
        brokers.append(Broker(valkey.url()))
        return Commands(brokers[-1], authentication, carry_out)

    yield make
    for broker in brokers:
        await broker.close()


Make = Callable[[Callable[[Command], Awaitable[bytes]]], Commands]


async def test_a_command_reaches_a_node_that_subscribes_later(node: Make) -> None:
    office = Office()
    office.may_answer.set()
    asker, receiver = node(office.carry_out), node(office.carry_out)
    answers: list[bytes] = []

    async def ask() -> None:
        answers.append(await asker.send_request("b", CANCEL))
        group.cancel_scope.cancel()

    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(asker.run, "a")
            group.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            group.start_soon(receiver.run, "b")
    assert answers == [b"done"]
    assert office.received == [CANCEL]


async def test_a_repeated_request_is_carried_out_once(
    node: Make, valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_commands, "REPEAT_INTERVAL", 0.02)
    office = Office()
    asker, receiver = node(office.carry_out), node(office.carry_out)
    received: list[bytes] = []

    def overhear(_: bytes, message: bytes) -> None:
        received.append(message)
        if len(received) == 4:
            office.may_answer.set()

    broker = Broker(valkey.url())
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(asker.run, "a")
            group.start_soon(receiver.run, "b")
            listening = anyio.Event()
            spy = broker.subscriber(lambda _: listening.set(), overhear)
            group.start_soon(spy.run, lambda: [b"tailrace:node:b"])
            await listening.wait()
            assert await asker.send_request("b", CANCEL) == b"done"
            group.cancel_scope.cancel()
    assert len(received) >= 4
    assert office.received == [CANCEL]


async def test_a_refusal_of_a_node_is_raised_at_the_sender(node: Make) -> None:
    async def refuse(_: Command) -> bytes:
        raise WrongNodeError

    asker, receiver = node(refuse), node(refuse)
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(asker.run, "a")
            group.start_soon(receiver.run, "b")
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(WrongNodeError):
                await asker.send_request("b", CANCEL)
            group.cancel_scope.cancel()


async def test_a_request_that_is_too_old_is_not_begun(node: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        node_commands, "MAX_AGE", -1.0
    )  # as if the node had been stopped when the command arrived
    monkeypatch.setattr(node_commands, "REQUEST_TIMEOUT", 0.5)
    office = Office()
    asker, receiver = node(office.carry_out), node(office.carry_out)
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(asker.run, "a")
            group.start_soon(receiver.run, "b")
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(NoReply):
                await asker.send_request("b", CANCEL)
            group.cancel_scope.cancel()
    assert not office.received


async def test_a_request_is_as_old_as_its_first_publication(
    node: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_commands, "MAX_AGE", 0.2)
    monkeypatch.setattr(node_commands, "REQUEST_TIMEOUT", 1.0)
    monkeypatch.setattr(node_commands, "REPEAT_INTERVAL", 0.02)
    office = Office()
    asker, receiver = node(office.carry_out), node(office.carry_out)
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(asker.run, "a")
            await anyio.wait_all_tasks_blocked()

            async def listen_late() -> None:
                await anyio.sleep(0.4)  # the requester repeats the request meanwhile
                await receiver.run("b")

            group.start_soon(listen_late)
            with pytest.raises(NoReply):
                await asker.send_request("b", CANCEL)
            group.cancel_scope.cancel()
    assert not office.received


async def test_the_requests_that_run_at_the_same_time_are_limited(
    node: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_commands, "MAX_REQUESTS", 3)
    monkeypatch.setattr(node_commands, "REPEAT_INTERVAL", 0.02)
    running: list[int] = []
    most = 0

    async def carry_out(_: Command) -> bytes:
        nonlocal most
        running.append(1)
        most = max(most, len(running))
        await anyio.sleep(0.01)
        running.pop()
        return b"done"

    asker, receiver = node(carry_out), node(carry_out)
    answers: list[bytes] = []

    async def ask() -> None:
        answers.append(await asker.send_request("b", CANCEL))

    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(asker.run, "a")
            group.start_soon(receiver.run, "b")
            await anyio.wait_all_tasks_blocked()
            async with anyio.create_task_group() as asking:
                for _ in range(12):
                    asking.start_soon(ask)
            group.cancel_scope.cancel()
    assert answers == [b"done"] * 12
    assert most == 3
