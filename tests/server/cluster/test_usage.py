"""The ledger of several nodes: a task that another node takes over is counted once."""

import anyio
import pytest

from support.engines import read, read_until, start, text_of
from support.nodes import Nodes
from support.postgres import PostgresServer
from support.upstream import Received, ScriptedUpstream, Step, Wait, openai_stream
from support.valkey import ValkeyServer
from tailrace.server import AgentHandler
from tailrace.server.cluster.engine import ClusterEngine
from tailrace.server.runtime.served_agents import ServedAgent, ServedAgents
from tailrace.server.runtime.usage_ledger import UsageLedger
from tailrace.server.store.usage_store import UsageFilter
from tailrace.streaming import Agent, TaskState
from tailrace.wrappers.providers import create_model

ALWAYS = UsageFilter(0, 2**62)


@pytest.fixture
async def nodes(postgres: PostgresServer, valkey: ValkeyServer) -> Nodes:
    return await Nodes.empty(postgres, valkey)


def usage(given: int, made: int) -> dict[str, int]:
    return {"prompt_tokens": given, "completion_tokens": made, "total_tokens": given + made}


@pytest.mark.parametrize("is_late", [False, True])
async def test_an_attempt_of_a_node_that_was_given_up_is_lost_and_not_counted(
    nodes: Nodes, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    """Also if the node receives the end of the response later, before it detects that it was given up."""
    go_on = anyio.Event()
    cut, whole = openai_stream(["half"], usage=usage(100, 200)), openai_stream(["whole"], usage=usage(5, 7))
    scripts: list[list[Step]] = [[*cut[:2], Wait(go_on), *cut[2:]], [*whole]]

    def respond(_: Received) -> list[Step]:
        return scripts.pop(0)

    async with ScriptedUpstream(respond) as upstream:

        def node() -> ClusterEngine:
            agent = Agent(create_model("openai:m", base_url=upstream.base_url, api_key="none"))
            agents = ServedAgents([ServedAgent(AgentHandler(agent), provider="openai", model="m")])
            return nodes.node(agents, restart_interrupted=True, ledger=UsageLedger("a"))

        first, second = node(), node()
        async with first.running(), second.running():
            started = await start(first)
            await started.wait_for_start()
            reader = await second.subscribe(started.task_id, after=0)
            await read_until(await second.subscribe(started.task_id, after=0), 3)
            name = first._node.id  # pyright: ignore[reportPrivateUsage]
            if is_late:  # the node detects that it was given up only when it writes
                monkeypatch.setattr(first._node, "beat", anyio.sleep_forever)  # pyright: ignore[reportPrivateUsage]
            await postgres.execute(f"DELETE FROM nodes WHERE id = '{name}'", "nodes")
            events = await read(reader)
            go_on.set()
            assert events[-1].state is TaskState.COMPLETED
            assert text_of(await second.get_task(started.task_id)) == "whole"
            assert await read(await first.subscribe(started.task_id, after=0)) == events
            async with nodes.store_of_one() as (store, _):
                found = await store.usage.sums(ALWAYS, ("state",), 9)
    assert [(each.group, each.attempts, each.input_tokens, each.output_tokens) for each in found] == [
        (("final",), 1, 5, 7),
        (("lost",), 1, 0, 0),
    ]
