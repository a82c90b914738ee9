"""The resources of agents: held while the server runs, and of a replaced agent until its last turn has ended."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from support.engines import begin, read, start
from tailrace.server.runtime.engine import Engine
from tailrace.server.runtime.handlers import Handler, Item, Turn
from tailrace.server.runtime.limits import OverloadedError
from tailrace.server.runtime.served_agents import ServedAgent, ServedAgents
from tailrace.server.store.store import Store
from tailrace.streaming import TaskState, TextDelta
from tailrace.wrappers import ConfigurationError


class Failing(Handler):
    """A handler whose resource fails when `fails` is set, for the first time that it is held.

    Attributes:
        held_again: Set when the resource is held for the second time.
    """

    def __init__(self) -> None:
        self.fails = anyio.Event()
        self.held_again = anyio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        async def fail() -> None:
            await self.fails.wait()
            raise ValueError("the line is down")

        if self.fails.is_set():
            self.held_again.set()
            yield
            return
        async with anyio.create_task_group() as group:
            group.start_soon(fail)
            yield

    async def run(self, turn: Turn) -> AsyncIterator[Item]:
        for update in begin("text"):
            yield update


class Holding(Handler):
    """A handler with a resource, whose turns end when `go_on` is set.

    Attributes:
        held: The resource is held.
        closed: Set when the resource is released.
    """

    def __init__(
        self, text: str = "text", problem: str = "", end_problem: BaseException | None = None
    ) -> None:
        self.held = False
        self.closed = anyio.Event()
        self.begun = anyio.Event()
        self.go_on = anyio.Event()
        self._text = text
        self._problem = problem
        self._end_problem = end_problem

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        if self._problem:
            raise ConfigurationError(self._problem)
        self.held = True
        try:
            yield
        finally:
            self.held = False
            self.closed.set()
            if self._end_problem:
                raise self._end_problem

    async def run(self, turn: Turn) -> AsyncIterator[Item]:
        assert self.held
        for update in begin(self._text):
            yield update
        self.begun.set()
        await self.go_on.wait()
        assert self.held
        yield TextDelta("text", " end")


class Hanging(Holding):
    """A handler whose resource is not released unless the release is cancelled."""

    is_cancelled = False

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        yield
        try:
            await anyio.sleep_forever()
        finally:
            self.is_cancelled = True


async def test_resources_are_held_each_time_the_engine_runs() -> None:
    handler = Holding()
    handler.go_on.set()
    engine = Engine(Store("sqlite://"), handler)
    for _ in range(2):
        async with engine.running():
            events = await read(await start(engine))
            assert events[-1].state is TaskState.COMPLETED
        assert not handler.held


async def test_the_resources_of_a_replaced_agent_are_released_after_its_last_turn() -> None:
    old, new, other = Holding("old"), Holding("new"), Holding("other")
    kept = ServedAgent(other, "other")
    agents = ServedAgents([ServedAgent(old, "a"), kept])
    async with Engine(Store("sqlite://"), agents).running() as engine:
        first = await start(engine, agent="a")
        await old.begun.wait()
        await agents.replace([ServedAgent(new, "a"), kept])
        second = await start(engine, agent="a")
        await new.begun.wait()
        assert (old.held, new.held, other.held) == (True, True, True)
        assert not other.closed.is_set()
        old.go_on.set()
        assert (await read(first))[-1].state is TaskState.COMPLETED
        with anyio.fail_after(10):
            await old.closed.wait()
        new.go_on.set()
        assert (await read(second))[-1].state is TaskState.COMPLETED
        assert (new.held, other.held) == (True, True)
    assert (new.held, other.held) == (False, False)


@pytest.mark.parametrize("is_cancellation", [False, True])
async def test_an_error_while_resources_are_released_ends_nothing_else(
    caplog: pytest.LogCaptureFixture, is_cancellation: bool
) -> None:
    problem = asyncio.CancelledError("no such process") if is_cancellation else ValueError("no such process")
    old, other = Holding(end_problem=problem), Holding("other")
    other.go_on.set()
    remaining = ServedAgent(other, "b")
    agents = ServedAgents([ServedAgent(old, "a"), remaining])
    async with Engine(Store("sqlite://"), agents).running() as engine:
        await agents.replace([remaining])
        with anyio.fail_after(10):
            await old.closed.wait()
        assert (await read(await start(engine, agent="b")))[-1].state is TaskState.COMPLETED
    assert "the resources of the agent 'a' failed" in caplog.text
    assert "no such process" in caplog.text


async def test_if_a_new_agent_cannot_start_nothing_is_replaced() -> None:
    current, fine = Holding(), Holding("fine")
    current.go_on.set()
    agents = ServedAgents([ServedAgent(current, "a")])
    async with Engine(Store("sqlite://"), agents).running() as engine:
        with pytest.raises(ConfigurationError, match="no disk"):
            await agents.replace([ServedAgent(fine, "a"), ServedAgent(Holding(problem="no disk"), "b")])
        with anyio.fail_after(10):
            await fine.closed.wait()
        assert current.held
        assert (await read(await start(engine, agent="a")))[-1].state is TaskState.COMPLETED


async def test_failed_resources_are_acquired_again(caplog: pytest.LogCaptureFixture) -> None:
    failing, other = Failing(), Holding("other")
    other.go_on.set()
    agents = ServedAgents([ServedAgent(failing, "a"), ServedAgent(other, "b")])
    async with Engine(Store("sqlite://"), agents).running() as engine:
        failing.fails.set()
        with anyio.fail_after(10):
            while not agents.failed:
                await anyio.lowlevel.checkpoint()
        assert "the resources of the agent 'a' failed" in caplog.text
        assert "the line is down" in caplog.text
        with pytest.raises(OverloadedError, match="the resources of the agent failed"):
            await start(engine, agent="a")
        health = await engine.health()
        assert health.ready
        assert health.warnings == {"agents": "the resources of 1 failed"}
        assert (await read(await start(engine, agent="b")))[-1].state is TaskState.COMPLETED
        with anyio.fail_after(30):
            await failing.held_again.wait()
        assert (await read(await start(engine, agent="a")))[-1].state is TaskState.COMPLETED
        assert not (await engine.health()).warnings


@pytest.mark.parametrize("is_replaced", [False, True])
async def test_the_release_of_resources_ends_with_the_grace_time(
    caplog: pytest.LogCaptureFixture, is_replaced: bool
) -> None:
    hanging, other = Hanging(), ServedAgent(Holding("other"), "b")
    agents = ServedAgents([ServedAgent(hanging, "a"), other])
    with anyio.fail_after(30):
        async with Engine(Store("sqlite://"), agents, stop_grace=0.1).running():
            if is_replaced:
                await agents.replace([other])
    assert hanging.is_cancelled
    assert "the resources of some agents were not released in time" in caplog.text
