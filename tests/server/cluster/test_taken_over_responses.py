"""Responses of providers that one node requested and another node takes over."""

from collections.abc import Sequence

import anyio
import pytest

from support.continuing import ContinuingServer
from support.engines import read, read_until, start, text_of
from support.nodes import Nodes
from support.postgres import PostgresServer
from support.upstream import Hang, Received, ScriptedUpstream, Step, Wait
from support.valkey import ValkeyServer
from tailrace.server import AgentHandler
from tailrace.streaming import Agent, TaskState

PIECES = ["Water", " flows", " down", " the", " river."]


@pytest.fixture
async def nodes(postgres: PostgresServer, valkey: ValkeyServer) -> Nodes:
    return await Nodes.empty(postgres, valkey)


@pytest.mark.parametrize("is_late", [False, True])
async def test_a_node_that_lost_a_task_does_not_cancel_its_response(
    nodes: Nodes, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    """The other node reads it further. A suspended node may detect its loss only when more of the response arrives."""
    server = ContinuingServer("openai-background", PIECES)
    body = server.first_body
    begun, more = body.index(b" down"), body.index(b" the")
    begun, more = (body.rindex(b"\n\n", 0, at) + 2 for at in (begun, more))
    go_on = anyio.Event()

    async def never(_: object) -> None:
        await anyio.sleep_forever()

    def respond(request: Received) -> Sequence[Step]:
        steps = server.respond(request)
        if request.method == "POST" and not request.path.endswith("/cancel"):
            return [steps[0], body[:begun], Wait(go_on), body[begun:more], Hang()]
        return steps

    async with ScriptedUpstream(respond) as upstream:
        first, second = (
            nodes.node(AgentHandler(Agent(server.model(upstream))), restart_interrupted=True)
            for _ in range(2)
        )
        async with first.running(), second.running():
            started = await start(first)
            await started.wait_for_start()
            reader = await second.subscribe(started.task_id, after=0)
            await read_until(await second.subscribe(started.task_id, after=0), 4)
            name = first._node.id  # pyright: ignore[reportPrivateUsage]
            if is_late:
                monkeypatch.setattr(first._node, "beat", never)  # pyright: ignore[reportPrivateUsage]
            await postgres.execute(f"DELETE FROM nodes WHERE id = '{name}'", "nodes")
            events = await read(reader)
            go_on.set()
            assert events[-1].state is TaskState.COMPLETED
            assert text_of(await second.get_task(started.task_id)) == "".join(PIECES)
            assert await read(await first.subscribe(started.task_id, after=0)) == events
        # All turns have ended, also that of the first node.
        paths = [request.path.partition("?")[0] for request in upstream.requests]
    assert paths == ["/v1/responses", "/v1/responses/resp_1"]


async def test_another_node_continues_the_response_of_a_node_that_stops(nodes: Nodes) -> None:
    """It does not wait until the time to live of the first node has passed, and its subscribers receive every event."""
    server = ContinuingServer("llamacpp", PIECES, ending="silence")
    server.cut = server.first_body.index(b" the")
    nodes.ttl = 10.0
    async with ScriptedUpstream(server.respond, lists_models=True) as upstream:
        first, second = (
            nodes.node(AgentHandler(Agent(server.model(upstream))), restart_interrupted=True)
            for _ in range(2)
        )
        async with second.running():
            async with first.running():
                started = await start(first, context_id="rivers")
                await started.wait_for_start()
                waiting = await start(first, "next", context_id="rivers")
                await waiting.wait_for_start()
                reader = await second.subscribe(started.task_id, after=0)
                await read_until(await second.subscribe(started.task_id, after=0), 3)
            with anyio.fail_after(nodes.ttl):
                events = await read(reader)
            assert [event.number for event in events] == list(range(1, len(events) + 1))
            assert events[-1].state is TaskState.COMPLETED
            assert text_of(await second.get_task(started.task_id)) == "".join(PIECES)
            await read(await second.subscribe(waiting.task_id, after=0))
    assert server.prefills == 1
